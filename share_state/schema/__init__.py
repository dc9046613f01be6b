"""The declarations of tables and records under schemas/."""
