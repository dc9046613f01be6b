"""The audit's configuration: one YAML file a cluster, then environment variables, then `--set`."""

from share_state.config.keys import Key, keys
from share_state.config.keys_page import BEGIN, END, main, with_keys
from share_state.config.loading import load_settings, settings_for
from share_state.config.model import (
    AuditSettings,
    Clock,
    Dialect,
    Format,
    LimitSettings,
    ReportSettings,
    RetentionSettings,
    Source,
    SparkSettings,
)
from share_state.config.refusals import ConfigError

__all__ = [
    "BEGIN",
    "END",
    "AuditSettings",
    "Clock",
    "ConfigError",
    "Dialect",
    "Format",
    "Key",
    "LimitSettings",
    "ReportSettings",
    "RetentionSettings",
    "Source",
    "SparkSettings",
    "keys",
    "load_settings",
    "main",
    "settings_for",
    "with_keys",
]
