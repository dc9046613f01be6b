"""Records to state: chains, intervals, timeline, explanation, cutoff; the group side. Never Spark."""
