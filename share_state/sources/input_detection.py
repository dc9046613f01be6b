"""Finds the log partitions of an export: the format of its files, the logs in them, and the group side next to them."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from share_state.delta.reader import list_foreign_files, scan_foreign
from share_state.errors import InputError, ShareStateError
from share_state.sources.cluster_facts import ClusterFacts
from share_state.sources.console_text import console_log, is_console_json
from share_state.sources.discovery import (
    GROUP_TOPIC,
    STATE_TOPIC,
    Export,
    LogPartition,
    Segment,
    find_group_logs,
    find_logs_of_dialect,
    find_topic_logs,
)
from share_state.sources.dump_text import dump_logs, is_dump_text
from share_state.sources.kafka_client import ADDRESS_HINT, KAFKA_FORM, SCHEME, bootstrap_servers
from share_state.sources.record_tables import Columns
from share_state.sources.segments import check_loose_segments, without_obsolete_copies
from share_state.sources.table_plan import TableFile, TablePlan, list_table_files, parquet_batches, plan_table
from share_state.sources.text_shapes import name_shape
from share_state.stores.paths import (
    InputPath,
    expand_paths,
    normalize_address,
    read_head,
    regular_path,
    to_path,
)

if TYPE_CHECKING:
    from share_state.sources.dead_letter_topics import DeadLetterSource

AUTO, SEGMENTS = "auto", "segments"

HEAD_SIZE = 1 << 20
"""Bytes of a file that are enough to recognize its format."""

_PARQUET = b"PAR1"
_NOT_DATA = ("_", ".")
_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
"""Ending of a file name -> how the file is compressed, for Arrow and Spark alike."""

SortedLogs = tuple[list[LogPartition], set[str]]
"""Log partitions, and the topics whose rows are left out."""


class RowSorter(Protocol):
    """Sorts rows by log partition and offset. Spark does this.

    It is passed in, so that this package needs no Spark.
    """

    def sort_tables(
        self, tables: Sequence[tuple[str, str]], columns: Columns, name: str, topics: Sequence[str]
    ) -> SortedLogs:
        """Sort tables as one, given by format (parquet, delta or json) and path.

        Messages call them `name`.
        """
        ...

    def sort_frame(self, frame: Any, columns: Columns, topics: Sequence[str]) -> SortedLogs:
        """Sort the rows of a DataFrame of Spark."""
        ...


@dataclass(frozen=True, slots=True)
class ExportPaths:
    """Paths that are read as one export.

    Attributes:
        paths: files, folders and globs.
        dialect: the dialect of segments.
        columns: for tables: name in Spark's Kafka source -> name in the table.
        sorter: None if Spark must not be started.
    """

    paths: Sequence[str]
    dialect: str = AUTO
    columns: Mapping[Any, str] = field(default_factory=dict)
    sorter: RowSorter | None = None


@dataclass(frozen=True, slots=True)
class Format:
    """A format of exports.

    Attributes:
        label: its name in messages.
        matches: whether a file that begins with these bytes has it.
        find: finds the log partitions of paths of this format.
        find_groups: finds the partitions of `__consumer_offsets` alone.
    """

    label: str
    matches: Callable[[bytes], bool]
    find: Callable[[ExportPaths], Export]
    find_groups: Callable[[ExportPaths], list[LogPartition]]


def _find_segments(given: ExportPaths) -> Export:
    found = find_logs_of_dialect(given.paths, given.dialect)
    for log in found:
        check_loose_segments(log)
    logs = [without_obsolete_copies(log) for log in found]
    left_out = [
        str(to_path(segment.path).parent)
        for log, kept in zip(found, logs, strict=True)
        if kept is not log
        for segment in _segments_without(log, kept)
    ]
    folders = list(dict.fromkeys(left_out))
    more = f" and {len(folders) - 1} more" if len(folders) > 1 else ""
    note = "obsolete copies are left out, as they end before the log start of another copy"
    return Export(logs, notes=(f"{note}: {folders[0]}{more}",) if folders else ())


def _segments_without(log: LogPartition, kept: LogPartition) -> list[Segment]:
    """The segments of a log that another form of it lacks."""
    remaining = set(kept.segments)
    return [segment for segment in log.segments if segment not in remaining]


def _find_by_topic(
    find: Callable[[ExportPaths, Sequence[str]], SortedLogs], what: str, given: ExportPaths
) -> Export:
    logs, others = find(given, (STATE_TOPIC, GROUP_TOPIC))
    names = ", ".join(sorted(others)[:5])
    return _split_topics(logs, (f"{what} of other topics are skipped: {names}",) if others else ())


def _find_dump_logs(given: ExportPaths, topics: Sequence[str]) -> SortedLogs:
    return dump_logs(_text_files(given.paths, is_dump_text), topics)


def _find_console_json(given: ExportPaths) -> Export:
    note = (
        "this format has no offsets, partitions or timestamps: columns that need them are null, and no cutoff"
    )
    return Export([console_log(_text_files(given.paths, is_console_json))], notes=(note,))


def _split_topics(logs: Sequence[LogPartition], notes: tuple[str, ...] = ()) -> Export:
    groups = [log for log in logs if log.topic == GROUP_TOPIC]
    return Export([log for log in logs if log.topic != GROUP_TOPIC], tuple(groups), notes)


FORMATS: Mapping[str, Format] = {
    "table": Format(
        "a table of keys and values",
        lambda head: head.startswith(_PARQUET) or _is_json_table(head),
        lambda given: _find_by_topic(find_table_logs, "rows", given),
        lambda given: find_table_logs(given, (GROUP_TOPIC,))[0],
    ),
    "dump-log": Format(
        "the text of kafka-dump-log",
        is_dump_text,
        lambda given: _find_by_topic(_find_dump_logs, "dumps", given),
        lambda given: _find_dump_logs(given, (GROUP_TOPIC,))[0],
    ),
    "console-json": Format(
        "the JSON of the console consumer",
        is_console_json,
        _find_console_json,
        lambda given: [console_log(_text_files(given.paths, is_console_json), GROUP_TOPIC)],
    ),
    SEGMENTS: Format(
        "segments of a log",
        lambda head: len(head) > 16 and head[16] in (0, 1, 2),
        _find_segments,
        lambda given: find_group_logs(given.paths),
    ),
}
"""Every format by its `--format` name; a file is of the first format that matches its beginning."""


def read_export(export_paths: ExportPaths, format: str = AUTO, kafka_properties: str | None = None) -> Export:
    """Find the log partitions of one export.

    Args:
        export_paths: its paths, or the address of a cluster.
        format: one of FORMATS, kafka, or AUTO to look at the content.
        kafka_properties: path of a properties file for a cluster, as Kafka's tools take it with
            --command-config.
    Raises:
        InputError: if an input cannot be used, is not of this format, or AUTO finds several formats.
    """
    address = find_cluster_address(export_paths.paths, format)
    if address is not None:
        from share_state.sources.kafka_cluster import read_cluster  # noqa: PLC0415  the client library is an extra

        return read_cluster(address, kafka_properties)
    name = detect_format(export_paths.paths) if format == AUTO else format
    found = FORMATS[name].find(export_paths)
    if format == AUTO and name != SEGMENTS:
        return replace(found, notes=(f"read as {FORMATS[name].label} (--format {name})", *found.notes))
    return found


def read_frame(frame: Any, columns: Mapping[Any, str], sorter: RowSorter) -> Export:
    """The log partitions of a DataFrame of records with the columns of Spark's Kafka source.

    Raises:
        InputError: if it lacks a column, or has one of another type.
    """
    return _split_topics(sorter.sort_frame(frame, Columns(**columns), (STATE_TOPIC, GROUP_TOPIC))[0])


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
    return tuple(FORMATS[name].find_groups(given))


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
        for path in _existing(given):
            if (name := _format_of(path)) is not None:
                seen.setdefault(name, str(path))
    if len(seen) > 1:
        (one, of_one), (other, of_other) = list(seen.items())[:2]
        raise InputError(
            f"{of_one} is {FORMATS[one].label}, {of_other} is {FORMATS[other].label}; give one format"
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
        file, head = _first_content(files) if files else (path, b"")
    except OSError:
        return None
    name = next((name for name, format in FORMATS.items() if format.matches(head)), None)
    if name is None and (shape := name_shape(str(file), head)) is not None:
        raise InputError(shape)
    if name not in (None, "table") and _codec_of(file) is not None:
        raise InputError(f"{file}: {FORMATS[name].label}, compressed as a file; decompress it first")
    return name


def _codec_of(file: InputPath) -> str | None:
    return next((codec for ending, codec in _CODECS.items() if file.name.endswith(ending)), None)


def _first_content(files: Sequence[InputPath]) -> tuple[InputPath, bytes]:
    """The first file that is not empty, and how it begins.

    An empty file named as Parquet counts as Parquet.
    """
    for file in files:
        if head := _read_content(file):
            return file, head
    parquet = next((file for file in files if file.name.endswith(".parquet")), None)
    return (files[0], b"") if parquet is None else (parquet, _PARQUET)


def _read_content(file: InputPath) -> bytes:
    """The first bytes of a file; of one whose name says that it is compressed, those of its content."""
    head, codec = read_head(file, HEAD_SIZE), _codec_of(file)
    if codec is None:
        return head
    content, stream = list[bytes](), pa.CompressedInputStream(pa.BufferReader(head), codec)
    with suppress(OSError):  # the head ends inside a block
        content += (stream.read(HEAD_SIZE // 16) for _ in range(16))
    return b"".join(content)


def _text_files(paths: Sequence[str], matches: Callable[[bytes], bool]) -> list[InputPath]:
    """The files that paths name, and those of this format in folders.

    Raises:
        InputError: if there are none.
    """
    found = []
    for given in paths:
        named = _existing(given)
        if not named:
            raise InputError(f"{given}: no such file or folder; give a text, or a folder of texts")
        for path in named:
            is_file = path.is_file()
            found += (
                [path] if is_file else [one for one in data_files(path) if matches(read_head(one, HEAD_SIZE))]
            )
    if not found:
        raise InputError(f"{paths[0]}: no text of this format in this folder; give the files")
    return found


def _existing(given: str) -> list[InputPath]:
    try:
        return expand_paths(given)
    except OSError:
        return []


def find_table_logs(export_paths: ExportPaths, topics: Sequence[str] = (STATE_TOPIC,)) -> SortedLogs:
    """The log partitions of tables: Parquet files and Delta tables are read in place, all else is sorted by Spark.

    Args:
        export_paths: Parquet or JSON files, folders of them, Delta tables, globs; several are one table.
        topics: those to find; the first must be there. A table without topics is of the first.
    Raises:
        InputError: if a path cannot be read as a table of records.
        ShareStateError: if the rows must be sorted and there is no sorter.
    """
    files = list[TableFile]()
    to_sort = list[tuple[str, str]]()
    columns = Columns(**export_paths.columns)
    for name in export_paths.paths:
        paths = expand_paths(name)
        if not paths:
            raise InputError(f"{name}: no such file or folder; give Parquet or JSON files, or a Delta table")
        for path in paths:
            if (path / "_delta_log").is_dir():
                names = list_foreign_files(str(path))
                if names is None:
                    to_sort.append(("delta", str(path)))
                else:
                    files += list_table_files([path / one for one in names], path)
                continue
            data = data_files(path)
            if not data:
                raise InputError(
                    f"{path}: no data files; give a folder of Parquet or JSON files, or a Delta table"
                )
            first, head = _first_content(data)
            if head.startswith(_PARQUET):
                files += list_table_files(data, path)
            elif _is_json_table(head):
                to_sort.append(("json", str(path)))
            else:
                raise InputError(
                    f"{first}: neither Parquet nor lines of JSON with one record each; give one of these"
                )
    found = TablePlan([], set(), is_in_order=False) if to_sort else plan_table(files, columns, topics)
    if found.is_in_order:
        return found.logs, found.other_topics
    if export_paths.sorter is None:
        raise ShareStateError(
            "the rows of this table must be sorted by Spark; give spark=share_state.session()"
        )
    to_sort += [("parquet", file.path) for file in files]
    return export_paths.sorter.sort_tables(to_sort, columns, export_paths.paths[0], topics)


def _is_json_table(head: bytes) -> bool:
    """Whether a file begins with a line that is a flat JSON object, as a record is."""
    line = head.lstrip().partition(b"\n")[0]
    try:
        first = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(first, dict) and not any(isinstance(value, dict) for value in first.values())


def data_files(path: InputPath) -> list[InputPath]:
    """The data files of a table; Spark ignores names that begin with a dot or an underscore.

    Source: Spark InMemoryFileIndex.
    """
    if path.is_file():
        return [path]

    def is_data(file: InputPath) -> bool:
        return not any(
            part.startswith(_NOT_DATA) and "=" not in part for part in file.relative_to(str(path)).parts
        )

    return [regular_path(file) for file in sorted(path.rglob("*")) if file.is_file() and is_data(file)]


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
