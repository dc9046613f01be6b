"""The work that an audit's configuration describes."""

import hashlib
import logging
from collections.abc import Iterator

from share_state.config import AuditSettings
from share_state.early_session import early_session
from share_state.errors import InputError
from share_state.fold.topics import Topics
from share_state.formats import Asked, find
from share_state.group_input import group_logs
from share_state.inputs import state_partitions_found
from share_state.live import ask_cluster
from share_state.live.address import live_input
from share_state.topics_file import read_topics
from share_state.wire.log_folder import LogPartition
from share_state.wire.places import place
from share_state.wire.table_rows import Columns
from share_state.work import Work

_LOG = logging.getLogger("share_state")

_SHAPING = ("state_partitions", "limits", "rules", "topics", "clock", "groups")
"""Sections of the configuration that change what the tables hold."""

_Known = tuple[list[LogPartition], Topics | None, int | None]
"""Log partitions; topics and the number of state partitions, where the source tells them."""


def work_of(settings: AuditSettings) -> Work:
    """The log partitions of all sources, and how they are folded and judged.

    Sources of one form and dialect are one export: what several hold of a log partition is read as copies of it.

    Raises:
        InputError: if a source or the topics file cannot be used, or sources of two forms hold the same log partition.
    """
    found = list(_found(settings))
    logs = [log for own, _, _ in found for log in own]
    _check_once(logs)
    topics = next((told for _, told, _ in found if told is not None), None)
    counted = next((count for _, _, count in found if count is not None), None)
    beside = group_logs([source.path for source in settings.sources], logs, settings.groups.paths or ())
    return Work(
        logs=logs,
        topics=topics if topics is not None and settings.topics is None else read_topics(settings.topics),
        state_partitions=settings.state_partitions or counted or state_partitions_found(logs),
        severities=settings.rules,
        limits=settings.limits.to_limits(),
        groups=settings.groups.to_input(beside),
    )


def _found(settings: AuditSettings) -> Iterator[_Known]:
    """What each export holds."""
    exports: dict[tuple[str, ...], list[str]] = {}
    for source in settings.sources:
        columns = sorted(source.columns.items())
        alike = (source.format, source.dialect, source.kafka_properties or "", *(f"{k}={v}" for k, v in columns))
        exports.setdefault(alike, []).append(source.path)
    for (form, dialect, properties, *columns), paths in exports.items():
        if (address := live_input(paths, form)) is not None:
            live = ask_cluster(address, properties or None)
            yield list(live.logs), live.topics, live.state_partitions
            continue
        named = Columns.named(dict(one.split("=", 1) for one in columns))
        asked = Asked(paths, dialect, named, lambda: early_session(settings.spark.master, settings.spark.conf))
        found = find(asked, form)
        for note in found.notes:
            _LOG.info("%s: %s", " ".join(paths), note)
        yield found.logs, None, None


def _check_once(logs: list[LogPartition]) -> None:
    """Refuse log partitions that are there in two forms.

    Raises:
        InputError: if one is.
    """
    known = set[str]()
    for log in logs:
        if log.name in known:
            raise InputError(
                f"sources: {log.name} is in two of them that are not alike; copies need one format and dialect"
            )
        known.add(log.name)
    whole = [log.name for log in logs if log.source is not None and not log.has_offsets]
    if whole and len(logs) > len(whole):
        raise InputError(f"sources: {whole[0]} does not tell its partitions, and others do; give one form")


def told(settings: AuditSettings) -> dict[str, str]:
    """What shapes the tables of an audit beside the logs; where it changed, an audit judges again."""
    shown = {key: value for key, value in settings.describe().items() if key.partition(".")[0] in _SHAPING}
    if settings.topics is not None:
        shown["topics.digest"] = hashlib.sha256(place(settings.topics).read_bytes()).hexdigest()[:16]
    return shown
