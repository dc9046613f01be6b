"""The warehouse of Delta tables, read and written without Spark.

`reader` reads what the last run committed, and Delta tables that are inputs; `staging` holds rows that tasks make until
they are committed; `warehouse` locks a warehouse and commits rows as table versions, `merge` changed rows of a stream.
"""
