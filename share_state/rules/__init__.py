"""The audit: one file a family of rules. A rule is a function over columns; importing this room registers them all."""

from share_state.rules import batches, chains, control_chains, records
from share_state.rules.registry import ERROR, INFO, OFF, SEVERITIES, WARNING, Rule, judge, registered

__all__ = [
    "ERROR",
    "INFO",
    "OFF",
    "SEVERITIES",
    "WARNING",
    "Rule",
    "batches",
    "chains",
    "control_chains",
    "judge",
    "records",
    "registered",
]
