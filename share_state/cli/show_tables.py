"""Commands that read tables and print: `show` and `groups`; and `rules`.

They import what they call in their bodies: a shell that completes a group imports this module and waits for
it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from share_state.cli.command import command
from share_state.cli.completion import complete_code, complete_group
from share_state.cli.options import Group, Json, Partition, Topic, Warehouse

if TYPE_CHECKING:
    from share_state.delta.committed import CommittedTables


@contextmanager
def _opened(place: str) -> "Iterator[CommittedTables]":
    """Yield the tables of a warehouse, or those of an audit of an export; only that imports the fold.

    Raises:
        ShareStateError: if it is neither.
    """
    from share_state.delta.committed import CommittedTables  # noqa: PLC0415  slow to import
    from share_state.errors import NothingCommittedError  # noqa: PLC0415

    try:
        tables = CommittedTables(place)
    except NothingCommittedError as nothing:
        from share_state.cli.warehouse_or_input import audit_export  # noqa: PLC0415  imports the fold

        with audit_export(place, nothing) as made:
            yield made
        return
    yield tables


@command("share-state show /lake/share_state --group orders-app --topic orders")
def show(
    warehouse: Warehouse = "share_state",
    group: Group = None,
    topic: Topic = None,
    partition: Partition = None,
    ranges: Annotated[
        bool, typer.Option("--ranges", help="Print every in-flight range, one per line.")
    ] = False,
    sort: Annotated[
        Literal["name", "lag", "in-flight"],
        typer.Option(metavar="name|lag|in-flight", help="Order: by name, or the largest first."),
    ] = "name",
    top: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Print at most N share-partitions, and the totals of all."),
    ] = None,
    as_json: Json = False,
    epochs: Annotated[bool, typer.Option("--epochs", help="Also print the leader epoch.")] = False,
    cluster: Annotated[
        bool,
        typer.Option(
            "--cluster", help="Print what the run used of the cluster, and the source of each fact."
        ),
    ] = False,
) -> None:
    """Print offsets, lag and records in flight."""
    from share_state.fold.fold_options import SharePartitionFilter  # noqa: PLC0415  imports numba
    from share_state.report.cluster_use import print_cluster  # noqa: PLC0415
    from share_state.report.show import Order, print_state, print_state_json  # noqa: PLC0415

    selection, order = SharePartitionFilter(group, topic, partition), Order(sort, top)
    with _opened(warehouse) as tables:
        if cluster:
            print_cluster(tables, as_json=as_json)
        elif as_json:
            print_state_json(tables, selection, order)
        else:
            print_state(tables, selection, order, epochs=epochs, ranges=ranges, named=warehouse)


@command("share-state groups /lake/share_state --group orders-app")
def groups(
    warehouse: Warehouse = "share_state",
    group: Annotated[
        str | None,
        typer.Option(metavar="GROUP", help="Print the details of this group.", autocompletion=complete_group),
    ] = None,
    members: Annotated[bool, typer.Option("--members", help="Print the members of every group.")] = False,
    claims: Annotated[
        bool,
        typer.Option(
            "--claims",
            help="Print the claims of members of classic groups; __consumer_offsets alone will do.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Print members, assignment and lag of share groups."""
    from share_state.report.console import print_json  # noqa: PLC0415  imports numba
    from share_state.report.show import describe_groups, print_groups  # noqa: PLC0415

    if claims:
        _print_claims(warehouse, group, as_json=as_json)
        return
    with _opened(warehouse) as tables:
        found = {"warehouse": warehouse} | describe_groups(tables, group)
    print_json(found) if as_json else print_groups(found, group=group, members=members)


def _print_claims(place: str, group: str | None, *, as_json: bool) -> None:
    """Print the claims of a warehouse, or of an export that needs no state.

    Raises:
        ShareStateError: if it is neither, or the group claims nothing.
    """
    from share_state.delta.committed import CommittedTables  # noqa: PLC0415  slow to import
    from share_state.errors import NothingCommittedError  # noqa: PLC0415
    from share_state.report.claims import (  # noqa: PLC0415  imports the fold
        claims_of_export,
        claims_of_run,
        describe_claims,
        print_claims,
    )
    from share_state.report.console import print_json  # noqa: PLC0415

    try:
        found = claims_of_run(CommittedTables(place))
    except NothingCommittedError:
        found = claims_of_export(place)
    described = describe_claims(found.of_group(group))
    print_json(described) if as_json else print_claims(described, group=group)


@command("share-state rules ARCHIVING_STUCK")
def rules(
    code: Annotated[
        str | None,
        typer.Argument(metavar="[CODE]", help="Only this rule, or verdict.", autocompletion=complete_code),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the rules, or print one with what to do."""
    from share_state.report.console import print_json, print_lines, print_table  # noqa: PLC0415
    from share_state.report.rule_text import describe_rule, list_rules, rule_lines  # noqa: PLC0415

    if code is not None:
        described = describe_rule(code)
        print_json(described) if as_json else print_lines("\n".join(rule_lines(described)))
        return
    listed = list_rules()
    if as_json:
        print_json(listed)
    else:
        columns = ("rule", "severity", "statement", "source")
        print_table([name.upper() for name in columns], [[row[name] for name in columns] for row in listed])
