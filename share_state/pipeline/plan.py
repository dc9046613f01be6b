"""How many cores there are, and how many of them each log is worth.

A digest of log partitions: an audit whose group side has the same one as before need not judge it again.

The group side of an input: the logs of `__consumer_offsets` that go with it, and how they are read.

What a command is asked to fold, and how: plain data that travels to the tasks.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pyarrow.compute as pc

from share_state.delta.files import asking, rows_of
from share_state.fold.checkpoint import Carried, restored
from share_state.fold.control_log import ControlOptions, FoldedControlLog, fold_control_log
from share_state.fold.decoded import decoded_control_tables, decoded_tables
from share_state.fold.log import FoldedLog, fold_log
from share_state.fold.options import Chosen, Limits
from share_state.fold.timeline import control_timeline_tables, timeline_tables
from share_state.fold.verify import Proof, verify_control_cutoff, verify_cutoff
from share_state.kafka.share_snapshot_file import IndexEntry
from share_state.rules.group_context import GroupLimits
from share_state.rules.registry import judge, judge_records
from share_state.schema.declarations import table_schema
from share_state.sources.discovery import GROUP_TOPIC, STATE_TOPIC, LogPartition, Window, find_group_logs
from share_state.sources.kafka_client import FORM as LIVE
from share_state.sources.object_stores import NotOpenedError, Place, Store, StorePath, place, refusal, unreadable
from share_state.sources.resume import Fate
from share_state.sources.topics import Topics

if TYPE_CHECKING:
    from share_state.sources.kafka_cluster import LiveSource


def cores_here() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def shares(logs: Sequence[LogPartition], cores: int, most: int | None = None) -> dict[str, int]:
    """The logs that are worth more than one core while all are read at once, by name: so many as their bytes say.

    Args:
        logs: all of them.
        cores: that there are for all together.
        most: that one log may have; by default all.
    """
    total = max(1, sum(log.size for log in logs))
    worth = {log.name: min(round(cores * log.size / total), most or cores) for log in logs}
    return {name: count for name, count in worth.items() if count > 1}


def digest_of_logs(logs: Sequence[LogPartition]) -> str:
    """A short text that is the same where the same is to be read.

    Of a file on this machine it is the bytes that count, wherever they lie; of a file in a store, which would have to
    be fetched whole, its size and when it was last written; of a cluster, how far each log partition is to be read.

    Args:
        logs: log partitions, in the order in which they were found.
    Raises:
        InputError: if a file cannot be read.
    """
    digest = hashlib.blake2b(digest_size=8)
    contents = _contents(segment.path for log in logs for segment in log.segments)
    for log in logs:
        digest.update(f"{log.topic} {log.partition}\n".encode())
        if log.source is not None and log.source.form == LIVE:
            end = cast("LiveSource", log.source).end_offset
            digest.update(f"{log.topic_id} {log.log_start_offset} {end}\n".encode())
        for one in log.segments:
            # Several log partitions may share a file, and each has its stretch of it.
            digest.update(f"{one.base_offset} {one.begin} {one.size} {contents[one.path]}\n".encode())
    return digest.hexdigest()


def _contents(paths: Iterable[str]) -> dict[str, str]:
    """Path -> what tells its content from another, each file looked at once."""
    told, stored = dict[str, str](), dict[Store, list[tuple[str, StorePath]]]()
    for path in dict.fromkeys(paths):
        found = place(path)
        if isinstance(found, StorePath):
            stored.setdefault(found.store, []).append((path, found))
        else:
            told[path] = _hashed(path)
    for store, files in stored.items():
        told |= _last_written(store, files)
    return told


def _last_written(store: Store, files: Sequence[tuple[str, StorePath]]) -> dict[str, str]:
    """Size and time of files of a store, asked for together; the bytes of those that it tells no time of."""
    try:
        infos = store.file_system.get_file_info([found.inner for _, found in files])
    except (OSError, pa.ArrowException, NotOpenedError) as error:
        raise refusal(files[0][0], error) from None
    told = {}
    for (path, _), info in zip(files, infos, strict=True):
        if not info.is_file:
            raise refusal(path, FileNotFoundError())
        told[path] = _hashed(path) if info.mtime_ns is None else f"{info.size} {info.mtime_ns}"
    return told


def _hashed(path: str) -> str:
    try:
        with place(path).open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(path, error) from None


HISTORY, LATEST = "history", "latest"
CLAIMS = (HISTORY, LATEST)
"""Which records of classic consumer groups are held against the rules: all that are left, or the latest of a group."""


@dataclass(frozen=True, slots=True)
class GroupInput:
    """The group side of an input, and how it is read.

    Attributes:
        logs: partitions of `__consumer_offsets`.
        partitions: how many the topic has, None where only the logs can tell.
        claims: one of CLAIMS.
        limits: what the groups are held against.
    """

    logs: tuple[LogPartition, ...]
    partitions: int | None = None
    claims: str = HISTORY
    limits: GroupLimits = field(default_factory=GroupLimits)

    def described(self) -> dict[str, str]:
        """What an audit compares to see whether anything is new: the same for the same bytes.

        Raises:
            InputError: if a file cannot be read.
        """
        return {"groups.digest": digest_of_logs(self.logs)}


def group_logs(inputs: Sequence[str], logs: Sequence[LogPartition]) -> tuple[LogPartition, ...]:
    """The partitions of `__consumer_offsets` that lie beside the logs of the state topic, as segments.

    They are taken only from folders that the inputs name or hold: who names a single
    `__share_group_state-N` gets that alone.

    Args:
        inputs: folders, files or globs, as the person named them.
        logs: what was found in them.
    Returns:
        By partition number; nothing where there is none.
    Raises:
        InputError: if one cannot be read.
    """
    paths = (segment.path for log in logs if log.topic == STATE_TOPIC for segment in log.segments)
    folders = {place(path).parent.parent for path in paths}
    beside = [
        found
        for folder in sorted(folders, key=str)
        if any(_is_in(folder, given) for given in inputs)
        for found in sorted(folder.glob(f"{GROUP_TOPIC}-*"))
        if any(found.glob("*.log"))
    ]
    return tuple(find_group_logs(beside)) if beside else ()


def _is_in(folder: Place, given: str) -> bool:
    """Whether a folder, or one above it, is what was named."""
    return folder.is_relative_to(given) or any(one.match(given) for one in (folder, *folder.parents))


_CARRIED = "carried_share_partitions"


@dataclass(frozen=True, slots=True)
class Resumed:
    """How an audit goes on with one log partition.

    Attributes:
        fate: what became of it since the last audit.
        carried: its row of `carried_logs`; None where it is read from its start.
        files: Parquet files that hold its rows of `carried_share_partitions`, maybe beside those of others.
    """

    fate: Fate
    carried: str | None = None
    files: tuple[str, ...] = ()

    def restore(self, log: LogPartition) -> Callable[[], Carried] | None:
        """Gives what the last audit left for a log partition, a new one at each call; None where it left nothing."""
        return None if self.carried is None else partial(_restored, self.carried, self.files, log.name)


def _restored(carried: str, files: Sequence[str], log: str) -> Carried:
    if not files:
        return restored(carried, table_schema(_CARRIED).empty_table())
    with asking(files[0]):
        return restored(carried, rows_of(_CARRIED, files).to_table(filter=pc.field("log") == log))


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be folded, and how.

    Attributes:
        logs: the log partitions; `__share_group_state` holds state records, any other topic control records.
        windows: name of a log partition -> which of its records count.
        window: the window of the log partitions that `windows` does not name.
        topics: names and end offsets that are known.
        state_partitions: how many partitions the state topic has, None where unknown.
        control: how control records are folded.
        indexes: name of a log partition -> entries of its share snapshot file, to be held against the log.
        severities: rule -> severity or "off".
        verify: prove each cutoff by folding without what lies before it.
        limits: what the rules hold the logs against.
        audited: name of a log partition -> how an audit goes on with it; None where this is no audit.
        timeline: the share-partitions whose state after every record is wanted; None for no timeline.
        groups: the group side, None where there is none.
        cores: name of a log partition -> how many cores fold it; one where none is named.
    """

    logs: Sequence[LogPartition]
    windows: Mapping[str, Window] = field(default_factory=dict)
    window: Window = field(default_factory=Window)
    topics: Topics = field(default_factory=Topics)
    state_partitions: int | None = None
    control: ControlOptions = field(default_factory=ControlOptions)
    indexes: Mapping[str, Sequence[IndexEntry]] = field(default_factory=dict)
    severities: Mapping[str, str] = field(default_factory=dict)
    verify: bool = False
    limits: Limits = field(default_factory=Limits)
    audited: Mapping[str, Resumed] | None = None
    timeline: Chosen | None = None
    groups: GroupInput | None = None
    cores: Mapping[str, int] = field(default_factory=dict)

    def window_of(self, log: LogPartition) -> Window:
        """Which records of one of the logs count."""
        return self.windows.get(log.name, self.window)

    def fold(self, log: LogPartition) -> FoldedLog | FoldedControlLog:
        """Fold one of the logs, by the dialect of its topic."""
        if log.topic == STATE_TOPIC:
            known = {"topics": self.topics, "state_partitions": self.state_partitions, "limits": self.limits}
            known |= {"cores": self.cores_of(log)}
            if self.audited is None:
                return fold_log(log, self.window_of(log), **known)
            resumed = self.audited[log.name]
            judge = partial(judge_records, severities=self.severities)
            return fold_log(log, restore=resumed.restore(log), fate=resumed.fate, judge=judge, **known)
        control = self.control
        return fold_control_log(
            log,
            self.window_of(log),
            mode=control.mode,
            subscriptions=control.subscriptions,
            ignore_uncheckpointed=control.ignore_uncheckpointed,
            index=self.indexes.get(log.name),
        )

    def cores_of(self, log: LogPartition) -> int:
        """How many cores are for one of the logs, where this runs."""
        return min(self.cores.get(log.name, 1), cores_here())

    def alone(self) -> "Work":
        """This work where one log is folded after the other: each has all cores."""
        return replace(self, cores={log.name: cores_here() for log in self.logs})

    def each(self) -> Iterator[FoldedLog | FoldedControlLog]:
        """Fold the logs here, one after the other."""
        return map(self.alone().fold, self.logs)

    def judge(self, folded: FoldedLog | FoldedControlLog) -> pa.Table:
        """The findings of a folded log."""
        traced = folded.judged if isinstance(folded, FoldedLog) else ()
        return judge(folded, self.severities, self.topics, traced)

    def prove(self, folded: FoldedLog | FoldedControlLog) -> Proof | None:
        """Fold again without what lies before the cutoff, and compare."""
        window = self.window_of(folded.log)
        if isinstance(folded, FoldedControlLog):
            return verify_control_cutoff(folded, window)
        return verify_cutoff(folded, window, self.topics)

    def states_of(self, log: LogPartition) -> Iterator[pa.Table]:
        """The table `timeline` of one of the logs, piece by piece."""
        if self.timeline is None:
            return
        if log.topic == STATE_TOPIC:
            yield from timeline_tables(log, self.window_of(log), self.timeline, self.topics)
        else:
            yield from control_timeline_tables(log, self.window_of(log), self.timeline, self.control.mode)

    def decode(self, log: LogPartition) -> Iterator[pa.Table]:
        """The decoded records of one of the logs, a table a chunk."""
        if log.topic == STATE_TOPIC:
            return decoded_tables(log, self.window_of(log), self.topics)
        return decoded_control_tables(log, self.window_of(log))
