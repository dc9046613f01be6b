"""Makes the plan of a fold: `build_plan` turns an InputSpec into a FoldPlan."""

import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from share_state.config.input_spec import JUDGE_NONE, FieldNames, InputSpec
from share_state.config.sections import GroupSettings, Source
from share_state.errors import InputError, SetupError
from share_state.fold.fold_options import ControlOptions, FoldOptions
from share_state.pipeline.facts import (
    TopicSource,
    read_adjacent_topics,
    settle_facts,
    settle_group_configs,
    settle_live_limits,
)
from share_state.rules.breaches import listed
from share_state.sources.as_of import LogTime, TimeSpan, Window, time_text
from share_state.sources.cluster_facts import ClusterFacts, read_cluster_facts
from share_state.sources.discovery import (
    GROUP_TOPIC,
    STATE_TOPIC,
    Export,
    LogPartition,
    find_data_folders,
    names_log,
    segment_folders,
)
from share_state.sources.formats import ExportPaths, RowSorter
from share_state.sources.input_detection import (
    adjacent_group_logs,
    find_cluster_address,
    find_dead_letters,
    own_dead_letters,
    read_export,
    read_frame,
    read_group_export,
)
from share_state.sources.log_times import time_span
from share_state.sources.partition_count import count_partitions, infer_partition_count
from share_state.sources.record_tables import Columns
from share_state.sources.share_snapshots import read_share_snapshots
from share_state.sources.topics import read_subscriptions, read_topics

if TYPE_CHECKING:
    from share_state.sources.kafka_admin import ClusterLimits
from share_state.pipeline.plan import FoldPlan, GroupInput

_LOG = logging.getLogger("share_state")


_Export = tuple[list[str], Export]
"""Paths that are read as one export, and what they hold."""


def build_plan(spec: InputSpec, names: FieldNames, sorter: RowSorter | None = None) -> FoldPlan:
    """Find the logs that a spec describes, and plan how to fold them; notes on the input are logged.

    Args:
        spec: what to read, up to which record, and how to fold it.
        names: how error messages name the fields of the spec.
        sorter: sorts tables whose rows are in no order; None if Spark must not be started.
    Raises:
        InputError: if an input cannot be used, or sources of two formats hold the same log partition.
    """
    named_topics = _named_topics(spec)
    exports = _read_exports(spec, sorter)
    bounded = partial(replace, max_body_size=spec.limits.batch_bytes)
    logs = [bounded(log) for _, export in exports for log in export.logs]
    _check_distinct(logs, "copies need one format and dialect")
    _check_one_layout(logs)
    _check_as_of(spec, names, logs)
    index = spec.control_records.index
    notes = [f"{' '.join(paths)}: {note}" for paths, export in exports for note in export.notes]
    groups = _find_groups(spec, exports, sorter, notes)
    if groups is not None:
        groups = replace(groups, logs=tuple(map(bounded, groups.logs)))
    as_of_time, outside = _as_of_time(spec, names, exports, groups)
    windows = _windows(spec, names, logs, as_of_time)
    facts, data_folders = None, find_data_folders(segment_folders(logs))
    if data_folders:
        facts = read_cluster_facts(data_folders, as_of_time)
        notes += facts.notes
        groups = groups and replace(groups, partitions=groups.partitions or facts.group_partitions)
    addresses = [source.path for source in spec.sources]
    known_topics = [*_live_topics(exports)[:1], *named_topics]
    adjacent, more_notes = (None, []) if known_topics else read_adjacent_topics(addresses, logs)
    notes += more_notes
    if not spec.names_only and (warning := _partition_count_warning(groups, names)) is not None:
        notes.append(warning)
    limits = spec.limits.to_limits()
    asked = None if spec.judge == JUDGE_NONE else _cluster_limits_of(spec.sources, notes)
    explicit_limits = frozenset(spec.limits.model_fields_set)
    settled = settle_live_limits(asked, limits, explicit_limits)
    properties = next((one.kafka_properties for one in spec.sources if one.kafka_properties), None)
    for note in notes:
        _LOG.info("%s", note)
    plan = FoldPlan(
        logs=logs,
        windows=windows,
        window=Window(until_time_ms=as_of_time),
        options=FoldOptions(
            limits=settled.limits,
            partition_count=count_partitions(logs, _stated_partitions(spec, exports)),
            control=_control_options(spec),
        ),
        names_logs=any(names_log(source.path) for source in spec.sources),
        # A share snapshot file describes the log as it is now, not an earlier state.
        indexes={} if spec.has_as_of or index is None else read_share_snapshots(index, logs),
        severities=spec.rules,
        judging=spec.judge,
        known_limits=explicit_limits | settled.known,
        groups=groups,
        dead_letters=find_dead_letters(spec.dead_letters, properties) if spec.dead_letters else None,
        dead_letters_copied_last=spec.dead_letters_copied_last,
        notes=tuple(notes),
        lacks_groups=groups is None and _expects_groups(spec, logs),
        topics_note=adjacent.note if adjacent else None,
        outside=outside,
        facts=settled.origins,
        fact_conflicts=settled.conflicts,
        group_configs=settle_group_configs(facts, asked, addresses, spec.limits),
    )
    return _with_facts(plan, spec, facts or ClusterFacts(()), known_topics, adjacent)


def _stated_partitions(spec: InputSpec, exports: Sequence[_Export]) -> int | None:
    """The number of state partitions that the call or an export states; None if none does."""
    of_exports = (export.state_partitions for _, export in exports if export.state_partitions is not None)
    return spec.state_partitions or next(of_exports, None)


def _live_topics(exports: Sequence[_Export]) -> list[TopicSource]:
    """The topics that live clusters among the exports name."""
    return [
        TopicSource("live cluster", export.topics, " ".join(paths), is_authority=True)
        for paths, export in exports
        if export.topics is not None
    ]


def _named_topics(spec: InputSpec) -> list[TopicSource]:
    """The topics that the call holds or names."""
    if spec.topics is not None:
        return [TopicSource("topics file", read_topics(spec.topics), spec.topics)]
    return [] if spec.known_topics is None else [TopicSource("call", spec.known_topics)]


def _control_options(spec: InputSpec) -> ControlOptions:
    return ControlOptions(
        mode=spec.control_records.mode,
        subscriptions=read_subscriptions(spec.control_records.subscriptions),
        ignore_uncheckpointed=spec.control_records.ignore_uncheckpointed,
    )


def _with_facts(
    plan: FoldPlan,
    spec: InputSpec,
    facts: ClusterFacts,
    topics: Sequence[TopicSource],
    adjacent: TopicSource | None,
) -> FoldPlan:
    """A plan with the facts of the data folders that hold its logs, where no other source knows better."""
    settled = settle_facts(
        facts,
        topics=topics,
        adjacent=adjacent,
        limits=plan.options.limits,
        explicit_limits=plan.known_limits,
        state_partitions=plan.state_partitions,
        explicit_state_partitions=spec.state_partitions,
    )
    count = plan.options.partition_count
    if settled.state_partitions is not None and (not count.is_inferred or facts.state_partitions is not None):
        count = count_partitions(plan.logs, settled.state_partitions)
    settled_plan = plan.with_options(topics=settled.topics, limits=settled.limits, partition_count=count)
    return replace(
        settled_plan,
        known_limits=plan.known_limits | facts.limits.keys(),
        dead_letters=plan.dead_letters or own_dead_letters(facts),
        dead_letter_topics=facts.settings.dead_letter_topics if facts.settings else {},
        facts={**plan.facts, **settled.origins},
        fact_conflicts=(*plan.fact_conflicts, *settled.conflicts),
        cluster=facts.settings,
        data_folders=facts.folders,
    )


def _read_exports(spec: InputSpec, sorter: RowSorter | None) -> list[_Export]:
    """Read sources of one format and dialect together: several copies of a log partition are one log."""
    if spec.frame is not None:
        return [([], read_frame(spec.frame, spec.columns, _needed(sorter)))]
    alike: dict[tuple[object, ...], list[Source]] = {}
    for source in spec.sources:
        key = (source.format, source.dialect, source.kafka_properties, tuple(sorted(source.columns.items())))
        alike.setdefault(key, []).append(source)
    exports = list[_Export]()
    for first, *others in alike.values():
        paths = [first.path, *(source.path for source in others)]
        given = ExportPaths(paths, first.dialect, first.columns, sorter)
        exports.append((paths, read_export(given, first.format, first.kafka_properties)))
    return exports


def _cluster_limits_of(sources: Sequence[Source], notes: list[str]) -> "ClusterLimits | None":
    """The limits of a live cluster, which is read alone; notes get one if it denies access.

    None for files.
    """
    for source in sources:
        if (address := find_cluster_address([source.path], source.format)) is not None:
            limits, unknown = ask_limits(address, source.kafka_properties)
            notes += unknown
            return limits
    return None


def ask_limits(address: str, properties: str | None) -> tuple["ClusterLimits | None", list[str]]:
    """The limits of a live cluster and of its share groups; and notes, if it denies access to them."""
    try:
        from share_state.sources.kafka_admin import fetch_limits  # noqa: PLC0415  only a live cluster needs it

        limits = fetch_limits(address, properties)
        return limits, [*limits.notes]
    except (InputError, SetupError) as error:
        return None, [
            f"the limits of the brokers and of single groups are unknown, so Kafka's defaults apply: {error}"
        ]


def _needed(sorter: RowSorter | None) -> RowSorter:
    if sorter is None:
        raise InputError("the rows of a DataFrame must be sorted by Spark; give spark=share_state.session()")
    return sorter


def names_unknown(error: InputError) -> str:
    """The note about a log of groups that is not read for the names of topics."""
    return f"{error}; without it, topics that only it names are shown by their ids"


def _expects_groups(spec: InputSpec, logs: Sequence[LogPartition]) -> bool:
    """Whether the group side is to be read, beside state that it belongs to."""
    return spec.groups is not None and not spec.names_only and any(log.topic == STATE_TOPIC for log in logs)


def _find_groups(
    spec: InputSpec, exports: Sequence[_Export], sorter: RowSorter | None, notes: list[str]
) -> GroupInput | None:
    """The group side of a spec; notes get one if it only names topics and cannot be read."""
    try:
        return None if spec.groups is None else _group_input(spec.groups, spec.group_frame, exports, sorter)
    except InputError as error:
        if not spec.names_only or (spec.groups and spec.groups.paths):
            raise
        notes.append(names_unknown(error))
        return None


def _group_input(
    settings: GroupSettings, frame: Any, exports: Sequence[_Export], sorter: RowSorter | None
) -> GroupInput | None:
    """The group side that the settings name.

    By default the one in the exports, or in folders next to their logs.
    """
    counted = None
    if frame is not None:
        logs = tuple(_needed(sorter).sort_frame(frame, Columns(**settings.columns), (GROUP_TOPIC,))[0])
    elif settings.paths is not None:
        paths = ExportPaths(settings.paths, columns=settings.columns, sorter=sorter)
        logs = read_group_export(paths, settings.format)
    else:
        found = [log for _, export in exports for log in export.groups]
        without = [(paths, export.logs) for paths, export in exports if not export.groups]
        # One search for all of them, since their folders may hold copies of a log partition.
        searched = [path for paths, _ in without for path in paths]
        found += adjacent_group_logs(searched, [log for _, own in without for log in own])
        _check_distinct(found, "name the one to read by groups.paths")
        logs = tuple(sorted(found, key=lambda log: -1 if log.partition is None else log.partition))
        counted = next(
            (export.group_partitions for _, export in exports if export.group_partitions is not None), None
        )
    if not logs:
        return None
    return GroupInput(logs, settings.partitions or counted, settings.claims, settings.to_limits())


def _partition_count_warning(groups: GroupInput | None, names: FieldNames) -> str | None:
    """A warning if the number of partitions of `__consumer_offsets` is unknown: some groups are then not reported."""
    if (
        groups is None
        or groups.partitions is not None
        or infer_partition_count(groups.logs, GROUP_TOPIC) is not None
    ):
        return None
    numbers = listed(log.partition for log in groups.logs if log.partition is not None)
    found = f"found partition {numbers}" if numbers else "found records"
    fix = names.name("groups.partitions", value="N")
    return f"{GROUP_TOPIC}: {found}, but not how many there are: groups without a record are not reported; give {fix}"


def _check_distinct(logs: Sequence[LogPartition], fix: str) -> None:
    for name, count in Counter(log.name for log in logs).items():
        if count > 1:
            raise InputError(f"sources: {name} is in two of them that differ in format or dialect; {fix}")


def _check_one_layout(logs: Sequence[LogPartition]) -> None:
    """Refuse a format without partition numbers together with one that has them."""
    unplaced = [log.name for log in logs if log.source is not None and not log.has_offsets]
    if unplaced and len(logs) > len(unplaced):
        raise InputError(
            f"sources: {unplaced[0]} does not show its partitions, and others do; give one format"
        )


def _check_as_of(spec: InputSpec, names: FieldNames, logs: Sequence[LogPartition]) -> None:
    """Refuse an as-of point if the format does not hold what it refers to."""
    for log in logs:
        form = log.source.form if log.source else ""
        if spec.as_of_offsets and not log.has_offsets:
            text = names.name("as_of_offsets", *next(iter(spec.as_of_offsets.items())))
            raise InputError(f"{text}: {form} holds no offsets; give segments or a table")
        if spec.as_of_time is not None and not log.has_times:
            fix = "give segments or a table that has them"
            raise InputError(f"{names.label('as_of_time')}: this {form} holds no timestamps; {fix}")


def _as_of_time(
    spec: InputSpec, names: FieldNames, exports: Sequence[_Export], groups: GroupInput | None
) -> tuple[int | None, str | None]:
    """The as-of time in ms, and why it is outside of the times of the input, if it is.

    The logs of groups count in every command, so that one time means the same in all of them.
    """
    given = spec.as_of_time
    if given is None:
        return None, None
    logs = [log for _, export in exports for log in (*export.logs, *export.groups)]
    if groups is not None:
        logs += groups.logs
    else:
        with suppress(InputError):
            logs += [log for paths, export in exports for log in adjacent_group_logs(paths, export.logs)]
    span: TimeSpan | None = time_span(logs)
    if span is None:
        return (None, None) if isinstance(given, LogTime) else (given, None)
    time = given.at(span.last) if isinstance(given, LogTime) else given
    if (why := span.outside(time)) is not None:
        why = f"{names.name('as_of_time', value=time_text(time))}: {why}"
    return time, why


def _windows(
    spec: InputSpec, names: FieldNames, logs: Sequence[LogPartition], as_of_time: int | None
) -> dict[str, Window]:
    """Log partition -> its own window.

    A bare number in `as_of_offsets` names every log partition of that number.
    """
    windows = dict[str, Window]()
    for key, offset in spec.as_of_offsets.items():
        named = [log.name for log in logs if key in (log.name, str(log.partition))]
        if not named:
            raise InputError(
                f"{names.name('as_of_offsets', key, offset)}: log partition {key} is not in the input"
            )
        windows |= dict.fromkeys(named, Window(until_offset=offset, until_time_ms=as_of_time))
    return windows
