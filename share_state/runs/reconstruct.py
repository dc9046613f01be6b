"""The main job: fold an export, write the tables. Commands, jobs and notebooks call this."""

from collections.abc import Mapping
from datetime import UTC, datetime

from share_state.fold.timeline import TABLE as TIMELINE
from share_state.group_side import judged_groups, read_groups
from share_state.outcome import Outcome, run_row, summarise
from share_state.phases import Phases
from share_state.runs.findings import write_findings
from share_state.runs.tasks import Tasks
from share_state.task import FINDINGS, IN_FLIGHT, STATE, Wanted
from share_state.warehouse import Warehouse
from share_state.work import Work


def reconstruct(
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
