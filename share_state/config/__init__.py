"""The configuration of the audit: `model` declares the keys, `loading` reads YAML, environment and overrides."""
