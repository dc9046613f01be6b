"""Checks whether the brokers prune the state logs: log starts against the cutoffs of some time ago."""

import time
from dataclasses import replace
from typing import Any

import pyarrow as pa

from share_state.config.inputs import JUDGE_NONE
from share_state.pipeline.executor import Executor
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.result import RunResult
from share_state.pipeline.task import CUTOFF, OutputSpec, returned_table
from share_state.rules.findings import findings
from share_state.rules.operations import PRUNING_DUE_MS, EarlierCutoff
from share_state.rules.registry import Scope
from share_state.sources.as_of import Window
from share_state.sources.discovery import STATE_TOPIC
from share_state.sources.kafka_client import KAFKA_FORM


def judge_pruning(executor: Executor[Any], plan: FoldPlan, result: RunResult) -> pa.Table:
    """Find state logs that start before the cutoff that they had PRUNING_DUE_MS before they were copied.

    Folds the logs again up to that time, if they start before their cutoff. An earlier cutoff is exact even if the
    broker has pruned since: it has then pruned up to that cutoff at least.

    Args:
        executor: has folded the plan.
        plan: the whole logs.
        result: the result of the fold.
    Returns:
        The table `findings`, its run_id still null.
    Raises:
        InputError: if a log cannot be read.
    """
    unpruned = {
        (row["topic"], row["partition"])
        for row in result.cutoff.to_pylist()
        if row["cutoff_offset"] is not None and row["cutoff_offset"] > row["log_start_offset"]
    }
    logs = [log for log in plan.logs if log.start_is_recorded and (log.topic, log.partition) in unpruned]
    logs = [log for log in logs if log.topic == STATE_TOPIC and log.has_times]
    if plan.judging == JUDGE_NONE or not logs or result.log_time is None:
        return findings(Scope.PRUNING, [], plan.severities)
    is_live = all(log.source is not None and log.source.form == KAFKA_FORM for log in logs)
    due = (int(time.time() * 1000) if is_live else result.log_time) - PRUNING_DUE_MS
    earlier_plan = replace(
        plan,
        logs=logs,
        windows={},
        window=Window(until_time_ms=due),
        judging=JUDGE_NONE,
        verify=False,
        indexes={},
    )
    cutoffs = returned_table(executor.collect(executor.fold(earlier_plan, OutputSpec(()))), CUTOFF)
    earlier = [
        EarlierCutoff(row["partition"], row["log_start_offset"], row["cutoff_offset"])
        for row in cutoffs.sort_by("partition").to_pylist()
        if row["cutoff_offset"] is not None and row["partition"] is not None
    ]
    return findings(Scope.PRUNING, earlier, plan.severities)
