"""`share-state reconstruct`: fold an export, write the tables."""

import json
from dataclasses import asdict, replace
from typing import Annotated

import typer
from typer.exceptions import Exit

from share_state.cli.main import DONE, FOUND, command
from share_state.cli.options import (
    Folding,
    GroupSide,
    Inputs,
    Json,
    Judging,
    Out,
    Reading,
    Running,
    Subscriptions,
    check_fail_on,
    fails,
    severities,
    with_groups,
    work_of,
)
from share_state.delta.warehouse import check_place, locked
from share_state.errors import ShareStateError
from share_state.fold.options import Chosen
from share_state.pipeline.progress import Phases
from share_state.pipeline.reconstruct import run_reconstruct as job
from share_state.report import console
from share_state.report.cutoff import print_summary
from share_state.sources.topics import read_subscriptions

Timeline = Annotated[bool, typer.Option("--timeline", help="Also write the state after every record, table timeline.")]


@command("share-state reconstruct /exports/broker-1 --out /lake/share_state")
def reconstruct(
    inputs: Inputs,
    out: Out,
    reading: Reading,
    folding: Folding,
    subscriptions: Subscriptions = None,
    *,
    side: GroupSide,
    timeline: Timeline = False,
    group: Annotated[str | None, typer.Option(help="Timeline only of this group.")] = None,
    topic: Annotated[str | None, typer.Option(help="Timeline only of this topic (name or id).")] = None,
    partition: Annotated[int | None, typer.Option(help="Timeline only of this partition.")] = None,
    judging: Judging,
    running: Running,
    as_json: Json = False,
) -> None:
    """Fold an export and write the tables; prints a summary."""
    phases = Phases(quiet=running.quiet)
    chosen = _chosen(timeline, group, topic, partition)
    check_fail_on(judging.fail_on)
    judged = severities(judging.rule)
    check_place(out)
    work = work_of(inputs, reading, folding, running)
    control = replace(work.control, subscriptions=read_subscriptions(subscriptions))
    work = replace(work, timeline=chosen, severities=judged, control=control)
    work = with_groups(work, inputs, side, reading, running)
    options = {
        "as_of_offset": ",".join(reading.as_of_offset or ()),
        "as_of_time": reading.as_of_time or "",
        "rules": ",".join(judging.rule or ()),
        "mode": folding.mode,
        "subscriptions": json.dumps(control.subscriptions) if subscriptions else "",
        "timeline": json.dumps(asdict(chosen)) if chosen else "",
    }
    with locked(out, "reconstruct"), running.where.tasks(work, phases) as tasks:
        outcome = job(tasks, work, out, inputs=tuple(inputs), options=options, phases=phases)
    phases.close()
    found = outcome.plain() | {"warehouse": out}
    console.print_json(found | {"seconds": phases.seconds}) if as_json else print_summary(found)
    raise Exit(FOUND if fails(outcome.by_severity, judging.fail_on) else DONE)


def _chosen(timeline: bool, group: str | None, topic: str | None, partition: int | None) -> Chosen | None:
    """The share-partitions that a timeline is wanted of; None for no timeline.

    Raises:
        ShareStateError: if some are named, but no timeline is wanted.
    """
    if timeline:
        return Chosen(group, topic, partition)
    for option, given in (("--group", group), ("--topic", topic), ("--partition", partition)):
        if given is not None:
            raise ShareStateError(f"{option} {given}: chooses what --timeline writes; give --timeline, too")
    return None
