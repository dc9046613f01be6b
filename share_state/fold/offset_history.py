"""The history of one offset: each record that touched it, and the state of the offset after that record.

`AssignmentHistory` adds which members of a share group were assigned the topic-partition, according to
`__consumer_offsets`.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import pyarrow as pa

from share_state.fold.dialect import Dialect, LogReader, dialect_of
from share_state.fold.fold_options import FoldOptions, SharePartitionFilter
from share_state.fold.groups.group_replay import GroupReplay
from share_state.fold.state_chains import NO_OFFSET
from share_state.fold.states import RecordStates, RecordView
from share_state.kafka.delivery_states import TERMINAL
from share_state.kafka.group_records import read_group_records, record_types
from share_state.sources.as_of import Window
from share_state.sources.log_partition import LogPartition
from share_state.sources.pruned_logs import read_whole
from share_state.sources.segments import index_records, read_chunks


class Place(StrEnum):
    """Where an offset is relative to a share-partition."""

    UNKNOWN = "unknown"  # the share-partition has no state yet
    DELETED = "deleted"  # a tombstone deleted the share-partition
    UNINITIALISED = "uninitialised"  # the share-partition has no start offset yet
    BELOW_START = "below_start"
    IN_FLIGHT = "in_flight"
    GAP = "gap"  # between start and end, not covered by a range
    BEYOND_END = "beyond_end"


@dataclass(frozen=True, slots=True)
class OffsetState:
    """State of an offset.

    Attributes:
        state: delivery state of the range that covers it; None unless IN_FLIGHT.
        delivery_count: delivery count of that range.
    """

    place: Place
    state: int | None = None
    delivery_count: int | None = None

    @property
    def is_finished(self) -> bool:
        """Whether the offset is never delivered again."""
        return self.place == Place.BELOW_START or self.state in TERMINAL


@dataclass(frozen=True, slots=True)
class Touch:
    """A record that covers an offset or changes its state.

    Attributes:
        offset, timestamp: offset and timestamp (ms) of the record.
        kind: snapshot, update, tombstone, checkpoint or delta.
        is_cold: whether it is a snapshot that only repeats the state.
        is_readable: False if the broker cannot load it; it then changes nothing.
        ranges: (first offset, last offset, delivery state, delivery count) of each range in it that covers
            the offset.
        recorded_start: the start offset in the record; -1 for none.
        before, after: state of the offset before and after it.
        start_before, start_offset, end_offset: SPSO before it, SPSO and SPEO after it; None for none.
        lead_before, lead: where a leader that loads the state starts, before and after it; None for none.
        state_epoch_before: state epoch before it; None if there was no state.
        snapshot_epoch, state_epoch, leader_epoch, delivery_complete_count: fields of the state after it; None
            if there is no state.
    """

    offset: int
    timestamp: int
    kind: str
    is_cold: bool
    is_readable: bool
    ranges: tuple[tuple[int, int, int, int], ...]
    recorded_start: int
    before: OffsetState
    after: OffsetState
    start_before: int | None = None
    start_offset: int | None = None
    end_offset: int | None = None
    lead_before: int | None = None
    lead: int | None = None
    state_epoch_before: int | None = None
    snapshot_epoch: int | None = None
    state_epoch: int | None = None
    leader_epoch: int | None = None
    delivery_complete_count: int | None = None


@dataclass(slots=True)
class Explanation:
    """The history of one offset of a share-partition in one log.

    Attributes:
        topic_id, topic: None if unknown; `topic_id` always for control records.
        touches: records that touched the offset, in log order.
        offset_state: state of the offset at the end.
        start_offset, effective_start, end_offset: SPSO, where a leader that loads it starts, SPEO; None for
            none.
        gap: first and last offset of the gap that contains it, None if there is none.
        first_gap_start: first offset at or after the start offset that no range covers, None if there is none
            before SPEO.
        is_suspect: whether records since the latest snapshot are missing or unreadable.
        has_base: whether the snapshot or checkpoint that the state begins with is in the input.
        begins_late: whether the broker's log may begin before the input.
        state_epoch: state epoch at the end; None if there is no state.
        records: number of folded records of the share-partition.
        last_offset, last_timestamp: offset and timestamp (ms) of the last of them.
    """

    group_id: str
    topic_id: str | None
    topic: str | None
    partition: int
    offset: int
    log: str
    touches: list[Touch] = field(default_factory=list)
    offset_state: OffsetState = OffsetState(Place.UNKNOWN)
    start_offset: int | None = None
    effective_start: int | None = None
    end_offset: int | None = None
    gap: tuple[int, int] | None = None
    first_gap_start: int | None = None
    is_suspect: bool = False
    has_base: bool = False
    begins_late: bool = False
    state_epoch: int | None = None
    records: int = 0
    last_offset: int = NO_OFFSET
    last_timestamp: int = NO_OFFSET

    @property
    def since(self) -> Touch | None:
        """The last record that changed the state of the offset."""
        return next((touch for touch in reversed(self.touches) if touch.before != touch.after), None)


def explain(
    log: LogPartition,
    window: Window,
    key_filter: SharePartitionFilter,
    offset: int,
    options: FoldOptions | None = None,
) -> list[Explanation]:
    """Explain one offset, for each selected share-partition that has records in the log.

    Args:
        log: a log partition from `find_logs` or `find_topic_logs`.
        window: selects records.
        key_filter: selects share-partitions.
        offset: an offset of the topic-partition.
        options: names of topics; the mode of control records.
    Raises:
        InputError: if a segment cannot be read.
    """
    dialect = dialect_of(log)
    reader = dialect.open(log, window, options or FoldOptions())
    if not reader.may_match(key_filter):
        return []
    explanations, selected = dict[int, Explanation](), np.zeros(0, bool)
    for records in reader.chunks():
        if len(reader) > len(selected):
            selected = reader.selected(key_filter)
            for number in set(np.flatnonzero(selected).tolist()) - explanations.keys():
                key = {
                    name: column[0].as_py() for name, column in reader.key_columns(np.array([number])).items()
                }
                explanations[number] = Explanation(
                    key["group_id"], key["topic_id"], key["topic"], key["partition"] or 0, offset, log.name
                )
                explanations[number].begins_late = log.has_offsets and not log.shows_its_start
        for number, touch in _unreadable(dialect, records.rows, reader.view(records.rows, records), selected):
            explanations[number].touches.append(touch)
        for states in reader.replay(records, selected):
            numbers = reader.view(states.rows, records).numbers
            begins = np.flatnonzero(np.diff(numbers, prepend=-1))
            for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), len(numbers)], strict=True):
                _extend(explanations[int(numbers[begin])], dialect, reader, states.slice(begin, end), records)
    suspect = reader.suspect_at_end()
    for number, explanation in explanations.items():
        explanation.is_suspect = bool(suspect[number])
        explanation.touches.sort(key=lambda touch: touch.offset)
    return [explanations[number] for number in sorted(explanations)]


def share_partitions(log: LogPartition, window: Window, options: FoldOptions | None = None) -> pa.Table:
    """Key columns of every share-partition that has records in a log."""
    reader = dialect_of(log).open(log, window, options or FoldOptions())
    deque(reader.chunks(), maxlen=0)
    return pa.table(reader.key_columns(np.arange(len(reader))))


def _unreadable(
    dialect: Dialect, rows: np.ndarray, view: RecordView, selected: np.ndarray
) -> Iterator[tuple[int, Touch]]:
    """The selected records that cannot be folded, with the numbers of their share-partitions."""
    nothing = OffsetState(Place.UNKNOWN)
    # The extra entry is for number -1: a record of no share-partition.
    for at in np.flatnonzero(np.append(selected, False)[view.numbers] & ~view.is_readable).tolist():
        row = rows[at]
        yield int(view.numbers[at]), Touch(
            int(row["offset"]), int(row["timestamp"]), dialect.kinds[row["kind"]], False, False, (), NO_OFFSET,
            nothing, nothing,
        )  # fmt: skip


_PLACES = (Place.BELOW_START, Place.IN_FLIGHT, Place.BEYOND_END, Place.GAP, Place.UNINITIALISED)


class _StatesAtOffset:
    """The states of one share-partition after each of some records, seen from one offset.

    Attributes:
        values: int64 rows of place (see _PLACES), delivery state and delivery count, one column per record.
    """

    def __init__(self, offset: int, reader: LogReader, states: RecordStates) -> None:
        exists = states.chains["exists"]
        self._without_state = reader.place_without_state
        self._starts = states.chains["start_offset"]
        self._has_start, self._ends, self._leads = reader.windows(states)
        covering, hits = _covering(states.batches, states.ends[:-1], states.ends[1:], offset)
        conditions = [~exists, ~self._has_start, offset < self._starts, hits >= 0, offset >= self._ends]
        place = np.select(conditions, [len(_PLACES), 4, 0, 1, 2], 3)
        in_flight = place == 1
        state = np.where(in_flight, states.batches["state"][covering][hits] if len(covering) else 0, 0)
        count = np.where(in_flight, states.batches["count"][covering][hits] if len(covering) else 0, 0)
        self.values = np.stack((place, state, count))

    def state(self, row: int) -> OffsetState:
        place, state, count = self.values[:, row].tolist()
        if place == len(_PLACES):
            return OffsetState(Place(self._without_state))
        return OffsetState(_PLACES[place], state, count) if place == 1 else OffsetState(_PLACES[place])

    def start(self, row: int) -> int | None:
        return int(self._starts[row]) if self._has_start[row] else None

    def end(self, row: int) -> int | None:
        return int(self._ends[row]) if self._has_start[row] else None

    def effective_start(self, row: int) -> int | None:
        return int(self._leads[row]) if self._has_start[row] else None


def _extend(
    explanation: Explanation, dialect: Dialect, reader: LogReader, states: RecordStates, records: Any
) -> None:
    """Add the next states of one share-partition to its explanation."""
    offset, rows = explanation.offset, states.rows
    view = reader.view(rows, records)
    seen = _StatesAtOffset(offset, reader, states)
    range_ends = view.range_begins + view.range_counts
    _, covered_at = _covering(view.ranges, view.range_begins, range_ends, offset)
    changed = np.append(True, (seen.values[:, 1:] != seen.values[:, :-1]).any(axis=0))
    before, start_before = explanation.offset_state, explanation.start_offset
    lead_before = explanation.effective_start
    epoch_before = explanation.state_epoch
    for row in np.flatnonzero(changed | (covered_at >= 0)).tolist():
        if row:
            before, start_before = seen.state(row - 1), seen.start(row - 1)
            lead_before = seen.effective_start(row - 1)
            epoch_before = _state_epoch(reader, states, row - 1)
        after, record = seen.state(row), rows[row]
        chain = states.chains[row]
        if covered_at[row] < 0 and before == after:
            continue
        ranges = view.ranges[view.range_begins[row] : range_ends[row]]
        ranges = ranges[(ranges["first"] <= offset) & (offset <= ranges["last"])]
        epochs = {
            name: int(chain[field]) if chain["exists"] else None for name, field in reader.epochs.items()
        }
        explanation.touches.append(
            Touch(
                offset=int(record["offset"]),
                timestamp=int(record["timestamp"]),
                kind=dialect.kinds[record["kind"]],
                is_cold=before.place not in (Place.UNKNOWN, Place.DELETED) and bool(view.repeats_state[row]),
                is_readable=True,
                ranges=tuple((first, last, state, count) for first, last, count, state in ranges.tolist()),
                recorded_start=int(record["start_offset"]),
                before=before,
                after=after,
                start_before=start_before,
                start_offset=seen.start(row),
                end_offset=seen.end(row),
                lead_before=lead_before,
                lead=seen.effective_start(row),
                state_epoch_before=epoch_before,
                **epochs,
            )
        )
    last = len(rows) - 1
    explanation.offset_state = seen.state(last)
    explanation.start_offset, explanation.end_offset = seen.start(last), seen.end(last)
    explanation.effective_start = seen.effective_start(last)
    explanation.state_epoch = _state_epoch(reader, states, last)
    _set_last(explanation, states)


def _state_epoch(reader: LogReader, states: RecordStates, row: int) -> int | None:
    """The state epoch after a record; None if there is no state, or its dialect has no such epoch."""
    field_name, chain = reader.epochs.get("state_epoch"), states.chains[row]
    return int(chain[field_name]) if field_name is not None and chain["exists"] else None


def _set_last(explanation: Explanation, states: RecordStates) -> None:
    """Complete an explanation, whose offset state and start are set, by the last of some states."""
    last = states.rows[-1]
    chain = states.chains[-1]
    ranges = states.batches[states.ends[-2] : states.ends[-1]]
    explanation.gap = _gap(explanation, ranges) if explanation.offset_state.place == Place.GAP else None
    explanation.first_gap_start = _first_gap(explanation, ranges)
    explanation.has_base = bool(chain["exists"] and chain["snapshot_offset"] != NO_OFFSET)
    explanation.records += len(states.rows)
    explanation.last_offset = int(last["offset"])
    explanation.last_timestamp = int(last["timestamp"])


def _covering(
    batches: np.ndarray, begins: np.ndarray, ends: np.ndarray, offset: int
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of `batches` that cover an offset, and for each list the position of its last such row.

    -1 for none.
    """
    hits = np.flatnonzero((batches["first"] <= offset) & (offset <= batches["last"]))
    # The last hit before the end of a list, unless it is before the start of the list.
    at = np.searchsorted(hits, ends) - 1
    inside = (at >= 0) & (hits[at] >= begins) if len(hits) else np.zeros(len(ends), bool)
    return hits, np.where(inside, at, -1)


def _gap(explanation: Explanation, ranges: np.ndarray) -> tuple[int, int]:
    before = ranges["last"][ranges["last"] < explanation.offset]
    after = ranges["first"][ranges["first"] > explanation.offset]
    start, end = explanation.start_offset or 0, explanation.end_offset or 0
    return max(start, int(before.max()) + 1 if len(before) else start), (
        int(after.min()) if len(after) else end
    ) - 1


def _first_gap(explanation: Explanation, ranges: np.ndarray) -> int | None:
    """The first offset that the broker fetches again. Source: Kafka SharePartition.maybeInitialize."""
    start, end = explanation.start_offset, explanation.end_offset
    if start is None or end is None:
        return None
    covered_to = np.concatenate(([start], np.maximum(ranges["last"] + 1, start)))
    gaps = covered_to[np.append(ranges["first"], end) > covered_to]
    return int(gaps[0]) if len(gaps) else None


@dataclass(slots=True)
class AssignmentHistory:
    """Which members were assigned a topic-partition over time.

    `__consumer_offsets` is compacted, so old assignments may be missing.

    Attributes:
        times: ms, when the assignment changed, ascending.
        members: sorted ids of the members that were assigned it from each time on.
    """

    times: list[int] = field(default_factory=list)
    members: list[tuple[str, ...]] = field(default_factory=list)

    def at(self, time: int) -> tuple[str, ...] | None:
        """The members that were assigned it at a time in ms; None before the first known assignment."""
        place = bisect_right(self.times, time)
        return self.members[place - 1] if place else None


def assignment_history(
    logs: Sequence[LogPartition], group_id: str, topic_id: str, partition: int
) -> AssignmentHistory:
    """Which members of a share group were assigned a topic-partition over time; several can be at once.

    Args:
        logs: log partitions from `find_group_logs`.
        group_id, topic_id, partition: the share-partition.
    Raises:
        InputError: if a segment cannot be read.
    Source: Kafka ShareGroupCurrentMemberAssignmentValue.
    """
    changes = [
        change
        for log in logs
        for change in read_whole(log, lambda part: _changes(part, group_id, topic_id, partition))
    ]
    changes.sort(key=lambda change: change[0])
    return AssignmentHistory([time for time, _ in changes], [members for _, members in changes])


def _changes(
    log: LogPartition, group_id: str, topic_id: str, partition: int
) -> list[tuple[int, tuple[str, ...]]]:
    """Times at which the members of a topic-partition changed, and the members from then on."""
    changes, previous = list[tuple[int, tuple[str, ...]]](), ()
    replay = GroupReplay(partition=log.partition)
    for part in read_chunks(log, merge=True):
        records = index_records(part, 0, Window()).records
        for record in read_group_records(part.data, records, record_types(part.data, records)):
            if record.key is None or group_id.encode() not in record.key:
                continue
            replay.apply(record)
            group = replay.groups.get(group_id)
            members = group.members.values() if group else ()
            current = tuple(
                sorted(one.member_id for one in members if partition in one.assigned.get(topic_id, ()))
            )
            if current != previous:
                changes.append((record.timestamp, current))
            previous = current
    return changes
