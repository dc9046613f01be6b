"""Where the records of a log partition come from, where that is not segments: what a form must offer to be folded.

Finds log partitions in what a person names: folders, files, globs, several brokers' copies.

Finds the logs of ordinary topics, amid whose user data the draft's control records lie.

Finds the logs of `__consumer_offsets`, where the group coordinator keeps its groups.

Finds the log partitions in what a person names, of either dialect.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from share_state.errors import InputError
from share_state.sources.object_stores import Place, StorePath, head_of, place, places, size_of, unreadable

if TYPE_CHECKING:
    from share_state.kafka.record_batches import Chunk


class Source(Protocol):
    """Reads one log partition from one form of export; small and picklable, as it travels to the tasks."""

    @property
    def form(self) -> str:
        """Its name, as `--format` takes it."""
        ...

    @property
    def has_offsets(self) -> bool:
        """Whether it tells where in the log a record lies; without, records are numbered as they come."""
        ...

    @property
    def has_times(self) -> bool:
        """Whether it tells when a record was written."""
        ...

    @property
    def has_sizes(self) -> bool:
        """Whether it tells how many bytes of the log a batch takes."""
        ...

    def chunks(self, log: "LogPartition", chunk: int, *, merge: bool) -> Iterator["Chunk"]:
        """The chunks of a log partition in log order, each with `records`: located already, no batch to be opened.

        Args:
            log: what is read; its segments are the files of this form.
            chunk: bytes of keys and values to hold at a time.
            merge: whether its files may repeat each other; look at all of them first, as `read_chunks` does.
        Raises:
            RepeatedOffsetsError: if `merge` is off and needed.
            InputError: if what is there is not of this form.
        """
        ...


STATE_TOPIC = "__share_group_state"

_SEGMENT_NAME = re.compile(r"(\d{20})\.log")
_FOLDER_NAME = re.compile(r"(?P<topic>.+)-(?P<partition>\d+)")
_DEEPEST = 6
_MAGIC_AT = 16


@dataclass(frozen=True, slots=True)
class Segment:
    """One `.log` file, or a file of another form of export.

    Attributes:
        path: of the file.
        base_offset: the offset that its name promises.
        size: bytes.
        copy: which copy of the log it is of.
        begin: position to read from; what lies before it was read by an earlier run.
    """

    path: str
    base_offset: int
    size: int
    copy: int = 0
    begin: int = 0

    @property
    def unread(self) -> int:
        """Bytes to be read."""
        return self.size - self.begin


@dataclass(frozen=True, slots=True)
class LogPartition:
    """One partition of a topic, over all the copies that were found.

    Attributes:
        topic: name of the topic.
        partition: its number, None where no folder name tells it.
        segments: every segment of every copy, by base offset.
        log_start_offset: first offset a broker would load (the earliest of the copies).
        start_is_noted: whether that comes from the broker's own log-start-offset-checkpoint.
        topic_id: as its folder's partition.metadata tells, None where there is none.
        source: reads it where `segments` are files of another form; None for segments of a broker.
    """

    topic: str
    partition: int | None
    segments: tuple[Segment, ...]
    log_start_offset: int
    start_is_noted: bool = False
    topic_id: str | None = None
    source: Source | None = None

    @property
    def has_offsets(self) -> bool:
        """Whether the offsets of its records are known; without, they are numbered as they come."""
        return self.source is None or self.source.has_offsets

    @property
    def has_times(self) -> bool:
        """Whether the stamps of its records are known."""
        return self.source is None or self.source.has_times

    @property
    def has_sizes(self) -> bool:
        """Whether the bytes that its batches take in the log are known."""
        return self.source is None or self.source.has_sizes

    @property
    def name(self) -> str:
        """As its folder is called; where no name tells the partition, the path of the folder, or of a text's file."""
        if self.partition is not None:
            return f"{self.topic}-{self.partition}"
        path = self.segments[0].path
        return str(place(path).parent) if self.source is None else path

    @property
    def size(self) -> int:
        """Bytes to be read in all segments."""
        return sum(segment.unread for segment in self.segments)

    @property
    def has_copies(self) -> bool:
        """True where the segments come from more than one folder and may repeat each other."""
        return len({segment.copy for segment in self.segments}) > 1


@dataclass(frozen=True, slots=True)
class Window:
    """Which records count: offsets in [from_offset, until_offset), stamped at or before until_time_ms."""

    from_offset: int | None = None
    until_offset: int | None = None
    until_time_ms: int | None = None

    def counts(self, records: np.ndarray) -> np.ndarray:
        """bool, which RECORD rows count."""
        counted = np.ones(len(records), bool)
        if self.from_offset is not None:
            counted &= records["offset"] >= self.from_offset
        if self.until_offset is not None:
            counted &= records["offset"] < self.until_offset
        if self.until_time_ms is not None:
            counted &= records["timestamp"] <= self.until_time_ms
        return counted


@dataclass(frozen=True, slots=True)
class Sought:
    """Which topics' logs are looked for, and how an error message calls them.

    Attributes:
        wants: whether the logs of a topic of this name are meant.
        called: "not of ...".
        folder: what stands before the partition in the name of a folder that is looked for.
    """

    wants: Callable[[str], bool]
    called: str
    folder: str


_STATE = Sought(lambda topic: topic == STATE_TOPIC, STATE_TOPIC, STATE_TOPIC)


def find_logs(inputs: Sequence[str]) -> list[LogPartition]:
    """The log partitions of the state topic that the inputs hold, by partition number.

    A folder that holds `__share_group_state-N` folders is read as one broker's log directory; folders deeper inside it
    (archives, crash copies) are looked at only where it holds none itself.

    Args:
        inputs: paths of files or folders, or glob patterns.
    Raises:
        InputError: if an input is missing, unreadable, empty, or holds no log of the state topic.
    Source: Kafka LogManager (folder and file names), log-start-offset-checkpoint.
    """
    by_log: dict[tuple[int, str], list[tuple[Place, list[Place]]]] = {}
    for folder, files in segment_folders(inputs, _STATE).items():
        named = partition_of(folder, _STATE)
        identity = (named[1], "") if named else (-1, str(folder))
        by_log.setdefault(identity, []).append((folder, files))
    return [log_partition(STATE_TOPIC, partition if partition >= 0 else None, copies)
            for (partition, _), copies in sorted(by_log.items())]  # fmt: skip


def segment_folders(inputs: Sequence[str | Place], sought: Sought) -> dict[Place, list[Place]]:
    """The segment files that the inputs name or hold, by folder.

    Raises:
        InputError: as `find_logs`.
    """
    folders: dict[Place, dict[Place, Place]] = {}
    for given in inputs:
        for path in _expand(given, sought):
            for file in _segments_of(path, sought):
                # Named twice, it is there once, by its first name.
                folders.setdefault(file.parent, {}).setdefault(file.resolve(), file)
    return {folder: list(files.values()) for folder, files in folders.items()}


def partition_of(folder: Place, sought: Sought) -> tuple[str, int] | None:
    """The topic and the partition that a folder's name tells, None where it tells none that is looked for."""
    named = _FOLDER_NAME.fullmatch(folder.resolve().name)
    return (named["topic"], int(named["partition"])) if named and sought.wants(named["topic"]) else None


def log_partition(topic: str, partition: int | None, copies: list[tuple[Place, list[Place]]]) -> LogPartition:
    """One log partition of the segment files of its copies, each with the folder that holds them."""
    segments, starts = [], list[tuple[int, bool]]()
    for copy, (folder, files) in enumerate(copies):
        own = sorted((_segment(file, copy) for file in files), key=lambda segment: segment.base_offset)
        segments += own
        noted = _noted_start(folder, topic, partition)
        starts.append((max(own[0].base_offset, noted), noted > own[0].base_offset))
    segments.sort(key=lambda segment: (segment.base_offset, segment.copy))
    ids = [topic_id for folder, _ in copies if (topic_id := _topic_id(folder)) is not None]
    return LogPartition(topic, partition, tuple(segments), *min(starts), topic_id=ids[0] if ids else None)


def _expand(given: str | Place, sought: Sought) -> list[Place]:
    if not isinstance(given, str):
        return [given]
    try:
        matches = places(given)
    except OSError as error:
        raise unreadable(given, error) from None
    if [str(match) for match in matches] != [str(place(given))]:
        matches = [match for match in matches if match.is_dir() or _SEGMENT_NAME.fullmatch(match.name)]
    if not matches:
        raise InputError(f"{given}: no such file or folder; give the folder that holds {sought.folder}-0")
    return matches


def _segments_of(path: Place, sought: Sought) -> list[Place]:
    try:
        return _segments_under(path, sought) if path.is_dir() else [_checked_segment(path, sought)]
    except OSError as error:
        raise InputError(
            f"{error.filename or path}: cannot be read ({error.strerror}); check its permissions"
        ) from None


def _segments_under(folder: Place, sought: Sought) -> list[Place]:
    looked_at, level, other_topics = 0, [folder], set[str]()
    if _segment_files([folder]):
        named = _FOLDER_NAME.fullmatch(folder.name)
        if named and not sought.wants(named["topic"]):
            raise InputError(f"{folder}: a log of topic {named['topic']}, not of {sought.called}")
        return _segment_files([folder])
    for _ in range(_DEEPEST):
        looked_at += len(level)
        found = _segment_files(child for child in level if _is_named(child, sought))
        if found:
            return found
        other_topics |= {
            named["topic"]
            for child in level
            if (named := _FOLDER_NAME.fullmatch(child.name)) and _segment_files([child])
        }
        level = sorted(child for parent in level for child in parent.iterdir() if child.is_dir())
    instead = f"found logs of {', '.join(sorted(other_topics)[:3])}" if other_topics else "no log segments here"
    raise InputError(
        f"{folder}: {instead} (looked for {sought.folder}-*/*.log in {looked_at} folders);"
        f" give the folder that holds {sought.folder}-0"
    )


def _segment_files(folders: Iterable[Place]) -> list[Place]:
    return [file for folder in folders for file in sorted(folder.iterdir()) if _SEGMENT_NAME.fullmatch(file.name)]


def _is_named(folder: Place, sought: Sought) -> bool:
    named = _FOLDER_NAME.fullmatch(folder.name)
    return named is not None and sought.wants(named["topic"])


def _checked_segment(file: Place, sought: Sought) -> Place:
    if _SEGMENT_NAME.fullmatch(file.name):
        return file
    head = head_of(file, _MAGIC_AT + 1)
    if len(head) <= _MAGIC_AT or head[_MAGIC_AT] not in (0, 1, 2):
        raise InputError(
            f"{file}: not a log segment (no record batch at its start); give a .log file of {sought.called}"
        )
    return file


def _segment(file: Place, copy: int) -> Segment:
    named = _SEGMENT_NAME.fullmatch(file.name)
    try:
        # A store tells the size with the listing; a local file is opened, so that one that may not be read shows now.
        first = b"" if named and isinstance(file, StorePath) else head_of(file, 8)
        size = size_of(file)
    except OSError as error:
        raise unreadable(str(file), error) from None
    base_offset = int(named[1]) if named else max(int.from_bytes(first, "big", signed=True), 0)
    return Segment(str(file), base_offset, size, copy)


def _topic_id(folder: Place) -> str | None:
    """The topic id that a broker noted in a log partition's folder. Source: Kafka PartitionMetadataFile."""
    noted = folder / "partition.metadata"
    if not noted.is_file():
        return None
    found = re.search(r"^topic_id: *(\S+)", noted.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
    return found[1] if found else None


def _noted_start(folder: Place, topic: str, partition: int | None) -> int:
    """The log start a broker noted beside its folders; it notes only those beyond the first segment's base offset."""
    checkpoint = folder.resolve().parent / "log-start-offset-checkpoint"
    if partition is None or not checkpoint.is_file():
        return 0
    for line in checkpoint.read_text(encoding="utf-8", errors="replace").splitlines()[2:]:
        noted = line.split()
        if noted[:2] == [topic, str(partition)] and len(noted) == 3 and noted[2].isdecimal():
            return int(noted[2])
    return 0


INTERNAL = "__"
"""Topics whose names begin so are Kafka's own: control records of type 5 and 6 mean other things there."""

_ORDINARY = Sought(lambda topic: not topic.startswith(INTERNAL), "an ordinary topic", "<topic>")


def find_topic_logs(inputs: Sequence[str]) -> list[LogPartition]:
    """The log partitions of ordinary topics that the inputs hold, by topic and partition.

    A folder that holds `<topic>-N` folders is read as one broker's log directory, as by `find_logs`; those of Kafka's
    own topics (`__cluster_metadata`, `__consumer_offsets`, ...) are passed over.

    Args:
        inputs: paths of files or folders, or glob patterns.
    Raises:
        InputError: if an input is missing, unreadable, empty, or holds no log of an ordinary topic.
    Source: Kafka LogManager (folder and file names), log-start-offset-checkpoint; spec C-02.
    """
    by_log: dict[tuple[str, int], list[tuple[Place, list[Place]]]] = {}
    for folder, files in segment_folders(inputs, _ORDINARY).items():
        named = partition_of(folder, _ORDINARY)
        if named is None:
            raise InputError(f"{folder}: its name tells no ordinary topic; keep segments in their <topic>-N folder")
        by_log.setdefault(named, []).append((folder, files))
    return [log_partition(*named, copies) for named, copies in sorted(by_log.items())]


GROUP_TOPIC = "__consumer_offsets"

_GROUPS = Sought(lambda topic: topic == GROUP_TOPIC, GROUP_TOPIC, GROUP_TOPIC)


def find_group_logs(inputs: Sequence[str | Place]) -> list[LogPartition]:
    """The log partitions of `__consumer_offsets` that the inputs hold, by partition number.

    A folder that holds `__consumer_offsets-N` folders is read as one broker's log directory, as by `find_logs`.

    Args:
        inputs: paths of files or folders, or glob patterns; or places that were found already.
    Raises:
        InputError: if an input is missing, unreadable, empty, or holds no log of that topic.
    Source: Kafka LogManager (folder and file names), GroupCoordinatorService.
    """
    by_log: dict[tuple[int, str], list[tuple[Place, list[Place]]]] = {}
    for folder, files in segment_folders(inputs, _GROUPS).items():
        named = partition_of(folder, _GROUPS)
        identity = (named[1], "") if named else (-1, str(folder))
        by_log.setdefault(identity, []).append((folder, files))
    return [
        log_partition(GROUP_TOPIC, partition if partition >= 0 else None, copies)
        for (partition, _), copies in sorted(by_log.items())
    ]


def partitions_shown(logs: Sequence[LogPartition]) -> int | None:
    """How many partitions the topic seems to have, where the logs run from 0 without a gap; None where they do not.

    Only folders of segments show a partition that holds nothing: other forms do not tell. Nor does partition 0 alone,
    be it one of one or the first of 50.

    Args:
        logs: all that were found.
    """
    if any(log.source is not None for log in logs):
        return None
    numbers = sorted({log.partition for log in logs if log.partition is not None})
    return len(numbers) if len(numbers) > 1 and numbers == list(range(len(numbers))) else None


def group_partition_of(group_id: str, partitions: int) -> int:
    """The partition of `__consumer_offsets` that a group's records belong to.

    Args:
        group_id: the group.
        partitions: how many partitions the topic has.
    Source: Kafka GroupCoordinatorService.partitionFor; java.lang.String.hashCode, Utils.abs.
    """
    # Java hashes UTF-16 units: a character beyond U+FFFF counts as two.
    units = group_id.encode("utf-16-be")
    code = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    signed = code - 2**32 if code >= 2**31 else code
    return (0 if signed == -(2**31) else abs(signed)) % partitions


AUTO = "auto"
DIALECTS = (AUTO, "share_group_state", "control_records")


def logs_of(inputs: Sequence[str], dialect: str) -> list[LogPartition]:
    """The state topic's logs where there are any; else those of ordinary topics, for the draft's control records.

    Args:
        inputs: folders, files or globs.
        dialect: one of DIALECTS.
    Raises:
        InputError: if an input is missing, unreadable or holds no such log.
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


def state_partitions_found(logs: Sequence[LogPartition]) -> int | None:
    """How many partitions the state topic has, where the logs run from 0 without a gap; None where they do not.

    Only folders of segments show a log partition that holds nothing: other forms do not tell.
    """
    if any(log.source is not None for log in logs):
        return None
    numbers = sorted(log.partition for log in logs if log.partition is not None and log.topic == STATE_TOPIC)
    return len(numbers) if numbers and numbers == list(range(len(logs))) else None
