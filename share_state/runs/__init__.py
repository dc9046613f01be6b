"""What a command does with a warehouse, and where its tasks run: in this process, or in Spark's workers."""
