"""Finds the log partitions of an export: the format of its files, the logs in them, and the group side next to them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from share_state.delta.reader import scan_foreign
from share_state.errors import InputError
from share_state.sources.cluster_facts import ClusterFacts
from share_state.sources.discovery import find_group_logs, find_topic_logs
from share_state.sources.export_files import codec_of, data_files, existing_paths, first_content
from share_state.sources.formats import (
    AUTO,
    SEGMENTS,
    ExportPaths,
    format_of,
    recognize,
)
from share_state.sources.kafka_client import ADDRESS_HINT, KAFKA_FORM, SCHEME, bootstrap_servers
from share_state.sources.log_partition import GROUP_TOPIC, STATE_TOPIC, Export, LogPartition
from share_state.sources.table_plan import parquet_batches
from share_state.sources.text_shapes import name_shape
from share_state.stores.paths import InputPath, expand_paths, normalize_address, to_path

if TYPE_CHECKING:
    from share_state.sources.dead_letter_topics import DeadLetterSource


def read_export(export_paths: ExportPaths, format: str = AUTO, kafka_properties: str | None = None) -> Export:
    """Find the log partitions of one export.

    Args:
        export_paths: its paths, or the address of a cluster.
        format: one of `format_names`, kafka, or AUTO to look at the content.
        kafka_properties: path of a properties file for a cluster, as Kafka's tools take it with --command-config.
    Raises:
        InputError: if an input cannot be used, is not of this format, or AUTO finds several formats.
    """
    address = find_cluster_address(export_paths.paths, format)
    if address is not None:
        from share_state.sources.kafka_source import read_cluster  # noqa: PLC0415  the client library is an extra

        return read_cluster(address, kafka_properties)
    name = detect_format(export_paths.paths) if format == AUTO else format
    found = format_of(name).find(export_paths)
    if format == AUTO and name != SEGMENTS:
        return replace(found, notes=(f"read as {format_of(name).label} (--format {name})", *found.notes))
    return found


def read_group_export(given: ExportPaths, format: str = AUTO) -> tuple[LogPartition, ...]:
    """The partitions of `__consumer_offsets` in an export that is named as the group side.

    Raises:
        InputError: if it is a cluster, cannot be read, holds no log of the topic, or is not of this format.
    """
    for path in given.paths:
        if path.startswith(SCHEME):
            raise InputError(
                f"{path}: the groups of a cluster must be read together with its state; give the cluster as the input"
            )
    name = detect_format(given.paths) if format == AUTO else format
    return tuple(format_of(name).find_groups(given))


def find_cluster_address(inputs: Sequence[str], form: str = AUTO) -> str | None:
    """The cluster address among the inputs of a command with this `--format`; None if they are files.

    Raises:
        InputError: if a cluster is combined with other inputs or another format, or its address is invalid.
    """
    clusters = [given for given in map(normalize_address, inputs) if given.startswith(SCHEME)]
    if not clusters:
        if form == KAFKA_FORM:
            raise InputError(f"{' '.join(inputs)}: not the address of a cluster; {ADDRESS_HINT}")
        return None
    if form not in (AUTO, KAFKA_FORM):
        raise InputError(f"{clusters[0]}: a cluster is not read as {form}; leave --format out")
    bootstrap_servers(clusters[0])
    if len(inputs) > 1:
        raise InputError(f"{clusters[0]}: a cluster is read alone; remove the other {len(inputs) - 1} inputs")
    return clusters[0]


def find_dead_letters(paths: Sequence[str], properties: str | None) -> "DeadLetterSource":
    """The dead-letter topics that exports of any form hold, or a cluster.

    Args:
        paths: exports, or the address of a cluster.
        properties: path of a properties file for that cluster.
    Raises:
        InputError: if a path cannot be used.
    """
    from share_state.sources.dead_letter_topics import (  # noqa: PLC0415  compiles a kernel that few commands need
        ClusterLetters,
        SegmentLetters,
        TableLetters,
        checked_batches,
    )

    if (address := find_cluster_address(paths)) is not None:
        return ClusterLetters(address, properties)
    if detect_format(paths) != "table":
        return SegmentLetters(find_topic_logs(paths))
    tables, files = list[Callable[[], Iterator[pa.RecordBatch]]](), list[InputPath]()
    for path in (one for text in paths for one in expand_paths(text)):
        if (log := path / "_delta_log").is_dir():
            tables.append(partial(checked_batches, scan_foreign, str(path)))
            files += sorted(log.glob("*.json"), key=str)
        else:
            data = data_files(path)
            tables += [partial(checked_batches, parquet_batches, str(file)) for file in data]
            files += data
    return TableLetters(tables, files)


def own_dead_letters(facts: ClusterFacts) -> "DeadLetterSource | None":
    """The dead-letter topics of the groups, as far as the data folders hold them; None for none.

    Raises:
        InputError: if a folder cannot be read.
    """
    topics = {*facts.settings.dead_letter_topics.values()} if facts.settings else set[str]()
    paths = [
        str(path)
        for folder in map(to_path, facts.folders if topics else ())
        for path in sorted(folder.iterdir(), key=str)
        if path.is_dir() and path.name.rpartition("-")[0] in topics
    ]
    return find_dead_letters(paths, None) if paths else None


def detect_format(paths: Sequence[str]) -> str:
    """The format of paths by their content; SEGMENTS if none matches, whose reader then says what is wrong.

    Raises:
        InputError: if two of them have different formats.
    """
    seen: dict[str, str] = {}
    for given in paths:
        for path in existing_paths(given):
            if (name := _format_of(path)) is not None:
                seen.setdefault(name, str(path))
    if len(seen) > 1:
        (one, of_one), (other, of_other) = list(seen.items())[:2]
        raise InputError(
            f"{of_one} is {format_of(one).label}, {of_other} is {format_of(other).label}; give one format"
        )
    return next(iter(seen), SEGMENTS)


def _format_of(path: InputPath) -> str | None:
    try:
        if path.is_dir():
            if (path / "_delta_log").is_dir():
                return "table"
            if (path / "runs" / "_delta_log").is_dir():
                raise InputError(
                    f"{path}: a warehouse that share-state wrote, not an export;"
                    " `share-state show` prints it; give the logs or tables that it was made from"
                )
            if next(path.rglob("*.log"), None) is not None:
                return SEGMENTS
        files = data_files(path)
        file, head = first_content(files) if files else (path, b"")
    except OSError:
        return None
    name = recognize(head)
    if name is None and (shape := name_shape(str(file), head)) is not None:
        raise InputError(shape)
    if name not in (None, "table") and codec_of(file) is not None:
        raise InputError(f"{file}: {format_of(name).label}, compressed as a file; decompress it first")
    return name


def adjacent_group_logs(paths: Sequence[str], logs: Sequence[LogPartition]) -> tuple[LogPartition, ...]:
    """The partitions of `__consumer_offsets` in the folders that hold the logs of the state topic.

    Only folders that the paths name, or that are below one, are searched, and those of which a glob or
    several paths name all logs of the state topic: a path to a single `__share_group_state-N` selects that
    log alone.

    Args:
        paths: folders, files or globs.
        logs: the log partitions found in them.
    Returns:
        By partition number; empty if there are none.
    Raises:
        InputError: if one cannot be read.
    """
    segments = (segment.path for log in logs if log.topic == STATE_TOPIC for segment in log.segments)
    of_folder = dict[InputPath, set[InputPath]]()
    for path in segments:
        of_folder.setdefault(to_path(path).parent.parent, set()).add(to_path(path).parent)
    found = [
        log_folder
        for folder, named in sorted(of_folder.items(), key=lambda one: str(one[0]))
        if any(_is_in(folder, given) for given in paths) or _names_all(named, folder, paths)
        for log_folder in sorted(folder.glob(f"{GROUP_TOPIC}-*"))
        if any(log_folder.glob("*.log"))
    ]
    return tuple(find_group_logs(found)) if found else ()


def _names_all(named: set[InputPath], folder: InputPath, paths: Sequence[str]) -> bool:
    """Whether a glob, or several paths, name all logs of the state topic in a folder."""
    is_glob = any(_is_glob(given) and to_path(given).name.startswith(STATE_TOPIC) for given in paths)
    return (is_glob or len(named) > 1) and {*folder.glob(f"{STATE_TOPIC}-*")} <= named


def _is_glob(given: str) -> bool:
    return any(sign in given for sign in "*?[")


def _is_in(folder: InputPath, given: str) -> bool:
    """Whether a path names a folder or one above it."""
    return folder.is_relative_to(given) or any(one.match(given) for one in (folder, *folder.parents))
