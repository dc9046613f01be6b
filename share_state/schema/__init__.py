"""The declarations under schemas/: tables and record layouts, as Arrow, Spark and the docs need them."""
