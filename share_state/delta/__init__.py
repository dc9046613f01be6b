"""The warehouse of Delta tables, without Spark: reading what a run committed, writing and committing files."""
