"""The calls that answer a question: `explain`, `why`, `repair`, `diff` and `audit`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast, overload

import pyarrow as pa

from share_state.api.arguments import (
    Paths,
    ReadOptions,
    Records,
    check_types,
    given_values,
    has_rows,
    listed_paths,
    named_inputs,
    plan_of,
    takes_options,
)
from share_state.config.declaration import python
from share_state.config.input_spec import ARGUMENTS, JUDGE_ALL, KEYS, input_options, spec_of_options
from share_state.config.run_options import logs_of_run, refuse_options
from share_state.errors import ShareStateError, pluralize
from share_state.fold.fold_options import SharePartitionFilter
from share_state.incidents.incident import Incident, find_incident
from share_state.incidents.incident_text import incident_lines
from share_state.pipeline.driver_side import name_topics
from share_state.pipeline.planning import build_plan
from share_state.repairs.commands import KafkaTools
from share_state.repairs.opened_input import OpenedInput
from share_state.repairs.repair_plan import is_by_wall_clock
from share_state.repairs.status import audited, open_warehouse
from share_state.report.diff import compare_states, fold_exports, read_states
from share_state.schema.declarations import arrow_type
from share_state.sources.formats import AUTO
from share_state.sources.input_detection import find_cluster_address
from share_state.sources.kafka_client import bootstrap_servers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from share_state.delta.committed import CommittedTables
    from share_state.repairs.redrive import RedrivePlan
    from share_state.repairs.repair_plan import RepairPlan
    from share_state.report.audit_data import AuditReport
    from share_state.sources.as_of import AsOf


@dataclass(frozen=True, slots=True, repr=False)
class Explained:
    """What happened to one offset.

    Attributes:
        sentence: its state now, in plain words.
        records: one row per record that touched it, in log order: its `offset` in the log and `timestamp`
            (UTC), its content (`said`), the state of the offset after it (`standing`), `deliveries` so far,
            SPSO and SPEO.
        facts: all of that and the state of the offset, as plain data.
    """

    sentence: str
    records: pa.Table
    facts: Mapping[str, Any]

    def __repr__(self) -> str:
        return self.sentence


_EXPLAINED = arrow_type(
    "struct<offset bigint, timestamp timestamp, kind string, said string, standing string, changed boolean, "
    "deliveries bigint, start_offset bigint, end_offset bigint, snapshot_epoch int, state_epoch int, leader_epoch int, "
    "members array<string>>"
)
"""A row of `Explained.records`."""


@takes_options
def explain(
    input: "Records | DataFrame",
    group: str,
    topic: str,
    partition: int,
    offset: int | None = None,
    *,
    spark: "SparkSession | None" = None,
    delivery_limit: int | None = None,
    **options: Unpack[ReadOptions],
) -> Explained:
    """What happened to one offset: every record that touched it, and its state now in a sentence.

    Args:
        input: as for `reconstruct`; or a warehouse: the logs of its last run.
        group: the share group.
        topic: by name, if `topics` or the groups hold it, or by id.
        partition: the partition of the topic.
        offset: the offset in this partition; by default the first unfinished one, which SPSO waits for.
        spark: a session, to sort tables that need it.
        delivery_limit: the older form of `limits={"groups": {group: {"delivery_count": ...}}}`.
        options: as for `reconstruct`:
    Returns:
        The sentence, and an Arrow table with one row per record.
    Raises:
        InputError: if there is no record of the share-partition.
        ShareStateError: if an argument cannot be used.
    Source: Kafka ShareCoordinatorShard.replay; KIP-932, In-flight records; its draft, recovery.
    """
    from share_state.report.explain import explain_offset  # noqa: PLC0415  only this call explains

    check_types(group=group, topic=topic, partition=partition, delivery_limit=delivery_limit)
    if offset is not None:
        check_types(offset=offset)
    if delivery_limit is not None:
        limits = options.get("limits") or {}
        of_group = {"delivery_count": delivery_limit, **limits.get("groups", {}).get(group, {})}
        options["limits"] = {**limits, "groups": {**limits.get("groups", {}), group: of_group}}
    plan = plan_of(input, options, spark=spark, takes_warehouse=True)
    found = explain_offset(plan, [], group, topic, partition, offset)
    return Explained(
        found["sentence"], pa.Table.from_pylist(found["records"], pa.schema(list(_EXPLAINED))), found
    )


class Why(Incident):
    """What is wrong with a group: an `Incident` that prints as the screen of `share-state why`."""

    def __repr__(self) -> str:
        return "\n".join(incident_lines(self))

    def _repr_html_(self) -> str:
        from share_state.incidents.incident_page import render_incident  # noqa: PLC0415  imports matplotlib

        return _framed(render_incident(self))


def _framed(page: str) -> str:
    """A page in a frame of its own, so that its styles do not reach the notebook."""
    from markupsafe import escape  # noqa: PLC0415  only notebooks need it

    return f'<iframe srcdoc="{escape(page)}" style="width:100%;height:36em;border:0"></iframe>'


@takes_options
def why(
    input: "Records",
    group: str,
    topic: str | None = None,
    partition: int | None = None,
    *,
    clock: str | None = None,
    **options: Unpack[ReadOptions],
) -> Why:
    """What is wrong with a group, since when, what SPSO waits for, and the first repair.

    Args:
        input: as for `reconstruct`, but no DataFrame of Spark; or a warehouse.
        group: the share group.
        topic, partition: only this share-partition; by default the worst of the group.
        clock: as for `repair`.
        options: as for `reconstruct`; not for a warehouse:
    Returns:
        The incident: `trouble` (None without trouble), `cause`, `since`, `story`, `option` and more; `to_json()` is
        all of it as plain data. It prints as `share-state why` does, and notebooks show it as a page.
    Raises:
        InputError: if a path is missing or holds no log, or the group is unknown.
        ShareStateError: if an argument cannot be used.
    Source: Kafka SharePartition, ShareCoordinatorShard; KIP-932, KIP-1191.
    """
    check_types(group=group, topic=topic, partition=partition)
    selection = SharePartitionFilter(group, topic, partition)
    with _opened(input, options, clock) as opened:
        found = find_incident(opened, selection)
    if has_rows(input):
        # No command reads what is only in memory.
        found = replace(found, commands=())
    return Why(**{one.name: getattr(found, one.name) for one in fields(Incident)})


@overload
def repair(
    input: Paths,
    *,
    group: str | Sequence[str] = (),
    release: str | None = None,
    redrive: Literal[False] = False,
    most: int = 50,
    clock: str | None = None,
    **options: Unpack[ReadOptions],
) -> "RepairPlan": ...
@overload
def repair(
    input: Paths,
    *,
    group: str | Sequence[str] = (),
    release: str | None = None,
    redrive: Literal[True],
    most: int = 50,
    clock: str | None = None,
    **options: Unpack[ReadOptions],
) -> "RedrivePlan": ...


@takes_options
def repair(
    input: Paths,
    *,
    group: str | Sequence[str] = (),
    release: str | None = None,
    redrive: bool = False,
    most: int = 50,
    clock: str | None = None,
    **options: Unpack[ReadOptions],
) -> "RepairPlan | RedrivePlan":
    """A plan for share-partitions in trouble: what is wrong, and options in order of harm.

    It changes nothing.

    Args:
        input: as for `reconstruct`, but no DataFrame; or the folder of a warehouse.
        group: only this group, or these.
        release: the release that wrote the log, "4.0" to "4.4"; by default inferred.
        redrive: plan how lost, given-up and rejected records are delivered again instead.
        most: maximum number of share-partitions, the most severe first.
        clock: end of measured durations: "log", the last record of each log, or "wall", now; by default now for
            a live cluster.
        options: as for `reconstruct`; not for a warehouse:
    Returns:
        The plan: `repairs`, one per share-partition, with `sentence`, `now` and `options`; with `redrive`,
        `redrives`, each with `unprocessed` ranges and `options`. It prints as Markdown.
    Raises:
        InputError: if a path is missing or holds no log, or a group is unknown.
        WarehouseError: if a table of the warehouse is gone.
        ShareStateError: if an argument cannot be used.
    Source: Kafka SharePartition, ShareCoordinatorShard; KIP-932, KIP-1191.
    """
    from share_state.repairs.redrive import plan_redrive  # noqa: PLC0415  imports the simulator
    from share_state.repairs.repair_plan import check_release, make_plan  # noqa: PLC0415  imports the simulator

    check_release(release)
    if has_rows(input):
        raise ShareStateError(
            f"input is a {type(input).__name__}: repair takes paths only; give an export, or the folder of a warehouse"
        )
    if not isinstance(group, Iterable):
        raise ShareStateError(f"group={group!r}: give text, or several")
    groups = [group] if isinstance(group, str) else group
    with _opened(input, options, clock, needs_logs=redrive) as opened:
        if redrive:
            return plan_redrive(opened, groups, release=release, most=most)
        return make_plan(
            opened.tables, groups, limits=opened.limits, release=release, most=most, tools=opened.tools
        )


@contextmanager
def _opened(
    input: Records, options: Mapping[str, Any], clock: str | None = None, *, needs_logs: bool = True
) -> Iterator[OpenedInput]:
    """Yield the tables of a warehouse, or of an audit of the logs.

    Raises:
        ShareStateError: if it cannot be used, or options are given for a warehouse.
    """
    if hasattr(input, "sparkSession"):
        raise ShareStateError("input is a DataFrame of Spark: give input.toArrow(), or a path")
    named = [] if has_rows(input) else listed_paths(cast("Paths", input))
    address = find_cluster_address(named, options.get("format") or AUTO) if named else None
    by_wall_clock = is_by_wall_clock(clock, is_live=address is not None and options.get("as_of") is None)
    if named and (tables := open_warehouse(named)) is not None:
        refuse_options(named[0], [one for one in options.values() if one is not None] or by_wall_clock)
        plan = lacks = None
        try:
            if needs_logs:
                logs, of_run = logs_of_run(tables)
                plan = build_plan(spec_of_options(KEYS, logs, of_run, names_only=True), KEYS)
        except ShareStateError as error:
            lacks = f"the logs of its last run cannot be read ({error})"
        yield OpenedInput(tables, plan, lacks, None, KafkaTools(), tuple(named_inputs(input)))
        return
    plan = plan_of(input, options)
    plan.check_time()
    tools = KafkaTools(bootstrap_servers(address) if address else None, options.get("kafka_properties"))
    with audited(plan, named_inputs(input), is_live=by_wall_clock) as tables:
        yield OpenedInput(tables, plan, None, plan.options.limits, tools, tuple(named_inputs(input)))


_KEY = "dialect string, group_id string, topic_id string, topic string, partition int"
_CHANGED = arrow_type(
    f"struct<{_KEY}, change string, start_offset_before bigint, start_offset_after bigint, end_offset_before bigint, "
    "end_offset_after bigint, snapshot_epoch_before int, snapshot_epoch_after int, state_epoch_before int, "
    "state_epoch_after int, leader_epoch_before int, leader_epoch_after int, delivery_complete_count_before int, "
    "delivery_complete_count_after int, acknowledged bigint, given_up bigint, rejected bigint, released bigint, "
    "dead_lettered bigint>"
)
"""A row of `Differences.share_partitions`."""

_RANGES = arrow_type(
    f"struct<{_KEY}, first_offset bigint, last_offset bigint, record_count bigint, change string, before string, "
    "after string>"
)
"""A row of `Differences.ranges`."""


@dataclass(frozen=True, slots=True, repr=False)
class Differences:
    """What changed between two points.

    Attributes:
        share_partitions: one row per share-partition that differs: its key, `change` (appeared, disappeared, changed),
            SPSO, SPEO and epochs before and after (null if they did not change or are unknown), and what became of
            deliveries between two points of one export (null if that is not known).
        ranges: one row per range of offsets that is in another state: `change`, and the states `before` and `after`.
        compared: number of share-partitions that are compared.
        facts: all of that as plain data.
    """

    share_partitions: pa.Table
    ranges: pa.Table
    compared: int
    facts: Mapping[str, Any]

    def __repr__(self) -> str:
        count, offsets = len(self.share_partitions), sum(self.ranges["record_count"].to_pylist())
        verb = "differs" if count == 1 else "differ"
        return (
            f"{count:,} of {pluralize(self.compared, 'share-partition')} {verb}, "
            f"{pluralize(offsets, 'offset')} in another state"
        )


def differences_of(compared: Mapping[str, Any]) -> Differences:
    """The result of `compare_states` as tables."""
    rows, ranges = list[dict[str, Any]](), list[dict[str, Any]]()
    for row in compared["changed"]:
        key = {name: row[name] for name in ("dialect", "group_id", "topic_id", "topic", "partition")}
        steps = {
            f"{name}_{side}": value
            for name, pair in row["scalars"].items()
            for side, value in zip(("before", "after"), pair, strict=True)
        }
        rows.append(key | {"change": row["change"]} | steps | (row["deliveries"] or {}))
        ranges += [key | one for one in row["ranges"]]
    return Differences(
        pa.Table.from_pylist(rows, pa.schema(list(_CHANGED))),
        pa.Table.from_pylist(ranges, pa.schema(list(_RANGES))),
        compared["share_partitions"],
        compared,
    )


@takes_options
def diff(
    input: Records,
    other: Records | None = None,
    group: str | None = None,
    topic: str | None = None,
    partition: int | None = None,
    *,
    and_as_of: "AsOf | None" = None,
    **options: Unpack[ReadOptions],
) -> Differences:
    """What changed between two exports or warehouses, two points of one export, or the last two runs of a warehouse.

    Args:
        input: the earlier export or warehouse; or one export, with `as_of`; or one warehouse.
        other: the later export or warehouse.
        group, topic, partition: as for `timeline`.
        and_as_of: the later point, as `as_of` is the earlier one; by default the end of the export.
        options: as for `reconstruct`:
    Returns:
        Tables of what differs: SPSO, SPEO, epochs, and the ranges in flight.
    Raises:
        InputError: if a path is missing or holds no log, or no share-partition matches.
        WarehouseError: if a warehouse cannot be read.
        ShareStateError: if an argument cannot be used, or one input is neither a warehouse nor has `as_of`.
    Source: Kafka ShareCoordinatorShard.replay, at both points.
    """
    check_types(group=group, topic=topic, partition=partition)
    selection = SharePartitionFilter(group, topic, partition)
    if options.get("as_of") is not None:
        if other is not None:
            raise ShareStateError("diff: as_of is a point of one export; leave out other")
        points = (options, {**options, "as_of": and_as_of})
        judged = partial(plan_of, judge=JUDGE_ALL, names_only=True, takes_warehouse=True)
        first, second = (name_topics(judged(input, given)) for given in points)
        return differences_of(compare_states(*fold_exports((first, second), selection)))
    if and_as_of is not None:
        raise ShareStateError("diff: give the earlier point of the export, too: as_of")
    with ExitStack() as stack:
        if other is not None:
            opened = [
                stack.enter_context(_opened(one, options, needs_logs=False)).tables for one in (input, other)
            ]
        else:
            named = [] if has_rows(input) else listed_paths(cast("Paths", input))
            if not named or (tables := open_warehouse(named)) is None:
                raise ShareStateError(
                    "diff: give two exports or warehouses, one warehouse, or an export and as_of"
                )
            opened = last_two_runs(tables)
        return differences_of(compare_states(*read_states(opened, selection)))


def last_two_runs(tables: "CommittedTables") -> "list[CommittedTables]":
    """The tables of the run before the last one of the same command, and those of the last.

    Raises:
        ShareStateError: if there is no run before it.
    """
    if (previous := tables.previous) is None:
        raise ShareStateError(
            f"diff: {tables.root}: has one run of {tables.run['command']}; give another warehouse"
        )
    return [previous, tables]


@takes_options
def audit(
    input: Paths | None = None,
    warehouse: str | PathLike[str] | None = None,
    *,
    config: str | PathLike[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    afresh: Sequence[str] = (),
    **options: Unpack[ReadOptions],
) -> "AuditReport":
    """The nightly audit: read what is new since the last audit of the warehouse, check every rule, write.

    Args:
        input: paths, as for `reconstruct`; or leave it out and give `config`.
        warehouse: folder of the Delta tables.
        config: the YAML file of `share-state audit --config`.
        settings: other keys of the configuration, by their names there: `{"report.html": "page.html"}`.
        afresh: names of log partitions to read from their start.
        options: as for `reconstruct`; an audit has no `as_of`:
    Returns:
        The report: `verdicts`, `flagged`, `findings`, `groups` and more; `tables.read(NAME)` are the tables.
    Raises:
        InputError: if a path is missing or holds no log.
        WarehouseError: if the warehouse cannot be written.
        ShareStateError: if an argument or a setting cannot be used.
    Source: Kafka ShareCoordinatorShard.replay; KIP-932.
    """
    from share_state.api.nightly import nightly_audit  # noqa: PLC0415  imports what writes reports
    from share_state.config.loading import assignments_of, load_settings, settings_for  # noqa: PLC0415
    from share_state.pipeline.progress import Progress  # noqa: PLC0415

    check_types(warehouse=warehouse, config=config)
    if has_rows(input):
        raise ShareStateError("audit: input holds records, of which no later audit can resume; give a path")
    if (input is None) == (config is None) or (input is not None and warehouse is None):
        raise ShareStateError("audit: give input and warehouse, or config")
    named = [] if input is None else listed_paths(input)
    given = _checked_values(named, options)
    sets = dict(settings or {})
    assignments = assignments_of(given, len(named), ARGUMENTS)
    if config is None:
        loaded = settings_for(named, fspath(warehouse or ""), sets, assignments=assignments)
    else:
        sets |= {"warehouse": warehouse} if warehouse is not None else {}
        loaded = load_settings(fspath(config), sets, assignments=assignments)
    return nightly_audit(loaded, Progress(), lambda _: None, afresh=tuple(afresh))


def _checked_values(named: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an audit as their fields take them.

    Raises:
        ShareStateError: if one cannot be used, or is only for other calls.
    """
    for name in ("topics", "groups"):
        if options.get(name) is not None and not isinstance(options[name], str | PathLike):
            raise ShareStateError(
                f"audit: {name}={options[name]!r}: give a path, which later audits read, too"
            )
    given = given_values(options)
    if (groups := options.get("groups")) is not None:
        given["groups"] = listed_paths(groups, "groups")
    known = {option.name for option in input_options(python("audit"))}
    given = {name: value for name, value in given.items() if name in known}
    spec_of_options(ARGUMENTS, named, given)
    return given
