"""Commands that read tables and print: `show`, `groups` and `compare`; and `rules`."""

from collections import Counter
from typing import Annotated

import typer

from share_state.cli.main import DONE, FOUND, command
from share_state.cli.options import (
    FailOn,
    Group,
    Json,
    KafkaProperties,
    Partition,
    Topic,
    Warehouse,
    fails,
)
from share_state.fold.options import SharePartitionFilter
from share_state.report import console
from share_state.report.show import describe_groups, print_groups, print_state, print_state_json


@command("share-state show /lake/share_state --group orders-app --topic orders")
def show(
    warehouse: Warehouse = "share_state",
    group: Group = None,
    topic: Topic = None,
    partition: Partition = None,
    ranges: Annotated[bool, typer.Option("--ranges", help="Print every in-flight range, one per line.")] = False,
    as_json: Json = False,
    epochs: Annotated[bool, typer.Option("--epochs", help="Also print the leader epoch.")] = False,
) -> None:
    """Print offsets, lag and records in flight."""
    selection = SharePartitionFilter(group, topic, partition)
    if as_json:
        print_state_json(warehouse, selection)
    else:
        print_state(warehouse, selection, epochs=epochs, ranges=ranges)


@command("share-state groups /lake/share_state --group orders-app")
def groups(
    warehouse: Warehouse = "share_state",
    group: Annotated[str | None, typer.Option(help="Print the details of this group.")] = None,
    members: Annotated[bool, typer.Option("--members", help="Print the members of every group.")] = False,
    as_json: Json = False,
) -> None:
    """Print members, assignment and lag of share groups."""
    found = describe_groups(warehouse, group)
    console.print_json(found) if as_json else print_groups(found, group=group, members=members)


@command("share-state compare /lake/share_state kafka://broker-1:9092")
def compare(
    warehouse: Annotated[str, typer.Argument(metavar="WAREHOUSE", help="Folder of the Delta tables.")],
    cluster: Annotated[str, typer.Argument(metavar="CLUSTER", help="kafka://HOST:PORT[,HOST:PORT...].")],
    kafka_properties: KafkaProperties = None,
    fail_on: FailOn = "error",
    as_json: Json = False,
) -> int:
    """Compare the tables with the offsets of a running cluster."""
    from share_state.report.compare import compare as compare_offsets  # noqa: PLC0415  only this command asks a broker
    from share_state.report.compare import list_groups, print_comparison  # noqa: PLC0415
    from share_state.sources.kafka_admin import fetch_broker_offsets  # noqa: PLC0415

    names = list_groups(warehouse)
    answers = fetch_broker_offsets(cluster, kafka_properties, names)
    found = compare_offsets(warehouse, answers)
    console.print_json(found | {"warehouse": warehouse, "cluster": cluster}) if as_json else print_comparison(found)
    return FOUND if fails(Counter(one["severity"] for one in found["findings"]), fail_on) else DONE


@command("share-state rules --json")
def rules(as_json: Json = False) -> None:
    """List the rules: what must hold, severity and source."""
    from share_state.rules.registry import registered  # noqa: PLC0415  rules import the fold

    listed = [
        {"rule": rule.code, "severity": rule.severity, "statement": rule.statement, "source": rule.source}
        for rule in sorted(registered().values(), key=lambda rule: rule.code)
    ]
    if as_json:
        console.print_json(listed)
    else:
        console.print_table(["RULE", "SEVERITY", "STATEMENT", "SOURCE"], [list(rule.values()) for rule in listed])
