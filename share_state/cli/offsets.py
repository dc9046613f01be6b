"""`share-state offsets`: start offsets of share groups as a file that kafka-share-groups.sh restores."""

from typing import Annotated

import typer

from share_state.cli.command import DONE, FOUND, Quiet, command
from share_state.cli.completion import complete_group
from share_state.cli.input_options import InputOptions, open_plan
from share_state.cli.options import Json
from share_state.config.input_spec import JUDGE_ALL
from share_state.errors import ShareStateError
from share_state.fold.fold_options import SharePartitionFilter
from share_state.pipeline.driver_side import name_topics
from share_state.pipeline.progress import Progress
from share_state.repairs.offset_backup import SUFFIXES, back_up_offsets, print_backup, write_backup
from share_state.repairs.status import audited, open_warehouse
from share_state.report import console
from share_state.report.diff import fold_exports


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
    progress, groups = Progress(quiet=quiet), group or ()
    if (tables := open_warehouse(inputs)) is not None:
        if options.given:
            raise ShareStateError(
                f"{inputs[0]}: is a warehouse, which has the state at its last run; leave out other options"
            )
        backup = back_up_offsets(tables, groups)
    else:
        spec, now = options.spec(inputs, judge=JUDGE_ALL), None
        if spec.has_as_of:
            latest = options.with_values(as_of_offset=None, as_of_time=None)
            with open_plan(latest.spec(inputs, names_only=True)) as plan:
                (now,) = fold_exports((name_topics(plan),), SharePartitionFilter())
        with open_plan(spec) as plan, progress("read and fold"):
            plan.check_time()
            with audited(plan, inputs) as tables:
                backup = back_up_offsets(tables, groups, now)
    progress.close()
    write_backup(backup, out)
    console.print_json(backup.to_json(out)) if as_json else print_backup(backup, out)
    return DONE if backup.is_complete else FOUND
