"""`share-state offsets`: start offsets of share groups as a file that kafka-share-groups.sh restores."""

from typing import Annotated

import typer

from share_state.cli.command import DONE, FOUND, Quiet, command
from share_state.cli.completion import complete_group
from share_state.cli.input_options import InputOptions, open_plan
from share_state.cli.options import Json
from share_state.cli.warehouse_or_input import open_input
from share_state.config.run_options import POINTS, logs_of_warehouse
from share_state.fold.fold_options import SharePartitionFilter
from share_state.pipeline.driver_side import name_topics
from share_state.repairs.offset_backup import SUFFIXES, back_up_offsets, print_backup, write_backup
from share_state.repairs.status import open_warehouse
from share_state.report import console
from share_state.report.diff import StateTables, fold_exports, read_states


@command(
    "share-state offsets /exports/broker-1 --group orders-app --as-of-time 2026-11-21T02:10Z --out offsets.csv"
)
def offsets(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT...|WAREHOUSE", help="Logs, as for other commands, or the warehouse of an audit."
        ),
    ],
    out: Annotated[str, typer.Option(metavar="FILE", help="The .csv file to write.")],
    group: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GROUP", help="Write only this group (repeatable).", autocompletion=complete_group
        ),
    ] = None,
    *,
    options: InputOptions,
    as_json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Write start offsets of groups to a file, for a restore.

    They are those at any moment of the log.
    kafka-share-groups.sh --reset-offsets --from-file restores them. The exit code is 1 if a share-partition is
    left out, such as one whose state cannot be trusted.
    """
    console.check_suffix(out, SUFFIXES)
    console.check_report_paths(out)
    latest = None
    if any(name in options.given for name in POINTS) and (tables := open_warehouse(inputs)) is not None:
        # Of a warehouse: its logs, at another moment.
        inputs, given = logs_of_warehouse(inputs[0], tables, options.given)
        options = InputOptions(given)
        (latest,) = read_states([tables], SharePartitionFilter())
    elif any(name in options.given for name in POINTS):
        latest = _latest_state(inputs, options)
    with open_input(inputs, options, needs_logs=False, quiet=quiet) as source:
        backup = back_up_offsets(source.tables, group or (), latest)
    write_backup(backup, out)
    console.print_json(backup.to_json(out)) if as_json else print_backup(backup, out)
    return DONE if backup.is_complete else FOUND


def _latest_state(inputs: list[str], options: InputOptions) -> StateTables:
    """The state at the end of the logs."""
    latest = options.with_values(**dict.fromkeys(POINTS))
    with open_plan(latest.spec(inputs, names_only=True)) as plan:
        (state,) = fold_exports((name_topics(plan),), SharePartitionFilter())
    return state
