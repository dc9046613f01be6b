"""`share-state why`: the cause of a group's trouble on one screen."""

from typing import Annotated

import typer

from share_state.cli.command import Quiet, command
from share_state.cli.completion import complete_group
from share_state.cli.input_options import InputOptions
from share_state.cli.options import Json, Partition, Topic
from share_state.cli.warehouse_or_input import ClockOption, open_input
from share_state.errors import require
from share_state.fold.fold_options import SharePartitionFilter
from share_state.incidents.incident import find_incident
from share_state.incidents.incident_text import incident_lines, screen_width
from share_state.report import console


@command("share-state why orders-app /exports/broker-1")
def why(
    group: Annotated[
        str, typer.Argument(metavar="GROUP", help="The share group.", autocompletion=complete_group)
    ],
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT...|WAREHOUSE", help="Logs, as for other commands, or the warehouse of an audit."
        ),
    ],
    topic: Topic = None,
    partition: Partition = None,
    html: Annotated[
        str | None, typer.Option(metavar="FILE", help="Also write the incident to this file as a page.")
    ] = None,
    picture: Annotated[
        bool, typer.Option("--picture", help="Draw the window also where the output is no terminal.")
    ] = False,
    *,
    clock: ClockOption = None,
    options: InputOptions,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Print what is wrong with a group, since when, and what to do.

    Without trouble it says so, with the numbers that show it.
    """
    if html is not None:
        require("matplotlib")
        console.check_report_paths(html)
    selection = SharePartitionFilter(group, topic, partition)
    with open_input(inputs, options, clock=clock, quiet=quiet) as opened:
        incident = find_incident(opened, selection)
    if html is not None:
        from share_state.incidents.incident_page import write_incident_page  # noqa: PLC0415  imports matplotlib

        write_incident_page(html, incident)
    if as_json:
        console.print_json(incident.to_json() | {"html": html})
        return
    for line in incident_lines(incident, screen_width(), has_picture=picture or console.is_terminal()):
        console.print_line(line)
    if html is not None:
        console.print_line(f"written: {html}")
