"""The formats of Kafka: record batches, compression, state records, control records, group records, printed text."""
