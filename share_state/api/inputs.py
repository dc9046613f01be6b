"""What a call names, as the work that is to be done."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike, fspath
from typing import TYPE_CHECKING, TypeGuard, cast

from share_state.errors import ShareStateError
from share_state.pipeline.inputs import (
    AUTO,
    FORMATS,
    Asked,
    Export,
    check_cut,
    read_export,
    told_of_partitions,
    with_group_side,
)
from share_state.pipeline.plan import GroupInput, Work
from share_state.pipeline.table_inputs import logs_of_frame
from share_state.sources.as_of import AsOf, windows
from share_state.sources.discovery import DIALECTS, GROUP_TOPIC, STATE_TOPIC, LogPartition
from share_state.sources.kafka_client import FORM as LIVE
from share_state.sources.tables import Columns
from share_state.sources.topics import Topics, read_topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_LOG = logging.getLogger("share_state")

Paths = str | PathLike[str] | Sequence[str | PathLike[str]]

TopicsGiven = Topics | str | PathLike[str] | None
"""Names and end offsets of topics: a JSON file as `--topics` takes it, or `Topics`."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How what a call names is read.

    Attributes:
        as_of: a datetime, or log partition -> offset.
        topics: names and end offsets.
        dialect: auto, share_group_state or control_records.
        format: auto, kafka or one of FORMATS.
        columns: of tables and DataFrames: one of ours -> its name there.
        kafka_properties: of a cluster: path of a properties file.
        spark: puts tables in order which need it.
    """

    as_of: AsOf | None = None
    topics: TopicsGiven = None
    dialect: str = AUTO
    format: str = AUTO
    columns: Mapping[str, str] | None = None
    kafka_properties: str | PathLike[str] | None = None
    spark: "SparkSession | None" = None

    def asked(self, paths: Sequence[str]) -> Asked:
        """Paths, as the finders of the forms take them."""
        return Asked(paths, self.dialect, Columns.named(self.columns or {}), self._session)

    def _session(self) -> "SparkSession":
        if self.spark is None:
            raise ShareStateError("the rows of this table are put in order by Spark; give spark=share_state.session()")
        return self.spark


def listed(paths: Paths) -> list[str]:
    """What was named, one text each."""
    named = [paths] if isinstance(paths, str | PathLike) else list(paths)
    return [fspath(path) for path in named]


def known_topics(topics: TopicsGiven) -> Topics | None:
    """The names and end offsets that were given, None where none were.

    Raises:
        ShareStateError: if the file cannot be used.
    """
    return topics if topics is None or isinstance(topics, Topics) else read_topics(fspath(topics))


def is_frame(given: object) -> "TypeGuard[DataFrame]":
    """Whether a DataFrame was given."""
    return hasattr(given, "sparkSession")


def work_of(paths: "Paths | DataFrame", reading: Reading, rules: Mapping[str, str] | None = None) -> Work:
    """The work that a call asks for, with the group side that came with the logs.

    Args:
        paths: what to read, or a DataFrame of records.
        reading: how.
        rules: rule -> error, warning, info or off.
    Raises:
        InputError: if a path is missing or holds no such log.
        ShareStateError: if an argument cannot be used.
    """
    if reading.dialect not in DIALECTS:
        raise ShareStateError(f"dialect={reading.dialect!r}: give one of {', '.join(DIALECTS)}")
    if reading.format not in (AUTO, LIVE, *FORMATS):
        raise ShareStateError(f"format={reading.format!r}: give one of {', '.join((AUTO, *FORMATS, LIVE))}")
    severities, given = severities_of(rules or {}), known_topics(reading.topics)
    export = _of_frame(paths, reading) if is_frame(paths) else _of_paths(cast("Paths", paths), reading)
    is_moment = not isinstance(reading.as_of, Mapping)
    cut = None if reading.as_of is None else f"as_of={reading.as_of!r}"
    check_cut(export.logs, None if is_moment else cut, cut if is_moment else None)
    everywhere, own = windows(reading.as_of, export.logs)
    return replace(export.work(given), windows=own, window=everywhere, severities=severities)


def grouped(
    work: Work,
    paths: "Paths | DataFrame",
    groups: "Paths | DataFrame | None",
    reading: Reading,
    partitions: int | None = None,
) -> Work:
    """Work with the group side that is named, that came with its logs, or that lies beside them.

    Args:
        work: of `work_of`.
        paths: as the person named them.
        groups: where the group side is; None where nobody said, an empty list where none is wanted.
        reading: how tables of it are read.
        partitions: how many `__consumer_offsets` has, None where nobody said.
    Raises:
        InputError: if what is named cannot be used.
    """
    if is_frame(groups):
        columns = Columns.named(reading.columns or {})
        logs, _ = logs_of_frame(groups, columns, (GROUP_TOPIC,))
        work = replace(work, groups=GroupInput(tuple(logs), partitions))
    else:
        named = None if groups is None else listed(cast("Paths", groups))
        if named == []:
            return replace(work, groups=None)
        inputs = [] if is_frame(paths) else listed(cast("Paths", paths))
        work = with_group_side(work, inputs, None if named is None else reading.asked(named), partitions)
    if (told := told_of_partitions(work.groups)) is not None:
        _LOG.info("%s; give group_partitions=N", told)
    return work


def _of_paths(paths: Paths, reading: Reading) -> Export:
    named, properties = listed(paths), reading.kafka_properties
    export = read_export(reading.asked(named), reading.format, None if properties is None else fspath(properties))
    for note in export.notes:
        _LOG.info("%s: %s", " ".join(named), note)
    return export


def _of_frame(rows: "DataFrame", reading: Reading) -> Export:
    logs, _ = logs_of_frame(rows, Columns.named(reading.columns or {}), (STATE_TOPIC, GROUP_TOPIC))

    def of(topic: str) -> list[LogPartition]:
        return [log for log in logs if log.topic == topic]

    return Export(of(STATE_TOPIC), tuple(of(GROUP_TOPIC)))


def severities_of(rules: Mapping[str, str]) -> dict[str, str]:
    """The severities that were given.

    Raises:
        ShareStateError: if there is no such rule or severity.
    """
    from share_state.rules.registry import OFF, SEVERITIES, registered  # noqa: PLC0415  a call without rules needs none of them

    for code, severity in rules.items():
        if code not in registered() or severity not in (*SEVERITIES, OFF):
            wanted = f"give one of {', '.join((*SEVERITIES, OFF))} to a rule that `share-state rules` lists"
            raise ShareStateError(f"rules={{{code!r}: {severity!r}}}: {wanted}")
    return dict(rules)
