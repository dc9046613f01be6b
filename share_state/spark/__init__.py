"""The only room that knows Spark: session, plan, tasks, sources."""
