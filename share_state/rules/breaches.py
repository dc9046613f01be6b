"""What rules return: breaches, messages of findings, and the texts in them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from share_state.fold.interval_map import UNCOVERED
from share_state.fold.log_stats import Folded
from share_state.fold.states import SHARE_GROUP_STATE
from share_state.kafka.delivery_states import state_name

ERROR = "error"
WARNING = "warning"
INFO = "info"
OFF = "off"
SEVERITIES = (ERROR, WARNING, INFO)


def at_or_above(severity: str) -> tuple[str, ...]:
    """The given severity and those above it; none for OFF."""
    return () if severity == OFF else SEVERITIES[: SEVERITIES.index(severity) + 1]


OVER_LIMIT = "DELIVERY_COUNT_OVER_LIMIT"
"""The rule that a log breaks which shows more deliveries than the known limit of a group allows."""

NO_KEY = -1
FINDINGS = "findings"
"""Name of evidence: how many findings a row represents; 1 in rows without it."""


WAITED = "{waited}"
"""Placeholder in messages for the duration since `Breaches.since`."""


PLACE = "{place}"
"""Placeholder in messages, before the offset of a record: becomes "offset", or "record" if the input has no
offsets and records are numbered instead."""


Column = str | np.ndarray | pa.Array | pa.ChunkedArray
"""One value per finding, or one text for all of them."""


@dataclass(frozen=True, slots=True)
class Breaches:
    """Breaches of a rule, one row per finding.

    Attributes:
        offset: int64, offset in the log partition, -1 for none.
        message: pieces of one sentence; texts may contain PLACE.
        key: int64, number of the share-partition, or NO_KEY.
        evidence: the values behind the finding: name -> column, or a map per row.
        severity: severity of each finding; None for the rule's own severity.
        settled: bool, whether no later audit reads the records of the finding again; default: false.
        identity: columns of `findings` that identify the subject of a finding about groups; replaces `key`.
        written: int64, ms: timestamp of the record if the finding counts only if 4.4 or later wrote the
            record; -1 if it always counts. None if all findings count.
        since: int64, ms: when the duration began that WAITED stands for in the message and that the evidence
            "milliseconds" has; -1 for none. It ends at the newest record of the export, which a task does not
            know.
        due: int64, ms: the finding counts only if the export goes on until then; -1 if it always counts.
        until: int64, ms: the finding counts only if the export ends before then; -1 if it always counts.
    """

    offset: np.ndarray
    message: tuple[Column, ...]
    key: np.ndarray | None = None
    evidence: Mapping[str, Column] | pa.MapArray = field(default_factory=dict)
    severity: np.ndarray | None = None
    settled: np.ndarray | None = None
    identity: Mapping[str, pa.Array] | None = None
    written: np.ndarray | None = None
    since: np.ndarray | None = None
    due: np.ndarray | None = None
    until: np.ndarray | None = None


NOTHING = Breaches(np.zeros(0, np.int64), ("",))


def take_breaches(breaches: Breaches, rows: np.ndarray) -> Breaches:
    """Some rows of breaches whose evidence is in columns; a row may be taken twice."""

    def take(column: Any) -> Any:
        if column is None or isinstance(column, str):
            return column
        return column[rows] if isinstance(column, np.ndarray) else column.take(pa.array(rows))

    return replace(
        breaches,
        offset=breaches.offset[rows],
        message=tuple(map(take, breaches.message)),
        key=take(breaches.key),
        evidence={name: take(column) for name, column in breaches.evidence.items()},  # type: ignore[union-attr]
        severity=take(breaches.severity),
        settled=take(breaches.settled),
        written=take(breaches.written),
        since=take(breaches.since),
        due=take(breaches.due),
        until=take(breaches.until),
    )


def at_share_partitions(
    folded: Folded,
    rows: np.ndarray,
    *pieces: Column,
    offset: np.ndarray | None = None,
    severity: np.ndarray | None = None,
    **evidence: Column,
) -> Breaches:
    """One breach per live share-partition.

    Args:
        folded: the folded log partition.
        rows: rows of `folded.chains.chains`.
        offset: by default that of the last record of each share-partition.
        pieces, severity, evidence: as in Breaches.
    """
    offset = folded.chains.chains["last_offset"][rows] if offset is None else offset
    return Breaches(offset, pieces, key=folded.numbers[rows], evidence=evidence, severity=severity)


@dataclass(frozen=True, slots=True)
class GroupBreach:
    """One breach of a rule about groups.

    Attributes:
        message: the message, a sentence.
        group_id: None if unknown.
        topic_id: id of the topic as Kafka prints it; None for groups that only name topics.
        topic: name of the topic; None if unknown.
        partition: partition of the topic.
        state_partition: partition of `__share_group_state`, if the breach is about state.
        offset: offset in `__share_group_state` if there is a state partition, else in `__consumer_offsets`;
            None or -1 for none.
        evidence: the values behind it.
        severity: None for the rule's own severity.
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
    dialect: str | None = SHARE_GROUP_STATE


@dataclass(frozen=True, slots=True)
class Message:
    """How to report the records that break a rule.

    Attributes:
        pieces: pieces of a sentence, one value per record.
        evidence: name -> one value per record.
        needs_4_4: whether a finding counts only if 4.4 or later wrote the record; such a rule is also
            evaluated while the writer is unknown.
    """

    pieces: tuple[Column, ...]
    evidence: Mapping[str, Column]
    needs_4_4: bool = False


def message(*pieces: Column, **evidence: Column) -> Message:
    """Build the result of the message function of a rule over records or state batches."""
    return Message(pieces, evidence)


# Texts for messages.


def span(batches: np.ndarray) -> tuple[Column, ...]:
    """The offsets of STATE_BATCH rows, as pieces of a message."""
    return batches["first"], "-", batches["last"]


def in_words(values: np.ndarray) -> pa.Array:
    """Delivery state and count of offsets, as text.

    Args:
        values: int32 priorities (`fold.interval_merge.priority`), or UNCOVERED.
    """
    counts = (values.astype(np.int64) + 128) >> 8
    states = values - (counts << 8)
    return pa.array(
        [
            "no state" if value == UNCOVERED else f"{state_name(state)} at delivery count {count}"
            for value, state, count in zip(values.tolist(), states.tolist(), counts.tolist(), strict=True)
        ],
        pa.string(),
    )


def state_names(states: np.ndarray) -> pa.Array:
    """Names of delivery states."""
    return pa.array([state_name(state) for state in states.tolist()], pa.string())


def listed(items: Iterable[object], most: int = 10) -> str:
    """The first few items as text, such as "1, 2, 3 and 7 more"."""
    texts = [str(item) for item in items]
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more
