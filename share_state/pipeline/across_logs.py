"""Rules that need several logs, judged by the driver: groups against state, keys split across logs, the cluster."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import gcd
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pyarrow.compute as pc

from share_state.config.input_spec import JUDGE_NONE
from share_state.fold.dead_letters.archiving import RANGES, merge_ranges
from share_state.fold.dead_letters.matching import LETTERS, LOST
from share_state.fold.groups.group_tables import (
    partition_counts_by_name,
)
from share_state.fold.states import KEY, key_texts, split_keys
from share_state.fold.timeline import TIMELINE
from share_state.pipeline.dead_letter_checks import judge_letters, known_times
from share_state.pipeline.driver_side import DriverSide, GroupSide
from share_state.pipeline.extents import extent_notes
from share_state.pipeline.mixed_logs import settle_cutoffs
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.result import RunResult, keep_proven, summarize
from share_state.pipeline.sink import Sink
from share_state.pipeline.task import CUTOFF, FINDINGS, IN_FLIGHT, LOG, STATE, SUMMARY
from share_state.rules.breaches import listed
from share_state.rules.cluster_settings import AuditedCluster
from share_state.rules.coverage import ExportAge
from share_state.rules.dead_letter_losses import AuditedDeadLetters
from share_state.rules.findings import findings
from share_state.rules.group_context import STATE_COLUMNS
from share_state.rules.registry import Scope
from share_state.schema.declarations import table_schema
from share_state.sources.kafka_client import KAFKA_FORM
from share_state.sources.log_partition import STATE_TOPIC
from share_state.sources.partition_count import state_partition_coverage

if TYPE_CHECKING:
    from share_state.sources.kafka_source import KafkaSource

EXTENDED = (
    "{}: the broker deleted records before they were read, so that reading went on to a later end; "
    "groups are as of an earlier time and are not checked against the state"
)
"""Note on logs that were read beyond the planned end."""

_EXTENDED_AS_OF = (
    "; the state as of the given point lacks share-partitions of which only later records are left"
)


def settle_tables(
    side: GroupSide | None, plan: FoldPlan, rows: pa.Table, tables: Mapping[str, pa.Table]
) -> dict[str, pa.Table]:
    """Apply the rules that need the states of all logs.

    Keep one state of a split key, or mark all as suspect.

    Args:
        side, plan: as for `judge_states`.
        rows: the result of `LocalExecutor.fold`.
        tables: the tables of these rows; `findings` with the columns CONDITIONS.
    """
    split, found = judge_folded_states(side, plan, rows, tables[STATE])
    result = summarize(rows, (), {}, newest_of_others=None if side is None else side.folded.newest_time)
    tables = {**tables, FINDINGS: keep_proven(tables[FINDINGS], result.archiving, result.log_time)}
    tables = {**tables, CUTOFF: settle_cutoffs(plan, tables[CUTOFF], modulus_of(rows))}
    found = [*found, judge_cluster(plan)]
    changed = (STATE, IN_FLIGHT) if len(split) else ()
    settled = {
        name: _settle(split, _with_log(rows, name, tables[name])).drop_columns(LOG) for name in changed
    }
    of_groups = side.tables() if side else {}
    return {**tables, **settled, FINDINGS: pa.concat_tables([tables[FINDINGS], *found]), **of_groups}


def judge_folded_states(
    side: GroupSide | None, plan: FoldPlan, rows: pa.Table, states: pa.Table
) -> tuple[pa.Table, list[pa.Table]]:
    """The result of `judge_states` for rows of `LocalExecutor.fold` and their table STATE."""
    summaries = rows[SUMMARY].drop_null().to_pylist()
    newest = max(summary["newest_time"] or 0 for summary in summaries)
    extended = extended_logs(plan, {summary["log"]: summary["next_offset"] for summary in summaries})
    return judge_states(side, plan, _with_log(rows, STATE, states), modulus_of(rows), newest, extended)


def modulus_of(rows: pa.Table) -> int:
    """`key_modulus` of all logs, from the result of `LocalExecutor.fold`."""
    return gcd(*(summary["key_modulus"] for summary in rows[SUMMARY].drop_null().to_pylist()))


def extended_logs(plan: FoldPlan, progress: Mapping[str, int | None]) -> list[str]:
    """The logs of a live cluster that were read beyond the end that was planned (`sources/pruned_logs.py`).

    Args:
        plan: the logs as they were planned.
        progress: log partition -> next offset after what was read.
    """
    live = [log for log in plan.logs if log.source is not None and log.source.form == KAFKA_FORM]
    planned = {log.name: cast("KafkaSource", log.source).end_offset for log in live}
    return sorted(name for name, end in planned.items() if (progress.get(name) or 0) > end)


def _with_log(rows: pa.Table, name: str, table: pa.Table) -> pa.Table:
    return table.append_column(LOG, rows[LOG].filter(pc.is_valid(rows[name])))


def settle_timeline(timeline: pa.Table, state_partitions: int | None) -> pa.Table:
    """A timeline without the rows of keys whose valid state is in another state partition."""
    timeline = timeline.append_column(LOG, timeline["state_partition"].cast(pa.string()))
    last = timeline.group_by([*KEY, "state_partition", LOG], use_threads=False).aggregate([("kind", "last")])
    last = last.filter((pc.field("kind_last") != "tombstone") & pc.field("state_partition").is_valid())
    return _settle(split_keys(last, state_partitions), timeline).drop_columns(LOG)


def _settle(split: pa.Table, rows: pa.Table) -> pa.Table:
    """Rows, with the column LOG, without states whose key belongs to another log.

    Others may become suspect.
    """
    keys, misplaced = key_texts(rows, LOG), split.filter(pc.field("owner") != pc.field("state_partition"))
    if "suspect" in rows.schema.names:
        ambiguous = key_texts(split.filter(pc.field("owner").is_null()), LOG).combine_chunks()
        suspect = pc.or_(rows["suspect"], pc.is_in(keys, ambiguous))
        rows = rows.set_column(rows.schema.get_field_index("suspect"), "suspect", suspect)
    return rows.filter(pc.invert(pc.is_in(keys, key_texts(misplaced, LOG).combine_chunks())))


@dataclass(frozen=True, slots=True)
class DriverRows:
    """Rows that the driver adds to those of the tasks.

    Attributes:
        findings: findings of rules that need several logs.
        tables: complete tables by name.
    """

    findings: list[pa.Table]
    tables: Mapping[str, pa.Table]


def judge_across_logs(
    side: DriverSide, plan: FoldPlan, result: RunResult, sink: Sink, now_ms: int | None = None
) -> tuple[RunResult, DriverRows]:
    """Apply the rules that need several logs: keys with state in several logs, groups and dead letters against state.

    If the number of state partitions is known, only the state of the one that such a key hashes to stays in
    the tables; else all of them are suspect.

    Args:
        side: groups and dead letters.
        plan: what was folded; an audit's holds only what is new in the state logs.
        result: the result of the tasks.
        sink: the sink; with a group side, or if a log holds keys of another, the driver reads a few columns
            of every share-partition.
        now_ms: the time up to which ages are measured.
    Returns:
        The result with these findings counted, and a run_id of all sides; the rows of the driver.
    """
    result = replace(result, notes=(*result.notes, *extent_notes(plan, result)))
    result, findings = _settle_across_logs(side.groups, plan, result, sink, now_ms)
    extended = extended_logs(plan, result.progress)
    if extended:
        windows = [plan.window, *plan.windows.values()]
        is_as_of = any((window.until_offset, window.until_time_ms) != (None, None) for window in windows)
        note = EXTENDED.format(listed(extended, 3)) + (_EXTENDED_AS_OF if is_as_of else "")
        result = replace(result, notes=(*result.notes, note))
    of_cluster = judge_cluster(plan)
    if len(of_cluster):
        findings = [*findings, of_cluster]
        result = result.with_driver_rows([of_cluster], {})
    tables = side.groups.tables() if side.groups else {}
    if side.letters is None:
        return result, DriverRows(findings, tables)
    # The end offsets of a live cluster's state logs were fetched before; segments that are read in place may
    # grow.
    forms = {None if log.source is None else log.source.form for log in plan.logs}
    is_live = side.letters.read.is_live and forms == {KAFKA_FORM}
    copied_last = (plan.dead_letters_copied_last or is_live) and not extended
    numbers = {log.name: log.partition for log in plan.logs if log.topic == STATE_TOPIC}
    complete = {numbers[log]: (since if since is None else max(since, side.noted_from), newest)
                for log, (since, newest) in result.complete_times.items() if log in numbers}  # fmt: skip
    judged = judge_letters(
        side.letters,
        merge_ranges([side.ranges, sink.take(RANGES)]),
        plan.options.topics.names,
        known_times(complete, plan.state_partitions),
        plan.severities,
        copied_last=copied_last,
        partitions=partition_counts_by_name(plan.options.topics),
        topic_of=plan.dead_letter_topics,
    )
    result = result.with_driver_rows([judged.findings], judged.tables)
    result = replace(result, notes=(*result.notes, *judged.notes))
    return result, DriverRows([*findings, judged.findings], tables | judged.tables)


def judge_cluster(plan: FoldPlan) -> pa.Table:
    """The findings of the rules over what is known of the cluster; the empty table if nothing is."""
    if plan.judging == JUDGE_NONE or (plan.cluster is None and not plan.fact_conflicts):
        return table_schema("findings").empty_table()
    has_state = any(log.topic == STATE_TOPIC for log in plan.logs)
    cluster = AuditedCluster(plan.fact_conflicts, plan.cluster, has_state)
    unusable = plan.cluster.unusable_dead_letters if plan.cluster else {}
    letters = AuditedDeadLetters(
        table_schema(LETTERS).empty_table(), table_schema(LOST).empty_table(), unusable
    )
    of_settings = findings(Scope.CLUSTER_FACTS, cluster, plan.severities)
    return pa.concat_tables([of_settings, findings(Scope.DEAD_LETTERS, letters, plan.severities)])


def judge_export_age(plan: FoldPlan, newest_ms: int | None, audited_ms: int) -> pa.Table:
    """The findings about the age of an audited export.

    None for a live cluster, or if the newest time is unknown.

    Args:
        plan: what is audited.
        newest_ms: timestamp of its newest record.
        audited_ms: when the audit began.
    """
    forms = {None if log.source is None else log.source.form for log in plan.logs}
    if plan.judging == JUDGE_NONE or not newest_ms or forms == {KAFKA_FORM}:
        return table_schema("findings").empty_table()
    return findings(
        Scope.EXPORT, ExportAge(newest_ms, audited_ms, plan.options.limits.export_age), plan.severities
    )


def _settle_across_logs(
    side: GroupSide | None, plan: FoldPlan, result: RunResult, sink: Sink, now_ms: int | None
) -> tuple[RunResult, list[pa.Table]]:
    """Judge keys with state in several logs, and the group side; as `judge_across_logs`."""
    modulus = result.key_modulus
    if side is None and not _is_mixed(plan, modulus):
        findings = judge_coverage(plan, modulus, result.share_partitions)
        return (result.with_driver_rows(findings), findings) if findings else (result, [])
    extended = extended_logs(plan, result.progress)
    split, findings = judge_states(
        side, plan, sink.read(STATE, [LOG, *STATE_COLUMNS]), modulus, now_ms, extended
    )
    result = replace(result, cutoff=settle_cutoffs(plan, result.cutoff, modulus))
    for table in (STATE, IN_FLIGHT, TIMELINE) if len(split) else ():
        sink.settle(table, {*split[LOG].to_pylist()}, partial(_settle, split))
    counted = result.with_driver_rows(findings, side.tables() if side else None)
    misplaced = key_texts(split.filter(pc.field("owner") != pc.field("state_partition")), "state_partition")
    settled = replace(
        counted,
        share_partitions=result.share_partitions - len(misplaced),
        misplaced=tuple(misplaced.to_pylist()),
    )
    return settled, findings


def _is_mixed(plan: FoldPlan, modulus: int) -> bool:
    """Whether a log may hold keys of another; `modulus` is the `key_modulus` of all logs."""
    numbers = [log.partition for log in plan.logs if log.topic == STATE_TOPIC]
    known, count = [number for number in numbers if number is not None], plan.state_partitions
    if len(numbers) > max(1, len(known)):
        return True
    # Some key is misplaced with the known number of state partitions or, if it is unknown, with every
    # possible one.
    return modulus % count > 0 if count else 0 < modulus <= max(known, default=0)


def judge_states(
    side: GroupSide | None,
    plan: FoldPlan,
    states: pa.Table,
    modulus: int,
    now_ms: int | None,
    extended: Sequence[str] = (),
) -> tuple[pa.Table, list[pa.Table]]:
    """Apply the rules that need the states of all logs: keys with state in several of them, groups against state.

    Args:
        side, plan, now_ms: as for `judge_across_logs`.
        states: live share-partitions, at least LOG and STATE_COLUMNS.
        modulus: `key_modulus` of all logs.
        extended: the result of `extended_logs`.
    Returns:
        `split_keys`; the findings, their run_id still null.
    """
    count = plan.options.partition_count
    compared = states if _is_mixed(plan, modulus) else states.slice(0, 0)
    split = split_keys(compared, count.number, is_inferred=count.is_inferred)
    found = judge_coverage(plan, modulus, len(states))
    if plan.judging != JUDGE_NONE:
        found.append(findings(Scope.STATES, split, plan.severities))
    if side is not None:
        found.append(side.judge(_settle(split, states), plan, now_ms, extended))
    return split, found


def judge_coverage(plan: FoldPlan, modulus: int, keys: int) -> list[pa.Table]:
    """Find the state partitions that are not in the input, unless the caller named single log partitions.

    Args:
        modulus, keys: `key_modulus` of all logs, and number of live share-partitions.
    Returns:
        The findings, their run_id still null; empty if there are none.
    """
    if plan.names_logs or plan.judging == JUDGE_NONE:
        return []
    coverage = state_partition_coverage(plan.logs, plan.options.partition_count, modulus, keys)
    return [findings(Scope.INPUT, coverage, plan.severities)] if coverage.missing else []


def judge_input(plan: FoldPlan, result: RunResult) -> RunResult:
    """The result of a fold whose states nobody needs, with what `judge_across_logs` finds in the summaries alone."""
    found = judge_coverage(plan, result.key_modulus, result.share_partitions)
    result = result.with_driver_rows(found) if found else result
    notes = (*result.notes, *extent_notes(plan, result))
    return replace(result, cutoff=settle_cutoffs(plan, result.cutoff, result.key_modulus), notes=notes)
