"""`share-state groups`: state, members, assignment and lag of share groups."""

from typing import Annotated

import typer

from share_state.commands.app import command
from share_state.commands.options import Json, Warehouse
from share_state.report import console
from share_state.report.groups import described_groups, print_groups


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
