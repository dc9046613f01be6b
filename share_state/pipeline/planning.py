"""Makes the plan of a fold: `build_plan` turns an InputSpec into a FoldPlan.

`sources.input_contents` reads what the spec names in one call; what follows only decides.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

from share_state.config.input_spec import JUDGE_NONE, FieldNames, InputSpec
from share_state.config.sections import Source
from share_state.errors import InputError
from share_state.fold.fold_options import ControlOptions, FoldOptions
from share_state.pipeline.facts import settle_facts, settle_group_configs, settle_live_limits
from share_state.pipeline.numbered_logs import numbered_logs
from share_state.pipeline.plan import FoldPlan, GroupInput
from share_state.rules.breaches import listed
from share_state.sources.as_of import Window, time_text
from share_state.sources.cluster_facts import ClusterFacts
from share_state.sources.discovery import names_log
from share_state.sources.formats import ExportPaths, RowSorter
from share_state.sources.input_contents import ExportRequest, InputContents, InputRequest, read_input
from share_state.sources.log_partition import GROUP_TOPIC, STATE_TOPIC, LogPartition
from share_state.sources.log_times import end_offset
from share_state.sources.partition_count import infer_partition_count

_LOG = logging.getLogger("share_state")


def build_plan(spec: InputSpec, names: FieldNames, sorter: RowSorter | None = None) -> FoldPlan:
    """Find the logs that a spec describes, and plan how to fold them; notes on the input are logged.

    Args:
        spec: what to read, up to which record, and how to fold it.
        names: how error messages name the fields of the spec.
        sorter: sorts tables whose rows are in no order; None if Spark must not be started.
    Raises:
        InputError: if an input cannot be used, or sources of two formats hold the same log partition.
    """
    contents = read_input(_request(spec, sorter))
    contents = replace(contents, logs=numbered_logs(contents.logs, contents.partition_count))
    _check_as_of(spec, names, contents.logs)
    groups = None
    if spec.groups is not None and contents.groups is not None:
        count = spec.groups.partitions or contents.group_partitions
        groups = GroupInput(contents.groups, count, spec.groups.claims, spec.groups.to_limits())
    explicit_limits = frozenset(spec.limits.model_fields_set)
    settled = settle_live_limits(contents.cluster_limits, spec.limits.to_limits(), explicit_limits)
    plan = FoldPlan(
        logs=contents.logs,
        windows=_windows(spec, names, contents),
        window=Window(until_time_ms=contents.as_of_time),
        options=FoldOptions(
            limits=settled.limits,
            partition_count=contents.partition_count,
            control=ControlOptions(
                mode=spec.control_records.mode,
                subscriptions=contents.subscriptions,
                ignore_uncheckpointed=spec.control_records.ignore_uncheckpointed,
            ),
        ),
        names_logs=any(names_log(source.path) for source in spec.sources),
        indexes=contents.index,
        earliest_offsets=contents.earliest_offsets,
        severities=spec.rules,
        judging=spec.judge,
        known_limits=explicit_limits | settled.known,
        groups=groups,
        dead_letters=contents.dead_letters,
        dead_letters_copied_last=spec.dead_letters_copied_last,
        notes=_notes(spec, names, contents, groups),
        lacks_groups=groups is None and _expects_groups(spec, contents.logs),
        topics_note=contents.adjacent_topics.note if contents.adjacent_topics else None,
        outside=_outside(names, contents),
        facts=settled.origins,
        fact_conflicts=settled.conflicts,
        group_configs=settle_group_configs(
            contents.facts, contents.cluster_limits, [source.path for source in spec.sources], spec.limits
        ),
    )
    for note in plan.notes:
        _LOG.info("%s", note)
    return _with_facts(plan, spec, contents)


def _request(spec: InputSpec, sorter: RowSorter | None) -> InputRequest:
    """What to read, for a spec."""
    # A share snapshot file describes the log as it is now, not an earlier state.
    index = None if spec.has_as_of else spec.control_records.index
    return InputRequest(
        exports=_exports(spec, sorter),
        addresses=[source.path for source in spec.sources],
        groups=_group_export(spec, sorter),
        reads_groups=spec.groups is not None,
        names_only=spec.names_only,
        as_of_time=spec.as_of_time,
        max_body_size=spec.limits.batch_bytes,
        state_partitions=spec.state_partitions,
        topics_file=spec.topics,
        known_topics=spec.known_topics,
        index=index,
        subscriptions=spec.control_records.subscriptions,
        dead_letters=spec.dead_letters or (),
        asks_limits=spec.judge != JUDGE_NONE,
    )


def _exports(spec: InputSpec, sorter: RowSorter | None) -> list[ExportRequest]:
    """Sources of one format and dialect are read together: several copies of a log partition are one log."""
    if spec.frame is not None:
        return [ExportRequest(ExportPaths([], columns=spec.columns, sorter=sorter), frame=spec.frame)]
    alike: dict[tuple[object, ...], list[Source]] = {}
    for source in spec.sources:
        key = (source.format, source.dialect, source.kafka_properties, tuple(sorted(source.columns.items())))
        alike.setdefault(key, []).append(source)
    exports = list[ExportRequest]()
    for first, *others in alike.values():
        paths = [first.path, *(source.path for source in others)]
        together = ExportPaths(paths, first.dialect, first.columns, sorter)
        exports.append(ExportRequest(together, first.format, first.kafka_properties))
    return exports


def _group_export(spec: InputSpec, sorter: RowSorter | None) -> ExportRequest | None:
    """The group side that the call names; None for the one in the exports or beside them."""
    settings = spec.groups
    if settings is None or (spec.group_frame is None and settings.paths is None):
        return None
    paths = [] if spec.group_frame is not None else settings.paths or []
    together = ExportPaths(paths, columns=settings.columns, sorter=sorter)
    return ExportRequest(together, settings.format, frame=spec.group_frame)


def _with_facts(plan: FoldPlan, spec: InputSpec, contents: InputContents) -> FoldPlan:
    """A plan with the facts of the data folders that hold its logs, where no other source knows better."""
    facts = contents.facts or ClusterFacts(())
    settled = settle_facts(
        facts,
        topics=contents.topics,
        adjacent=contents.adjacent_topics,
        limits=plan.options.limits,
        explicit_limits=plan.known_limits,
        state_partitions=plan.state_partitions,
        explicit_state_partitions=spec.state_partitions,
    )
    count = plan.options.partition_count
    if settled.state_partitions is not None and (not count.is_inferred or facts.state_partitions is not None):
        count = count.stated(settled.state_partitions)
    settled_plan = plan.with_options(topics=settled.topics, limits=settled.limits, partition_count=count)
    return replace(
        settled_plan,
        known_limits=plan.known_limits | facts.limits.keys(),
        dead_letter_topics=facts.settings.dead_letter_topics if facts.settings else {},
        facts={**plan.facts, **settled.origins},
        fact_conflicts=(*plan.fact_conflicts, *settled.conflicts),
        cluster=facts.settings,
        data_folders=facts.folders,
    )


def _expects_groups(spec: InputSpec, logs: Sequence[LogPartition]) -> bool:
    """Whether the group side is to be read, beside state that it belongs to."""
    return spec.groups is not None and not spec.names_only and any(log.topic == STATE_TOPIC for log in logs)


def _notes(
    spec: InputSpec, names: FieldNames, contents: InputContents, groups: GroupInput | None
) -> tuple[str, ...]:
    warning = None if spec.names_only else _partition_count_warning(groups, names)
    return (*contents.notes, *([] if warning is None else [warning]), *contents.limit_notes)


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


def _outside(names: FieldNames, contents: InputContents) -> str | None:
    """Why the as-of time is outside of the times of the input, after the option that gives it."""
    if contents.outside is None or contents.as_of_time is None:
        return None
    return f"{names.name('as_of_time', value=time_text(contents.as_of_time))}: {contents.outside}"


def _windows(spec: InputSpec, names: FieldNames, contents: InputContents) -> dict[str, Window]:
    """Log partition -> its own window.

    A bare number in `as_of_offsets` names every log partition of that number. The end of a log leaves nothing out,
    not even damaged bytes behind it: a warehouse names the end that its run read.
    """
    windows = dict[str, Window]()
    for key, offset in spec.as_of_offsets.items():
        named = [log for log in contents.logs if key in (log.name, str(log.partition))]
        if not named:
            raise InputError(
                f"{names.name('as_of_offsets', key, offset)}: log partition {key} is not in the input"
            )
        for log in named:
            end = end_offset(log)
            until = offset if end is None or end > offset else None
            windows[log.name] = Window(until_offset=until, until_time_ms=contents.as_of_time)
    return windows
