"""How a rule is declared, kept and run.

What the rules over traced records share: rows that break one, and what an offset holds in words.

How a rule about groups is stated, what it answers, and how answers become rows of the table `findings`.

Rules over folded log partitions answer with columns (rules/registry.py). Groups are few, so these answer with rows.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.errors import DeclarationError
from share_state.fold.chains import Columns
from share_state.fold.control_log import FoldedControlLog
from share_state.fold.interval_map import UNCOVERED
from share_state.fold.interval_merge import STATE_NAMES
from share_state.fold.log import FoldedLog
from share_state.fold.record_context import Traced
from share_state.fold.states import CONTROL_RECORDS, SHARE_GROUP_STATE, control_key_columns, key_columns
from share_state.kafka.state_records import Kind
from share_state.schema.declarations import table_schema
from share_state.sources.topics import Topics

ERROR, WARNING, INFO, OFF = "error", "warning", "info", "off"
SEVERITIES = (ERROR, WARNING, INFO)
NO_KEY = -1

Folded = FoldedLog | FoldedControlLog
"""What a log partition of either dialect folds to."""

Column = str | np.ndarray | pa.Array | pa.ChunkedArray

PLACE = "{place}"
"""In the text of a message, before the offset of a record in the log: "offset", or "record" where the form of the
export tells no offsets and records are counted instead. Offsets of the user's topic are offsets in any form."""


@dataclass(frozen=True, slots=True)
class Broken:
    """The rows that break a rule.

    Attributes:
        offset: int64, offset in the log partition, one a row.
        message: pieces of one sentence: plain text, in which PLACE may stand, or a column with a value a row.
        key: int64, number of the share-partition, NO_KEY where the row is about none.
        evidence: name -> column, for whoever looks closer.
        severity: one a row, where a rule is milder in some cases; the rule's own otherwise.
        settled: bool, one a row, where a rule over folded logs is about records that no later audit reads again.
    """

    offset: np.ndarray
    message: tuple[Column, ...]
    key: np.ndarray | None = None
    evidence: Mapping[str, Column] = field(default_factory=dict)
    severity: np.ndarray | None = None
    settled: np.ndarray | None = None


NOTHING = Broken(np.zeros(0, np.int64), ("",))


Check = Callable[[Any], Broken]
"""Takes the FoldedLog or FoldedControlLog of the dialect that it is registered for, or a chunk of traced records."""

FOLDED, TRACED = "folded", "traced"
"""What a rule looks at: a whole log partition once it is folded, or the remarkable records of each chunk beside the
state before each (only the audit traces). What rules of the second kind look for, fold/remarkable.py must tell, too."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A registered rule: its code, default severity, the statement that must hold, where it comes from.

    Attributes:
        checks: dialect -> the function that judges a log of that dialect; most rules judge one.
        over: dialect -> FOLDED or TRACED.
    """

    code: str
    severity: str
    statement: str
    source: str
    checks: Mapping[str, Check]
    over: Mapping[str, str]


_RULES: dict[str, Rule] = {}


_Checked = TypeVar("_Checked", bound=Check)


def rule(
    code: str, *, severity: str, source: str, statement: str, dialect: str = SHARE_GROUP_STATE, over: str = FOLDED
) -> Callable[[_Checked], _Checked]:
    """Register a function over a log as a rule, or as the check of another dialect of a rule that is there.

    Raises:
        DeclarationError: if the code is taken in this dialect, or has another severity in the other.
    """

    def register(check: _Checked) -> _Checked:
        known = _RULES.get(code, Rule(code, severity, statement, source, {}, {}))
        if dialect in known.checks:
            raise DeclarationError(f"rule {code} is registered twice for {dialect}")
        if known.severity != severity:
            raise DeclarationError(f"rule {code} is {known.severity} and {severity}; a rule has one default severity")
        _RULES[code] = replace(
            known,
            statement=_both(known.statement, statement, " "),
            source=_both(known.source, source, "; "),
            checks={**known.checks, dialect: check},
            over={**known.over, dialect: over},
        )
        return check

    return register


def judge_also(dialect: str, code: str, check: Check) -> None:
    """Let a rule that is there judge another dialect, under the same statement.

    Raises:
        DeclarationError: if the code is taken in this dialect.
    """
    known = _RULES[code]
    rule(code, severity=known.severity, source=known.source, statement=known.statement, dialect=dialect)(check)


def list_rule(code: str, *, severity: str, source: str, statement: str) -> None:
    """Register a rule that is no check over a log partition: it is listed and configured here, and judged elsewhere.

    Raises:
        DeclarationError: if the code is taken.
    """
    if code in _RULES:
        raise DeclarationError(f"rule {code} is registered twice")
    _RULES[code] = Rule(code, severity, statement, source, {}, {})


def _both(first: str, second: str, between: str) -> str:
    return first if first == second else f"{first}{between}{second}"


def registered() -> dict[str, Rule]:
    """Every rule by code."""
    return dict(_RULES)


def judge_records(traced: Any, severities: Mapping[str, str] | None = None) -> list[tuple[str, Broken]]:
    """Run every rule over traced records on a chunk of them.

    Args:
        traced: records of `__share_group_state` beside the state before each (fold/traced.py).
        severities: as for `judge`.
    Returns:
        (code, broken rows) of the rules that something breaks.
    """
    chosen = severities or {}
    judged = [
        (declared.code, declared.checks[SHARE_GROUP_STATE](traced))
        for declared in _RULES.values()
        if declared.over.get(SHARE_GROUP_STATE) == TRACED and chosen.get(declared.code) != OFF
    ]
    return [(code, broken) for code, broken in judged if len(broken.offset)]


def judge(
    folded: Folded,
    severities: Mapping[str, str] | None = None,
    topics: Topics | None = None,
    records: Sequence[tuple[str, Broken]] = (),
) -> pa.Table:
    """Run every rule of its dialect over a folded log partition.

    Args:
        folded: the log partition.
        severities: code -> severity, or OFF, in place of the rule's own.
        topics: names that are known.
        records: what `judge_records` found in its chunks.
    Returns:
        The table `findings`, its run_id still null.
    """
    chosen = severities or {}
    judged = list(records)
    dialect = _dialect_of(folded)
    for declared in _RULES.values():
        if declared.over.get(dialect) == FOLDED and chosen.get(declared.code) != OFF:
            judged.append((declared.code, declared.checks[dialect](folded)))
    tables = [table_schema("findings").empty_table()]
    tables += [
        _findings(_RULES[code], broken, chosen.get(code), folded, topics or Topics())
        for code, broken in judged
        if len(broken.offset)
    ]
    return pa.concat_tables(tables)


def _findings(declared: Rule, broken: Broken, chosen: str | None, folded: Folded, topics: Topics) -> pa.Table:
    count = len(broken.offset)
    key = np.full(count, NO_KEY, np.int64) if broken.key is None else broken.key
    known = key != NO_KEY
    # Row n of the distinct keys, or null, for every finding.
    distinct, row = np.unique(key[known], return_inverse=True)
    owner = np.zeros(count, np.int64)
    owner[known] = row
    columns = {
        name: column.take(pa.array(owner, mask=~known))
        for name, column in _key_columns(folded, distinct, topics).items()
    }
    own = np.full(count, declared.severity, object) if broken.severity is None else broken.severity
    severities = own if chosen is None else np.full(count, chosen, object)
    traced = declared.over[_dialect_of(folded)] == TRACED
    is_placed = isinstance(folded, FoldedControlLog) or folded.log.has_offsets
    place = "offset" if is_placed else "record"
    message = tuple(piece.replace(PLACE, place) if isinstance(piece, str) else piece for piece in broken.message)
    columns |= {
        "settled": pa.array(np.full(count, traced) if broken.settled is None else broken.settled),
        "dialect": pa.repeat(_dialect_of(folded), count),
        "rule": pa.repeat(declared.code, count),
        "severity": pa.array(severities.tolist()),
        "offset": pa.array(broken.offset.astype(np.int64), mask=(broken.offset < 0) | (not is_placed)),
        "message": _texts(message, count),
        "evidence": _maps(broken.evidence, count),
        "run_id": pa.nulls(count, pa.string()),
    }
    if isinstance(folded, FoldedControlLog):
        # A finding about no share-partition is still about this topic-partition.
        columns["topic"] = pa.repeat(folded.log.topic, count)
        columns["partition"] = pa.repeat(folded.log.partition, count)
        columns["state_partition"] = pa.nulls(count, pa.int32())
    else:
        columns["state_partition"] = pa.repeat(pa.scalar(folded.log.partition, pa.int32()), count)
    schema = table_schema("findings")
    return pa.table([columns[name].cast(schema.field(name).type) for name in schema.names], schema=schema)


def _dialect_of(folded: Folded) -> str:
    return CONTROL_RECORDS if isinstance(folded, FoldedControlLog) else SHARE_GROUP_STATE


def _key_columns(folded: Folded, numbers: np.ndarray, topics: Topics) -> dict[str, pa.Array]:
    if isinstance(folded, FoldedControlLog):
        return control_key_columns(folded.groups, numbers, folded.log)
    return key_columns(folded.keys, numbers, topics)


def _text(piece: Column, count: int) -> pa.Array:
    if isinstance(piece, str):
        return pa.repeat(piece, count)
    column = pa.array(piece) if isinstance(piece, np.ndarray) else piece
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return column.cast(pa.string())


def _texts(pieces: tuple[Column, ...], count: int) -> pa.Array:
    return pc.call_function("binary_join_element_wise", [*(_text(piece, count) for piece in pieces), pa.scalar("")])


def _maps(evidence: Mapping[str, Column], count: int) -> pa.Array:
    names, width = list(evidence), len(evidence)
    offsets = pa.array(np.arange(count + 1, dtype=np.int32) * width)
    if not width:
        return pa.MapArray.from_arrays(offsets, pa.array([], pa.string()), pa.array([], pa.string()))
    stacked = pa.concat_arrays([_text(evidence[name], count) for name in names])
    by_row = np.arange(width * count).reshape(width, count).T.ravel()
    return pa.MapArray.from_arrays(offsets, pa.array(names * count), stacked.take(pa.array(by_row)))


LATER_THAN_4_1 = ("4.2", "4.3", "4.4")
"""Releases that record how many offsets are complete."""


def of_rows(rows: Columns, message: tuple[Column, ...], **evidence: Column) -> Broken:
    """The records `rows` as a finding each.

    Args:
        rows: STATE_RECORD.
        message: pieces of the sentence, columns as long as `rows`.
        evidence: columns as long as `rows`.
    """
    if not len(rows):
        return NOTHING
    return Broken(
        rows["offset"],
        tuple(_whole(piece) for piece in message),
        key=rows["key"].astype(np.int64),
        evidence={name: _whole(column) for name, column in evidence.items()},
    )


def has_state(rows: Columns, facts: Columns) -> np.ndarray:
    """bool, one a record: a snapshot or an update that was folded."""
    return facts["folded"] & (rows["kind"] != Kind.TOMBSTONE)


def goes_on(rows: Columns, facts: Columns) -> np.ndarray:
    """bool, one a record: a snapshot or an update that goes on from the state before it."""
    return has_state(rows, facts) & facts["known"] & ~facts["initial"]


def first_of_each(traced: Traced, batches: np.ndarray) -> tuple[Columns, Columns, np.ndarray]:
    """The records that hold state batches which are wrong.

    Args:
        batches: int64, numbers of state batches that are wrong, ascending.
    Returns:
        (their STATE_RECORD rows, the first wrong STATE_BATCH of each, how many each holds).
    """
    if not len(batches):
        return traced.rows[batches], traced.batches[batches], batches
    # Only those that matter are led back to their record, as nearly always there is none.
    rows, first, count = np.unique(owners(traced, batches), return_index=True, return_counts=True)
    return traced.rows[rows], traced.batches[batches[first]], count


def owners(traced: Traced, batches: np.ndarray) -> np.ndarray:
    """int64: the numbers of the records that hold state batches, given by their numbers."""
    return np.searchsorted(traced.begins, batches, side="right") - 1


def within_records(traced: Traced, pairs: np.ndarray) -> np.ndarray:
    """The state batches that have something to do with the one before them in the same record.

    Args:
        pairs: bool, changed in place; entry n is about batches n and n + 1 of all of them.
    Returns:
        int64: the number of the second batch of each such pair.
    """
    edges = traced.begins[(traced.begins > 0) & (traced.begins <= len(pairs))]
    pairs[edges - 1] = False
    return np.flatnonzero(pairs) + 1


def span(batches: Columns) -> tuple[Column, ...]:
    """The offsets of STATE_BATCH rows, for a message."""
    return batches["first"], "-", batches["last"]


def in_words(values: np.ndarray) -> pa.Array:
    """What an offset holds: a state and a delivery count.

    Args:
        values: int32 priorities (fold/sweep.py), UNCOVERED for none.
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
    """Delivery states by name."""
    return pa.array([state_name(state) for state in states.tolist()], pa.string())


def state_name(state: int) -> str:
    """A delivery state by name."""
    return STATE_NAMES.get(state, f"UNKNOWN({state})")


def _whole(piece: Column) -> Column:
    return np.ascontiguousarray(piece) if isinstance(piece, np.ndarray) else piece


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
