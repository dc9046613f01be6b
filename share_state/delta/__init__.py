"""The warehouse of Delta tables, read and written without Spark.

`reader` reads what the last run committed, and Delta tables that are inputs; `staging` holds rows that tasks
make until they are committed; `warehouse_place` checks and locks the place of a warehouse; `warehouse`
commits rows as table versions, with the columns of `table_columns`; `merge` merges changed rows of a stream.
"""
