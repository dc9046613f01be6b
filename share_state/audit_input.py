"""The work that an audit's configuration describes."""

import hashlib

from share_state.config import AuditSettings
from share_state.group_input import group_logs
from share_state.inputs import logs_of, state_partitions_found
from share_state.topics_file import read_topics
from share_state.wire.places import place
from share_state.work import Work

_SHAPING = ("state_partitions", "limits", "rules", "topics", "clock", "groups")
"""Sections of the configuration that change what the tables hold."""


def work_of(settings: AuditSettings) -> Work:
    """The log partitions of all sources, and how they are folded and judged.

    Sources of one dialect are one export: what several hold of a log partition is read as copies of it.

    Raises:
        InputError: if a source or the topics file cannot be used.
    """
    by_dialect: dict[str, list[str]] = {}
    for source in settings.sources:
        by_dialect.setdefault(source.dialect, []).append(source.path)
    logs = [log for dialect, paths in by_dialect.items() for log in logs_of(paths, dialect)]
    beside = group_logs([source.path for source in settings.sources], logs, settings.groups.paths or ())
    return Work(
        logs=logs,
        topics=read_topics(settings.topics),
        state_partitions=settings.state_partitions or state_partitions_found(logs),
        severities=settings.rules,
        limits=settings.limits.to_limits(),
        groups=settings.groups.to_input(beside),
    )


def told(settings: AuditSettings) -> dict[str, str]:
    """What shapes the tables of an audit beside the logs; where it changed, an audit judges again."""
    shown = {key: value for key, value in settings.describe().items() if key.partition(".")[0] in _SHAPING}
    if settings.topics is not None:
        shown["topics.digest"] = hashlib.sha256(place(settings.topics).read_bytes()).hexdigest()[:16]
    return shown
