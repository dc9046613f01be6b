"""The work that an audit's configuration describes."""

import hashlib
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from share_state.config import AuditSettings
from share_state.early_session import early_session
from share_state.errors import InputError
from share_state.exports import Export, named_group_logs, read_export, told_of_partitions
from share_state.fold.topics import Topics
from share_state.formats import AUTO, Asked
from share_state.group_input import GroupInput, group_logs
from share_state.inputs import state_partitions_found
from share_state.runs.where import Where
from share_state.topics_file import read_topics
from share_state.wire.log_folder import LogPartition
from share_state.wire.places import place
from share_state.wire.table_rows import Columns
from share_state.work import Work

_LOG = logging.getLogger("share_state")

_SHAPING = ("state_partitions", "limits", "rules", "topics", "clock", "groups")
"""Sections of the configuration that change what the tables hold."""

_Found = tuple[list[str], Export]
"""What the sources of one export are called, and what they hold."""


def work_of(settings: AuditSettings) -> Work:
    """The log partitions of all sources, and how they are folded and judged.

    Sources of one form and dialect are one export: what several hold of a log partition is read as copies of it.

    Raises:
        InputError: if a source, the group side or the topics file cannot be used, or sources of two forms hold the same
            log partition.
    """
    found = list(_found(settings))
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
        groups=_group_side(settings, found),
    )


def _found(settings: AuditSettings) -> Iterator[_Found]:
    """What each export holds."""
    exports: dict[tuple[str, ...], list[str]] = {}
    for source in settings.sources:
        columns = sorted(source.columns.items())
        alike = (source.format, source.dialect, source.kafka_properties or "", *(f"{k}={v}" for k, v in columns))
        exports.setdefault(alike, []).append(source.path)
    for (form, dialect, properties, *columns), paths in exports.items():
        asked = _asked(settings, paths, dict(one.split("=", 1) for one in columns), dialect)
        export = read_export(asked, form, properties or None)
        for note in export.notes:
            _LOG.info("%s: %s", " ".join(paths), note)
        yield paths, export


def _group_side(settings: AuditSettings, found: Sequence[_Found]) -> GroupInput | None:
    """The group side that is named; else what came with the exports, and what lies beside those it did not come with.

    Raises:
        InputError: if what is named cannot be used, or a log partition of it is in two exports.
    """
    named, counted = settings.groups, None
    if named.paths is not None:
        logs = named_group_logs(_asked(settings, named.paths, named.columns), named.format)
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


def _asked(settings: AuditSettings, paths: Sequence[str], columns: Mapping[str, str], dialect: str = AUTO) -> Asked:
    where = Where(settings.spark.master, settings.spark.conf)
    return Asked(paths, dialect, Columns.named(columns), lambda: early_session(where))


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
