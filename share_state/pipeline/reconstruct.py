"""The findings of a run as files: those of the tasks, and those that the driver has.

The main job: fold an export, write the tables. Commands, jobs and notebooks call this.

Decoded records, and the Delta table of them.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial

import pyarrow as pa

from share_state.delta.files import FILES, File, TableFiles
from share_state.delta.warehouse import Warehouse, check_place
from share_state.fold.timeline import TIMELINE
from share_state.pipeline.executor import Tasks
from share_state.pipeline.groups import judged_groups, read_groups
from share_state.pipeline.plan import Work
from share_state.pipeline.progress import Phases
from share_state.pipeline.result import Outcome, run_row, summarise
from share_state.pipeline.task import FINDINGS, IN_FLIGHT, ROWS_A_BATCH, STATE, Wanted
from share_state.sources.discovery import LogPartition


def write_findings(tasks: Tasks, outcome: Outcome, files: TableFiles, others: Iterable[pa.Table]) -> list[File]:
    """Write the findings of a run.

    Args:
        tasks: that finish what others have set aside.
        outcome: of the run, with what its tasks found set aside.
        files: where to.
        others: findings of the run that the driver made.
    """
    run_id = outcome.run_id

    def of_the_run(rows: pa.Table) -> pa.Table:
        place = rows.schema.get_field_index("run_id")
        return rows.set_column(place, "run_id", pa.repeat(run_id, len(rows)))

    mine = (batch for table in others for batch in of_the_run(table).to_batches())
    return tasks.finish(files, outcome.files_of(FINDINGS), of_the_run) + files.write(FINDINGS, mine)


def run_reconstruct(
    tasks: Tasks,
    work: Work,
    warehouse: str,
    *,
    inputs: tuple[str, ...] = (),
    options: Mapping[str, str] | None = None,
    phases: Phases | None = None,
) -> Outcome:
    """Fold every log partition and write the tables of a warehouse.

    The tasks write files where they fold; nothing is committed before everything has been read and folded, and what a
    run that fails has written goes. Findings, in_flight, share_partition_state (and the timeline where `work` asks for
    it) are committed first, then cutoff, then the row of `runs` that names their versions: the commit point.

    Args:
        tasks: where logs are folded.
        work: the log partitions and how to fold them.
        warehouse: folder of the tables.
        inputs: what the person named, for the `runs` row.
        options: what else shaped the result, for the `runs` row.
        phases: told what is going on.
    Raises:
        InputError: if no batch of the input can be trusted.
        WarehouseError: if another table is in the way.
    """
    phases, started = phases or Phases(), datetime.now(UTC)
    written = (IN_FLIGHT, STATE, *((TIMELINE,) if work.timeline is not None else ()))
    with phases("read the groups"):
        side, work = read_groups(work)
    with Warehouse(warehouse) as tables:
        wanted = Wanted(written=written, drafted=(FINDINGS,), files=tables.files)
        with phases("read and fold"):
            outcome = summarise(tasks.fold(work, wanted), inputs, options or {})
        outcome, of_groups = judged_groups(side, work, outcome, tables.files)
        with phases("write findings"):
            findings = write_findings(tasks, outcome, tables.files, [of_groups])
        with phases("commit"):
            versions = tables.replace(FINDINGS, findings)
            for name in written:
                versions |= tables.replace(name, outcome.files_of(name))
            versions |= tables.put("cutoff", outcome.cutoff)
            for name, rows in (side.tables() if side else {}).items():
                versions |= tables.put(name, rows)
            row = run_row(outcome, "reconstruct", versions, inputs, options or {}, started)
            tables.add("runs", tables.files.write("runs", row.to_batches()), {outcome.run_id})
    return outcome


TABLE = "decoded_records"


def decoded(work: Work, log: LogPartition) -> Iterator[pa.RecordBatch]:
    """Every record of one log partition: columns of schemas/tables/decoded_records.yaml."""
    for table in work.decode(log):
        yield from table.combine_chunks().to_batches(max_chunksize=ROWS_A_BATCH)


def write_decoded(tasks: Tasks, work: Work, folder: str) -> int:
    """Write the decoded records as one Delta table, in place of an earlier one.

    Returns:
        How many records there are.
    Raises:
        WarehouseError: if the folder holds something else.
    """
    check_place(folder, tables=("_delta_log",))
    with Warehouse(folder.rstrip("/"), {TABLE: ""}) as tables:
        written = tasks.over_logs(work, partial(_written, work, tables.files), FILES).to_pylist()
        tables.replace(TABLE, written)
    return sum(file["rows"] for file in written)


def _written(work: Work, files: TableFiles, log: LogPartition) -> Iterator[pa.RecordBatch]:
    if written := files.write(TABLE, decoded(work, log)):
        yield pa.RecordBatch.from_pylist(written, schema=FILES)
