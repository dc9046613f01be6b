"""The main job: fold an export and write its tables; and the table of decoded records."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pyarrow as pa

from share_state.delta.committed import CommittedTables
from share_state.delta.warehouse import Warehouse
from share_state.delta.warehouse_place import check_warehouse_path
from share_state.errors import NothingCommittedError
from share_state.fold.timeline import TIMELINE
from share_state.pipeline.across_logs import judge_across_logs
from share_state.pipeline.driver_side import read_driver_side
from share_state.pipeline.executor import Executor
from share_state.pipeline.facts import limits_of_groups
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.progress import Progress
from share_state.pipeline.pruning import judge_pruning
from share_state.pipeline.result import RunResult, keep_proven, run_row, summarize
from share_state.pipeline.sink import Sink
from share_state.pipeline.task import FINDINGS, IN_FLIGHT, STATE, decoded_batches

DECODED_RECORDS = "decoded_records"


def run_reconstruct(
    executor: Executor[Any],
    plan: FoldPlan,
    warehouse: str,
    *,
    inputs: tuple[str, ...] = (),
    options: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> RunResult:
    """Fold every log partition and write the tables of a warehouse.

    Nothing is committed before everything is folded; files of a run that fails are deleted. The row of `runs`
    that names the versions of the other tables is committed last: the commit point.

    Args:
        executor: runs the plan.
        plan: the log partitions and how to fold them.
        warehouse: folder of the tables.
        inputs: as given, for the `runs` row.
        options: the other settings that shape the result, for the `runs` row.
        progress: shows the phases.
    Raises:
        InputError: if the input holds no valid batch, or the timeline's filter matches no share-partition.
        WarehouseError: if another table is in the way.
    """
    progress = progress or Progress()
    started = datetime.now(UTC)
    options = {**(options or {}), **plan.facts, **limits_of_groups(plan.options.limits)}
    written = (IN_FLIGHT, STATE) if plan.timeline is None else (IN_FLIGHT, STATE, TIMELINE)
    with progress("read the groups"):
        side, plan = read_driver_side(plan)
    with Warehouse(warehouse) as tables, executor.open_sink(tables) as sink:
        with progress("read and fold"):
            rows = sink.fold(plan, written, (FINDINGS, *side.staged))
            result = summarize(rows, inputs, options, newest_of_others=side.newest_time)
        result, driver_rows = judge_across_logs(side, plan, result, sink, result.log_time)
        pruning = judge_pruning(executor, plan, result)
        result = result.with_driver_rows([pruning], {}) if len(pruning) else result
        if plan.timeline is not None and not sink.count(TIMELINE):
            plan.check(plan.timeline)
        with progress("write findings"):
            finish_findings(sink, result, [*driver_rows.findings, pruning])
        row = run_row(result, "reconstruct", inputs, options, started)
        with progress("commit"):
            replace_tables(sink, (FINDINGS, *written), {"cutoff": result.cutoff, **driver_rows.tables})
            sink.commit_run(row)
    return result


def audit_note(warehouse: str) -> str | None:
    """A note if the warehouse belongs to an audit; else None."""
    try:
        audited = CommittedTables(warehouse, "audit").run
    except NothingCommittedError:
        return None
    of_cluster = f" of {audited['cluster']}" if audited["cluster"] else ""
    return (
        f"{warehouse}: an audit{of_cluster} keeps its tables here; until the next one, `show` shows this run"
    )


def replace_tables(sink: Sink, folded: Sequence[str], made: Mapping[str, pa.Table]) -> None:
    """Replace tables of a warehouse: those whose rows the sink has, and those that the driver made, by name."""
    for name, rows in made.items():
        sink.add(name, [rows])
    for name in (*folded, *made):
        sink.replace(name)


def finish_findings(sink: Sink, result: RunResult, others: Iterable[pa.Table]) -> None:
    """Complete the findings of a run.

    Args:
        sink: has the findings that its tasks staged.
        result: the result of the run.
        others: findings that the driver made.
    """
    with_run_id = partial(_with_run_id, result)
    sink.finish(FINDINGS, with_run_id)
    sink.add(FINDINGS, map(with_run_id, others))


def _with_run_id(result: RunResult, rows: pa.Table) -> pa.Table:
    rows = keep_proven(rows, result.archiving, result.log_time)
    return rows.set_column(
        rows.schema.get_field_index("run_id"), "run_id", pa.repeat(result.run_id, len(rows))
    )


def write_decoded(executor: Executor[Any], plan: FoldPlan, folder: str) -> int:
    """Write the decoded records as one Delta table, replacing an earlier one.

    Returns:
        Number of records.
    Raises:
        WarehouseError: if the folder holds something else.
    """
    check_warehouse_path(folder, tables=("_delta_log",))
    with Warehouse(folder.rstrip("/"), {DECODED_RECORDS: ""}) as tables, executor.open_sink(tables) as sink:
        return sink.write(DECODED_RECORDS, plan, decoded_batches)
