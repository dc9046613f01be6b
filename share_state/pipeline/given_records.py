"""Records that are no log are folded like logs, and what only a log shows is unknown.

Where Spark spreads the records of a log over tasks by share-partition, each task folds its part of the log,
and `join_cutoffs` puts the rows of the parts together.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from share_state.config.input_spec import JUDGE_ALL
from share_state.fold.decoded_fold import by_log, fold_decoded, sorted_by_log
from share_state.fold.fold_options import FoldOptions
from share_state.fold.state_chains import NO_OFFSET
from share_state.fold.states import CONTROL_RECORDS
from share_state.pipeline.local_executor import LocalExecutor
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.result import keep_proven, summarize
from share_state.pipeline.task import (
    CUTOFF,
    FINDINGS,
    RESULTS,
    SUMMARY,
    OutputSpec,
    output_rows,
    returned_table,
)
from share_state.rules.breaches import OFF
from share_state.schema.declarations import table_schema
from share_state.sources.log_partition import STATE_TOPIC, LogPartition
from share_state.sources.memory_table import find_memory_logs
from share_state.sources.record_tables import Columns

RECORDS_ONLY = (
    "records alone show neither where the broker's log begins nor whether any of its records are missing"
)
"""Why no cutoff of such records is safe."""

_OUTPUT = OutputSpec(RESULTS, incomplete=(FINDINGS,))
"""What a task makes of such records."""

LAST_SNAPSHOT = "last_snapshot_record"

_OF_WHOLE_LOGS = (
    "CUTOFF_PINNED",
    "LAYOUT_MIXED",
    "OFFSET_GAP",
    "SPSO_BELOW_LOG_START",
    "STALE_INDEX",
    "STATE_PARTITION_MISSING",
    "UNKNOWN_RECORD_TYPE",
    "UNKNOWN_TAG",
    "WRONG_PARTITION",
)
"""Rules that need a whole log, or count over it."""


_JUDGED = FoldPlan((), judging=JUDGE_ALL)


def records_plan(requested: FoldPlan = _JUDGED, logs: Iterable[LogPartition] = ()) -> FoldPlan:
    """How such records are folded and judged.

    Args:
        requested: limits, severities, and whether rules apply; by default all do.
        logs: those that a task does not find itself.
    """
    partial = [replace(log, log_start_offset=0, holds_all=False) for log in logs]
    severities = {**requested.severities, **dict.fromkeys(_OF_WHOLE_LOGS, OFF)}
    options = FoldOptions(limits=requested.options.limits)
    return FoldPlan(partial, options=options, severities=severities, judging=requested.judging)


def fold_tables(
    tables: Iterable[pa.Table], plan: FoldPlan | None = None, output: OutputSpec = _OUTPUT
) -> Iterator[pa.RecordBatch]:
    """Fold and judge decoded records.

    Args:
        tables: as for `by_log`.
        plan: from `records_plan`.
        output: which tables to make.
    Yields:
        Batches of `output.schema`.
    """
    plan = plan or records_plan()
    for log, records in by_log(tables):
        folded, topics = fold_decoded(log, records, plan.fold_options(log))
        yield from output_rows(plan.with_options(topics=topics), output, folded)


def fold_decoded_table(records: pa.Table) -> dict[str, pa.Table]:
    """The tables of decoded records in any order, by name."""
    rows = pa.Table.from_batches(fold_tables([sorted_by_log(records)]), schema=_OUTPUT.schema)
    return _finished_tables(rows)


def fold_topic_table(rows: pa.Table, columns: Columns) -> dict[str, pa.Table]:
    """The tables of records of the state topic in any order, by name.

    Args:
        rows: the columns of Spark's Kafka source.
        columns: their names.
    Raises:
        InputError: as `find_memory_logs`.
    """
    plan = records_plan(logs=find_memory_logs(rows, columns, [STATE_TOPIC])[0])
    return _finished_tables(LocalExecutor().fold(plan, _OUTPUT))


def _finished_tables(rows: pa.Table) -> dict[str, pa.Table]:
    """The tables of rows of _OUTPUT.schema, by name."""
    tables = {name: returned_table(rows, name, _OUTPUT) for name in (*RESULTS, CUTOFF)}
    if not len(rows):
        return {name: table_schema(name).empty_table() for name in tables}
    result = summarize(rows, (), {})
    tables[FINDINGS] = keep_proven(tables[FINDINGS], result.archiving, result.log_time)
    last = [summary[LAST_SNAPSHOT] for summary in rows[SUMMARY].drop_null().to_pylist()]
    cutoffs = tables[CUTOFF].append_column(LAST_SNAPSHOT, pa.array(last, pa.int64()))
    return tables | {CUTOFF: join_cutoffs(cutoffs)}


def join_cutoffs(cutoffs: pa.Table) -> pa.Table:
    """The table `cutoff` of logs of which each row has seen a part of the share-partitions.

    Args:
        cutoffs: rows of `cutoff`, and LAST_SNAPSHOT of each part.
    Returns:
        One row per log, by topic and partition; what only a whole log shows is null.
    """
    parts = dict[tuple[Any, ...], list[dict[str, Any]]]()
    for row in cutoffs.to_pylist():
        parts.setdefault((row["dialect"], row["topic"], row["partition"]), []).append(row)
    ordered = sorted(parts, key=lambda log: (*log[:2], -1 if log[2] is None else log[2]))
    return pa.Table.from_pylist([_joined(parts[log]) for log in ordered], schema=table_schema(CUTOFF))


def _joined(parts: list[dict[str, Any]]) -> dict[str, Any]:
    of_log: dict[str, Any] = {name: parts[0][name] for name in ("dialect", "topic", "partition")} | {
        "live_share_partitions": sum(part["live_share_partitions"] for part in parts),
        "safe": False,
        "reason": RECORDS_ONLY,
    }
    limits = ("limited_by_group", "limited_by_topic_id", "limited_by_partition", "limited_since")
    is_control = of_log["dialect"] == CONTROL_RECORDS
    if not is_control:
        # The log of a topic also has user data.
        of_log["log_end_offset"] = max(part["log_end_offset"] for part in parts)
    limited = [part for part in parts if part["limited_by_group"] is not None]
    if is_control and (blocked := [part for part in limited if part["cutoff_offset"] is None]):
        # Groups without a checkpoint allow no cutoff; which of several is the oldest, the rows do not tell.
        return of_log | {name: blocked[0][name] for name in limits if not blocked[1:]}
    if not limited:
        last = max(0, *(part[LAST_SNAPSHOT] or 0 for part in parts))
        return of_log | {"cutoff_offset": None if is_control else last or None}
    # A share-partition whose snapshot has offset 0 allows no cutoff.
    offsets = [part["cutoff_offset"] or 0 for part in limited]
    least = limited[offsets.index(min(offsets))]
    others = {*offsets, *(part["next_cutoff_offset"] for part in limited)} - {None, NO_OFFSET, min(offsets)}
    following = min(others, default=None)
    if following is None and not is_control:
        following = max(part[LAST_SNAPSHOT] for part in parts)
    chosen = {name: least[name] for name in ("cutoff_offset", *limits)}
    return of_log | chosen | {"next_cutoff_offset": following}
