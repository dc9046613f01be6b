"""The rules of an audit. `registry` declares rules, `findings` evaluates them, every other module holds a family.

Over state records: `records`, `record_batches`, then with the context of each record `epochs`, `state_batches` and
`chains`, and `operations` over the folded state. `control_chains` and `control_records` are about the draft's dialect.
Over groups: `group_context` is what `groups` and `group_members` judge; `sticky` is about classic consumer groups.
`dead_letters` is about dead-letter topics.
"""

from share_state.rules import (
    chains,
    control_chains,
    control_records,
    dead_letters,
    epochs,
    group_members,
    groups,
    operations,
    record_batches,
    records,
    state_batches,
    sticky,
)
from share_state.rules.findings import judge, judge_records
from share_state.rules.registry import ERROR, INFO, OFF, SEVERITIES, WARNING, Rule, registered

__all__ = [
    "ERROR",
    "INFO",
    "OFF",
    "SEVERITIES",
    "WARNING",
    "Rule",
    "chains",
    "control_chains",
    "control_records",
    "dead_letters",
    "epochs",
    "group_members",
    "groups",
    "judge",
    "judge_records",
    "operations",
    "record_batches",
    "records",
    "registered",
    "state_batches",
    "sticky",
]
