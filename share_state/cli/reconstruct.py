"""`share-state reconstruct`: fold an export, write the tables."""

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from share_state.cli.command import DONE, FOUND, command
from share_state.cli.input_options import InputOptions, Inputs, open_plan
from share_state.cli.options import FailOn, Json, Out, Running, fails
from share_state.config.input_spec import JUDGE_ALL, JUDGE_NONE, JUDGE_STATE
from share_state.delta.committed import CommittedTables
from share_state.delta.warehouse_place import warehouse_lock
from share_state.errors import ShareStateError, pluralize
from share_state.fold.durations import duration_text
from share_state.fold.fold_options import SharePartitionFilter
from share_state.fold.states import to_datetime
from share_state.pipeline.across_logs import EXTENDED
from share_state.pipeline.driver_side import name_topics
from share_state.pipeline.progress import Progress
from share_state.pipeline.reconstruct import audit_note, run_reconstruct
from share_state.pipeline.result import TOPICS_NOTE, WRITER
from share_state.report.console import format_time, print_findings, print_json, print_line
from share_state.report.cutoff_text import unknown_cutoffs
from share_state.report.share_partitions import plain_run
from share_state.spark.choice import is_on_spark, open_executor, open_place
from share_state.spark.masters import LOCAL_MASTER

if TYPE_CHECKING:
    from share_state.spark.spark_executor import SparkExecutor

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
    grouped: Annotated[
        bool,
        typer.Option(
            "--grouped",
            help="In Spark, shuffle the records by share-partition before they are folded, as for records of any"
            " source. What only a whole log shows is unknown, and there is no table runs.",
        ),
    ] = False,
    fail_on: FailOn = "error",
    running: Running,
    as_json: Json = False,
) -> int:
    """Fold exported logs and write the tables; print a summary."""
    progress, choice = Progress(quiet=running.quiet), running.choice
    selection = _timeline_filter(timeline, group, topic, partition)
    judge = options.get("judge") or JUDGE_ALL
    if grouped:
        if selection is not None:
            raise ShareStateError("--grouped: does not write a timeline; leave out --timeline")
        return _reconstruct_grouped(inputs, out, options.with_values(judge=judge), fail_on, running, as_json)
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


def _reconstruct_grouped(
    inputs: list[str], out: str, options: InputOptions, fail_on: str, running: Running, as_json: bool
) -> int:
    """Fold records that Spark groups by share-partition, and write the tables; print their sizes."""
    progress, choice = Progress(quiet=running.quiet), running.choice
    if not is_on_spark(choice):
        raise ShareStateError(
            f"--grouped: groups the records in Spark; give --master, such as {LOCAL_MASTER}"
        )
    from share_state.spark.grouped_records import write_grouped  # noqa: PLC0415  imports Spark

    with (
        open_place(choice, out) as (choice, place),
        open_plan(options.spec(inputs), choice) as plan,
        warehouse_lock(place, "reconstruct"),
        open_executor(choice, plan, progress) as executor,
        progress("read, group, fold and write"),
    ):
        counts, by_severity = write_grouped(cast("SparkExecutor", executor), name_topics(plan), place)
    progress.close()
    if as_json:
        print_json({"warehouse": place, "rows": counts, "findings": by_severity, "seconds": progress.seconds})
    else:
        rows = ", ".join(f"{name} {count:,}" for name, count in counts.items())
        print_line(f"tables are in {place}, without a run; rows: {rows}")
    return FOUND if fails(by_severity, fail_on) else DONE


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
