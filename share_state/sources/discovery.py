"""Finds the segments of log partitions in folders, files and globs, with the checkpoint files beside them.

`find_logs` looks for `__share_group_state`, `find_topic_logs` for ordinary topics with control records of the
KIP-932 draft, and `find_group_logs` for `__consumer_offsets`.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from share_state.errors import InputError
from share_state.kafka.primitives import LARGEST_INT64, parse_digits
from share_state.sources.log_partition import (
    GROUP_TOPIC,
    LARGEST_PARTITION,
    STATE_TOPIC,
    LogCopy,
    LogPartition,
    Segment,
    of_copies,
)
from share_state.stores.object_stores import StorePath, read_errors
from share_state.stores.paths import InputPath, expand_paths, read_head, to_path

_SEGMENT_NAME = re.compile(r"(\d{20})\.log", re.ASCII)
_FOLDER_NAME = re.compile(r"(?P<topic>.+)-(?P<partition>\d+)", re.ASCII)
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"

_MAX_DEPTH = 6
_MAGIC_AT = 16
_ARCHIVES = {b"PK": "a zip archive", b"\x1f\x8b": "a gzip archive", b"\x28\xb5\x2f\xfd": "a zstd archive"}
"""How archives begin."""


def find_logs(inputs: Sequence[str]) -> list[LogPartition]:
    """The log partitions of the state topic in the inputs, by partition number.

    A folder with `__share_group_state-N` folders is read as the log directory of one broker; deeper folders
    (archives, crash copies) are searched only if it has none itself.

    Args:
        inputs: paths of files or folders, or glob patterns.
    Raises:
        InputError: if an input is missing, unreadable, empty, or has no log of the state topic.
    Source: Kafka LogManager (folder and file names), log-start-offset-checkpoint.
    """
    return _find_logs_of(STATE_TOPIC, inputs)


def _find_logs_of(topic: str | None, inputs: Sequence[str | InputPath]) -> list[LogPartition]:
    """The log partitions of one topic, or of all ordinary topics.

    With `topic`, a folder that is not named after it is a separate log of that topic; without it, it is
    refused.
    """
    by_log: dict[tuple[str, int, str], list[tuple[InputPath, list[InputPath]]]] = {}
    for folder, files in _segment_folders(inputs, topic).items():
        if (name := _named_partition(folder, topic)) is not None:
            log = (*name, "")
        elif topic is not None:
            log = (topic, -1, str(folder))
        else:
            raise InputError(
                f"{folder}: not named after {_ORDINARY}; keep segments in their <topic>-N folder"
            )
        by_log.setdefault(log, []).append((folder, files))
    checkpoints = _Checkpoints()
    return [
        _log_partition(name, None if partition < 0 else partition, replicas, checkpoints)
        for (name, partition, _), replicas in sorted(by_log.items())
    ]


_ORDINARY = "an ordinary topic"
"""How messages name the topics whose name does not begin with two underscores, as those of Kafka's internal
ones do."""


def _is_selected(name: str, topic: str | None) -> bool:
    """Whether a topic is the given one, or an ordinary one if none is given."""
    return not name.startswith("__") if topic is None else name == topic


def _segment_folders(
    inputs: Sequence[str | InputPath], topic: str | None
) -> dict[InputPath, list[InputPath]]:
    """The segment files in the inputs, by folder."""
    folders: dict[InputPath, dict[str, InputPath]] = {}
    targets = dict[InputPath, InputPath]()
    for text in [inputs] if isinstance(inputs, str) else inputs:
        for path in _expand(text, topic):
            with read_errors(path):
                files = _segments_under(path, topic) if path.is_dir() else [_checked_segment(path, topic)]
            for file in files:
                folder = file.parent
                if folder not in targets:
                    targets[folder] = folder.resolve()
                # A file that is named twice is read once, under its first name.
                is_link = isinstance(file, Path) and file.is_symlink()
                target = str(file.resolve()) if is_link else f"{targets[folder]}/{file.name}"
                folders.setdefault(folder, {}).setdefault(target, file)
    return {folder: list(files.values()) for folder, files in folders.items()}


def _named_partition(folder: InputPath, topic: str | None) -> tuple[str, int] | None:
    """Topic and partition in the name of a folder; None if it is of another topic."""
    name = _FOLDER_NAME.fullmatch(folder.resolve().name)
    if name is None or not _is_selected(name["topic"], topic):
        return None
    if int(name["partition"]) > LARGEST_PARTITION:
        raise InputError(
            f"{folder}: a partition number above {LARGEST_PARTITION}; rename the folder or leave it out"
        )
    return name["topic"], int(name["partition"])


def _log_partition(
    topic: str,
    partition: int | None,
    replicas: list[tuple[InputPath, list[InputPath]]],
    checkpoints: "_Checkpoints",
) -> LogPartition:
    """Build a log partition from its replicas: their folders and segment files."""
    segments, copies = list[Segment](), list[LogCopy]()
    for replica, (folder, files) in enumerate(replicas):
        own = [_segment(file, replica) for file in files]
        segments += own
        first = min(segment.base_offset for segment in own)
        broker = folder.resolve().parent
        recorded = checkpoints.offset(broker / "log-start-offset-checkpoint", topic, partition) or 0
        lines = _lines(folder / "leader-epoch-checkpoint")
        epochs = tuple(entry for line in lines if (entry := _two_numbers(line.split())) is not None)
        # A broker that moves the log start moves the start of the first epoch, too, and first.
        # Source: Kafka UnifiedLog.maybeIncrementLogStartOffset, LeaderEpochFileCache.truncateFromStart.
        first_epoch_start = epochs[0][1] if epochs else recorded
        copies.append(
            LogCopy(
                log_start_offset=max(first, recorded),
                start_is_recorded=first_epoch_start >= max(first, recorded, 1),
                high_watermark=checkpoints.offset(broker / HIGH_WATERMARK_CHECKPOINT, topic, partition),
                leader_epochs=epochs,
            )
        )
    topic_id = next((found for folder, _ in replicas if (found := _topic_id(folder)) is not None), None)
    log = LogPartition(topic, partition, tuple(segments), 0, topic_id=topic_id, copies=tuple(copies))
    return of_copies(log, range(len(copies)))


def names_log(text: str) -> bool:
    """Whether a path names one log partition, its folder or a file of it, and not a folder above it or a glob."""
    folder = to_path(text)
    if any(sign in text for sign in "*?["):
        return False
    return folder.name.endswith(".log") or _topic_of(folder) is not None


def _expand(text: str | InputPath, topic: str | None) -> list[InputPath]:
    if not isinstance(text, str):
        return [text]
    with read_errors(text):
        matches = expand_paths(text)
    if [str(match) for match in matches] != [str(to_path(text))]:
        matches = [match for match in matches if match.is_dir() or _SEGMENT_NAME.fullmatch(match.name)]
    if not matches:
        raise InputError(f"{text}: no such file or folder; give the folder that holds {topic or '<topic>'}-0")
    return matches


def _segments_under(folder: InputPath, topic: str | None) -> list[InputPath]:
    searched = 0
    level = [folder]
    other_topics = set[str]()
    if files := _segment_files([folder]):
        _check_topic(folder, folder, topic)
        return files
    for _ in range(_MAX_DEPTH):
        searched += len(level)
        named = {child: name for child in level if (name := _topic_of(child)) is not None}
        if files := _segment_files(child for child, name in named.items() if _is_selected(name, topic)):
            return files
        other_topics |= {name for child, name in named.items() if _segment_files([child])}
        level = sorted(child for parent in level for child in parent.iterdir() if child.is_dir())
    instead = (
        f"found logs of {', '.join(sorted(other_topics)[:3])}" if other_topics else "no log segments here"
    )
    log = topic or "<topic>"
    raise InputError(
        f"{folder}: {instead} (looked for {log}-*/*.log in {searched} folder{'s' * (searched != 1)});"
        f" give the folder that holds {log}-0"
    )


def _segment_files(folders: Iterable[InputPath]) -> list[InputPath]:
    files = list[InputPath]()
    for folder in folders:
        own = [file for file in folder.iterdir() if _SEGMENT_NAME.fullmatch(file.name)]
        files += sorted(own, key=lambda file: file.name)
    return files


def log_parent(segment: InputPath) -> InputPath:
    """The folder that holds the folder of a segment's log.

    Its own folder if that is not named after a log.
    """
    folder = segment.parent
    return folder if _topic_of(folder) is None else folder.parent


def _topic_of(folder: InputPath) -> str | None:
    """The topic in the name of a folder."""
    named = _FOLDER_NAME.fullmatch(folder.name)
    return None if named is None else named["topic"]


def _check_topic(given: InputPath, folder: InputPath, topic: str | None) -> None:
    """Refuse a folder or file of a log whose folder is named after another topic."""
    if (name := _topic_of(folder.resolve())) is not None and not _is_selected(name, topic):
        fix = f"give the folder that holds {topic or '<topic>'}-0"
        raise InputError(f"{given}: a log of topic {name}, not of {topic or _ORDINARY}; {fix}")


def _checked_segment(file: InputPath, topic: str | None) -> InputPath:
    if file.name.endswith(".log"):
        _check_topic(file, file.parent, topic)
    if _SEGMENT_NAME.fullmatch(file.name):
        return file
    head = read_head(file, _MAGIC_AT + 1)
    if (
        archive := next((name for sign, name in _ARCHIVES.items() if head.startswith(sign)), None)
    ) is not None:
        raise InputError(
            f"{file}: {archive}; unpack it, and give the folder that holds {topic or '<topic>'}-0"
        )
    if len(head) <= _MAGIC_AT or head[_MAGIC_AT] not in (0, 1, 2):
        raise InputError(
            f"{file}: not a log segment (no record batch at its start); give a .log file of {topic or _ORDINARY}"
        )
    return file


def is_segment_name(name: str) -> bool:
    """Whether a file has the name that a broker gives to a segment."""
    return _SEGMENT_NAME.fullmatch(name) is not None


def _segment(file: InputPath, replica: int) -> Segment:
    name = _SEGMENT_NAME.fullmatch(file.name)
    with read_errors(file):
        # The listing of a store has the size. A local file is opened, so that missing permissions are
        # reported now.
        first = b"" if name and isinstance(file, StorePath) else read_head(file, 8)
        size = file.stat().st_size
    base_offset = int(name[1]) if name else max(int.from_bytes(first, "big", signed=True), 0)
    if base_offset > LARGEST_INT64:
        raise InputError(f"{file}: a base offset above {LARGEST_INT64}; rename the file or leave it out")
    return Segment(str(file), base_offset, size, replica)


def _topic_id(folder: InputPath) -> str | None:
    """The topic id from partition.metadata in the folder of a log. Source: Kafka PartitionMetadataFile."""
    match = re.search(r"^topic_id: *(\S+)", _text(folder / "partition.metadata"), re.MULTILINE)
    return match[1] if match else None


class _Checkpoints:
    """The checkpoint files of brokers with the offsets of all log partitions; each is read once."""

    def __init__(self) -> None:
        self._offsets = dict[str, dict[tuple[str, int], int]]()

    def offset(self, file: InputPath, topic: str, partition: int | None) -> int | None:
        """The offset of a log partition in a checkpoint file; None if absent."""
        if partition is None:
            return None
        if str(file) not in self._offsets:
            offsets = dict[tuple[str, int], int]()
            for name, number, offset in _checkpoint_entries(file):
                offsets.setdefault((name, number), offset)
            self._offsets[str(file)] = offsets
        return self._offsets[str(file)].get((topic, partition))


def recorded_partitions(logs: Iterable[LogPartition]) -> dict[str, set[int]]:
    """Topic -> its partitions in the log directories that segments come from, by replication-offset-checkpoint."""
    recorded = dict[str, set[int]]()
    for broker in {folder.resolve().parent for folder in segment_folders(logs)}:
        for topic, number, _ in _checkpoint_entries(broker / HIGH_WATERMARK_CHECKPOINT):
            recorded.setdefault(topic, set()).add(number)
    return recorded


def _checkpoint_entries(checkpoint: InputPath) -> Iterator[tuple[str, int, int]]:
    """Topic, partition and offset of each entry of a checkpoint file."""
    for line in _lines(checkpoint):
        topic, *numbers = line.split() or [""]
        if (entry := _two_numbers(numbers)) is not None:
            yield (topic, *entry)


def _lines(checkpoint: InputPath) -> list[str]:
    """The entries of a checkpoint file, which follow its version and their count.

    Source: Kafka CheckpointFile.
    """
    return _text(checkpoint).splitlines()[2:]


def _text(file: InputPath) -> str:
    """The text of a small file; "" if there is none."""
    return file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""


def _two_numbers(words: Sequence[str]) -> tuple[int, int] | None:
    """The numbers of an entry; None if it holds something else, or a number that no log holds."""
    if len(words) != 2:
        return None
    first, second = map(parse_digits, words)
    return None if first is None or second is None else (first, second)


def find_topic_logs(inputs: Sequence[str]) -> list[LogPartition]:
    """The log partitions of ordinary topics in the inputs, by topic and partition.

    A folder with `<topic>-N` folders is read as the log directory of one broker; internal topics
    (`__cluster_metadata`, `__consumer_offsets`, ...), where control records of types 5 and 6 have another
    meaning, are skipped. Arguments, errors and sources as for `find_logs`.
    """
    return _find_logs_of(None, inputs)


def find_group_logs(inputs: Sequence[str | InputPath]) -> list[LogPartition]:
    """The log partitions of `__consumer_offsets`, by partition number.

    Arguments and errors as for `find_logs`.
    """
    return _find_logs_of(GROUP_TOPIC, inputs)


AUTO = "auto"
DIALECTS = (AUTO, "share_group_state", "control_records")


def find_logs_of_dialect(inputs: Sequence[str], dialect: str) -> list[LogPartition]:
    """The logs of the state topic.

    If there are none, those of ordinary topics, which may have control records.

    Args:
        inputs: folders, files or globs.
        dialect: one of DIALECTS.
    Raises:
        InputError: if an input is missing or unreadable, or has no such log.
    """
    if dialect == "control_records":
        return find_topic_logs(inputs)
    try:
        return find_logs(inputs)
    except InputError as no_state_topic:
        if dialect != AUTO:
            raise
        try:
            return find_topic_logs(inputs)
        except InputError:
            raise no_state_topic from None


METADATA_FOLDER = "__cluster_metadata-0"


def find_data_folders(log_folders: Iterable[InputPath]) -> list[InputPath]:
    """The data folders of brokers that hold these folders of logs."""
    parents = {str(parent): parent for parent in (folder.parent for folder in log_folders)}
    return [parent for _, parent in sorted(parents.items()) if is_data_folder(parent)]


def is_data_folder(folder: InputPath) -> bool:
    """Whether a folder has a metadata log or a broker's checkpoint of high watermarks."""
    return (folder / METADATA_FOLDER).exists() or (folder / HIGH_WATERMARK_CHECKPOINT).exists()


def segment_folders(logs: Iterable[LogPartition]) -> list[InputPath]:
    """The folders that hold the segments of logs."""
    paths = {str(folder): folder for log in logs if log.source is None for folder in _folders_of(log)}
    return [paths[name] for name in sorted(paths)]


def _folders_of(log: LogPartition) -> list[InputPath]:
    by_folder = {segment.path.rpartition("/")[0]: segment.path for segment in log.segments}
    return [to_path(path).parent for path in by_folder.values()]
