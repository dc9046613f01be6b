"""The main job: fold an export and write its tables; and the table of decoded records."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from share_state.delta.files import FILE_SCHEMA, File, TableFiles
from share_state.delta.reader import CommittedTables
from share_state.delta.warehouse import Warehouse, check_warehouse_path
from share_state.errors import NothingCommittedError
from share_state.fold.states import KEY, SHARE_GROUP_STATE, key_texts
from share_state.fold.timeline import TIMELINE
from share_state.pipeline.executor import Executor, Progress
from share_state.pipeline.groups import judge_group_side, read_groups
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.result import RunResult, keep_proven, run_row, summarize
from share_state.pipeline.task import FINDINGS, IN_FLIGHT, STATE, OutputSpec, decoded_batches
from share_state.rules import registry
from share_state.sources.discovery import STATE_TOPIC, LogPartition, group_partition_of

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

    The tasks write files where they fold. Nothing is committed before everything is folded; files of a run that fails
    are deleted. Findings, in_flight, share_partition_state (and the timeline, if the plan asks for it) are committed
    first, then cutoff, then the row of `runs` that names their versions: the commit point.

    Args:
        executor: runs the plan.
        plan: the log partitions and how to fold them.
        warehouse: folder of the tables.
        inputs: as given, for the `runs` row.
        options: what else shaped the result, for the `runs` row.
        progress: shows the phases.
    Raises:
        InputError: if the input holds no valid batch, or the timeline's filter matches no share-partition.
        WarehouseError: if another table is in the way.
    """
    progress, started = progress or Progress(), datetime.now(UTC)
    written = (IN_FLIGHT, STATE, *((TIMELINE,) if plan.timeline is not None else ()))
    with progress("read the groups"):
        side, plan = read_groups(plan)
    with Warehouse(warehouse) as tables:
        output = OutputSpec(written=written, staged=(FINDINGS,), files=tables.files)
        with progress("read and fold"):
            result = summarize(executor.collect(executor.fold(plan, output)), inputs, options or {})
            if plan.timeline is not None and not result.files_of(TIMELINE):
                plan.check(plan.timeline)
        result, split = settle_split_keys(plan, result, tables.files)
        result, group_findings = judge_group_side(side, plan, result, tables.files, result.log_time)
        found, of_letters = [split, group_findings], dict[str, pa.Table]()
        if plan.dead_letters:
            from share_state.pipeline.dead_letters import match_dead_letters  # noqa: PLC0415  only with that input

            result, letter_findings, of_letters = match_dead_letters(plan, result, tables.files)
            found.append(letter_findings)
        with progress("write findings"):
            findings = write_findings(executor, result, tables.files, found)
        row = run_row(result, "reconstruct", inputs, options or {}, started)
        with progress("commit"):
            tables.replace(FINDINGS, findings)
            for name in written:
                tables.replace(name, result.files_of(name))
            driver = {"cutoff": result.cutoff, **(side.tables() if side else {}), **of_letters}
            for name, rows in driver.items():
                tables.replace_rows(name, rows)
            tables.commit_run(row)
    return result


def settle_split_keys(plan: FoldPlan, result: RunResult, files: TableFiles) -> tuple[RunResult, pa.Table]:
    """Find share-partitions that have state in several state partitions, as after the state topic got more of them.

    If the number of state partitions is known, only the state of the one that the key hashes to stays in the tables;
    else all of them are suspect.

    Args:
        plan: what was folded.
        result: of the tasks.
        files: of the run; the files that hold such share-partitions are written anew.
    Returns:
        The result with these findings counted; the findings.
    """
    count = plan.state_partitions
    # A key that is in two of them hashes to one at most.
    if len(result.progress) < 2 or (count is not None and not result.misplaced):
        return result, registry.findings_table(())
    columns = [*KEY, "state_partition", "last_offset"]
    states = files.read(STATE, [file["path"] for file in result.files_of(STATE)], columns)
    # A log whose number is unknown may be a part or a copy of another.
    states = states.filter((pc.field("dialect") == SHARE_GROUP_STATE) & pc.field("state_partition").is_valid())
    split = _split_keys(states.append_column("key", key_texts(states)), count)
    if not len(split):
        return result, registry.findings_table(())
    numbers = {log.name: log.partition for log in plan.logs if log.topic == STATE_TOPIC}
    known = split.filter(pc.field("home").is_valid())
    strays = known.filter(pc.field("home") != pc.field("state_partition"))
    doubtful = split.filter(pc.field("home").is_null())
    kept, written = [], []
    for file in result.files:
        number = numbers.get(file["log"]) if file["table"] in (STATE, IN_FLIGHT) else None
        gone, doubted = (
            rows.filter(pc.field("state_partition") == number)["key"].combine_chunks() for rows in (strays, doubtful)
        )
        if number is None or not len(gone) + len(doubted) * (file["table"] == STATE):
            kept.append(file)
            continue
        rows = files.read(file["table"], [file["path"]])
        rows = rows.filter(pc.invert(pc.is_in(key_texts(rows), gone)))
        if file["table"] == STATE:
            suspect = pc.or_(rows["suspect"], pc.is_in(key_texts(rows), doubted))
            rows = rows.set_column(rows.schema.get_field_index("suspect"), "suspect", suspect)
        written += [{**one, "log": file["log"]} for one in files.write(file["table"], rows.to_batches())]
    found = registry.findings(registry.Scope.STATES, split, plan.severities)
    settled = replace(
        result.with_findings(found),
        share_partitions=result.share_partitions - len(strays),
        strays=tuple(key_texts(strays, "state_partition").to_pylist()),
        files=[*kept, *written],
    )
    return settled, found


def _split_keys(states: pa.Table, state_partitions: int | None) -> pa.Table:
    """The rows of keys that have several, with `home` (the state partition that counts) and `partitions` (all)."""
    counted = states.group_by("key").aggregate([([], "count_all")]).filter(pc.field("count_all") > 1)
    split = states.filter(pc.is_in(states["key"], counted["key"].combine_chunks()))
    split = split.sort_by([("key", "ascending"), ("state_partition", "ascending")])
    numbers: dict[str, list[int]] = {}
    for key, number in zip(split["key"].to_pylist(), split["state_partition"].to_pylist(), strict=True):
        numbers.setdefault(key, []).append(number)
    homes = {key: group_partition_of(key, state_partitions) for key in numbers} if state_partitions else {}
    home = [homes[key] if homes.get(key) in numbers[key] else None for key in split["key"].to_pylist()]
    texts = [", ".join(map(str, numbers[key])) for key in split["key"].to_pylist()]
    split = split.append_column("home", pa.array(home, pa.int32()))
    return split.append_column("partitions", pa.array(texts, pa.string()))


def audit_note(warehouse: str) -> str | None:
    """What it means to fold into the warehouse of an audit; None if it is none."""
    try:
        audited = CommittedTables(warehouse, "audit").run
    except NothingCommittedError:
        return None
    of_cluster = f" of {audited['cluster']}" if audited["cluster"] else ""
    return f"{warehouse}: an audit{of_cluster} keeps its tables here; until the next one, `show` shows this run"


def write_findings(
    executor: Executor[Any], result: RunResult, files: TableFiles, others: Iterable[pa.Table]
) -> list[File]:
    """Write the findings of a run.

    Args:
        executor: finalizes staged findings.
        result: of the run, with the findings that its tasks staged.
        files: of the run.
        others: findings that the driver made.
    """
    run_id, archiving = result.run_id, result.archiving

    def with_run_id(rows: pa.Table) -> pa.Table:
        rows = keep_proven(rows, archiving)
        column = rows.schema.get_field_index("run_id")
        return rows.set_column(column, "run_id", pa.repeat(run_id, len(rows)))

    of_driver = (batch for table in others for batch in with_run_id(table).to_batches())
    staged = result.files_of(FINDINGS)
    return executor.finalize(files, staged, with_run_id) + files.write(FINDINGS, of_driver)


def write_decoded(executor: Executor[Any], plan: FoldPlan, folder: str) -> int:
    """Write the decoded records as one Delta table, replacing an earlier one.

    Returns:
        Number of records.
    Raises:
        WarehouseError: if the folder holds something else.
    """
    check_warehouse_path(folder, tables=("_delta_log",))
    with Warehouse(folder.rstrip("/"), {DECODED_RECORDS: ""}) as tables:
        written = executor.collect(executor.map_logs(plan, partial(_write_log, plan, tables.files), FILE_SCHEMA))
        files = written.to_pylist()
        tables.replace(DECODED_RECORDS, files)
    return sum(file["rows"] for file in files)


def _write_log(plan: FoldPlan, files: TableFiles, log: LogPartition) -> Iterator[pa.RecordBatch]:
    if written := files.write(DECODED_RECORDS, decoded_batches(plan, log)):
        yield pa.RecordBatch.from_pylist(written, schema=FILE_SCHEMA)
