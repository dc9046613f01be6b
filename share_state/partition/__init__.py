"""A live share-partition, as its leader keeps it in memory: what it hands out, what it wants persisted. Never Spark."""
