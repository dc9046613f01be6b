"""The findings of an audit, summarized by rule, severity and share-partition; and the broken rules."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.config.model import Acknowledged
from share_state.delta.committed import CommittedTables
from share_state.errors import WarehouseError
from share_state.fold.states import KEY, row_texts
from share_state.report.share_partitions import (
    IDENTITY_COLUMNS,
    add_topic_key,
    ascending,
    descending,
    group_pieces,
    group_rows,
    is_acknowledged,
)
from share_state.rules.breaches import ERROR, SEVERITIES, WARNING
from share_state.rules.findings import count_findings
from share_state.rules.registry import registered

_MAX_EXAMPLES = 3


_FINDING_COLUMNS = (
    *KEY, "rule", "severity", "state_partition", "offset", "message", "evidence", "run_id", "settled",
)  # fmt: skip


NUMBERS = ("new", "open", "failing")


_SIZES = (
    "offsets", "in_flight", "milliseconds", "updates", "pinned_records", "missing", "records", "age_ms", "difference",
)  # fmt: skip
"""Evidence that shows how bad a finding is compared with others of its rule."""


_COUNTS = {"errors": pa.int64(), "warnings": pa.int64()}
MOST_SEVERE_FIRST = [*ascending("severity_rank"), *descending("new", "open", "count"), *ascending("rule")]


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """The findings of one rule and severity.

    Attributes:
        rule: its code.
        severity: error, warning or info.
        count: number of findings.
        new: open findings that the last reported run did not have.
        open: findings that are neither acknowledged nor superseded.
        failing: open findings that are newer than the last reported run or that every run evaluates again;
            the exit code counts these.
        statement: what should hold; empty if this version does not know the rule.
        examples: a few findings, each about another share-partition, open ones first, then new ones, then the
            worst.
    """

    rule: str
    severity: str
    count: int
    new: int
    open: int
    failing: int
    statement: str
    examples: tuple[dict[str, Any], ...]


def summarize_findings(
    tables: CommittedTables, acknowledged: Sequence[Acknowledged], where: pc.Expression | None = None
) -> pa.Table:
    """Count the findings of each share-partition, rule and severity; the most severe and newest first.

    Args:
        tables: of a run.
        acknowledged: what a person has acknowledged.
        where: which findings; all by default.
    Returns:
        IDENTITY_COLUMNS, rule, severity; topic_id, topic, state_partition, offset and message of the worst
        finding; count, new, open and failing (bigint); severity_rank (0 for an error).
    """
    by = [*IDENTITY_COLUMNS, "rule", "severity"]
    worst = dict.fromkeys(("topic_id", "topic", "state_partition", "offset", "message"), "first")
    sums = dict.fromkeys(("count", *NUMBERS), "sum")
    found = group_pieces(_finding_pieces(tables, acknowledged, where), by, worst | sums | {"size": "max"})
    if found is None:
        return pa.schema([(name, pa.string()) for name in by]).empty_table()
    severity_rank = pc.index_in(found["severity"], pa.array(SEVERITIES))
    order = [*MOST_SEVERE_FIRST, *descending("size"), *ascending(*IDENTITY_COLUMNS)]
    return found.append_column("severity_rank", severity_rank).sort_by(order).drop_columns("size")


def _finding_pieces(
    tables: CommittedTables, acknowledged: Sequence[Acknowledged], where: pc.Expression | None
) -> Iterator[pa.Table]:
    skipped, before = tables.unreported()
    known_before = identities(before)
    unreported = pa.array([one.run["run_id"] for one in (tables, *skipped)])
    for piece in _findings_since(tables, skipped, where):
        rows = piece
        is_of_run = pc.is_in(rows["run_id"], unreported)
        is_new = pc.and_(is_of_run, pc.invert(pc.is_in(_identity(rows), known_before)))
        # What every audit evaluates again counts even if this one found nothing new to evaluate.
        counts = pc.or_(is_of_run, pc.invert(rows["settled"]))
        is_open = pc.invert(
            pc.or_(
                _acknowledged(rows, acknowledged, tables.run["started"]), _superseded(tables, rows, is_of_run)
            )
        )
        columns = {"new": pc.and_(is_new, is_open), "open": is_open, "failing": pc.and_(is_open, counts)}
        count = count_findings(rows)
        for name, is_counted in columns.items():
            rows = rows.append_column(name, pc.multiply(pc.cast(is_counted, pa.int64()), count))
        rows = rows.append_column("count", count)
        yield rows.append_column("size", _sizes(rows["evidence"])).sort_by(descending("size"))


def _findings_since(
    tables: CommittedTables, skipped: Sequence[CommittedTables], where: pc.Expression | None
) -> Iterator[pa.Table]:
    """The findings of a run, then those that it lacks and that earlier runs committed but did not report."""
    yield from map(add_topic_key, tables.batches("findings", _FINDING_COLUMNS, where))
    later = tables
    for earlier in skipped:
        if earlier.versions.get("findings") != later.versions.get("findings"):
            known = pa.concat_arrays(
                [identities(one) for one in (tables, *skipped[: skipped.index(earlier)])]
            )
            with suppress(WarehouseError):
                for rows in map(add_topic_key, earlier.batches("findings", _FINDING_COLUMNS, where)):
                    is_own = pc.equal(rows["run_id"], earlier.run["run_id"])
                    yield rows.filter(pc.and_(is_own, pc.invert(pc.is_in(_identity(rows), known))))
        later = earlier


def identities(tables: CommittedTables | None) -> pa.Array:
    """What the findings of a run are about; nothing if there is no run, or its files are deleted."""
    try:
        pieces = tables.batches("findings", _FINDING_COLUMNS) if tables else ()
        return pa.chunked_array(
            [_identity(add_topic_key(piece)) for piece in pieces], pa.string()
        ).combine_chunks()
    except WarehouseError:
        return pa.array([], pa.string())


def _identity(rows: pa.Table) -> pa.Array:
    """What findings are about, as text: rule and share-partition.

    The offset belongs to it if it is the same in every audit.
    """
    is_stable = pc.or_(rows["settled"], pc.is_null(rows["group_id"]))
    place = pc.if_else(is_stable, rows["offset"], pa.scalar(None, pa.int64()))
    return row_texts([rows[name] for name in (*IDENTITY_COLUMNS, "rule", "state_partition")] + [place])


def _acknowledged(rows: pa.Table, acknowledged: Sequence[Acknowledged], at: datetime) -> pa.Array:
    of_rules = [one for one in acknowledged if one.rule is not None]
    return is_acknowledged(rows, of_rules, at, {"rule": "rule", "state_partition": "state_partition"})


def _superseded(tables: CommittedTables, rows: pa.Table, is_of_run: pa.ChunkedArray) -> pa.Array:
    """Whether findings of earlier runs are about records before the present snapshot of their share-partition.

    Without a share-partition: about records before the cutoff of their log partition, which no state rests
    on.
    """
    settled = pc.and_(rows["settled"], pc.invert(is_of_run))
    if not pc.any(settled).as_py():
        return pa.array(np.zeros(len(rows), bool))
    old = rows.filter(settled)
    columns = [*KEY, "snapshot_offset", "suspect"]
    states = add_topic_key(tables.of(old).read("share_partition_state", columns=columns))
    trusted = states.filter(pc.and_(pc.invert(states["suspect"]), pc.is_valid(states["snapshot_offset"])))
    keys, live, known = (
        row_texts(table.select(IDENTITY_COLUMNS).columns) for table in (rows, states, trusted)
    )
    is_live, at = pc.is_in(keys, live), pc.index_in(keys, known)
    snapshot = trusted["snapshot_offset"].combine_chunks().take(at)
    limits = tables.read("cutoff", pc.field("safe"), ["partition", "cutoff_offset"])
    place = pc.index_in(rows["state_partition"], limits["partition"].combine_chunks())
    of_log = limits["cutoff_offset"].combine_chunks().take(place.combine_chunks())
    until = pc.if_else(
        pc.is_valid(rows["group_id"]), pc.if_else(is_live, snapshot, pc.add(rows["offset"], 1)), of_log
    )
    return pc.and_(settled, pc.fill_null(pc.less(rows["offset"], until), False)).combine_chunks()


def _sizes(evidence: pa.ChunkedArray) -> pa.ChunkedArray:
    """The first number of _SIZES that each map has; null if it has none."""
    found = pc.coalesce(*(pc.map_lookup(evidence, pa.scalar(name), "first") for name in _SIZES))
    return pc.if_else(pc.utf8_is_digit(found), found, pa.scalar(None, pa.string())).cast(pa.int64())


def list_broken_rules(summary: pa.Table) -> tuple[BrokenRule, ...]:
    """The findings by rule: the most severe first, then the newest, then the most frequent."""
    if not summary.num_rows:
        return ()
    known = registered()
    sums = dict.fromkeys(("count", *NUMBERS), "sum")
    rules = group_rows(summary, ["rule", "severity"], sums | {"severity_rank": "min"})
    broken = []
    for row in rules.sort_by(MOST_SEVERE_FIRST).to_pylist():
        code, severity = row["rule"], row["severity"]
        of_rule = summary.filter((pc.field("rule") == code) & (pc.field("severity") == severity))
        examples = of_rule.slice(0, _MAX_EXAMPLES).drop_columns(["severity_rank", "topic_key"]).to_pylist()
        statement = known[code].statement if code in known else ""
        numbers = {name: row[name] for name in ("count", *NUMBERS)}
        broken.append(BrokenRule(code, severity, statement=statement, examples=tuple(examples), **numbers))
    return tuple(broken)


def count_findings_by_key(summary: pa.Table) -> pa.Table | None:
    """The number of open errors and warnings by share-partition: IDENTITY_COLUMNS, errors, warnings.

    None if no row.
    """
    if not summary.num_rows:
        return None
    counted = summary
    for name, severity in (("errors", ERROR), ("warnings", WARNING)):
        count = pc.if_else(pc.equal(summary["severity"], severity), summary["open"], pa.scalar(0, pa.int64()))
        counted = counted.append_column(name, count)
    return group_rows(counted, IDENTITY_COLUMNS, dict.fromkeys(_COUNTS, "sum"))
