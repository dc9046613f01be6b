"""The same log through Kafka's own classes and through share_state; see bench/README.md for what is counted."""
