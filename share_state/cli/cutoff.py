"""`share-state cutoff`: which records can be deleted, and the verification of that."""

from dataclasses import replace
from typing import Annotated, Any

import typer

from share_state.cli.main import DONE, FOUND, command
from share_state.cli.options import (
    Folding,
    Inputs,
    Json,
    Judging,
    Reading,
    Running,
    Subscriptions,
    fails,
    open_plan,
    spec_of,
)
from share_state.pipeline.across_logs import name_topics
from share_state.pipeline.executor import Progress
from share_state.pipeline.result import RunResult, summarize
from share_state.pipeline.task import OutputSpec
from share_state.report import console
from share_state.report.cutoff import (
    check_deletable,
    name_holders,
    print_cutoffs,
    print_verification,
    write_delete_records,
)
from share_state.sources.share_snapshots import write_share_snapshots
from share_state.spark.choice import open_executor


@command("share-state cutoff /exports/broker-1 --verify --delete-records offsets.json")
def cutoff(
    inputs: Inputs,
    delete_records: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the JSON for kafka-delete-records.sh.")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Verify the cutoff: fold again without the records before it, and compare.")
    ] = False,
    ignore_uncheckpointed: Annotated[
        bool, typer.Option("--ignore-uncheckpointed", help="control_records: ignore groups without a checkpoint.")
    ] = False,
    index: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="control_records: check and update the share snapshot files in this folder (not with --as-of-*).",
        ),
    ] = None,
    accept: Annotated[
        bool, typer.Option("--accept", help="With --index: drop entries that the log contradicts.")
    ] = False,
    *,
    reading: Reading,
    folding: Folding,
    subscriptions: Subscriptions = None,
    judging: Judging,
    running: Running,
    as_json: Json = False,
) -> int:
    """Print which records can be deleted, and whether it is safe.

    Records before the cutoff of a log partition are redundant. Threads of this process fold the logs; with --master,
    Spark's tasks.
    """
    control = {"subscriptions": subscriptions, "ignore_uncheckpointed": ignore_uncheckpointed, "index": index}
    # Without --topics, the groups of the export name the topics.
    names_only, choice = reading.topics is None, running.choice
    spec = spec_of(inputs, reading, names_only=names_only, folding=folding, judging=judging, **control)
    with open_plan(spec, choice) as found_plan:
        plan = replace(name_topics(found_plan), verify=verify)
        if delete_records is not None:
            check_deletable(delete_records, plan.logs)
        progress = Progress(quiet=running.quiet)
        opened = open_executor(choice, plan, progress, writes_tables=False)
        with opened as executor, progress("read and fold"):
            result = summarize(executor.collect(executor.fold(plan, OutputSpec(()))), tuple(inputs), {})
        progress.close()
    if index is not None and not spec.has_as_of:
        write_share_snapshots(index, result.index, accept=accept)
    named_holders = name_holders(result.cutoff, plan.topics)
    found, named = replace(result, cutoff=named_holders).plain(), None
    if delete_records is not None and not result.differing:
        named = write_delete_records(delete_records, found["cutoff"])
    if as_json:
        console.print_json(found | {"delete_records": delete_records if named is not None else None})
    else:
        _print(found, result if verify else None, delete_records, named)
    return FOUND if result.differing or fails(result.by_severity, judging.fail_on) else DONE


def _print(found: dict[str, Any], verified: RunResult | None, delete_records: str | None, named: int | None) -> None:
    print_cutoffs(found["cutoff"])
    if verified is not None:
        print_verification(verified.compared, verified.differing)
    if delete_records is not None:
        written = f"{delete_records}: names {named} state partitions" if named is not None else "nothing was written"
        fix = f"; run kafka-delete-records.sh --offset-json-file {delete_records}" if named else ""
        console.print_line(f"{written}{fix}")
