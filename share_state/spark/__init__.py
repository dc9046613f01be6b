"""The only room that knows Spark: session, plan, Delta writes."""
