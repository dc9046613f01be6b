"""A command takes logs or a warehouse: the logs of a warehouse are those of its last run, the tables of logs are made.

`logs_of` gives commands that read logs those of a warehouse; `open_tables` gives commands that read tables those
of logs, from an audit into a temporary folder; `open_input` gives both.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import Annotated, Any

import typer

from share_state.cli.input_options import InputOptions, open_plan
from share_state.config.input_spec import input_options
from share_state.config.loading import settings_for
from share_state.config.model import AuditSettings, Clock
from share_state.config.run_options import logs_of_run, logs_of_warehouse, refuse_options
from share_state.delta.committed import CommittedTables
from share_state.errors import InputError, NothingCommittedError, ShareStateError
from share_state.pipeline.progress import Progress
from share_state.repairs.commands import KafkaTools
from share_state.repairs.opened_input import OpenedInput
from share_state.repairs.repair_plan import is_by_wall_clock
from share_state.repairs.status import audited, open_warehouse
from share_state.sources.formats import AUTO
from share_state.sources.input_detection import find_cluster_address
from share_state.sources.kafka_client import bootstrap_servers

ClockOption = Annotated[
    Clock | None,
    typer.Option(
        "--clock",
        metavar="log|wall",
        help="End of measured durations: the last record of each log, or now, as for a live cluster.",
    ),
]
_OLD_FORMS = ("limits.", "rules.", "clock=")


@contextmanager
def open_input(
    inputs: Sequence[str],
    options: InputOptions,
    *,
    clock: Clock | None = None,
    sets: Sequence[str] = (),
    needs_logs: bool = True,
    quiet: bool = True,
) -> Iterator[OpenedInput]:
    """Yield tables and logs of an input.

    Args:
        inputs, options: of the call.
        clock: end of measured durations; None for that of the settings, or now for a live cluster.
        sets: `--set` options of older calls.
        needs_logs: whether the logs of a warehouse are looked for.
        quiet: whether no progress is shown.
    Raises:
        ShareStateError: if it cannot be used, or options are given for a warehouse.
    """
    progress = Progress(quiet=quiet)
    if (tables := open_warehouse(inputs)) is not None:
        refuse_options(inputs[0], options.given or sets or clock)
        with ExitStack() as stack:
            plan = lacks = None
            try:
                if needs_logs:
                    logs, of_run = logs_of_run(tables)
                    plan = stack.enter_context(open_plan(InputOptions(of_run).spec(logs, names_only=True)))
            except ShareStateError as error:
                lacks = f"the logs of its last run cannot be read ({error})"
            yield OpenedInput(tables, plan, lacks, None, KafkaTools(), tuple(inputs))
        return
    # It refuses values that cannot be used, and names the option.
    spec = options.spec(inputs)
    settings = _settings(options, inputs, sets)
    spec = spec.model_copy(update={"limits": settings.limits, "rules": settings.rules})
    address = find_cluster_address(inputs, options.get("format") or AUTO)
    tools = KafkaTools(bootstrap_servers(address) if address else None, options.get("kafka_properties"))
    if clock is None and "clock" in settings.model_fields_set:
        clock = settings.clock
    by_wall_clock = is_by_wall_clock(clock, is_live=address is not None and not spec.has_as_of)
    with ExitStack() as stack:
        plan = stack.enter_context(open_plan(spec))
        plan.check_time()
        # What the command prints must not meet the line of a running phase.
        with progress("read and fold"):
            tables = stack.enter_context(audited(plan, inputs, is_live=by_wall_clock))
        progress.close()
        words = (*inputs, *words_of(options))
        yield OpenedInput(tables, plan, None, plan.options.limits, tools, words)


def _settings(options: InputOptions, inputs: Sequence[str], sets: Sequence[str]) -> AuditSettings:
    """The settings that an audit of the inputs would have: those of the options, its variables and `--set`."""
    for text in sets:
        if not text.startswith(_OLD_FORMS):
            raise ShareStateError(f"--set {text}: give a limit as --limit NAME=VALUE")
    judging = [one for one in options.assignments(len(inputs)) if one.path[0] in ("limits", "rules")]
    return settings_for(inputs, "-", sets, assignments=judging)


def logs_of(inputs: Sequence[str], options: InputOptions) -> tuple[list[str], InputOptions]:
    """The logs that a command reads, and its options: for a warehouse those of its last run.

    Raises:
        ShareStateError: if options are given for a warehouse, or its logs are gone.
    """
    tables = None
    # What is wrong with a store, the logs say in the words of logs.
    with suppress(ShareStateError) if "://" in inputs[0] else nullcontext():
        tables = open_warehouse(inputs)
    if tables is None:
        return list(inputs), options
    logs, given = logs_of_warehouse(inputs[0], tables, options.given)
    return logs, InputOptions(given)


@contextmanager
def open_tables(
    place: str, options: InputOptions | None = None, *, quiet: bool = True
) -> Iterator[CommittedTables]:
    """Yield the tables of a warehouse, or those of an audit of an export into a temporary folder.

    Raises:
        NothingCommittedError: if the place is neither.
        ShareStateError: if it cannot be read.
    """
    try:
        tables = CommittedTables(place)
    except NothingCommittedError as nothing:
        with audit_export(place, nothing, options, quiet=quiet) as made:
            yield made
        return
    yield tables


@contextmanager
def audit_export(
    place: str, nothing: NothingCommittedError, options: InputOptions | None = None, *, quiet: bool = True
) -> Iterator[CommittedTables]:
    """Yield the tables of an audit of an export into a temporary folder.

    Args:
        place: the export.
        nothing: why it is no warehouse.
        options: of the call.
        quiet: whether no progress is shown.
    Raises:
        NothingCommittedError: `nothing`, if the place is no export either.
        ShareStateError: if it cannot be read.
    """
    given = options or InputOptions({})
    with ExitStack() as stack:
        try:
            plan = stack.enter_context(open_plan(given.spec([place])))
        except InputError:
            if find_cluster_address([place], AUTO) is not None:
                raise
            raise nothing from None
        plan.check_time()
        progress = Progress(quiet=quiet)
        with progress("read and fold"):
            made = stack.enter_context(audited(plan, [place]))
        progress.close()
        yield made


def words_of(options: InputOptions) -> list[str]:
    """Options as a person types them."""
    words = list[str]()
    for option in input_options():
        if (value := options.get(option.name)) is None:
            continue
        texts = value if isinstance(value, list) else [value]
        if isinstance(value, Mapping):
            texts = list(_pairs(value))
        words += (
            [option.flag]
            if option.kind == "flag"
            else [word for one in texts for word in (option.flag, str(one))]
        )
    return words


def _pairs(value: Mapping[str, Any], group: str = "") -> Iterator[str]:
    for name, one in value.items():
        if name == "groups" and isinstance(one, Mapping):
            for of_group, limits in one.items():
                yield from _pairs(limits, f"{of_group}:")
        else:
            yield f"{group}{name}={one}"
