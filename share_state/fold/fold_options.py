"""Options of the fold: which share-partitions to select, and the options of each dialect."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import reduce
from operator import and_, or_

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.errors import InputError, printable
from share_state.fold.checkpoint import FoldCheckpoint
from share_state.fold.limits import Limits
from share_state.fold.record_context import RecordJudge
from share_state.kafka.share_partition_keys import KeyTable
from share_state.sources.partition_count import PartitionCount
from share_state.sources.resume_point import ResumeStatus
from share_state.sources.share_snapshots import ShareSnapshotEntry
from share_state.sources.topics import Topics

STRICT, BEST_EFFORT = "strict", "best-effort"
MODES = (STRICT, BEST_EFFORT)

_MAX_NEAREST = 3


@dataclass(frozen=True, slots=True)
class SharePartitionFilter:
    """Selects share-partitions; None matches all. `topic` is an id or a name.

    A name matches only if it is known.
    """

    group_id: str | None = None
    topic: str | None = None
    partition: int | None = None

    @property
    def of_rows(self) -> pc.Expression | None:
        """The filter for rows of tables; None if it matches all."""
        conditions = []
        if self.group_id is not None:
            conditions.append(pc.field("group_id") == self.group_id)
        if self.topic is not None:
            conditions.append((pc.field("topic") == self.topic) | (pc.field("topic_id") == self.topic))
        if self.partition is not None:
            conditions.append(pc.field("partition") == self.partition)
        return reduce(and_, conditions) if conditions else None

    def matches(self, keys: KeyTable, topics: Topics) -> np.ndarray:
        """Mask of the matching share-partitions of a log: bool, entry n for number n."""
        groups, ids, partitions = keys.columns()
        matched = np.ones(len(keys), bool)
        if self.group_id is not None:
            matched &= _equal(groups, self.group_id)
        if self.partition is not None:
            matched &= partitions.to_numpy() == self.partition
        if self.topic is not None:
            matched &= _equal(ids, self.topic) | _equal(topics.name_of(ids), self.topic)
        return matched

    def check(self, known: pa.Table) -> None:
        """Refuse the filter if it matches none of the known share-partitions.

        Args:
            known: group_id, topic_id, topic and partition of the known share-partitions.
        Raises:
            InputError: if nothing matches; the message has the unknown value and the nearest known ones.
        """
        selection, criteria = "", {"group": self.group_id, "topic": self.topic, "partition": self.partition}
        columns = {"group": ["group_id"], "topic": ["topic", "topic_id"], "partition": ["partition"]}
        for name, value in criteria.items():
            if value is None:
                continue
            selection = f"{name} {printable(value)}{' of ' if selection else ''}{selection}"
            matching = known.filter(reduce(or_, [pc.field(column) == value for column in columns[name]]))
            if not len(matching):
                candidates = pc.call_function("coalesce", [known[column] for column in columns[name]])
                raise InputError(f"{selection}: not found; {_nearest(value, candidates)}")
            known = matching


def _nearest(value: str | int, column: pa.ChunkedArray) -> str:
    """The values of a column that are most similar to a value, in words."""
    values = sorted(column.drop_null().unique().to_pylist())
    if isinstance(value, int):
        nearest = sorted(values, key=lambda number: abs(number - value))[:_MAX_NEAREST]
    else:
        nearest = get_close_matches(value, values, _MAX_NEAREST, cutoff=0)
    if len(values) <= _MAX_NEAREST:
        listed = ", ".join(map(printable, values)) or "no other"
        return f"there {'is' if len(values) < 2 else 'are'} {listed}"
    return f"the nearest of {len(values):,} are {', '.join(map(printable, nearest))}"


def _equal(column: pa.Array, text: str) -> np.ndarray:
    is_equal = pc.call_function("equal", [column, pa.scalar(text, pa.string())])
    return is_equal.fill_null(False).to_numpy(zero_copy_only=False)


@dataclass(frozen=True, slots=True)
class ControlOptions:
    """How the control records of a topic-partition are folded.

    Attributes:
        mode: "strict" (fold a chain up to its first broken link) or "best-effort" (fold every delta that is
            not of an older epoch).
        subscriptions: topic -> groups that subscribe to it; None for all groups of the log.
        ignore_uncheckpointed: groups without a checkpoint do not limit the cutoff.
        index: entries of a share snapshot file to check against the log; they never change the result.
        last_audit: group_id, start_offset, end_offset and snapshot_offset of the share-partitions at the last
            audit; to read from an offset on, also moved_time and active_time.
        audited_to: the offset up to which that audit read the log.
        read_from: the offset from which on the index and the last audit let the log be read; None for its
            start.
    """

    mode: str = STRICT
    subscriptions: Mapping[str, Collection[str]] | None = None
    ignore_uncheckpointed: bool = False
    index: Sequence[ShareSnapshotEntry] | None = None
    last_audit: pa.Table | None = None
    audited_to: int = 0
    read_from: int | None = None


@dataclass(frozen=True, slots=True)
class FoldOptions:
    """Options of a fold, besides the log and the window; each dialect reads the fields that it needs.

    Attributes:
        topics: known names and end offsets.
        limits: limits that rules check the log against.
        partition_count: how many partitions the state topic has.
        cores: number of threads that read, decode and fold one log.
        control: options for the control records of the KIP-932 draft.
        restore: builds the checkpoint of an earlier fold, a new object at each call: to resume from or, if
            `resume_status` is one of READ_FROM_START, only for the previous start offsets.
        resume_status: how the log has changed since that fold.
        counted_to: offset up to which an audit whose state is gone has counted what became of deliveries; 0 for
            none.
        judge: rules over records, applied to each chunk.
        judged_at: ms, up to which rules measure durations; None for the timestamp of the log's last record.
        archiving_groups: groups with dead letters, or EVERY_GROUP; None to collect no `archiving_ranges`.
        marks_returned: add the column RETURNED to `archiving_ranges`.
        only_stable: stop at the last stable offset, as a consumer with read_committed does. By default later
            records that belong to no open transaction are folded too, as a coordinator folds them.
    """

    topics: Topics = field(default_factory=Topics)
    limits: Limits = field(default_factory=Limits)
    partition_count: PartitionCount = field(default_factory=PartitionCount)
    cores: int = 1
    control: ControlOptions = field(default_factory=ControlOptions)
    restore: Callable[[], FoldCheckpoint] | None = None
    resume_status: ResumeStatus | None = None
    counted_to: int = 0
    judge: RecordJudge | None = None
    judged_at: int | None = None
    archiving_groups: frozenset[str] | None = None
    marks_returned: bool = False
    only_stable: bool = False
