"""The share-partition state machine of a broker, made-up histories of share groups, and planted faults."""
