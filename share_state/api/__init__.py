"""The Python API: `calls` holds the functions of `share_state`, `tables` what they return."""
