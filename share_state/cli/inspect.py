"""`share-state show`: what the tables say, for a person.

`share-state explain`: what became of one offset.

`share-state groups`: state, members, assignment and lag of share groups.

`share-state decode`: the records of logs as JSON lines, or as a Delta table.

`share-state rules`: what an audit checks.

`share-state compare`: what a broker answers beside what its log says.

`share-state diff`: what moved between two warehouses, or between two points in time of an export.

`share-state plot`: one picture of a log.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer
from typer.exceptions import Exit

from share_state.cli.main import DONE, FOUND, command
from share_state.cli.options import (
    DeliveryLimit,
    FailOn,
    Folding,
    Group,
    Inputs,
    Json,
    KafkaProperties,
    Partition,
    Reading,
    Running,
    Topic,
    Warehouse,
    check_fail_on,
    fails,
    named_by_groups,
    work_of,
)
from share_state.errors import ShareStateError
from share_state.fold.options import Chosen
from share_state.pipeline.progress import Phases
from share_state.report import console
from share_state.report.console import print_records
from share_state.report.diff import differences, of_export, of_warehouse, print_differences
from share_state.report.explain import explained, print_explained
from share_state.report.show import described_groups, print_described, print_everything, print_groups
from share_state.rules.registry import registered


@command("share-state show /lake/share_state --group orders-app --topic orders")
def show(
    warehouse: Warehouse = "share_state",
    group: Group = None,
    topic: Topic = None,
    partition: Partition = None,
    ranges: Annotated[bool, typer.Option("--ranges", help="Every in-flight range, one a line.")] = False,
    as_json: Json = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="With the leader epoch.")] = False,
) -> None:
    """Print state, lag and what is in flight, from the tables."""
    chosen = (warehouse, group, topic, partition)
    print_everything(*chosen) if as_json else print_described(*chosen, verbose=verbose, ranges=ranges)


@command("share-state explain /exports/broker-1 --group app --topic orders --partition 0 --offset 4711")
def explain(
    inputs: Inputs,
    group: Annotated[str, typer.Option(help="The share group.")],
    topic: Annotated[str, typer.Option(help="The topic (name or id).")],
    partition: Annotated[int, typer.Option(help="The partition of the topic.")],
    offset: Annotated[int, typer.Option(help="The offset to explain.")],
    reading: Reading,
    folding: Folding,
    delivery_limit: DeliveryLimit = 5,
    as_json: Json = False,
) -> None:
    """What became of one offset: every record that touched it, and how it stands."""
    work = work_of(inputs, reading, folding)
    work = replace(work, limits=replace(work.limits, delivery_count=delivery_limit))
    found = explained(work, inputs, group, topic, partition, offset)
    console.print_json(found) if as_json else print_explained(found)


@command("share-state groups /lake/share_state --group orders-app")
def groups(
    warehouse: Warehouse = "share_state",
    group: Annotated[str | None, typer.Option(help="All that is known of this group.")] = None,
    members: Annotated[bool, typer.Option("--members", help="With the members of every group.")] = False,
    as_json: Json = False,
) -> None:
    """Print state, members, assignment and lag of share groups, from the tables."""
    found = described_groups(warehouse, group)
    console.print_json(found) if as_json else print_groups(found, group=group, members=members)


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
    from share_state.pipeline.reconstruct import write_decoded  # noqa: PLC0415  lines need no Delta

    phases = Phases(quiet=running.quiet)
    with running.where.tasks(work, phases) as tasks, phases("write"):
        count = write_decoded(tasks, work, out)
    phases.close()
    console.print_json({"records": count, "table": out}) if as_json else console.say(f"{count:,} records are in {out}")


@command("share-state rules --json")
def rules(as_json: Json = False) -> None:
    """List the rules: code, severity, what must hold, and where that comes from."""
    listed = [
        {"rule": rule.code, "severity": rule.severity, "statement": rule.statement, "source": rule.source}
        for rule in sorted(registered().values(), key=lambda rule: rule.code)
    ]
    if as_json:
        console.print_json(listed)
    else:
        console.print_table(["RULE", "SEVERITY", "STATEMENT", "SOURCE"], [list(rule.values()) for rule in listed])


@command("share-state compare /lake/share_state kafka://broker-1:9092")
def compare(
    warehouse: Annotated[str, typer.Argument(metavar="WAREHOUSE", help="Folder of the Delta tables.")],
    cluster: Annotated[str, typer.Argument(metavar="CLUSTER", help="kafka://HOST:PORT[,HOST:PORT...].")],
    kafka_properties: KafkaProperties = None,
    fail_on: FailOn = "error",
    as_json: Json = False,
) -> None:
    """What the broker answers beside what the log says."""
    from share_state.report.compare import compare as compared  # noqa: PLC0415  only this command asks a broker
    from share_state.report.compare import counted, groups_of, print_compared  # noqa: PLC0415
    from share_state.sources.kafka_client import ask_broker  # noqa: PLC0415
    from share_state.spark import jars  # noqa: PLC0415

    check_fail_on(fail_on)
    groups = groups_of(warehouse)
    found = compared(warehouse, ask_broker(cluster, kafka_properties, jars.jars(jars.KAFKA_CLIENTS), groups))
    console.print_json(found | {"warehouse": warehouse, "cluster": cluster}) if as_json else print_compared(found)
    raise Exit(FOUND if fails(counted(found), fail_on) else DONE)


@command("share-state diff /exports/broker-1 --as-of-time 2026-11-21T02Z --and-as-of-time 2026-11-21T03Z")
def diff(
    inputs: Annotated[
        list[str], typer.Argument(metavar="A B | INPUT...", help="Two warehouses; or an export, with as-of options.")
    ],
    reading: Reading,
    and_as_of_offset: Annotated[
        list[str] | None,
        typer.Option("--and-as-of-offset", metavar="P=OFFSET", help="The later point; the end where none is given."),
    ] = None,
    and_as_of_time: Annotated[
        str | None, typer.Option("--and-as-of-time", metavar="ISO-8601", help="The later point, by time.")
    ] = None,
    group: Group = None,
    topic: Topic = None,
    partition: Partition = None,
    as_json: Json = False,
) -> None:
    """What moved between two warehouses, or in an export between two points in time: SPSO, epochs, ranges in flight."""
    chosen = Chosen(group, topic, partition)
    later = replace(reading, as_of_offset=and_as_of_offset, as_of_time=and_as_of_time)
    if _is_of_exports(inputs, reading, later):
        works = (work_of(inputs, point) for point in (reading, later))
        before, after = (of_export(named_by_groups(work, inputs), chosen) for work in works)
    else:
        before, after = (of_warehouse(warehouse, chosen) for warehouse in inputs)
    found = differences(before, after)
    console.print_json(found) if as_json else print_differences(found)


def _is_of_exports(inputs: Sequence[str], earlier: Reading, later: Reading) -> bool:
    """Whether two points of one export are meant, not two warehouses.

    Raises:
        ShareStateError: if neither is.
    """
    if earlier.as_of_offset or earlier.as_of_time:
        return True
    if later.as_of_offset or later.as_of_time:
        raise ShareStateError("diff: give the earlier point of the export, too: --as-of-offset or --as-of-time")
    if len(inputs) != 2:
        raise ShareStateError("diff: give two warehouses, or an export and --as-of-offset or --as-of-time")
    return False


@command("share-state plot window /exports/broker-1 --group app --topic orders --partition 0 --out w.html")
def plot(
    what: Annotated[str, typer.Argument(metavar="WHAT", help="window, offsets, deliveries or cutoff.")],
    inputs: Inputs,
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="A name that ends in .html, .svg or .png.")],
    group: Annotated[str | None, typer.Option(help="The share group.")] = None,
    topic: Annotated[str | None, typer.Option(help="The topic (name or id).")] = None,
    partition: Annotated[int | None, typer.Option(help="The partition of the topic.")] = None,
    *,
    reading: Reading,
    delivery_limit: DeliveryLimit = None,
    as_json: Json = False,
) -> None:
    """Draw one picture: the in-flight window, offsets over time, delivery counts, or cutoff against log."""
    from share_state.report.plots.charts import checked, save  # noqa: PLC0415  matplotlib is slow to import
    from share_state.report.plots.overview import drawn  # noqa: PLC0415

    checked(out)
    chart = drawn(what, work_of(inputs, reading), Chosen(group, topic, partition), delivery_limit)
    save(chart, out)
    told = {"picture": what, "of": chart.heading, "file": out, "says": chart.says}
    console.print_json(told) if as_json else console.say(f"{out}: {console.printable(chart.says)}")
