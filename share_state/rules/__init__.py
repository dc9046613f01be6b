"""The audit: one file a family of rules. A rule is a function over columns; importing this room registers them all.

Rules over traced records see those that fold/remarkable.py tells: what such a rule looks for is a condition there.
"""

from share_state.rules import (
    batch_contents,
    batches,
    between_audits,
    chains,
    control_chains,
    counts,
    deletions,
    epochs,
    groups_registered,
    operations,
    records,
    snapshots,
    starts,
    timestamps,
    writers_4_4,
)
from share_state.rules.registry import ERROR, INFO, OFF, SEVERITIES, WARNING, Rule, judge, judge_records, registered

__all__ = [
    "ERROR",
    "INFO",
    "OFF",
    "SEVERITIES",
    "WARNING",
    "Rule",
    "batch_contents",
    "batches",
    "between_audits",
    "chains",
    "control_chains",
    "counts",
    "deletions",
    "epochs",
    "groups_registered",
    "judge",
    "judge_records",
    "operations",
    "records",
    "registered",
    "snapshots",
    "starts",
    "timestamps",
    "writers_4_4",
]
