"""`share-state repair`: a plan for share-partitions in trouble; changes nothing."""

from collections.abc import Sequence
from typing import Annotated

import typer

from share_state.cli.main import Quiet, command
from share_state.cli.options import DeadLetters, GroupSide, Json, Reading, open_plan, spec_of
from share_state.config.inputs import InputSpec
from share_state.config.loading import settings_for
from share_state.errors import ShareStateError, pluralize
from share_state.kafka.releases import RELEASES
from share_state.pipeline.executor import Progress
from share_state.pipeline.inputs import find_cluster_address
from share_state.report import console
from share_state.report.repair.commands import KafkaTools
from share_state.report.repair.plan import SUFFIXES, check_release, make_plan
from share_state.report.repair.status import audited, open_warehouse
from share_state.sources.kafka_client import bootstrap_servers


@command("share-state repair /lake/share_state --group orders-app --out plan.md")
def repair(
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="INPUT...|WAREHOUSE", help="Logs, as for other commands, or the warehouse of an audit."),
    ],
    group: Annotated[list[str] | None, typer.Option(help="Plan only for this group (repeatable).")] = None,
    out: Annotated[
        str | None, typer.Option(metavar="FILE", help="Write the plan to this .md, .sh or .json file.")
    ] = None,
    release: Annotated[
        str | None, typer.Option(help=f"Release that wrote the log: {', '.join(RELEASES)}; else inferred.")
    ] = None,
    most: Annotated[int, typer.Option(metavar="N", min=1, help="Maximum number of share-partitions.")] = 50,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Set a limit, such as limits.delivery_count=3 (only for logs)."
        ),
    ] = None,
    *,
    reading: Reading,
    side: GroupSide,
    dead_letters: DeadLetters = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Plan what to do about share-partitions in trouble.

    It prints options in order of harm, with commands and their simulated effect, and changes nothing.
    """
    if out is not None:
        console.check_suffix(out, SUFFIXES)
        console.check_report_paths(out)
    check_release(release)
    progress = Progress(quiet=quiet)
    if (tables := open_warehouse(inputs)) is not None:
        if (reading, side, dead_letters, sets) != (Reading(), GroupSide(), None, None):
            raise ShareStateError(f"{inputs[0]}: is a warehouse, which keeps the options of its run; leave out others")
        plan = make_plan(tables, group or (), release=release, most=most)
    else:
        spec = spec_of(inputs, reading, side=side, dead_letters=dead_letters)
        address = find_cluster_address(inputs, reading.format)
        tools = KafkaTools(bootstrap_servers(address) if address else None, reading.kafka_properties)
        opened, is_live = open_plan(_with_limits(spec, inputs, sets)), address is not None and not spec.has_as_of
        with opened as logs, progress("read and fold"), audited(logs, inputs, is_live=is_live) as tables:
            plan = make_plan(tables, group or (), limits=logs.limits, release=release, most=most, tools=tools)
    progress.close()
    if out is not None:
        plan.write(out)
    if as_json:
        console.print_json(plan.to_json() | {"out": out})
    elif out is None:
        console.print_lines(plan.markdown().rstrip())
    else:
        console.print_line(f"{out}: {pluralize(len(plan.repairs), 'share-partition')} in trouble")


def _with_limits(spec: InputSpec, inputs: Sequence[str], sets: Sequence[str] | None) -> InputSpec:
    for one in sets or ():
        if not one.startswith("limits."):
            raise ShareStateError(f"--set {one}: give a key of limits, such as limits.delivery_count=3")
    return spec.model_copy(update={"limits": settings_for(inputs, "-", list(sets or ())).limits})
