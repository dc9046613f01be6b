"""Finds the state topic's log partitions in what a person names: folders, files, globs, several brokers' copies."""

import glob
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from share_state.errors import InputError

STATE_TOPIC = "__share_group_state"

_SEGMENT_NAME = re.compile(r"(\d{20})\.log")
_FOLDER_NAME = re.compile(r"(?P<topic>.+)-(?P<partition>\d+)")
_DEEPEST = 6
_MAGIC_AT = 16


@dataclass(frozen=True, slots=True)
class Segment:
    """One `.log` file: its path, the offset its name promises, its size in bytes, which copy of the log it is of."""

    path: str
    base_offset: int
    size: int
    copy: int = 0


@dataclass(frozen=True, slots=True)
class LogPartition:
    """One partition of the state topic, over all the copies that were found.

    Attributes:
        topic: always `__share_group_state`.
        partition: number of the state partition, None where no folder name tells it.
        segments: every segment of every copy, by base offset.
        log_start_offset: first offset a broker would load (the earliest of the copies).
        start_is_noted: whether that comes from the broker's own log-start-offset-checkpoint.
    """

    topic: str
    partition: int | None
    segments: tuple[Segment, ...]
    log_start_offset: int
    start_is_noted: bool = False

    @property
    def size(self) -> int:
        """Bytes in all segments."""
        return sum(segment.size for segment in self.segments)

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


def find_logs(inputs: Sequence[str]) -> list[LogPartition]:
    """The log partitions that the inputs hold, by partition number.

    A folder that holds `__share_group_state-N` folders is read as one broker's log directory; folders deeper inside it
    (archives, crash copies) are looked at only where it holds none itself.

    Args:
        inputs: paths of files or folders, or glob patterns.
    Raises:
        InputError: if an input is missing, unreadable, empty, or holds no log of the state topic.
    Source: Kafka LogManager (folder and file names), log-start-offset-checkpoint.
    """
    folders: dict[Path, list[Path]] = {}
    for given in inputs:
        for path in _expand(given):
            for file in _segments_of(path):
                folders.setdefault(file.parent, [])
                if file.resolve() not in {known.resolve() for known in folders[file.parent]}:
                    folders[file.parent].append(file)
    by_log: dict[tuple[int, str], list[tuple[Path, list[Path]]]] = {}
    for folder, files in folders.items():
        partition = _partition_of(folder)
        identity = (partition, "") if partition is not None else (-1, str(folder))
        by_log.setdefault(identity, []).append((folder, files))
    return [_log_partition(partition if partition >= 0 else None, copies)
            for (partition, _), copies in sorted(by_log.items())]  # fmt: skip


def _expand(given: str) -> list[Path]:
    path = Path(given)
    if "://" in given:
        raise InputError(f"{given}: only local files and folders are read; copy the log folders to a local disk first")
    try:
        if path.exists():
            return [path]
    except OSError as error:
        raise InputError(f"{given}: cannot be read ({error.strerror}); check its permissions") from None
    matches = sorted(Path(match) for match in glob.glob(given, recursive=True)) if glob.has_magic(given) else []
    if glob.has_magic(given):
        matches = [match for match in matches if match.is_dir() or _SEGMENT_NAME.fullmatch(match.name)]
    if not matches:
        raise InputError(f"{given}: no such file or folder; give the folder that holds {STATE_TOPIC}-0")
    return matches


def _segments_of(path: Path) -> list[Path]:
    try:
        return [_checked_segment(path)] if not path.is_dir() else _segments_under(path)
    except OSError as error:
        raise InputError(
            f"{error.filename or path}: cannot be read ({error.strerror}); check its permissions"
        ) from None


def _segments_under(folder: Path) -> list[Path]:
    looked_at, level, other_topics = 0, [folder], set[str]()
    if _segment_files([folder]):
        named = _FOLDER_NAME.fullmatch(folder.name)
        if named and named["topic"] != STATE_TOPIC:
            raise InputError(f"{folder}: a log of topic {named['topic']}, not of {STATE_TOPIC}")
        return _segment_files([folder])
    for _ in range(_DEEPEST):
        looked_at += len(level)
        state_folders = [child for child in level if _is_state_folder(child)]
        if _segment_files(state_folders):
            return _segment_files(state_folders)
        other_topics |= {
            named["topic"]
            for child in level
            if (named := _FOLDER_NAME.fullmatch(child.name)) and _segment_files([child])
        }
        level = sorted(child for parent in level for child in parent.iterdir() if child.is_dir())
    found = f"found logs of {', '.join(sorted(other_topics)[:3])}" if other_topics else "no log segments here"
    raise InputError(
        f"{folder}: {found} (looked for {STATE_TOPIC}-*/*.log in {looked_at} folders);"
        f" give the folder that holds {STATE_TOPIC}-0"
    )


def _segment_files(folders: Iterable[Path]) -> list[Path]:
    return [file for folder in folders for file in sorted(folder.iterdir()) if _SEGMENT_NAME.fullmatch(file.name)]


def _is_state_folder(folder: Path) -> bool:
    named = _FOLDER_NAME.fullmatch(folder.name)
    return named is not None and named["topic"] == STATE_TOPIC


def _partition_of(folder: Path) -> int | None:
    named = _FOLDER_NAME.fullmatch(folder.resolve().name)
    return int(named["partition"]) if named and named["topic"] == STATE_TOPIC else None


def _checked_segment(file: Path) -> Path:
    if _SEGMENT_NAME.fullmatch(file.name):
        return file
    with file.open("rb") as opened:
        head = opened.read(_MAGIC_AT + 1)
    if len(head) <= _MAGIC_AT or head[_MAGIC_AT] not in (0, 1, 2):
        raise InputError(f"{file}: not a log segment (no record batch at its start); give a .log file of {STATE_TOPIC}")
    return file


def _log_partition(partition: int | None, copies: list[tuple[Path, list[Path]]]) -> LogPartition:
    segments, starts = [], list[tuple[int, bool]]()
    for copy, (folder, files) in enumerate(copies):
        own = sorted((_segment(file, copy) for file in files), key=lambda segment: segment.base_offset)
        segments += own
        noted = _noted_start(folder, partition)
        starts.append((max(own[0].base_offset, noted), noted > own[0].base_offset))
    segments.sort(key=lambda segment: (segment.base_offset, segment.copy))
    return LogPartition(STATE_TOPIC, partition, tuple(segments), *min(starts))


def _segment(file: Path, copy: int) -> Segment:
    try:
        with file.open("rb") as opened:
            size = opened.seek(0, 2)
            opened.seek(0)
            first = opened.read(8)
    except OSError as error:
        raise InputError(f"{file}: cannot be read ({error.strerror}); check its permissions") from None
    named = _SEGMENT_NAME.fullmatch(file.name)
    base_offset = int(named[1]) if named else max(int.from_bytes(first, "big", signed=True), 0)
    return Segment(str(file), base_offset, size, copy)


def _noted_start(folder: Path, partition: int | None) -> int:
    """The log start a broker noted beside its folders; it notes only those beyond the first segment's base offset."""
    checkpoint = folder.resolve().parent / "log-start-offset-checkpoint"
    if partition is None or not checkpoint.is_file():
        return 0
    for line in checkpoint.read_text(encoding="utf-8", errors="replace").splitlines()[2:]:
        noted = line.split()
        if noted[:2] == [STATE_TOPIC, str(partition)] and len(noted) == 3 and noted[2].isdecimal():
            return int(noted[2])
    return 0
