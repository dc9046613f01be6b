"""Kafka share-group state, read from exported logs."""

__version__ = "0.1.0"
