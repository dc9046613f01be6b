"""How a rule about groups is stated, what it answers, and how answers become rows of the table `findings`.

Rules over folded log partitions answer with columns (rules/registry.py). Groups are few, so these answer with rows.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa

from share_state.declarations import table_schema

ERROR, WARNING, INFO, OFF = "error", "warning", "info", "off"
DIALECT = "share_group_state"


@dataclass(frozen=True, slots=True)
class RuleText:
    """What a person needs to know of a rule: its code, default severity, the statement that must hold, its source."""

    code: str
    severity: str
    statement: str
    source: str


@dataclass(frozen=True, slots=True)
class GroupFinding:
    """One broken rule about a group.

    Attributes:
        message: what is wrong, in a sentence.
        group_id: the group, None where none is known.
        topic_id: Kafka's text of the topic's uuid, None for groups that name topics only.
        topic: name of the topic, None where unknown.
        partition: of the topic.
        state_partition: of `__share_group_state`, where the finding is about state.
        offset: in `__consumer_offsets`, with a state partition in `__share_group_state`; None or -1 for none.
        evidence: the numbers behind it.
        severity: where the rule is milder or graver than by default.
        dialect: share_group_state for share groups, None for groups without share-partitions.
    """

    message: str
    group_id: str | None = None
    topic_id: str | None = None
    topic: str | None = None
    partition: int | None = None
    state_partition: int | None = None
    offset: int | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)
    severity: str | None = None
    dialect: str | None = DIALECT


_Audited = TypeVar("_Audited")

Rules = tuple[tuple[RuleText, Callable[[_Audited], list[GroupFinding]]], ...]
"""Every rule of a file beside the function that judges it."""


def judged(rules: Rules[_Audited], audited: _Audited, severities: Mapping[str, str] | None = None) -> pa.Table:
    """Run rules over what they judge.

    Args:
        rules: texts and functions.
        audited: what the functions take.
        severities: code -> severity, or OFF, in place of the rule's own.
    Returns:
        The table `findings`, its run_id still null.
    """
    chosen = severities or {}
    found = [(text, check(audited)) for text, check in rules if chosen.get(text.code) != OFF]
    return findings_table(found, chosen)


def findings_table(found: Iterable[tuple[RuleText, Sequence[GroupFinding]]], severities: Mapping[str, str]) -> pa.Table:
    """Findings as the table of that name.

    Args:
        found: each rule with what breaks it.
        severities: code -> severity in place of the rule's own.
    """
    rows = [
        {
            "rule": text.code,
            "severity": severities.get(text.code, one.severity or text.severity),
            "dialect": one.dialect,
            "group_id": one.group_id,
            "topic_id": one.topic_id,
            "topic": one.topic,
            "partition": one.partition,
            "state_partition": one.state_partition,
            "offset": one.offset if one.offset is not None and one.offset >= 0 else None,
            "message": one.message,
            "evidence": [(name, str(value)) for name, value in one.evidence.items()],
            "run_id": None,
            "settled": False,
        }
        for text, findings in found
        for one in findings
    ]
    return pa.Table.from_pylist(rows, schema=table_schema("findings"))


def listed(numbers: Iterable[object], most: int = 10) -> str:
    """A few of many, for a message: "1, 2, 3 and 7 more"."""
    every = [str(number) for number in numbers]
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more
