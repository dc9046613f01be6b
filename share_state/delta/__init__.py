"""The warehouse of Delta tables, read and written without Spark.

`files` writes rows as Parquet files, also in tasks; `warehouse` locks a warehouse and commits files as table versions;
`reader` reads what the last run committed, and lists the files of Delta tables that are inputs.
"""
