"""`share-state show`: what the tables say, for a person."""

from typing import Annotated

import typer

from share_state.commands.app import command
from share_state.commands.options import Group, Json, Partition, Topic, Warehouse
from share_state.report.show import print_described, print_everything


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
