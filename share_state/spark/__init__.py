"""Everything that uses Spark: `choice` decides whether a command uses it, `session` starts it, `executor` runs plans.

`inputs` sorts tables. Only `choice` imports no Spark.
"""
