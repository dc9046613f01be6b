"""`share-state diff`: what moved between two warehouses, or between two points in time of an export."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer

from share_state.commands.app import command
from share_state.commands.options import Group, Json, Partition, Reading, Topic
from share_state.commands.reading import named_by_groups, work_of
from share_state.errors import ShareStateError
from share_state.fold.chosen import Chosen
from share_state.report import console
from share_state.report.diff import differences, of_export, of_warehouse, print_differences


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
