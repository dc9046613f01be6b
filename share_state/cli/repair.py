"""`share-state repair`: a plan for share-partitions in trouble; changes nothing."""

from typing import Annotated

import typer

from share_state.cli.command import Quiet, command
from share_state.cli.completion import complete_group, complete_release
from share_state.cli.input_options import InputOptions
from share_state.cli.options import Json
from share_state.cli.warehouse_or_input import ClockOption, open_input
from share_state.kafka.releases import SIMULATED
from share_state.repairs.plan_files import SUFFIXES
from share_state.repairs.redrive import plan_redrive
from share_state.repairs.repair_plan import make_plan
from share_state.report import console
from share_state.simulator.types import find_release


@command("share-state repair /lake/share_state --group orders-app --out plan.md")
def repair(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT...|WAREHOUSE", help="Logs, as for other commands, or the warehouse of an audit."
        ),
    ],
    group: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GROUP", help="Plan only for this group (repeatable).", autocompletion=complete_group
        ),
    ] = None,
    out: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the plan to this .md, .sh or .json file.")
    ] = None,
    release: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(SIMULATED),
            help="Release that wrote the log; by default inferred from the log.",
            autocompletion=complete_release,
        ),
    ] = None,
    clock: ClockOption = None,
    redrive: Annotated[
        bool,
        typer.Option(
            "--redrive", help="Plan how lost, given-up and rejected records are delivered again instead."
        ),
    ] = False,
    most: Annotated[int, typer.Option(metavar="N", min=1, help="Maximum number of share-partitions.")] = 50,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", hidden=True, help="Old form of --limit, --rule and --clock."
        ),
    ] = None,
    *,
    options: InputOptions,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Plan what to do about share-partitions in trouble.

    It prints options in order of harm, with commands and their simulated effect, and changes nothing. With
    --redrive it lists the records that groups did not process, with commands that deliver them again.
    """
    if release is not None:
        find_release(release)
    if out is not None:
        console.check_suffix(out, SUFFIXES)
        console.check_report_paths(out)
    opened = open_input(inputs, options, clock=clock, sets=sets or (), needs_logs=redrive, quiet=quiet)
    with opened as source:
        plan = (
            plan_redrive(source, group or (), release=release, most=most)
            if redrive
            else make_plan(
                source.tables,
                group or (),
                limits=source.limits,
                release=release,
                most=most,
                tools=source.tools,
            )
        )
    if out is not None:
        plan.write(out)
    if as_json:
        console.print_json(plan.to_json() | {"out": out})
    elif out is None:
        console.print_lines(plan.markdown().rstrip())
    else:
        console.print_line(f"{out}: {plan.summary}")
