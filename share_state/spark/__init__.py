"""Everything that uses Spark: whether a command uses it, its session, and how plans run on it.

`choice` decides, `session` starts it, `spark_executor` runs plans, and `sorted_tables` sorts tables. Only
`choice` imports no Spark.
"""
