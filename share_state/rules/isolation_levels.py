"""What the isolation levels of share groups explain: counts of offsets that a leader finishes without a state batch.

A leader of a read_committed group archives the records of aborted transactions in memory only. They count as
finished, also after the last offset in flight, where the log shows no gap. Only the configs of groups tell of
them, and rules over records do not know these.

Source: Kafka SharePartition.maybeFilterAbortedTransactionalAcquiredRecords, GroupConfig share.isolation.level.
"""

from typing import Any

import pyarrow as pa

from share_state.sources.group_configs import GroupConfigs

_RULE = "DELIVERY_COMPLETE_COUNT_MISMATCH"
_CONFIG = "share.isolation.level"
_READ_COMMITTED = "read_committed"
_UNSURE = "; a read_committed group may have finished offsets of aborted transactions after them"


def explain_counts(findings: pa.Table, configs: GroupConfigs) -> pa.Table:
    """Leave out the delivery complete counts that the isolation level of their group explains.

    Args:
        findings: rows of the table `findings`.
        configs: what is known of the configs of groups; without an origin nothing is.
    Returns:
        The findings without those of read_committed groups whose count exceeds what is in flight. Those of other
        groups no longer name aborted transactions as a possible cause.
    """
    if not configs.origin or _RULE not in findings["rule"].unique().to_pylist():
        return findings
    rows = findings.select(["rule", "group_id", "message", "evidence"]).to_pylist()
    is_beyond = [row["rule"] == _RULE and _is_beyond(dict(row["evidence"] or ())) for row in rows]
    is_committed = [_level(configs, row["group_id"]) == _READ_COMMITTED for row in rows]
    messages = [
        row["message"].replace(_UNSURE, "") if beyond else row["message"]
        for row, beyond in zip(rows, is_beyond, strict=True)
    ]
    column = findings.schema.get_field_index("message")
    worded = findings.set_column(
        column, findings.schema.field(column), pa.array(messages, findings["message"].type)
    )
    is_left = [not (beyond and level) for beyond, level in zip(is_beyond, is_committed, strict=True)]
    return worded.filter(pa.array(is_left, pa.bool_()))


def _is_beyond(evidence: dict[str, Any]) -> bool:
    """Whether a count exceeds the offsets in flight."""
    return "found" in evidence and int(evidence["found"]) > int(evidence["in_flight"])


def _level(configs: GroupConfigs, group: str | None) -> str | None:
    return next((one.value for one in configs.effective(group or "") if one.name == _CONFIG), None)
