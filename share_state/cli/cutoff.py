"""`share-state cutoff`: what may be cleaned, and a proof that it may."""

from dataclasses import replace
from typing import Annotated, Any

import typer
from typer.exceptions import Exit

from share_state.cli.main import DONE, FOUND, command
from share_state.cli.options import (
    Folding,
    Inputs,
    Json,
    Judging,
    Reading,
    Running,
    Subscriptions,
    check_fail_on,
    fails,
    severities,
    work_of,
)
from share_state.pipeline.plan import Work
from share_state.pipeline.progress import Phases
from share_state.pipeline.result import Outcome, summarise
from share_state.pipeline.task import Wanted
from share_state.report import console
from share_state.report.cutoff import check_deletable, print_cutoffs, print_proof, write_delete_records
from share_state.sources.share_snapshots import read_indexes, write_indexes
from share_state.sources.topics import read_subscriptions


@command("share-state cutoff /exports/broker-1 --verify --delete-records offsets.json")
def cutoff(
    inputs: Inputs,
    delete_records: Annotated[
        str | None, typer.Option("--delete-records", metavar="FILE", help="Write the JSON for kafka-delete-records.sh.")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Fold again without what lies before it; prove nothing changes.")
    ] = False,
    ignore_uncheckpointed: Annotated[
        bool,
        typer.Option("--ignore-uncheckpointed", help="control_records: groups without a checkpoint hold nothing back."),
    ] = False,
    index: Annotated[
        str | None,
        typer.Option(
            "--index", metavar="DIR", help="control_records: check the share snapshot files there, write new ones."
        ),
    ] = None,
    *,
    reading: Reading,
    folding: Folding,
    subscriptions: Subscriptions = None,
    judging: Judging,
    running: Running,
    as_json: Json = False,
) -> None:
    """The offset below which every record of a state partition is redundant, and whether to trust it.

    The logs are folded in this process, or in one a core where they are large; with --master, in Spark's tasks.
    """
    check_fail_on(judging.fail_on)
    judged = severities(judging.rule)
    work = work_of(inputs, reading, folding, running)
    control = replace(
        work.control,
        subscriptions=read_subscriptions(subscriptions),
        ignore_uncheckpointed=ignore_uncheckpointed,
    )
    indexes = read_indexes(index, work.logs)
    work = replace(work, verify=verify, severities=judged, control=control, indexes=indexes)
    if delete_records is not None:
        check_deletable(delete_records, work.logs)
    outcome = _folded(work, tuple(inputs), running)
    if index is not None:
        write_indexes(index, outcome.index)
    found, named = outcome.plain(), None
    if delete_records is not None and not outcome.differing:
        named = write_delete_records(delete_records, found["cutoff"])
    if as_json:
        console.print_json(found | {"delete_records": delete_records if named is not None else None})
    else:
        _print(found, outcome if verify else None, delete_records, named)
    raise Exit(FOUND if outcome.differing or fails(outcome.by_severity, judging.fail_on) else DONE)


def _folded(work: Work, inputs: tuple[str, ...], running: Running) -> Outcome:
    phases = Phases(quiet=running.quiet)
    with running.where.tasks(work, phases, sends_little=True) as tasks, phases("read and fold"):
        outcome = summarise(tasks.fold(work, Wanted()), inputs, {})
    phases.close()
    return outcome


def _print(found: dict[str, Any], proved: Outcome | None, delete_records: str | None, named: int | None) -> None:
    print_cutoffs(found["cutoff"])
    if proved is not None:
        print_proof(proved.compared, proved.differing)
    if delete_records is not None:
        written = f"{delete_records}: names {named} state partitions" if named is not None else "nothing was written"
        console.say(f"{written}; run kafka-delete-records.sh --offset-json-file {delete_records}" if named else written)
