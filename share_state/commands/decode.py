"""`share-state decode`: the records of logs as JSON lines, or as a Delta table."""

from typing import Annotated

import typer

from share_state.commands.app import command
from share_state.commands.options import Inputs, Json, Reading, Running
from share_state.commands.reading import work_of
from share_state.phases import Phases
from share_state.report import console
from share_state.report.records import print_records


@command("share-state decode /exports/broker-1/__share_group_state-7 | head")
def decode(
    inputs: Inputs,
    out: Annotated[str | None, typer.Option("--out", metavar="DIR", help="Write a Delta table instead.")] = None,
    *,
    reading: Reading,
    running: Running,
    as_json: Json = False,
) -> None:
    """Decoded records as JSON lines, in log order."""
    work = work_of(inputs, reading, running=running)
    if out is None:
        print_records(work)
        return
    from share_state.runs.decoded import write_decoded  # noqa: PLC0415  lines need no Delta

    phases = Phases(quiet=running.quiet)
    with running.where.tasks(work, phases) as tasks, phases("write"):
        count = write_decoded(tasks, work, out)
    phases.close()
    console.print_json({"records": count, "table": out}) if as_json else console.say(f"{count:,} records are in {out}")
