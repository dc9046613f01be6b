"""Bytes to columns: log folders, record batches, share-group-state records. Never Spark."""
