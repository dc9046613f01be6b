"""Inputs that only Spark can read, or put in order."""
