"""Configuration: `input_spec` defines InputSpec, `model` the settings of the audit, and `loading` reads the settings.

Options, YAML keys and Python arguments all build an InputSpec. Settings come from YAML, environment variables
and `--set`.
"""
