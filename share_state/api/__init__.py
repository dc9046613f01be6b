"""What notebooks call: `share_state.reconstruct`, `read`, `timeline`, `explain` and `cutoff` (docs/python.md)."""
