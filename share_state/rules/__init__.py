"""The rules of the audit: `registry` runs them, every other module holds a family of rules."""

from share_state.rules import (
    chains,
    control_records,
    epochs,
    groups,
    operations,
    record_batches,
    records,
    state_batches,
)
from share_state.rules.registry import ERROR, INFO, OFF, SEVERITIES, WARNING, Rule, judge, judge_records, registered

__all__ = [
    "ERROR",
    "INFO",
    "OFF",
    "SEVERITIES",
    "WARNING",
    "Rule",
    "chains",
    "control_records",
    "epochs",
    "groups",
    "judge",
    "judge_records",
    "operations",
    "record_batches",
    "records",
    "registered",
    "state_batches",
]
