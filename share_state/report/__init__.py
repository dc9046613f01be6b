"""What people look at: tables in a terminal, files for other tools. Takes Arrow tables, never Spark."""
