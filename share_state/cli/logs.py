"""Commands that read logs and print: `explain`, `decode`, `diff`, `plot` and `cutoff`."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Annotated, Literal

import typer

from share_state.cli.command import DONE, FOUND, command
from share_state.cli.input_options import InputOptions, Inputs, open_plan
from share_state.cli.options import DeliveryLimit, FailOn, Group, Json, Partition, Running, Topic, fails
from share_state.cli.warehouse_or_input import logs_of, open_tables
from share_state.config.input_spec import JUDGE_ALL, JUDGE_NONE, LATER_OPTIONS, OPTIONS, FieldNames
from share_state.delta.committed import CommittedTables
from share_state.errors import ShareStateError, pluralize
from share_state.fold.dialect import CONTROL_DIALECT, dialect_of
from share_state.fold.fold_options import SharePartitionFilter
from share_state.kafka.primitives import parse_digits
from share_state.pipeline.across_logs import judge_input
from share_state.pipeline.driver_side import name_topics
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.progress import Progress
from share_state.pipeline.pruning import judge_pruning
from share_state.pipeline.result import EXTENT_NOTES, summarize
from share_state.pipeline.task import OutputSpec
from share_state.repairs.status import open_warehouse
from share_state.report import console
from share_state.report.cutoff_text import (
    check_deletable,
    check_topic_name,
    name_holders,
    print_cutoffs,
    print_delete_records,
    print_pruning,
    print_verification,
    refused,
    write_delete_records,
)
from share_state.report.decoded import print_records
from share_state.report.diff import compare_states, fold_exports, print_differences, read_states
from share_state.report.explain import explain_offset, print_explanation
from share_state.sources.as_of import parse_time
from share_state.sources.share_snapshots import write_share_snapshots
from share_state.spark.choice import open_executor

_LOG = logging.getLogger("share_state")


@command("share-state explain /exports/broker-1 --group app --topic orders --partition 0 --offset 4711")
def explain(
    inputs: Inputs,
    group: Annotated[str, typer.Option(metavar="GROUP", help="The share group.")],
    topic: Annotated[str, typer.Option(metavar="TOPIC", help="The topic (name or id).")],
    partition: Annotated[int, typer.Option(metavar="N", help="The partition of the topic.")],
    offset: Annotated[
        int | None,
        typer.Option(
            metavar="OFFSET", min=0, help="The offset to explain; by default the one that SPSO waits for."
        ),
    ] = None,
    *,
    options: InputOptions,
    delivery_limit: DeliveryLimit = None,
    as_json: Json = False,
) -> None:
    """Print what happened to one offset, record by record."""
    if delivery_limit is not None:
        options = options.with_limit("delivery_count", delivery_limit, group)
    inputs, options = logs_of(inputs, options)
    with open_plan(options.spec(inputs, reads_groups=False)) as plan:
        found = explain_offset(plan, inputs, group, topic, partition, offset)
    console.print_json(found) if as_json else print_explanation(found)


@command("share-state decode /exports/broker-1/__share_group_state-7 | head")
def decode(
    inputs: Inputs,
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="Write a Delta table to this folder.")
    ] = None,
    group: Group = None,
    topic: Topic = None,
    partition: Partition = None,
    most: Annotated[int | None, typer.Option(metavar="N", min=1, help="Print at most N records.")] = None,
    *,
    options: InputOptions,
    running: Running,
    as_json: Json = False,
) -> None:
    """Print the records of logs as JSON lines, in log order."""
    selection = SharePartitionFilter(group, topic, partition)
    if out is not None and (most is not None or selection != SharePartitionFilter()):
        raise ShareStateError(
            "decode: --group, --topic, --partition and --most choose lines; --out writes all records"
        )
    inputs, options = logs_of(inputs, options)
    spec = options.spec(inputs, reads_groups=False, names_only=True, judge=JUDGE_NONE)
    with open_plan(spec, running.choice) as found_plan:
        found_plan.check_time()
        plan = name_topics(found_plan)
        if out is None:
            print_records(plan, selection, most)
            return
        from share_state.pipeline.reconstruct import write_decoded  # noqa: PLC0415  imports Delta

        progress = Progress(quiet=running.quiet)
        with open_executor(running.choice, plan, progress) as executor, progress("write"):
            count = write_decoded(executor, plan, out)
    progress.close()
    written = f"{out}: {pluralize(count, 'record')}"
    console.print_json({"records": count, "table": out}) if as_json else console.print_line(written)


@command("share-state diff /exports/broker-1 --as-of-time 2026-11-21T02Z --and-as-of-time 2026-11-21T03Z")
def diff(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="A [B] | INPUT...",
            help="Two warehouses or exports, one warehouse, or an export with as-of options.",
        ),
    ],
    options: InputOptions,
    and_as_of_offset: Annotated[
        list[str] | None,
        typer.Option(metavar="P=OFFSET", help="Offset of the later point; by default the end."),
    ] = None,
    and_as_of_time: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time of the later point.")
    ] = None,
    group: Group = None,
    topic: Topic = None,
    partition: Partition = None,
    as_json: Json = False,
) -> None:
    """Print what changed between two points of an export.

    It takes two warehouses or exports as well, or one warehouse, whose last two runs it compares: SPSO, SPEO,
    epochs and the ranges in flight.
    """
    selection = SharePartitionFilter(group, topic, partition)
    if options.get("as_of_offset") or options.get("as_of_time"):
        inputs, options = logs_of(inputs, options)
    later = options.with_values(as_of_offset=and_as_of_offset, as_of_time=and_as_of_time)
    if _compares_exports(inputs, options, later):
        with (
            _open_plan(inputs, options, judge=JUDGE_ALL) as first,
            _open_plan(inputs, later, judge=JUDGE_ALL, names=LATER_OPTIONS) as second,
        ):
            before, after = fold_exports((first, second), selection)
    else:
        with _open_two(inputs, options) as opened:
            before, after = read_states(opened, selection)
    found = compare_states(before, after)
    console.print_json(found) if as_json else print_differences(found)


@contextmanager
def _open_plan(
    inputs: Sequence[str], options: InputOptions, judge: str | None = None, names: FieldNames = OPTIONS
) -> Iterator[FoldPlan]:
    """Yield a plan with the topic names that the groups of the input hold."""
    spec = options.spec(inputs, names=names, names_only=True, judge=judge)
    with open_plan(spec, names=names) as plan:
        yield name_topics(plan)


def _compares_exports(inputs: Sequence[str], earlier: InputOptions, later: InputOptions) -> bool:
    """Whether the options name two points of one export, not two warehouses; refuses what names neither."""
    if earlier.get("as_of_offset") or earlier.get("as_of_time"):
        return True
    if later.get("as_of_offset") or later.get("as_of_time"):
        raise ShareStateError(
            "diff: give the earlier point of the export too: --as-of-offset or --as-of-time"
        )
    return False


@contextmanager
def _open_two(inputs: Sequence[str], options: InputOptions) -> Iterator[list[CommittedTables]]:
    """Yield the tables of two warehouses or exports, or of the last two runs of one warehouse."""
    if len(inputs) == 2:
        with ExitStack() as stack:
            yield [stack.enter_context(open_tables(place, options)) for place in inputs]
        return
    tables = open_warehouse(inputs)
    if tables is None:
        raise ShareStateError(
            "diff: give two warehouses or exports, one warehouse, or an export and --as-of-offset or --as-of-time"
        )
    if (previous := tables.previous) is None:
        raise ShareStateError(
            f"diff: {inputs[0]}: has one run of {tables.run['command']}; give another warehouse"
        )
    yield [previous, tables]


@command("share-state plot window /exports/broker-1 --group app --topic orders --partition 0 --out w.html")
def plot(
    kind: Annotated[
        Literal["window", "offsets", "deliveries", "cutoff"],
        typer.Argument(metavar="WHAT", help="Chart: window, offsets, deliveries or cutoff."),
    ],
    inputs: Inputs,
    out: Annotated[str, typer.Option(metavar="FILE", help="The .html, .svg or .png file to write.")],
    group: Annotated[str | None, typer.Option(metavar="GROUP", help="The share group.")] = None,
    topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="The topic (name or id).")] = None,
    partition: Annotated[int | None, typer.Option(metavar="N", help="The partition of the topic.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="window: begin at this time, as for --as-of-time.")
    ] = None,
    offset_range: Annotated[
        str | None, typer.Option("--offsets", metavar="A-B", help="window: show only these offsets.")
    ] = None,
    *,
    options: InputOptions,
    delivery_limit: DeliveryLimit = None,
    as_json: Json = False,
) -> None:
    """Draw a chart of a share-partition, a group or the cutoffs.

    window: what was in flight, by share-partition. offsets: SPSO, SPEO and the topic's end. deliveries:
    records in flight by delivery count. cutoff: what can be deleted from each log.
    """
    from share_state.report.plots.charts import SUFFIXES, save  # noqa: PLC0415  matplotlib is slow to import
    from share_state.report.plots.overview import draw_plot  # noqa: PLC0415

    console.check_suffix(out, SUFFIXES)
    if kind != "window" and (since is not None or offset_range is not None):
        raise ShareStateError(f"plot {kind}: --since and --offsets choose a part of a window")
    begin = None if since is None else parse_time(since)
    part = None if offset_range is None else _parse_range(offset_range)
    if delivery_limit is not None:
        options = options.with_limit("delivery_count", delivery_limit)
    inputs, options = logs_of(inputs, options)
    with _open_plan(inputs, options) as plan:
        selection = SharePartitionFilter(group, topic, partition)
        chart = draw_plot(kind, plan, selection, since=begin, offset_range=part)
    save(chart, out)
    found = {"picture": kind, "of": chart.heading, "file": out, "says": chart.says}
    console.print_json(found) if as_json else console.print_sentence(f"{out}: {chart.says}")


def _parse_range(text: str) -> tuple[int, int]:
    """The first and the last offset of A-B, or of one offset.

    Raises:
        ShareStateError: if it is neither.
    """
    first, dash, last = text.replace(",", "").partition("-")
    ends = parse_digits(first), parse_digits(last if dash else first)
    if ends[0] is None or ends[1] is None or ends[0] > ends[1]:
        raise ShareStateError(f"--offsets {text}: give A-B, the first and the last offset")
    return ends[0], ends[1]


@command("share-state cutoff /exports/broker-1 --verify --delete-records offsets.json")
def cutoff(
    inputs: Inputs,
    delete_records: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Write the JSON of kafka-delete-records.sh, for copies of the log; brokers refuse it for "
            "__share_group_state, which they prune themselves.",
        ),
    ] = None,
    copy_topic: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The topic that --delete-records names: a copy with the same offsets."
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Verify the cutoff: fold again without the records before it, and compare."
        ),
    ] = False,
    accept: Annotated[
        bool, typer.Option("--accept", help="With --index: drop entries that the log contradicts.")
    ] = False,
    *,
    options: InputOptions,
    fail_on: FailOn = "error",
    running: Running,
    as_json: Json = False,
) -> int:
    """Print which records can be deleted, and whether it is safe.

    Records before the cutoff of a log partition are redundant. The broker prunes __share_group_state itself,
    up to the cutoff. Threads of this process fold the logs; with --master or --spark-conf, Spark tasks do.
    """
    if copy_topic is not None:
        check_topic_name(copy_topic)
        if delete_records is None:
            raise ShareStateError(
                "--copy-topic: names the topic in the file of --delete-records; give that, too"
            )
    inputs, options = logs_of(inputs, options)
    index = options.get("index")
    if accept and index is None:
        raise ShareStateError("--accept: drops entries of share snapshot files; give --index too")
    # Without --topics, the groups of the export name the topics.
    names_only, choice = options.get("topics") is None, running.choice
    spec = options.spec(inputs, reads_groups=names_only, names_only=names_only)
    with open_plan(spec, choice) as found_plan:
        found_plan.check_time()
        plan = replace(name_topics(found_plan), verify=verify)
        _check_control_options(plan, options)
        if delete_records is not None:
            check_deletable(delete_records, plan.logs)
        progress = Progress(quiet=running.quiet)
        opened = open_executor(choice, plan, progress, writes_tables=False)
        with opened as executor, progress("read and fold"):
            result = summarize(executor.collect(executor.fold(plan, OutputSpec(()))), tuple(inputs), {})
            result = result.with_driver_rows([judge_pruning(executor, plan, result)])
        result = judge_input(plan, result)
        for note in result.notes:
            if note.startswith(EXTENT_NOTES):
                _LOG.info("%s", note)
        progress.close()
    if index is not None and not spec.has_as_of:
        write_share_snapshots(index, result.index, result.earliest_offsets, accept=accept)
    named_holders = name_holders(result.cutoff, plan.options.topics)
    result_rows, named = replace(result, cutoff=named_holders).plain(), None
    not_deletable = refused(result_rows["cutoff"])
    if delete_records is not None:
        named = write_delete_records(delete_records, result_rows["cutoff"], copy_topic)
    if as_json:
        console.print_json(result_rows | {"delete_records": delete_records if named is not None else None})
    else:
        print_cutoffs(result_rows["cutoff"])
        if not result.cut:
            print_pruning(result_rows["cutoff"])
        if result_rows["findings"]:
            console.print_findings(result_rows["findings"])
        disputed = sum(entry.is_contradicted for entries in result.index.values() for entry in entries)
        if disputed and not accept:
            entries = pluralize(disputed, "entry", "entries")
            console.print_line(f"{index}: the log contradicts {entries}; --accept drops what it contradicts")
        if verify:
            print_verification(result_rows["cutoff"], result.compared, result.differing)
        if delete_records is not None:
            print_delete_records(delete_records, named, copy_topic)
    is_refused = (verify or delete_records is not None) and bool(not_deletable)
    return FOUND if result.differing or is_refused or fails(result.by_severity, fail_on) else DONE


def _check_control_options(plan: FoldPlan, options: InputOptions) -> None:
    """Refuse options of control records if the input has none.

    Raises:
        ShareStateError: naming the first.
    """
    if any(dialect_of(log) is CONTROL_DIALECT for log in plan.logs):
        return
    for name in filter(options.get, ("subscriptions", "ignore_uncheckpointed", "index")):
        option = f"--{name.replace('_', '-')}"
        raise ShareStateError(
            f"{option}: is for control records, and the input has none (--dialect control_records)"
        )
