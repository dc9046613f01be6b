"""`share-state repair`: a plan for share-partitions in trouble; changes nothing."""

from typing import Annotated

import typer

from share_state.cli.command import Quiet, command
from share_state.cli.completion import complete_group
from share_state.cli.input_options import InputOptions, open_plan
from share_state.cli.options import Json
from share_state.cli.warehouse_or_input import with_settings
from share_state.config.model import Clock
from share_state.config.sections import Release
from share_state.errors import ShareStateError, pluralize
from share_state.kafka.releases import RELEASES
from share_state.pipeline.progress import Progress
from share_state.repairs.commands import KafkaTools
from share_state.repairs.repair_plan import SUFFIXES, is_by_wall_clock, make_plan
from share_state.repairs.status import audited, open_warehouse
from share_state.report import console
from share_state.sources.formats import AUTO
from share_state.sources.input_detection import find_cluster_address
from share_state.sources.kafka_client import bootstrap_servers


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
        Release | None,
        typer.Option(
            metavar="|".join(RELEASES), help="Release that wrote the log; by default inferred from the log."
        ),
    ] = None,
    clock: Annotated[
        Clock | None,
        typer.Option(
            metavar="log|wall",
            help="End of measured durations: the last record of each log, or now, as for a live cluster.",
        ),
    ] = None,
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

    It prints options in order of harm, with commands and their simulated effect, and changes nothing.
    """
    if out is not None:
        console.check_suffix(out, SUFFIXES)
        console.check_report_paths(out)
    progress = Progress(quiet=quiet)
    if (tables := open_warehouse(inputs)) is not None:
        if options.given or sets or clock:
            raise ShareStateError(
                f"{inputs[0]}: is a warehouse, which keeps the options of its run; leave out others"
            )
        plan = make_plan(tables, group or (), release=release, most=most)
    else:
        spec, set_clock = with_settings(options, inputs, sets or ())
        address = find_cluster_address(inputs, options.get("format") or AUTO)
        tools = KafkaTools(bootstrap_servers(address) if address else None, options.get("kafka_properties"))
        by_wall_clock = is_by_wall_clock(
            clock or set_clock, is_live=address is not None and not spec.has_as_of
        )
        with open_plan(spec) as logs:
            logs.check_time()
            with progress("read and fold"), audited(logs, inputs, is_live=by_wall_clock) as tables:
                limits = logs.options.limits
                plan = make_plan(tables, group or (), limits=limits, release=release, most=most, tools=tools)
    progress.close()
    if out is not None:
        plan.write(out)
    if as_json:
        console.print_json(plan.to_json() | {"out": out})
    elif out is None:
        console.print_lines(plan.markdown().rstrip())
    else:
        console.print_line(f"{out}: {pluralize(len(plan.repairs), 'share-partition')} in trouble")
