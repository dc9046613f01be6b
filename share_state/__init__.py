"""Kafka share-group state from exported logs: the Python API (docs/python.md), imported on first use."""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from share_state.errors import missing_module
from share_state.version import __version__

__all__ = [
    "FOLD_GROUP_SCHEMA",
    "Differences",
    "Explained",
    "OpenedWarehouse",
    "Tables",
    "Topics",
    "Why",
    "__version__",
    "audit",
    "cutoff",
    "decode",
    "diff",
    "explain",
    "fold_group",
    "fold_records",
    "open",
    "plots",
    "read",
    "reconstruct",
    "register",
    "repair",
    "session",
    "timeline",
    "why",
]

if TYPE_CHECKING:
    from share_state.api.answers import Differences, Explained, Why, audit, diff, explain, repair, why
    from share_state.api.calls import cutoff, decode, fold_records, read, reconstruct, timeline
    from share_state.api.opened import OpenedWarehouse, open
    from share_state.api.tables import Tables
    from share_state.fold.fold_group import FOLD_GROUP_SCHEMA, fold_group
    from share_state.report import plots
    from share_state.sources.topics import Topics
    from share_state.spark.data_source import register
    from share_state.spark.session import start as session

_MODULES = {
    "api.answers": ("Differences", "Explained", "Why", "audit", "diff", "explain", "repair", "why"),
    "api.calls": ("cutoff", "decode", "fold_records", "read", "reconstruct", "timeline"),
    "api.tables": ("Tables",),
    "api.opened": ("OpenedWarehouse", "open"),
    "fold.fold_group": ("FOLD_GROUP_SCHEMA", "fold_group"),
    "sources.topics": ("Topics",),
    "spark.data_source": ("register",),
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that callers do not load Spark, matplotlib or kernels that they do not need.

    Raises:
        SetupError: if a module of an extra is needed and not installed.
    """
    for module, names in _MODULES.items():
        if name in names:
            return getattr(_import(module), name)
    if name == "session":
        return _import("spark.session").start
    if name == "plots":
        return _import("report.plots")
    raise AttributeError(f"module 'share_state' has no attribute '{name}'")


def _import(module: str) -> ModuleType:
    try:
        return import_module(f"share_state.{module}")
    except ImportError as error:
        raise missing_module(error) from None


def __dir__() -> list[str]:
    """Include the names that are imported on first use."""
    return sorted({*globals(), *__all__})
