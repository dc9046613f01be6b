"""`share-state reconstruct`: fold an export, write the tables."""

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Annotated, Any

import typer

from share_state.cli.command import DONE, FOUND, command
from share_state.cli.input_options import InputOptions, Inputs, open_plan
from share_state.cli.options import FailOn, Json, Out, Running, fails
from share_state.config.input_spec import JUDGE_ALL, JUDGE_NONE, JUDGE_STATE
from share_state.delta.reader import CommittedTables
from share_state.delta.warehouse_place import warehouse_lock
from share_state.errors import ShareStateError, pluralize
from share_state.fold.durations import duration_text
from share_state.fold.fold_options import SharePartitionFilter
from share_state.fold.states import to_datetime
from share_state.pipeline.across_logs import EXTENDED
from share_state.pipeline.progress import Progress
from share_state.pipeline.reconstruct import audit_note, run_reconstruct
from share_state.pipeline.result import TOPICS_NOTE, WRITER
from share_state.report.console import format_time, print_findings, print_json, print_line
from share_state.report.cutoff_text import unknown_cutoffs
from share_state.report.share_partitions import plain_run
from share_state.spark.choice import open_executor, open_place

_NOT_JUDGED = {JUDGE_STATE: "the rules over single records of __share_group_state", JUDGE_NONE: "every rule"}

_LOG = logging.getLogger("share_state")


@command("share-state reconstruct /exports/broker-1 --out /lake/share_state")
def reconstruct(
    inputs: Inputs,
    out: Out,
    options: InputOptions,
    *,
    timeline: Annotated[
        bool, typer.Option("--timeline", help="Also write the table timeline: the state after every record.")
    ] = False,
    group: Annotated[
        str | None, typer.Option(metavar="GROUP", help="Limit the timeline to this group.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Limit the timeline to this topic (name or id).")
    ] = None,
    partition: Annotated[
        int | None, typer.Option(metavar="N", help="Limit the timeline to this partition.")
    ] = None,
    fail_on: FailOn = "error",
    running: Running,
    as_json: Json = False,
) -> int:
    """Fold exported logs and write the tables; print a summary."""
    progress, choice = Progress(quiet=running.quiet), running.choice
    selection = _timeline_filter(timeline, group, topic, partition)
    judge = options.get("judge") or JUDGE_ALL
    with open_place(choice, out) as (choice, place):
        if (note := audit_note(place)) is not None:
            logging.getLogger("share_state").info("%s", note)
        with open_plan(options.with_values(judge=judge).spec(inputs), choice) as found_plan:
            plan = replace(found_plan, timeline=selection)
            texts = {"judge": judge, **options.texts}
            if plan.options.control.subscriptions is not None:
                texts["subscriptions"] = json.dumps(plan.options.control.subscriptions)
            if selection is not None:
                texts["timeline"] = json.dumps(asdict(selection))
            with warehouse_lock(place, "reconstruct"), open_executor(choice, plan, progress) as executor:
                result = run_reconstruct(
                    executor, plan, place, inputs=tuple(inputs), options=texts, progress=progress
                )
    progress.close()
    for note in result.notes:
        if not note.startswith((WRITER, TOPICS_NOTE)):
            _LOG.info("%s", note)
    found = result.plain() | {"warehouse": place, "judge": judge}
    if as_json:
        print_json(found | {"run": plain_run(CommittedTables(place).run), "seconds": progress.seconds})
    else:
        _print_result(found)
    return FOUND if fails(result.by_severity, fail_on) else DONE


def _timeline_filter(
    timeline: bool, group: str | None, topic: str | None, partition: int | None
) -> SharePartitionFilter | None:
    """The share-partitions of the timeline; None for no timeline.

    Raises:
        ShareStateError: if some are selected without a timeline.
    """
    if timeline:
        return SharePartitionFilter(group, topic, partition)
    for option, given in (("--group", group), ("--topic", topic), ("--partition", partition)):
        if given is not None:
            raise ShareStateError(f"{option} {given}: selects what --timeline writes; give --timeline too")
    return None


def _print_result(summary: Mapping[str, Any]) -> None:
    """Print the result of `reconstruct`."""
    print_size(summary)
    if summary["log_time"] is not None:
        age = max(0, round(time.time() * 1000) - summary["log_time"])
        print_line(
            f"the newest record was {duration_text(age)} old: {format_time(to_datetime(summary['log_time']))}"
        )
    for note in summary["notes"]:
        if EXTENDED.removeprefix("{}") in note or note.startswith(TOPICS_NOTE):
            print_line(note)
    if (unknown := unknown_cutoffs(summary["cutoff"])) is not None:
        print_line(f"the cutoff is {unknown}")
    else:
        redundant = sum(row["redundant_records"] or 0 for row in summary["cutoff"])
        print_line(f"{redundant:,} of the records lie before the cutoff: see `share-state cutoff`")
    if summary["judge"] != JUDGE_NONE:
        print_findings(summary["findings"])
    if summary["judge"] in _NOT_JUDGED:
        print_line(f"not judged: {_NOT_JUDGED[summary['judge']]} (--judge all)")
    print_line(
        f"tables are in {summary['warehouse']} (run {summary['run_id']}): `share-state show {summary['warehouse']}`"
    )


def print_size(found: Mapping[str, Any]) -> None:
    """Print the number of records, log partitions and share-partitions of a run."""
    records, logs = pluralize(found["records"], "record"), pluralize(len(found["progress"]), "log partition")
    verb = "holds" if found["records"] == 1 else "hold"
    print_line(f"{records} of {logs} {verb} {pluralize(found['share_partitions'], 'live share-partition')}")
