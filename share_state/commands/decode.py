"""`share-state decode`: the records of logs as JSON lines, or as a Delta table."""

from typing import Annotated

import typer

from share_state.commands.app import command
from share_state.commands.options import LOCAL, Inputs, Json, Reading, Running, pairs
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
    from share_state.spark.decoded import write_decoded  # noqa: PLC0415  lines need no Spark
    from share_state.spark.session import session  # noqa: PLC0415

    phases = Phases(quiet=running.quiet)
    opened = session(running.master or LOCAL, pairs(running.spark_conf), verbose=running.verbose, phases=phases)
    with opened as spark, phases("write"):
        count = write_decoded(spark, work, out)
    phases.close()
    console.print_json({"records": count, "table": out}) if as_json else console.say(f"{count:,} records are in {out}")
