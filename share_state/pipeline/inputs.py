"""The forms of export that are read, each recognised by what its files hold.

An export as commands, audits and Python calls read it: its logs, and the group side that goes with it.

The work that an audit's configuration describes.
"""

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from share_state.config.model import AuditSettings
from share_state.errors import InputError, ShareStateError
from share_state.pipeline.plan import GroupInput, Work, group_logs
from share_state.pipeline.table_inputs import HEAD, OpenSpark, data_files, is_table, table_logs
from share_state.rules.registry import listed
from share_state.sources.console_text import console_log, is_console_json
from share_state.sources.discovery import (
    GROUP_TOPIC,
    STATE_TOPIC,
    LogPartition,
    find_group_logs,
    logs_of,
    partitions_shown,
    state_partitions_found,
)
from share_state.sources.dump_text import dump_logs, is_dump_text
from share_state.sources.kafka_client import ask_cluster, is_live, live_input
from share_state.sources.object_stores import Place, head_of, place, places
from share_state.sources.tables import Columns
from share_state.sources.topics import Topics, read_topics

AUTO, SEGMENTS = "auto", "segments"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a person named, and how.

    Attributes:
        inputs: paths and globs.
        dialect: of segments.
        columns: of tables.
        open_spark: gives a session where a form needs one to be found.
    """

    inputs: Sequence[str]
    dialect: str
    columns: Columns
    open_spark: OpenSpark


@dataclass(frozen=True, slots=True)
class Found:
    """What was found there.

    Attributes:
        logs: the log partitions.
        notes: what a person should know of them, a line each.
        groups: partitions of `__consumer_offsets` that are in the same tables or texts.
    """

    logs: list[LogPartition]
    notes: tuple[str, ...] = ()
    groups: tuple[LogPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class Format:
    """A form of export.

    Attributes:
        called: as a message calls it.
        begins: whether a file that begins with these bytes is of it.
        find: the log partitions of inputs of this form.
        find_groups: the partitions of `__consumer_offsets` of inputs of this form that hold them.
    """

    called: str
    begins: Callable[[bytes], bool]
    find: Callable[[Asked], Found]
    find_groups: Callable[[Asked], list[LogPartition]]


def _segments(asked: Asked) -> Found:
    return Found(logs_of(asked.inputs, asked.dialect))


def _groups_in_segments(asked: Asked) -> list[LogPartition]:
    return find_group_logs(asked.inputs)


def _table(asked: Asked) -> Found:
    logs, others = table_logs(asked.inputs, asked.columns, asked.open_spark, (STATE_TOPIC, GROUP_TOPIC))
    return _with_groups(logs, _passed_over(others, "rows"))


def _groups_in_table(asked: Asked) -> list[LogPartition]:
    return table_logs(asked.inputs, asked.columns, asked.open_spark, (GROUP_TOPIC,))[0]


def _with_groups(logs: Sequence[LogPartition], notes: tuple[str, ...]) -> Found:
    of_groups = [log for log in logs if log.topic == GROUP_TOPIC]
    return Found([log for log in logs if log.topic != GROUP_TOPIC], notes, tuple(of_groups))


def _console_json(asked: Asked) -> Found:
    note = (
        "this form holds no offsets, partitions or timestamps: columns that need them are null, and no cutoff is told"
    )
    return Found([console_log(_files(asked.inputs, is_console_json))], (note,))


def _groups_in_console_json(asked: Asked) -> list[LogPartition]:
    return [console_log(_files(asked.inputs, is_console_json), GROUP_TOPIC)]


def _dump_log(asked: Asked) -> Found:
    logs, others = dump_logs(_files(asked.inputs, is_dump_text), (STATE_TOPIC, GROUP_TOPIC))
    return _with_groups(logs, _passed_over(others, "dumps"))


def _groups_in_dump(asked: Asked) -> list[LogPartition]:
    return dump_logs(_files(asked.inputs, is_dump_text), (GROUP_TOPIC,))[0]


def _passed_over(others: set[str], what: str) -> tuple[str, ...]:
    names = ", ".join(sorted(others)[:5])
    return (f"{what} of other topics are passed over: {names}",) if others else ()


FORMATS: Mapping[str, Format] = {
    "table": Format("a table of keys and values", is_table, _table, _groups_in_table),
    "dump-log": Format("the text of kafka-dump-log", is_dump_text, _dump_log, _groups_in_dump),
    "console-json": Format("the JSON of the console consumer", is_console_json, _console_json, _groups_in_console_json),
    SEGMENTS: Format(
        "segments of a log", lambda head: len(head) > 16 and head[16] in (0, 1, 2), _segments, _groups_in_segments
    ),
}
"""Every form by the name that `--format` takes; a file is of the first that knows its beginning."""


def find(asked: Asked, form: str) -> Found:
    """The log partitions that the inputs hold.

    Args:
        asked: what is meant.
        form: one of FORMATS, or AUTO to look at the content.
    Raises:
        InputError: if an input is not of this form, or AUTO sees several.
        ShareStateError: if there is no such form.
    """
    chosen = _chosen(asked.inputs, form)
    found = FORMATS[chosen].find(asked)
    if form == AUTO and chosen != SEGMENTS:
        told = f"taken for {FORMATS[chosen].called} (--format {chosen})"
        return replace(found, notes=(told, *found.notes))
    return found


def find_groups(asked: Asked, form: str = AUTO) -> tuple[LogPartition, ...]:
    """The partitions of `__consumer_offsets` that the inputs hold.

    Args:
        asked: what is meant.
        form: one of FORMATS, or AUTO to look at the content.
    Raises:
        InputError: if an input cannot be read, holds no such log, or is of another form.
        ShareStateError: if there is no such form.
    """
    return tuple(FORMATS[_chosen(asked.inputs, form)].find_groups(asked))


def _chosen(inputs: Sequence[str], form: str) -> str:
    if form not in (AUTO, *FORMATS):
        raise ShareStateError(f"--format {form}: give one of {', '.join((AUTO, *FORMATS))}")
    return recognised(inputs) if form == AUTO else form


def recognised(inputs: Sequence[str]) -> str:
    """The form of the inputs, by their content; SEGMENTS where nothing is known, so that its reader says what is wrong.

    Raises:
        InputError: if two of them are of different forms.
    """
    seen: dict[str, str] = {}
    for given in inputs:
        for path in _places(given):
            form = _form_of(path)
            if form is not None:
                seen.setdefault(form, str(path))
    if len(seen) > 1:
        (one, of_one), (other, of_other) = list(seen.items())[:2]
        raise InputError(f"{of_one} is {FORMATS[one].called}, {of_other} is {FORMATS[other].called}; give one form")
    return next(iter(seen), SEGMENTS)


def _files(inputs: Sequence[str], begins: Callable[[bytes], bool]) -> list[Place]:
    """The files that the inputs name, and those of this form in folders.

    Raises:
        InputError: if there are none.
    """
    found = []
    for given in inputs:
        named = _places(given)
        if not named:
            raise InputError(f"{given}: no such file or folder; give a text, or a folder of texts")
        for one in named:
            found += [one] if one.is_file() else [file for file in data_files(one) if begins(head_of(file, HEAD))]
    if not found:
        raise InputError(f"{inputs[0]}: no text of this form in this folder; give the files")
    return found


def _places(given: str) -> list[Place]:
    try:
        return places(given)
    except OSError:
        return []


def _form_of(path: Place) -> str | None:
    try:
        if path.is_dir():
            if (path / "_delta_log").is_dir():
                return "table"
            if next(path.rglob("*.log"), None) is not None:
                return SEGMENTS
        for file in data_files(path):
            head = head_of(file, HEAD)
            for name, form in FORMATS.items():
                if form.begins(head):
                    return name
            break
    except OSError:
        return None
    return None


@dataclass(frozen=True, slots=True)
class Export:
    """What one export holds, files or a running cluster.

    Attributes:
        logs: log partitions of the state topic, or of the topics of control records.
        groups: partitions of `__consumer_offsets` that came with them.
        topics: names and end offsets, None where the export does not tell them.
        state_partitions: how many partitions the state topic has, None where the export does not say.
        group_partitions: the same of `__consumer_offsets`.
        notes: what a person should know, a line each.
    """

    logs: list[LogPartition]
    groups: tuple[LogPartition, ...] = ()
    topics: Topics | None = None
    state_partitions: int | None = None
    group_partitions: int | None = None
    notes: tuple[str, ...] = ()

    def work(self, topics: Topics | None = None, state_partitions: int | None = None) -> Work:
        """Every record of it, to be folded with the group side that came with it.

        Args:
            topics: names and end offsets that a person gave; they win over those that the export tells.
            state_partitions: how many partitions the state topic has, where the export does not say.
        """
        return Work(
            logs=self.logs,
            topics=topics or self.topics or Topics(),
            state_partitions=self.state_partitions or state_partitions or state_partitions_found(self.logs),
            groups=GroupInput(self.groups, self.group_partitions) if self.groups else None,
        )


def read_export(asked: Asked, form: str = AUTO, kafka_properties: str | None = None) -> Export:
    """Find what there is to fold.

    Args:
        asked: what is meant.
        form: one of FORMATS, kafka, or AUTO to look at the content.
        kafka_properties: of a cluster: path of a properties file, as Kafka's own tools take it with --command-config.
    Raises:
        InputError: if an input cannot be used, or is not of this form.
        ShareStateError: if there is no such form.
    """
    address = live_input(asked.inputs, form)
    if address is None:
        found = find(asked, form)
        return Export(found.logs, found.groups, notes=found.notes)
    live = ask_cluster(address, kafka_properties)
    return Export(list(live.logs), live.groups, live.topics, live.state_partitions, live.group_partitions)


def named_group_logs(asked: Asked, form: str = AUTO) -> tuple[LogPartition, ...]:
    """The partitions of `__consumer_offsets` in what a person named as the group side.

    Raises:
        InputError: if it is a cluster, cannot be read, holds no such log, or is not of this form.
    """
    for given in asked.inputs:
        if is_live(given):
            raise InputError(
                f"{given}: the groups of a cluster are read with its state, or they would be of a later time; "
                "give the cluster as the input"
            )
    return find_groups(asked, form)


def with_group_side(
    work: Work, inputs: Sequence[str], named: Asked | None = None, partitions: int | None = None
) -> Work:
    """Work with the group side that is named, that came with its logs, or that lies beside them.

    Args:
        work: the state side; what came with it is its group side already.
        inputs: as the person named them.
        named: where the group side is, None where nobody said.
        partitions: how many `__consumer_offsets` has, None where nobody said.
    Raises:
        InputError: if what is named cannot be used.
    """
    if named is not None:
        groups = GroupInput(named_group_logs(named), partitions)
    elif work.groups is not None:
        groups = replace(work.groups, partitions=partitions or work.groups.partitions)
    else:
        groups = GroupInput(group_logs(inputs, work.logs), partitions)
    return replace(work, groups=groups) if groups.logs else work


def told_of_partitions(groups: GroupInput | None) -> str | None:
    """What is left unsaid where nothing shows how many partitions `__consumer_offsets` has; None where all is well."""
    if groups is None or groups.partitions is not None or partitions_shown(groups.logs) is not None:
        return None
    numbers = listed(log.partition for log in groups.logs if log.partition is not None)
    found = f"found partition {numbers}" if numbers else "found records"
    return f"{GROUP_TOPIC}: {found}, not how many there are: a group without a record is not taken for gone"


def check_cut(logs: Sequence[LogPartition], by_offset: str | None = None, by_time: str | None = None) -> None:
    """Refuse to cut an export whose form does not tell where.

    Args:
        logs: the log partitions.
        by_offset: what the person calls a cut at offsets, None where none is asked for.
        by_time: the same of a cut at a time.
    Raises:
        InputError: if one is asked for and the form holds no offsets, or no timestamps.
    """
    for log in logs:
        form = log.source.form if log.source else ""
        if by_offset is not None and not log.has_offsets:
            raise InputError(f"{by_offset}: {form} holds no offsets; give segments or a table")
        if by_time is not None and not log.has_times:
            raise InputError(f"{by_time}: this {form} holds no timestamps; give segments or a table that has them")


_LOG = logging.getLogger("share_state")

_SHAPING = ("state_partitions", "limits", "rules", "topics", "clock", "groups")
"""Sections of the configuration that change what the tables hold."""

_Found = tuple[list[str], Export]
"""What the sources of one export are called, and what they hold."""


def work_of(settings: AuditSettings, open_spark: OpenSpark) -> Work:
    """The log partitions of all sources, and how they are folded and judged.

    Sources of one form and dialect are one export: what several hold of a log partition is read as copies of it.

    Raises:
        InputError: if a source, the group side or the topics file cannot be used, or sources of two forms hold the same
            log partition.
    """
    found = list(_found(settings, open_spark))
    logs = [log for _, export in found for log in export.logs]
    _check_once(logs, "copies need one format and dialect")
    _check_placed(logs)
    topics = next((export.topics for _, export in found if export.topics is not None), None)
    counted = next((export.state_partitions for _, export in found if export.state_partitions is not None), None)
    return Work(
        logs=logs,
        topics=topics or Topics() if settings.topics is None else read_topics(settings.topics),
        state_partitions=settings.state_partitions or counted or state_partitions_found(logs),
        severities=settings.rules,
        limits=settings.limits.to_limits(),
        groups=_group_side(settings, found, open_spark),
    )


def _found(settings: AuditSettings, open_spark: OpenSpark) -> Iterator[_Found]:
    """What each export holds."""
    exports: dict[tuple[str, ...], list[str]] = {}
    for source in settings.sources:
        columns = sorted(source.columns.items())
        alike = (source.format, source.dialect, source.kafka_properties or "", *(f"{k}={v}" for k, v in columns))
        exports.setdefault(alike, []).append(source.path)
    for (form, dialect, properties, *columns), paths in exports.items():
        asked = _asked(open_spark, paths, dict(one.split("=", 1) for one in columns), dialect)
        export = read_export(asked, form, properties or None)
        for note in export.notes:
            _LOG.info("%s: %s", " ".join(paths), note)
        yield paths, export


def _group_side(settings: AuditSettings, found: Sequence[_Found], open_spark: OpenSpark) -> GroupInput | None:
    """The group side that is named; else what came with the exports, and what lies beside those it did not come with.

    Raises:
        InputError: if what is named cannot be used, or a log partition of it is in two exports.
    """
    named, counted = settings.groups, None
    if named.paths is not None:
        logs = named_group_logs(_asked(open_spark, named.paths, named.columns), named.format)
    else:
        came = [log for _, export in found for log in export.groups]
        alone = [(paths, export.logs) for paths, export in found if not export.groups]
        beside = group_logs([path for paths, _ in alone for path in paths], [log for _, own in alone for log in own])
        _check_once([*came, *beside], "say which counts by groups.paths")
        logs = tuple(sorted([*came, *beside], key=lambda log: -1 if log.partition is None else log.partition))
        counted = next((export.group_partitions for _, export in found if export.group_partitions is not None), None)
    groups = named.to_input(logs, counted)
    if (told := told_of_partitions(groups)) is not None:
        _LOG.info("%s; say groups.partitions", told)
    return groups


def _asked(open_spark: OpenSpark, paths: Sequence[str], columns: Mapping[str, str], dialect: str = AUTO) -> Asked:
    return Asked(paths, dialect, Columns.named(columns), open_spark)


def _check_once(logs: Sequence[LogPartition], mend: str) -> None:
    """Refuse log partitions that are in two exports.

    Raises:
        InputError: if one is, with the mend.
    """
    for name, count in Counter(log.name for log in logs).items():
        if count > 1:
            raise InputError(f"sources: {name} is in two of them that are not alike; {mend}")


def _check_placed(logs: Sequence[LogPartition]) -> None:
    """Refuse a form that does not tell its partitions beside one that does.

    Raises:
        InputError: if both are there.
    """
    whole = [log.name for log in logs if log.source is not None and not log.has_offsets]
    if whole and len(logs) > len(whole):
        raise InputError(f"sources: {whole[0]} does not tell its partitions, and others do; give one form")


def told(settings: AuditSettings) -> dict[str, str]:
    """What shapes the tables of an audit beside the logs; where it changed, an audit judges again."""
    shown = {key: value for key, value in settings.describe().items() if key.partition(".")[0] in _SHAPING}
    if settings.topics is not None:
        shown["topics.digest"] = hashlib.sha256(place(settings.topics).read_bytes()).hexdigest()[:16]
    return shown
