"""Checks whether the brokers prune the state logs: log starts against the cutoffs of some time ago."""

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa

from share_state.config.input_spec import JUDGE_NONE
from share_state.delta.committed import CommittedTables
from share_state.errors import WarehouseError
from share_state.pipeline.executor import Executor
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.result import RunResult
from share_state.pipeline.task import CUTOFF, OutputSpec, returned_table
from share_state.rules.findings import findings
from share_state.rules.operations import PRUNING_DUE_MS, EarlierCutoff
from share_state.rules.registry import Scope
from share_state.sources.as_of import Window
from share_state.sources.kafka_client import KAFKA_FORM
from share_state.sources.log_partition import STATE_TOPIC, LogPartition
from share_state.sources.resume_point import READ_FROM_START
from share_state.sources.segments import RepeatedOffsetsError, index_records, read_chunks

_FIRST_BYTES = 1 << 20


def judge_pruning(
    executor: Executor[Any],
    plan: FoldPlan,
    result: RunResult,
    *,
    last_audit: CommittedTables | None = None,
    now_ms: int | None = None,
) -> pa.Table:
    """Find state logs that start before the cutoff that they had PRUNING_DUE_MS before they were copied.

    A log that this run has read from its start is folded again up to that time, if it starts before its
    cutoff and has records of that time. Such a cutoff is exact even if the broker has pruned since: it has
    then pruned up to that cutoff at least. Of the other logs an earlier audit knows the cutoff.

    Args:
        executor: has folded the plan.
        plan: the logs; nothing is judged as of a past point.
        result: the result of the fold.
        last_audit: the tables of the audit from which this one resumes.
        now_ms: the time up to which ages are measured; by default that of the newest record, for a running
            cluster now.
    Returns:
        The table `findings`, its run_id still null.
    Raises:
        InputError: if a log cannot be read.
    """
    starts = {
        row["partition"]: row["log_start_offset"]
        for row in result.cutoff.to_pylist()
        if row["topic"] == STATE_TOPIC and row["cutoff_offset"] is not None
        if row["partition"] is not None and row["cutoff_offset"] > row["log_start_offset"]
    }
    logs = [log for log in plan.logs if log.partition in starts and _shows_log_start(log) and log.has_times]
    if plan.judging == JUDGE_NONE or result.cut or not logs or result.log_time is None:
        return findings(Scope.PRUNING, [], plan.severities)
    is_live = all(log.source is not None and log.source.form == KAFKA_FORM for log in logs)
    now = now_ms or (int(time.time() * 1000) if is_live else result.log_time)
    due = now - PRUNING_DUE_MS
    of_last = {
        log.name for log in logs if plan.resumed and plan.resumed[log.name].status not in READ_FROM_START
    }
    whole = [log for log in logs if log.name not in of_last and _begins_before(log, due)]
    cutoffs = _folded_again(executor, replace(plan, logs=whole), due) if whole else {}
    if of_last and last_audit is not None:
        cutoffs |= _of_earlier_audit(last_audit, due, {log.partition for log in logs if log.name in of_last})
    earlier = [EarlierCutoff(number, starts[number], offset) for number, offset in sorted(cutoffs.items())]
    return findings(Scope.PRUNING, earlier, plan.severities)


def _shows_log_start(log: LogPartition) -> bool:
    """Whether the input shows the log start offset of the broker, also if that is 0."""
    is_zero = log.log_start_offset == 0
    return log.topic == STATE_TOPIC and (
        log.start_is_recorded or (is_zero and any(copy.leader_epochs[:1] == ((0, 0),) for copy in log.copies))
    )


def _begins_before(log: LogPartition, time_ms: int) -> bool:
    """Whether one of the first records of a log is of a time or earlier."""
    with suppress(RepeatedOffsetsError):
        for part in read_chunks(log, chunk=_FIRST_BYTES):
            records = index_records(part, log.log_start_offset, Window()).records
            if len(records):
                return bool((records["timestamp"] <= time_ms).any())
        return False
    return True


def _folded_again(executor: Executor[Any], plan: FoldPlan, until_ms: int) -> dict[int, int]:
    """State partition -> its cutoff at a time."""
    earlier_plan = replace(
        plan.with_options(archiving_groups=None),
        window=Window(until_time_ms=until_ms),
        windows={},
        judging=JUDGE_NONE,
        verify=False,
        timeline=None,
        resumed=None,
        indexes={},
    )
    cutoffs = returned_table(executor.collect(executor.fold(earlier_plan, OutputSpec(()))), CUTOFF)
    return _by_partition(cutoffs)


def _of_earlier_audit(last: CommittedTables, until_ms: int, partitions: set[int | None]) -> dict[int, int]:
    """State partition -> its cutoff at the latest audit whose newest record is of a time or earlier."""
    earlier = last.as_of(until_ms)
    if earlier is None:
        return {}
    with suppress(WarehouseError):  # VACUUM has removed what is that old
        known = _by_partition(earlier.read(CUTOFF))
        return {number: offset for number, offset in known.items() if number in partitions}
    return {}


def _by_partition(cutoffs: pa.Table) -> dict[int, int]:
    rows: list[Mapping[str, Any]] = cutoffs.to_pylist()
    return {
        row["partition"]: row["cutoff_offset"]
        for row in rows
        if row["topic"] == STATE_TOPIC and row["cutoff_offset"] is not None and row["partition"] is not None
    }
