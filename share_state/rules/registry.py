"""The registry of rules: how a rule is declared, evaluated, and turned into rows of the table `findings`.

A rule over records or state batches (`record_rule`, `state_batch_rule`) is a predicate that is compiled into the fold
and a function that words what it finds. A rule over anything else (`rule`) is a function that returns what breaks it.
"""

import hashlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.errors import DeclarationError
from share_state.fold.chains import NOWHERE
from share_state.fold.control_log import FoldedControlLog
from share_state.fold.interval_map import UNCOVERED
from share_state.fold.interval_merge import STATE_NAMES
from share_state.fold.log_stats import FINDINGS_KEPT, Folded
from share_state.fold.record_context import BROKEN_BY_BATCH, BROKEN_RULES, ContextChunk
from share_state.fold.states import SHARE_GROUP_STATE
from share_state.jit.compile import first_class, inlined, kernel
from share_state.kafka.buffers import take_rows
from share_state.kafka.state_records import Kind
from share_state.schema.declarations import table_schema
from share_state.sources.topics import Topics

ERROR, WARNING, INFO, OFF = "error", "warning", "info", "off"
SEVERITIES = (ERROR, WARNING, INFO)
NO_KEY = -1

FINDINGS = "findings"
"""Evidence: how many findings a row stands for; 1 in rows without it."""

WRITTEN = "written"
"""Column of unproven findings: `Breaches.written`."""

PLACE = "{place}"
"""In a message, before the offset of a record: becomes "offset", or "record" if the input form has no offsets and
records are counted instead."""


class Scope(StrEnum):
    """What a rule judges at a time."""

    RECORD = "record"  # of `__share_group_state`, with its context
    STATE_BATCH = "state batch"  # of such a record
    RECORD_BATCHES = "record batches"  # of a folded log partition of either dialect
    LOG = "log"  # a folded log partition of either dialect
    STATE_LOG = "state log"  # a folded partition of `__share_group_state`
    CONTROL_LOG = "control log"  # a folded log partition with control records of the draft
    STATES = "states"  # rows of share_partition_state of several state partitions
    GROUPS = "groups"  # share groups and the state of their share-partitions
    CLAIMS = "claims"  # claims and assignments of classic consumer groups
    DEAD_LETTERS = "dead letters"  # and the offsets that the state logs show in ARCHIVING
    GROUP_RECORDS = "group records"  # of `__consumer_offsets`, as far as they are faulty


COMPILED = (Scope.RECORD, Scope.STATE_BATCH)
"""Scopes of the rules that are evaluated by the fold of an audit."""

Column = str | np.ndarray | pa.Array | pa.ChunkedArray
"""One value per finding, or one text for all of them."""


@dataclass(frozen=True, slots=True)
class Breaches:
    """What breaks a rule, one row per finding.

    Attributes:
        offset: int64, offset in the log partition, -1 for none.
        message: pieces of one sentence; PLACE may stand in a text.
        key: int64, number of the share-partition, NO_KEY if the finding is about none.
        evidence: the values behind the finding: name -> column, or a map per row.
        severity: None entries for the rule's own severity.
        settled: bool: no later audit reads the records that the finding is about again; false by default.
        identity: columns of `findings` that say what a finding about groups is about; replaces `key`.
        written: int64, ms: when the record was written, if the finding only counts once it is known that 4.4 or a later
            release wrote it; -1 if it counts in any case. None if all count.
    """

    offset: np.ndarray
    message: tuple[Column, ...]
    key: np.ndarray | None = None
    evidence: Mapping[str, Column] | pa.MapArray = field(default_factory=dict)
    severity: np.ndarray | None = None
    settled: np.ndarray | None = None
    identity: Mapping[str, pa.Array] | None = None
    written: np.ndarray | None = None


NOTHING = Breaches(np.zeros(0, np.int64), ("",))


@dataclass(frozen=True, slots=True)
class GroupBreach:
    """One breach of a rule about groups.

    Attributes:
        message: what is wrong, in a sentence.
        group_id: None if unknown.
        topic_id: Kafka's text of the topic's uuid; None for groups that only name topics.
        topic: name of the topic; None if unknown.
        partition: of the topic.
        state_partition: partition of `__share_group_state`, if the breach is about state.
        offset: in `__consumer_offsets`, with a state partition in `__share_group_state`; None or -1 for none.
        evidence: the values behind it.
        severity: if it differs from the rule's own.
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


Check = Callable[[Any], "Breaches | list[GroupBreach]"]
"""Takes what its scope judges: FoldedLog, FoldedControlLog, AuditedGroups, FoldedSticky, or faults of group records."""


@dataclass(frozen=True, slots=True)
class Message:
    """How the records that break a rule are reported: pieces of a sentence and the evidence, one value per record.

    `needs_4_4` marks a rule about what 4.4 and later write that is also evaluated while the writer is unknown.
    """

    pieces: tuple[Column, ...]
    evidence: Mapping[str, Column]
    needs_4_4: bool = False


def message(*pieces: Column, **evidence: Column) -> Message:
    """What the message function of a rule over records or state batches returns."""
    return Message(pieces, evidence)


@dataclass(eq=False, slots=True)
class Predicate:
    """The condition of a rule over records or state batches, compiled into the fold.

    Attributes:
        condition: takes any of `record`, `context`, `limits`, and for state batches `batch` and `previous`, by name.
            A condition with `previous` is not evaluated for a record's first batch.
        describe: takes the STATE_RECORD rows that break the rule, their RECORD_CONTEXT rows (for state batches the
            first STATE_BATCH row of each that breaks it), and the ContextChunk.
    """

    condition: Any
    describe: Any = None

    def message(self, describe: Callable[[np.ndarray, np.ndarray, ContextChunk], Message]) -> None:
        """Register the function that words what the condition finds."""
        self.describe = describe


@dataclass(frozen=True, slots=True)
class Rule:
    """A registered rule.

    Attributes:
        severity: the default.
        statement: what must hold.
        source: where Kafka or a KIP says so.
        checks: how it is evaluated in each scope; most rules have one.
    """

    code: str
    severity: str
    statement: str
    source: str
    checks: Mapping[Scope, Check | Predicate]


_RULES: dict[str, Rule] = {}

_Checked = TypeVar("_Checked", bound=Check)


def rule(code: str, scope: Scope, *, severity: str, source: str, statement: str) -> Callable[[_Checked], _Checked]:
    """Register a function as a rule, or as the check of a registered rule in another scope.

    Raises:
        DeclarationError: if the code is taken in this scope, or has another severity in another.
    """

    def register(check: _Checked) -> _Checked:
        _register(code, scope, check, severity, source, statement)
        return check

    return register


def record_rule(code: str, *, severity: str, source: str, statement: str) -> Callable[[Any], Predicate]:
    """Register a condition over single records of `__share_group_state`; see `Predicate`."""
    return _compiled(code, Scope.RECORD, severity, source, statement)


def state_batch_rule(code: str, *, severity: str, source: str, statement: str) -> Callable[[Any], Predicate]:
    """Register a condition over single state batches of a record; see `Predicate`."""
    return _compiled(code, Scope.STATE_BATCH, severity, source, statement)


def _compiled(code: str, scope: Scope, severity: str, source: str, statement: str) -> Callable[[Any], Predicate]:
    def register(condition: Any) -> Predicate:
        predicate = Predicate(condition)
        _register(code, scope, predicate, severity, source, statement)
        return predicate

    return register


def _register(code: str, scope: Scope, check: Check | Predicate, severity: str, source: str, statement: str) -> None:
    known = _RULES.get(code, Rule(code, severity, statement, source, {}))
    if scope in known.checks:
        raise DeclarationError(f"rule {code} is registered twice for {scope}")
    if known.severity != severity:
        raise DeclarationError(f"rule {code} is {known.severity} and {severity}; a rule has one default severity")
    _RULES[code] = replace(
        known,
        statement=statement if statement in known.statement else f"{known.statement} {statement}",
        source=source if source in known.source else f"{known.source}; {source}",
        checks={**known.checks, scope: check},
    )


def unregister(code: str) -> None:
    """Remove a rule."""
    del _RULES[code]


def registered() -> dict[str, Rule]:
    """Every rule by code."""
    return dict(_RULES)


def find_breaches(
    scope: Scope, subject: Any, severities: Mapping[str, str] | None = None
) -> list[tuple[str, Breaches]]:
    """Evaluate every rule of a scope that is not off.

    Args:
        scope: any but those of COMPILED.
        subject: what the rules of that scope take.
        severities: code -> severity, or OFF.
    Returns:
        (code, breaches) of the rules that something breaks.
    """
    chosen, found = severities or {}, []
    for code, declared in _RULES.items():
        check = declared.checks.get(scope)
        if check is None or isinstance(check, Predicate) or chosen.get(code) == OFF:
            continue
        breaches = check(subject)
        found.append((code, breaches if isinstance(breaches, Breaches) else _of_groups(breaches)))
    return [(code, breaches) for code, breaches in found if len(breaches.offset)]


def _of_groups(breaches: Sequence[GroupBreach]) -> Breaches:
    schema = table_schema("findings")
    names = ("dialect", "group_id", "topic_id", "topic", "partition", "state_partition")
    evidence = [[(name, str(value)) for name, value in one.evidence.items()] for one in breaches]
    return Breaches(
        np.array([-1 if one.offset is None else one.offset for one in breaches], np.int64),
        (pa.array([one.message for one in breaches], pa.string()),),
        evidence=pa.array(evidence, schema.field("evidence").type),
        severity=np.array([one.severity for one in breaches], object),
        identity={name: pa.array([getattr(one, name) for one in breaches], schema.field(name).type) for name in names},
    )


# Rules over records and state batches.


@dataclass(frozen=True, slots=True)
class _Composed:
    """The conditions of all rules over records and state batches, as two compiled functions."""

    rules: tuple[tuple[str, Scope, Predicate], ...]
    broken_rules: Any
    broken_by_batch: Any


def _composed() -> _Composed:
    return _compose(
        tuple(
            (code, scope, check)
            for code, declared in _RULES.items()
            for scope, check in declared.checks.items()
            if isinstance(check, Predicate)
        )
    )


@lru_cache(maxsize=4)
def _compose(rules: tuple[tuple[str, Scope, Predicate], ...]) -> _Composed:
    """Compile the conditions of rules into the functions that BROKEN_RULES and BROKEN_BY_BATCH describe.

    A function is written and executed because numba cannot cache one that loops over functions or closes over them.
    """
    if len(rules) > _MOST_RULES:
        raise DeclarationError(f"{len(rules)} rules over records and state batches; at most {_MOST_RULES} are possible")
    per_record, per_batch, per_pair, names = [], [], [], {}
    digest = hashlib.blake2b(digest_size=8)
    for number, (code, scope, predicate) in enumerate(rules):
        if predicate.describe is None:
            raise DeclarationError(f"rule {code} has no message")
        names[code] = inlined(predicate.condition)
        needed = inspect.signature(predicate.condition).parameters
        lines = per_record if scope == Scope.RECORD else per_pair if "previous" in needed else per_batch
        lines.append(f"if {code}({', '.join(needed)}):\n        broken |= {1 << number}")
        written = predicate.condition.__code__
        digest.update(repr((lines[-1], written.co_code, written.co_names, str(written.co_consts))).encode())
    source = _SOURCE.format(*("\n    ".join(lines) for lines in (per_batch, per_pair, per_record)))
    # numba caches the functions as if they were in this folder; another set of rules has another name.
    file = Path(__file__).with_name(f"composed-{digest.hexdigest()}.py")
    names |= {"__name__": __name__, "inlined": inlined}
    exec(compile(source, str(file), "exec"), names)
    by_batch = first_class(names["broken_by_batch"].py_func, BROKEN_BY_BATCH)
    return _Composed(rules, first_class(names["broken_rules"], BROKEN_RULES), by_batch)


_MOST_RULES = 63
_SOURCE = """
@inlined
def broken_by_batch(record, context, batches, number, limits):
    broken = 0
    batch = batches[number]
    {}
    if number == record.batches:
        return broken
    previous = batches[number - 1]
    {}
    return broken

def broken_rules(record, context, batches, limits):
    broken = 0
    if not context.is_folded:
        return broken
    {}
    for number in range(record.batches, record.batches + record.batch_count):
        broken |= broken_by_batch(record, context, batches, number, limits)
    return broken
"""


class RecordRules:
    """The rules over records and state batches, as a fold evaluates them (fold/record_context.py, `RecordJudge`)."""

    def __init__(self, severities: Mapping[str, str] | None = None) -> None:
        """Choose rules.

        Args:
            severities: code -> severity; the findings of rules that are OFF are dropped.
        """
        self._severities = severities or {}

    @property
    def broken_rules(self) -> Any:
        """The compiled conditions of all rules."""
        return _composed().broken_rules

    def __call__(self, chunk: ContextChunk) -> list[tuple[str, Breaches]]:
        """The breaches in a chunk of records.

        Returns:
            (code, breaches) of the rules that something breaks.
        """
        composed, found = _composed(), []
        any_broken = int(np.bitwise_or.reduce(chunk.broken))
        for number, (code, scope, predicate) in enumerate(composed.rules):
            if any_broken & (1 << number) and self._severities.get(code) != OFF:
                rows = np.flatnonzero(chunk.broken & (1 << number))
                found.append((code, _described(predicate, scope, chunk, rows, 1 << number, composed.broken_by_batch)))
        return _capped(found)


judge_records = RecordRules()
"""All rules over records and state batches, with their own severities."""


def _described(
    predicate: Predicate, scope: Scope, chunk: ContextChunk, rows: np.ndarray, bit: int, broken_by_batch: Any
) -> Breaches:
    records, subject = take_rows(chunk.records, rows), take_rows(chunk.contexts, rows)
    evidence: dict[str, Column] = {}
    if scope == Scope.STATE_BATCH:
        first, count = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
        _find_batches(records, subject, chunk.batches, chunk.rule_limits, chunk.limit_rows, broken_by_batch, bit, first,
                      count)  # fmt: skip
        subject, evidence["batches"] = take_rows(chunk.batches, first), count
    described = predicate.describe(records, subject, chunk)
    written = None
    if described.needs_4_4:
        is_sure = (records["offset"] > chunk.rule_limits["since_4_4"][0]) | (records["timestamp"] < 0)
        written = np.where(is_sure, NOWHERE, records["timestamp"])
    return Breaches(
        records["offset"].copy(),
        tuple(map(_contiguous, described.pieces)),
        key=records["key"].astype(np.int64),
        evidence={name: _contiguous(column) for name, column in described.evidence.items()} | evidence,
        settled=np.ones(len(rows), bool),
        written=written,
    )


@kernel
def _find_batches(records, contexts, batches, limits, limit_rows, broken_by_batch, bit, first, count):
    """Find the state batches of each record that break a rule.

    Args:
        records, contexts: STATE_RECORD and RECORD_CONTEXT rows, as long as each other.
        batches: STATE_BATCH rows that the records point into.
        limits, limit_rows: rows of RULE_LIMITS, and which of them applies to each share-partition.
        broken_by_batch, bit: which of the broken rules counts.
        first, count: int64, zeros; take the row of the first such batch of each record, and their number.
    """
    for row in range(len(records)):
        record = records[row]
        own = limits[limit_rows[record.key]]
        for number in range(record.batches, record.batches + record.batch_count):
            if broken_by_batch(record, contexts[row], batches, number, own) & bit:
                if count[row] == 0:
                    first[row] = number
                count[row] += 1


def _contiguous(column: Column) -> Column:
    return np.ascontiguousarray(column) if isinstance(column, np.ndarray) else column


@inlined
def continues(record, context):
    """Whether a record is a snapshot or an update that continues the state before it; no record between is missing."""
    return record.kind != Kind.TOMBSTONE and context.exists_before and not context.is_initial and not context.is_suspect


# The table `findings`.


def judge(
    folded: Folded,
    severities: Mapping[str, str] | None = None,
    topics: Topics | None = None,
    records: Sequence[tuple[str, Breaches]] = (),
    *,
    with_unproven: bool = False,
) -> pa.Table:
    """Evaluate every rule of its dialect over a folded log partition.

    Args:
        folded: the log partition.
        severities: code -> severity, or OFF, in place of the rule's own.
        topics: known names.
        records: what `RecordRules` found in its chunks.
        with_unproven: keep what counts only if the writer is 4.4 or later, with the column WRITTEN.
    Returns:
        The table `findings`, its run_id still null.
    """
    of_dialect = Scope.CONTROL_LOG if isinstance(folded, FoldedControlLog) else Scope.STATE_LOG
    found = [
        *records,
        *find_breaches(Scope.RECORD_BATCHES, folded, severities),
        *find_breaches(Scope.LOG, folded, severities),
        *find_breaches(of_dialect, folded, severities),
    ]
    found = _capped(found)
    table = findings_table(found, severities, lambda breaches: _identity(folded, breaches, topics or Topics()))
    if not any(breaches.written is not None for _, breaches in found):
        return table
    sure = np.full(len(table), NOWHERE)
    written = [sure[: len(one.offset)] if one.written is None else one.written for _, one in found]
    table = table.append_column(WRITTEN, pa.array(np.concatenate(written)))
    return table if with_unproven else drop_unproven(table)


def _capped(found: Sequence[tuple[str, Breaches]]) -> list[tuple[str, Breaches]]:
    """The first FINDINGS_KEPT breaches of each rule, severity and `settled`; one more that counts the others.

    Those that may not count at all (`Breaches.written`) are all kept.
    """
    seen, rest, kept = Counter[tuple[Any, ...]](), dict[tuple[Any, ...], tuple[Breaches, int]](), []
    for code, one in found:
        count = len(one.offset)
        if one.written is not None or one.identity is not None or isinstance(one.evidence, pa.MapArray):
            kept.append((code, one))
            continue
        weights = np.asarray(one.evidence.get(FINDINGS, np.ones(count, np.int64)))
        severity = np.full(count, "", object) if one.severity is None else one.severity
        settled = np.zeros(count, bool) if one.settled is None else one.settled
        rows = list[np.ndarray]()
        for kind in {(grade, bool(final)) for grade in set(severity.tolist()) for final in np.unique(settled)}:
            of_kind, name = np.flatnonzero((severity == kind[0]) & (settled == kind[1])), (code, *kind)
            single = of_kind[weights[of_kind] == 1][: FINDINGS_KEPT - seen[name]]
            seen[name] += len(single)
            rows.append(single)
            if len(others := np.setdiff1d(of_kind, single)):
                before = rest[name][1] if name in rest else 0
                rest[name] = _taken(one, others[-1:]), before + int(weights[others].sum())
        if count := sum(map(len, rows)):
            single = _taken(one, np.sort(np.concatenate(rows))) if count < len(one.offset) else one
            plain = {name: column for name, column in single.evidence.items() if name != FINDINGS}  # type: ignore[union-attr]
            kept.append((code, replace(single, evidence=plain)))
    for (code, *_), (last, count) in rest.items():
        kept.append((code, replace(last, evidence={**last.evidence, FINDINGS: np.array([count])})))  # type: ignore[dict-item]
    return kept


def _taken(breaches: Breaches, rows: np.ndarray) -> Breaches:
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
    )


def count_findings(rows: pa.Table) -> pa.ChunkedArray:
    """How many findings each row of `findings` stands for."""
    counts = pc.map_lookup(rows["evidence"], pa.scalar(FINDINGS), "first")
    return pc.fill_null(counts.cast(pa.int64()), 1)


def drop_unproven(findings: pa.Table, since: int | None = None, why: str = "") -> pa.Table:
    """Findings without WRITTEN, and without those of records that 4.4 or a later release may not have written.

    Args:
        findings: of `judge`, with or without WRITTEN.
        since: s, records of later seconds are known to be of such a release; None if none is.
        why: how it is known, appended to the messages of those records.
    """
    if WRITTEN not in findings.schema.names:
        return findings
    written = findings[WRITTEN].fill_null(NOWHERE).to_numpy()
    is_sure, is_proven = written == NOWHERE, (written // 1000 > since) if since is not None else written < NOWHERE
    place, kept = findings.schema.get_field_index("message"), pa.array(is_sure | is_proven)
    suffix = pc.call_function("if_else", [pa.array(is_sure), pa.scalar(""), pa.scalar(why)])
    texts = pc.call_function("binary_join_element_wise", [findings["message"], suffix, pa.scalar("")])
    return findings.set_column(place, "message", texts).filter(kept).drop_columns([WRITTEN])


def findings(scope: Scope, subject: Any, severities: Mapping[str, str] | None = None) -> pa.Table:
    """The table `findings` of the rules of one scope over groups; arguments as of `find_breaches`."""
    return findings_table(find_breaches(scope, subject, severities), severities)


def findings_table(
    found: Iterable[tuple[str, Breaches]],
    severities: Mapping[str, str] | None = None,
    identity: Callable[[Breaches], tuple[Mapping[str, pa.Array], str]] = lambda _: ({}, "offset"),
) -> pa.Table:
    """The table `findings`, its run_id still null.

    Args:
        found: (code, breaches).
        severities: code -> severity in place of the rule's own.
        identity: gives the columns that say what breaches are about, unless they have their own, and what PLACE is.
    """
    schema, tables = table_schema("findings"), [table_schema("findings").empty_table()]
    for code, breaches in found:
        count, declared = len(breaches.offset), _RULES[code]
        about, place = (breaches.identity, "offset") if breaches.identity else identity(breaches)
        pieces = [piece.replace(PLACE, place) if isinstance(piece, str) else piece for piece in breaches.message]
        if isinstance(breaches.evidence, Mapping) and FINDINGS in breaches.evidence:
            others = np.asarray(breaches.evidence[FINDINGS]) - 1
            pieces.append(pa.array([f" (and {more:,} more before it)" if more else "" for more in others.tolist()]))
        own = [None] * count if breaches.severity is None else breaches.severity.tolist()
        chosen = (severities or {}).get(code)
        columns = {
            "settled": pa.array(np.zeros(count, bool) if breaches.settled is None else breaches.settled),
            "rule": pa.repeat(code, count),
            "severity": pa.array([chosen or one or declared.severity for one in own], pa.string()),
            "offset": pa.array(breaches.offset, mask=(breaches.offset < 0) | (place != "offset")),
            "message": _texts(pieces, count),
            "evidence": _maps(breaches.evidence, count),
            "run_id": pa.nulls(count, pa.string()),
            **about,
        }
        arrays = [columns[name].cast(schema.field(name).type) for name in schema.names]
        tables.append(pa.table(arrays, schema=schema))
    return pa.concat_tables(tables)


def _identity(folded: Folded, breaches: Breaches, topics: Topics) -> tuple[dict[str, pa.Array], str]:
    """What breaches in a log partition are about, and what an offset in it is called."""
    count = len(breaches.offset)
    key = np.full(count, NO_KEY, np.int64) if breaches.key is None else breaches.key
    known = key != NO_KEY
    # Row n of the distinct keys, or null, for every finding.
    distinct, row = np.unique(key[known], return_inverse=True)
    owner = np.zeros(count, np.int64)
    owner[known] = row
    keys = folded.key_columns(distinct, topics)
    columns = {name: column.take(pa.array(owner, mask=~known)) for name, column in keys.items()}
    columns["dialect"] = pa.repeat(folded.dialect, count)
    if isinstance(folded, FoldedControlLog):
        # A finding about no share-partition is still about this topic-partition.
        columns["topic"] = pa.repeat(folded.log.topic, count)
        columns["partition"] = pa.repeat(folded.log.partition, count)
        columns["state_partition"] = pa.nulls(count, pa.int32())
        return columns, "offset"
    columns["state_partition"] = pa.repeat(pa.scalar(folded.log.partition, pa.int32()), count)
    return columns, "offset" if folded.log.has_offsets else "record"


def _text(piece: Column, count: int) -> pa.Array:
    if isinstance(piece, str):
        return pa.repeat(piece, count)
    column = pa.array(piece) if isinstance(piece, np.ndarray) else piece
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return column.cast(pa.string())


def _texts(pieces: Sequence[Column], count: int) -> pa.Array:
    return pc.call_function("binary_join_element_wise", [*(_text(piece, count) for piece in pieces), pa.scalar("")])


def _maps(evidence: Mapping[str, Column] | pa.MapArray, count: int) -> pa.Array:
    if isinstance(evidence, pa.MapArray):
        return evidence
    names, width = list(evidence), len(evidence)
    offsets = pa.array(np.arange(count + 1, dtype=np.int32) * width)
    if not width:
        return pa.MapArray.from_arrays(offsets, pa.array([], pa.string()), pa.array([], pa.string()))
    stacked = pa.concat_arrays([_text(evidence[name], count) for name in names])
    by_row = np.arange(width * count).reshape(width, count).T.ravel()
    return pa.MapArray.from_arrays(offsets, pa.array(names * count), stacked.take(pa.array(by_row)))


# Words for messages.


def span(batches: np.ndarray) -> tuple[Column, ...]:
    """The offsets of STATE_BATCH rows."""
    return batches["first"], "-", batches["last"]


def in_words(values: np.ndarray) -> pa.Array:
    """Delivery state and count of offsets.

    Args:
        values: int32 priorities (fold/interval_merge.py), UNCOVERED for none.
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


def listed(items: Iterable[object], most: int = 10) -> str:
    """The first few of many: "1, 2, 3 and 7 more"."""
    every = [str(item) for item in items]
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more
