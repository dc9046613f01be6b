"""Evaluates rules and builds the table `findings`: caps the findings of a rule, and drops those that are unproven."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.fold.draft.control_log import FoldedControlLog
from share_state.fold.durations import duration_texts
from share_state.fold.log_stats import FINDINGS_KEPT, Folded
from share_state.fold.record_context import ContextChunk
from share_state.fold.state_chains import NO_OFFSET
from share_state.fold.state_log import FoldedLog
from share_state.fold.states import KEY, as_type, row_texts
from share_state.jit.compile import kernel
from share_state.kafka.buffers import take_rows
from share_state.rules.breaches import (
    FINDINGS,
    NO_KEY,
    NOTHING,
    OFF,
    PLACE,
    WAITED,
    Breaches,
    Column,
    GroupBreach,
    take_breaches,
)
from share_state.rules.compiled import composed_rules
from share_state.rules.registry import Predicate, Scope, checks_of, registered
from share_state.rules.state_batches import OVER_LIMIT
from share_state.rules.topic_offsets import StateOfTopics
from share_state.schema.declarations import table_schema
from share_state.sources.resume_point import KEPT_STATE
from share_state.sources.topics import Topics

WRITTEN = "written"
"""Column for unproven findings: `Breaches.written`."""

SINCE = "since"
DUE = "due"
UNTIL = "until"
"""Columns for findings that depend on the end of the export: `Breaches.since`, `Breaches.due`,
`Breaches.until`."""

CONDITIONS = (WRITTEN, SINCE, DUE, UNTIL)
"""Columns of findings that are not complete before all logs are read."""


def find_breaches(
    scope: Scope, subject: Any, severities: Mapping[str, str] | None = None
) -> Iterator[tuple[str, Breaches]]:
    """Evaluate every rule of a scope that is not off.

    Args:
        scope: neither RECORD nor STATE_BATCH.
        subject: the argument of the rules of that scope.
        severities: code -> severity, or OFF.
    Yields:
        (code, breaches) of the broken rules.
    """
    for code, check in checks_of(scope):
        if not isinstance(check, Predicate) and (severities or {}).get(code) != OFF:
            found = check(subject)
            if not isinstance(found, Breaches):
                of_groups = [*found]
                found = _from_group_breaches(of_groups) if of_groups else NOTHING
            if len(found.offset):
                yield code, found


def _from_group_breaches(breaches: Sequence[GroupBreach]) -> Breaches:
    schema = table_schema("findings")
    evidence = [[(name, str(value)) for name, value in one.evidence.items()] for one in breaches]
    return Breaches(
        np.array([-1 if one.offset is None else one.offset for one in breaches], np.int64),
        (pa.array([one.message for one in breaches], pa.string()),),
        evidence=pa.array(evidence, schema.field("evidence").type),
        severity=np.array([one.severity for one in breaches], object),
        identity={
            name: pa.array([getattr(one, name) for one in breaches], schema.field(name).type)
            for name in (*KEY, "state_partition")
        },
    )


class RecordRules:
    """The rules over records and state batches, evaluated by a fold; a `fold.record_context.RecordJudge`."""

    def __init__(self, severities: Mapping[str, str] | None = None) -> None:
        """Select rules.

        Args:
            severities: code -> severity; the findings of rules that are OFF are dropped.
        """
        self._severities = severities or {}

    @property
    def broken_rules(self) -> Any:
        """The compiled conditions of all rules."""
        return composed_rules().broken_rules

    def __call__(self, chunk: ContextChunk) -> list[tuple[str, Breaches]]:
        """The breaches in a chunk of records.

        Returns:
            (code, breaches) of the broken rules.
        """
        composed = composed_rules()
        breaches_by_rule = []
        merged = []
        any_broken = int(np.bitwise_or.reduce(chunk.broken))
        for number, (code, scope, predicate) in enumerate(composed.rules):
            if any_broken & (1 << number) and self._severities.get(code) != OFF:
                breaches = _breaches_of(predicate, scope, chunk, 1 << number, composed.broken_by_batch)
                if predicate.greatest is None:
                    breaches_by_rule.append((code, breaches))
                else:
                    merged.append((code, _greatest(breaches, predicate.greatest, breaches.key)))
        return [*_cap(breaches_by_rule), *merged]

    def shown_deliveries(self, found: Sequence[tuple[str, Breaches]]) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of share-partitions in findings of DELIVERY_COUNT_OVER_LIMIT, and the deliveries (int64)."""
        own = [one for code, one in found if code == OVER_LIMIT]
        if not own:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        counts = [one.evidence["delivery_count"] for one in own]  # type: ignore[index]
        return np.concatenate([one.key for one in own]), np.concatenate(counts)  # type: ignore[list-item]


judge_records = RecordRules()
"""All rules over records and state batches, with their own severities."""


def _breaches_of(
    predicate: Predicate, scope: Scope, chunk: ContextChunk, bit: int, broken_by_batch: Any
) -> Breaches:
    rows = np.flatnonzero(chunk.broken & bit)
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
        is_sure = (records["offset"] > chunk.rule_limits["written_by_4_4_after"][0]) | (
            records["timestamp"] < 0
        )
        written = np.where(is_sure, NO_OFFSET, records["timestamp"])
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
        records, contexts: STATE_RECORD and RECORD_CONTEXT rows, of the same length.
        batches: STATE_BATCH rows that the records point into.
        limits, limit_rows: rows of RULE_LIMITS, and which of them applies to each share-partition.
        broken_by_batch, bit: compiled rules, and the bit of the rule.
        first, count: int64, zeros; receive the row of the first such batch of each record, and their number.
    """
    for row in range(len(records)):
        record = records[row]
        rule_limits = limits[limit_rows[record.key]]
        for number in range(record.batches, record.batches + record.batch_count):
            if broken_by_batch(record, contexts[row], batches, number, rule_limits) & bit:
                if count[row] == 0:
                    first[row] = number
                count[row] += 1


def _greatest(breaches: Breaches, name: str, of: Any) -> Breaches:
    """For each of the values in `of`, the first row with the greatest evidence of a name."""
    values, owners = np.asarray(breaches.evidence[name]), np.unique(of, return_inverse=True)[1]  # type: ignore[index]
    order = np.lexsort((np.arange(len(owners)), -values, owners))
    return take_breaches(breaches, np.sort(order[np.append(True, np.diff(owners[order]) > 0)]))


def _once_per_group(folded: Folded, found: Sequence[tuple[str, Breaches]]) -> list[tuple[str, Breaches]]:
    """Breaches of all chunks, of which rules with `Predicate.greatest` have one per group."""
    if not found:
        return []
    names = {
        code: check.greatest
        for code, declared in registered().items()
        for check in declared.checks.values()
        if isinstance(check, Predicate) and check.greatest is not None
    }
    others, merged = [one for one in found if one[0] not in names], list[tuple[str, Breaches]]()
    for code, name in names.items():
        parts = [one for broken, one in found if broken == code and one.key is not None]
        groups = [folded.key_columns(np.asarray(one.key), Topics())["group_id"].to_pylist() for one in parts]
        best = dict[str | None, tuple[int, int, int]]()
        for number, (one, of_groups) in enumerate(zip(parts, groups, strict=True)):
            for row, group in enumerate(of_groups):
                value = int(np.asarray(one.evidence[name])[row])  # type: ignore[index]
                if group not in best or value > best[group][0]:
                    best[group] = (value, number, row)
        kept = [
            sorted(row for _, part, row in best.values() if part == number) for number in range(len(parts))
        ]
        merged += [
            (code, take_breaches(one, np.array(rows))) for one, rows in zip(parts, kept, strict=True) if rows
        ]
    return [*others, *merged]


def _contiguous(column: Column) -> Column:
    return np.ascontiguousarray(column) if isinstance(column, np.ndarray) else column


def judge(
    folded: Folded,
    severities: Mapping[str, str] | None = None,
    topics: Topics | None = None,
    records: Sequence[tuple[str, Breaches]] = (),
    *,
    with_unproven: bool = False,
    clock: int | None = None,
    compares_topics: bool = False,
) -> pa.Table:
    """Evaluate the rules for the dialect of a folded log partition.

    Args:
        folded: the folded log partition.
        severities: code -> severity, or OFF, in place of the rule's own.
        topics: known names.
        records: results of `RecordRules` for its chunks.
        with_unproven: keep findings that may not count, and add the columns CONDITIONS.
        clock: ms, up to which durations are measured. By default the newest record of this log; with
            `with_unproven`, durations are left for `complete_durations`.
        compares_topics: whether `topics` is as recent as the log, so that both are compared.
    Returns:
        The table `findings` with run_id null.
    """
    dialect_scope = Scope.CONTROL_LOG if isinstance(folded, FoldedControlLog) else Scope.STATE_LOG
    scopes = (Scope.RECORD_BATCHES, Scope.LOG, dialect_scope)
    found = [breaches for scope in scopes for breaches in find_breaches(scope, folded, severities)]
    if compares_topics and topics is not None and isinstance(folded, FoldedLog):
        found += find_breaches(Scope.TOPICS, StateOfTopics(folded, topics), severities)
    stable_end = folded.observations.open_records[0]
    found = [*_once_per_group(folded, records), *found]
    if stable_end != NO_OFFSET:
        found = [(code, _settled_before(stable_end, breaches)) for code, breaches in found]
    breaches_by_rule = _cap(found)
    table = findings_table(
        breaches_by_rule, severities, lambda breaches: _identity(folded, breaches, topics or Topics())
    )
    conditions = [[getattr(breaches, name) for _, breaches in breaches_by_rule] for name in CONDITIONS]
    if all(column is None for columns in conditions for column in columns):
        return table
    unconditional = np.full(len(table), NO_OFFSET)
    counts = [len(breaches.offset) for _, breaches in breaches_by_rule]
    for name, columns in zip(CONDITIONS, conditions, strict=True):
        whole = [
            unconditional[:count] if column is None else column
            for column, count in zip(columns, counts, strict=True)
        ]
        table = table.append_column(name, pa.array(np.concatenate(whole)))
    is_kept = folded.observations.resume_status in KEPT_STATE
    if clock is not None or is_kept or not with_unproven:
        # What became of a log that is not in the input since then is not known.
        table = complete_durations(table, own_clock(folded) if clock is None or is_kept else clock)
    return table if with_unproven else drop_unproven(table)


def _settled_before(stable_end: int, breaches: Breaches) -> Breaches:
    """Breaches with an open transaction, from whose first record on the next audit reads again."""
    settled = breaches.settled
    return (
        breaches if settled is None else replace(breaches, settled=settled & (breaches.offset < stable_end))
    )


def own_clock(folded: Folded) -> int:
    """Ms, up to which durations are measured by the log alone: its newest record, or the time of the audit."""
    chains = folded.chains.chains
    if "last_timestamp" not in (chains.dtype.names or ()):
        return folded.judged_at
    return max(folded.judged_at, int(chains["last_timestamp"].max(initial=NO_OFFSET)))


def _cap(breaches_by_rule: Sequence[tuple[str, Breaches]]) -> list[tuple[str, Breaches]]:
    """Keep the first FINDINGS_KEPT breaches of each rule, severity and `settled`; one more counts the others.

    Breaches that may not count (`Breaches.written`, `due`, `until`), and those about groups, are all kept.
    """
    seen = Counter[tuple[Any, ...]]()
    rest = dict[tuple[Any, ...], tuple[Breaches, int]]()
    kept = []
    for code, breaches in breaches_by_rule:
        count = len(breaches.offset)
        may_not_count = any(column is not None for column in (breaches.written, breaches.due, breaches.until))
        if may_not_count or breaches.identity is not None or isinstance(breaches.evidence, pa.MapArray):
            kept.append((code, breaches))
            continue
        weights = np.asarray(breaches.evidence.get(FINDINGS, np.ones(count, np.int64)))
        severity = np.full(count, "", object) if breaches.severity is None else breaches.severity
        settled = np.zeros(count, bool) if breaches.settled is None else breaches.settled
        rows = list[np.ndarray]()
        for kind in {
            (grade, bool(final)) for grade in set(severity.tolist()) for final in np.unique(settled)
        }:
            of_kind, name = np.flatnonzero((severity == kind[0]) & (settled == kind[1])), (code, *kind)
            single = of_kind[weights[of_kind] == 1][: FINDINGS_KEPT - seen[name]]
            seen[name] += len(single)
            rows.append(single)
            if len(others := np.setdiff1d(of_kind, single)):
                before = rest[name][1] if name in rest else 0
                rest[name] = take_breaches(breaches, others[-1:]), before + int(weights[others].sum())
        if count := sum(map(len, rows)):
            single = (
                take_breaches(breaches, np.sort(np.concatenate(rows)))
                if count < len(breaches.offset)
                else breaches
            )
            plain = {name: column for name, column in single.evidence.items() if name != FINDINGS}  # type: ignore[union-attr]
            kept.append((code, replace(single, evidence=plain)))
    for (code, *_), (last, count) in rest.items():
        kept.append((code, replace(last, evidence={**last.evidence, FINDINGS: np.array([count])})))  # type: ignore[dict-item]
    return kept


def cap_findings(rows: pa.Table) -> pa.Table:
    """Keep the first FINDINGS_KEPT rows of `findings` of each rule, severity, log partition and `settled`.

    One more row counts the others, as in `judge`.
    """
    names = row_texts(rows.select(["rule", "severity", "state_partition", "settled"]).columns)
    sizes = names.value_counts()
    full = sizes.filter(pc.greater(sizes.field("counts"), FINDINGS_KEPT)).field("values").to_pylist()
    counts = count_findings(rows).to_numpy()
    is_dropped = np.zeros(len(rows), bool)
    merged = dict[int, int]()
    for name in full:
        rows_of_name = np.flatnonzero(pc.equal(names, name))
        single = rows_of_name[counts[rows_of_name] == 1][:FINDINGS_KEPT]
        others = np.setdiff1d(rows_of_name, single)
        if len(others) > 1 or (counts[others] == 1).any():
            is_dropped[others[:-1]], merged[int(others[-1])] = True, int(counts[others].sum())
    if not merged:
        return rows
    parts, at = list[pa.Table](), 0
    for row, count in sorted(merged.items()):
        (last,) = rows.slice(row, 1).to_pylist()
        last["message"] = re.sub(_OTHERS, "", last["message"]) + _others(count - 1)
        last["evidence"] = [pair for pair in last["evidence"] if pair[0] != FINDINGS] + [
            (FINDINGS, str(count))
        ]
        parts += [
            rows.slice(at, row - at).filter(pa.array(~is_dropped[at:row])),
            pa.Table.from_pylist([last], rows.schema),
        ]
        at = row + 1
    return pa.concat_tables([*parts, rows.slice(at).filter(pa.array(~is_dropped[at:]))]).combine_chunks()


_OTHERS = re.compile(r" \(and [\d,]+ more before it\)$")


def _others(more: int) -> str:
    return f" (and {more:,} more before it)" if more else ""


def count_findings(rows: pa.Table) -> pa.ChunkedArray:
    """The number of findings that each row of `findings` represents."""
    counts = pc.map_lookup(rows["evidence"], pa.scalar(FINDINGS), "first")
    return pc.fill_null(counts.cast(pa.int64()), 1)


def unconditional(findings: pa.Table) -> pa.Table:
    """The complete findings, which count whatever the other logs show, without the columns CONDITIONS.

    Args:
        findings: result of `judge`, with or without these columns.
    """
    for name in _present_conditions(findings):
        findings = findings.filter(pa.array(pc.fill_null(findings[name], NO_OFFSET).to_numpy() < 0))
    return findings.drop_columns(_present_conditions(findings))


def conditional(findings: pa.Table) -> pa.Table:
    """The other findings, with the columns CONDITIONS."""
    depends = np.zeros(len(findings), bool)
    for name in _present_conditions(findings):
        depends |= pc.fill_null(findings[name], NO_OFFSET).to_numpy() >= 0
    return findings.filter(pa.array(depends))


def _present_conditions(findings: pa.Table) -> list[str]:
    return [name for name in CONDITIONS if name in findings.schema.names]


def counts_at_end(due: Any, until: Any, clock: int) -> Any:
    """Whether findings with `Breaches.due` and `Breaches.until` count in an export that ends at a time (ms)."""
    return (due <= clock) & ((until < 0) | (until > clock))


def complete_durations(findings: pa.Table, clock: int) -> pa.Table:
    """Complete the findings with a duration, and drop those that the end of the export does not let count.

    Args:
        findings: result of `judge`, with or without the columns SINCE, DUE and UNTIL, which are dropped.
        clock: ms, up to which durations are measured.
    """
    if SINCE not in findings.schema.names:
        return findings
    due, until = (findings[name].fill_null(NO_OFFSET).to_numpy() for name in (DUE, UNTIL))
    findings = findings.filter(pa.array(counts_at_end(due, until, clock)))
    since = findings[SINCE].fill_null(NO_OFFSET).to_numpy()
    findings = findings.drop_columns([SINCE, DUE, UNTIL]).combine_chunks()
    rows = np.flatnonzero(since >= 0)
    if not len(rows):
        return findings
    waited = np.maximum(clock - since[rows], 0)
    parts = pc.split_pattern(findings["message"].take(pa.array(rows)), WAITED)
    pieces = (pc.list_element(parts, 0), duration_texts(waited), pc.list_element(parts, 1), pa.scalar(""))
    messages = pc.call_function("binary_join_element_wise", [*pieces])
    evidence = _with_milliseconds(findings["evidence"].take(pa.array(rows)).combine_chunks(), waited)
    place = np.arange(len(findings))
    place[rows] = len(findings) + np.arange(len(rows))
    for name, changed in (("message", messages), ("evidence", evidence)):
        chunks = [
            *findings[name].chunks,
            *(changed.chunks if isinstance(changed, pa.ChunkedArray) else [changed]),
        ]
        column = pa.concat_arrays(chunks).take(pa.array(place))
        findings = findings.set_column(
            findings.schema.get_field_index(name), findings.schema.field(name), column
        )
    return findings


def _with_milliseconds(evidence: pa.MapArray, waited: np.ndarray) -> pa.MapArray:
    """Evidence with the value of "milliseconds" in each row; rows without it stay."""
    names = evidence.keys
    owner = np.repeat(np.arange(len(evidence)), np.diff(evidence.offsets.to_numpy()))
    is_duration = pc.equal(names, "milliseconds")
    texts = pa.array(waited[owner]).cast(pa.string())
    values = pc.if_else(is_duration, texts, evidence.items)
    return pa.MapArray.from_arrays(evidence.offsets, names, values)


def drop_unproven(findings: pa.Table, since: int | None = None, condition: str = "") -> pa.Table:
    """Drop findings about records that 4.4 or later may not have written, and the column WRITTEN.

    Args:
        findings: result of `judge`, with or without WRITTEN.
        since: s since 1970; 4.4 or later wrote every record of later seconds. None if unknown.
        condition: how this is known; appended to the messages of such findings.
    """
    if WRITTEN not in findings.schema.names:
        return findings
    written = findings[WRITTEN].fill_null(NO_OFFSET).to_numpy()
    is_sure = written == NO_OFFSET
    is_proven = (written // 1000 > since) if since is not None else written < NO_OFFSET
    place, kept = findings.schema.get_field_index("message"), pa.array(is_sure | is_proven)
    suffix = pc.call_function("if_else", [pa.array(is_sure), pa.scalar(""), pa.scalar(condition)])
    texts = pc.call_function("binary_join_element_wise", [findings["message"], suffix, pa.scalar("")])
    return findings.set_column(place, "message", texts).filter(kept).drop_columns([WRITTEN])


def findings(scope: Scope, subject: Any, severities: Mapping[str, str] | None = None) -> pa.Table:
    """The table `findings` of the rules of one scope over groups; arguments as for `find_breaches`."""
    return findings_table(find_breaches(scope, subject, severities), severities)


def findings_table(
    breaches_by_rule: Iterable[tuple[str, Breaches]],
    severities: Mapping[str, str] | None = None,
    identity: Callable[[Breaches], tuple[Mapping[str, pa.Array], str]] = lambda _: ({}, "offset"),
) -> pa.Table:
    """Build the table `findings` with run_id null.

    Args:
        breaches_by_rule: (code, breaches).
        severities: code -> severity in place of the rule's own.
        identity: returns the columns that identify the subject of breaches without `identity`, and the text
            for PLACE.
    """
    schema, rules = table_schema("findings"), registered()
    tables = list[pa.Table]()
    for code, breaches in breaches_by_rule:
        count, declared = len(breaches.offset), rules[code]
        identity_columns, place = (breaches.identity, "offset") if breaches.identity else identity(breaches)
        pieces = [
            piece.replace(PLACE, place) if isinstance(piece, str) else piece for piece in breaches.message
        ]
        if isinstance(breaches.evidence, Mapping) and FINDINGS in breaches.evidence:
            others = np.asarray(breaches.evidence[FINDINGS]) - 1
            pieces.append(pa.array(map(_others, others.tolist())))
        severity_of_rows = [None] * count if breaches.severity is None else breaches.severity.tolist()
        override = (severities or {}).get(code)
        columns = {
            "settled": pa.array(np.zeros(count, bool) if breaches.settled is None else breaches.settled),
            "rule": pa.repeat(code, count),
            "severity": pa.array(
                [override or one or declared.severity for one in severity_of_rows], pa.string()
            ),
            "offset": pa.array(breaches.offset, mask=(breaches.offset < 0) | (place != "offset")),
            "message": _texts(pieces, count),
            "evidence": _maps(breaches.evidence, count),
            "run_id": pa.nulls(count, pa.string()),
            **identity_columns,
        }
        arrays = [as_type(columns[name], schema.field(name).type) for name in schema.names]
        tables.append(pa.table(arrays, schema=schema))
    return pa.concat_tables(tables) if tables else _no_findings()


@cache
def _no_findings() -> pa.Table:
    """The empty table `findings`; most logs have it, and to make one takes as long as to evaluate ten rules."""
    return table_schema("findings").empty_table()


def _identity(folded: Folded, breaches: Breaches, topics: Topics) -> tuple[dict[str, pa.Array], str]:
    """The columns that identify the subject of breaches in a log partition, and the text for PLACE."""
    count = len(breaches.offset)
    key = np.full(count, NO_KEY, np.int64) if breaches.key is None else breaches.key
    has_key = key != NO_KEY
    # Row n of the distinct keys, or null, for every finding.
    distinct, row = np.unique(key[has_key], return_inverse=True)
    owner = np.zeros(count, np.int64)
    owner[has_key] = row
    keys = folded.key_columns(distinct, topics)
    columns = {name: column.take(pa.array(owner, mask=~has_key)) for name, column in keys.items()}
    columns["dialect"] = pa.repeat(folded.dialect, count)
    if isinstance(folded, FoldedControlLog):
        # A finding without a share-partition still concerns this topic-partition.
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
    return pc.call_function(
        "binary_join_element_wise", [*(_text(piece, count) for piece in pieces), pa.scalar("")]
    )


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
