"""The only package that imports pyspark: session, executor, inputs that only Spark can read, jars."""
