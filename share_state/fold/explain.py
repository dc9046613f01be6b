"""Everything that the log says of one offset: each record that touched it, and where it stood after that.

What the draft's control records say of one offset: each one that touched it, and where it stood after that.

Which members of a share group had a topic-partition, as far as `__consumer_offsets` still tells.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from itertools import pairwise

import numpy as np

from share_state.fold.chains import NOWHERE
from share_state.fold.control_chains import fold_control
from share_state.fold.control_log import STRICT, decode_control_log, fold_control_log
from share_state.fold.group_replay import GroupReplay
from share_state.fold.interval_merge import ACKNOWLEDGED, ARCHIVED, effective_starts, end_offsets
from share_state.fold.log import decode_log
from share_state.fold.options import Chosen
from share_state.fold.timeline import Points, Timeline, suspects
from share_state.kafka.control_records import UNREADABLE_CONTROL_RECORD, ControlKind, ControlRecords, joined
from share_state.kafka.group_records import record_types, told_records
from share_state.kafka.share_partition_keys import KeyTable
from share_state.kafka.state_records import UNREADABLE, Kind, StateRecords
from share_state.sources.discovery import LogPartition, Window
from share_state.sources.segments import located, read_chunks
from share_state.sources.topics import Topics

_POINTS, _RANGES = 1 << 12, 1 << 16
"""Less than a whole log's timeline has: only one share-partition is looked at."""


class Place(StrEnum):
    """Where an offset is to a share-partition."""

    UNKNOWN = "unknown"  # no record of the share-partition yet
    DELETED = "deleted"  # a tombstone came last
    UNINITIALISED = "uninitialised"  # the share-partition has no start offset yet
    BELOW_START = "below_start"
    IN_FLIGHT = "in_flight"
    GAP = "gap"  # between start and end, and no range covers it
    BEYOND_END = "beyond_end"


@dataclass(frozen=True, slots=True)
class Standing:
    """Where an offset stands.

    Attributes:
        place: to the share-partition.
        state: delivery state of the range that covers it, None outside of IN_FLIGHT.
        delivery_count: of that range.
    """

    place: Place
    state: int | None = None
    delivery_count: int | None = None

    @property
    def is_finished(self) -> bool:
        """Whether nobody gets it any more."""
        return self.place == Place.BELOW_START or self.state in (ACKNOWLEDGED, ARCHIVED)


@dataclass(frozen=True, slots=True)
class Touch:
    """A record that says something of an offset, or changes where it stands.

    Attributes:
        offset, timestamp: of the record; ms.
        kind: snapshot, update, tombstone, checkpoint or delta.
        is_cold: a snapshot that only repeats the state.
        is_readable: False where the broker could not load it; it then changes nothing.
        ranges: (first offset, last offset, delivery state, delivery count) of each range in it that covers the offset.
        start_said: the start offset in it; -1 for none.
        before, after: where the offset stood.
        start_before, start_offset, end_offset: SPSO before it, SPSO and SPEO after it; None where there is none.
        snapshot_epoch, state_epoch, leader_epoch, delivery_complete_count: of the state after it, None without one.
    """

    offset: int
    timestamp: int
    kind: str
    is_cold: bool
    is_readable: bool
    ranges: tuple[tuple[int, int, int, int], ...]
    start_said: int
    before: Standing
    after: Standing
    start_before: int | None = None
    start_offset: int | None = None
    end_offset: int | None = None
    snapshot_epoch: int | None = None
    state_epoch: int | None = None
    leader_epoch: int | None = None
    delivery_complete_count: int | None = None


@dataclass(slots=True)
class Explanation:
    """What a log says of one offset of a share-partition.

    Attributes:
        group_id, topic_id, topic, partition: the share-partition; `topic` is None where its name is not known,
            `topic_id` for control records.
        offset: of the topic-partition.
        log: name of the log partition.
        touches: in log order.
        standing: where the offset stands at the end.
        start_offset, effective_start, end_offset: SPSO, where a leader would start, and SPEO at the end; None without.
        gap: first and last offset of the gap around it, None where it is in none.
        is_suspect: records since the latest snapshot are missing or unreadable.
        records: folded records of the share-partition.
        last_offset, last_timestamp: of the latest of them.
    """

    group_id: str
    topic_id: str | None
    topic: str | None
    partition: int
    offset: int
    log: str
    touches: list[Touch] = field(default_factory=list)
    standing: Standing = Standing(Place.UNKNOWN)
    start_offset: int | None = None
    effective_start: int | None = None
    end_offset: int | None = None
    gap: tuple[int, int] | None = None
    is_suspect: bool = False
    records: int = 0
    last_offset: int = NOWHERE
    last_timestamp: int = NOWHERE

    @property
    def since(self) -> Touch | None:
        """The record that brought the offset to where it stands."""
        return next((touch for touch in reversed(self.touches) if touch.before != touch.after), None)

    @property
    def last_in_flight(self) -> Standing | None:
        """How it was recorded before it left the in-flight window for good, None where it never was in it."""
        return next((touch.before for touch in reversed(self.touches) if touch.before.place == Place.IN_FLIGHT), None)


def explain(
    logs: Sequence[LogPartition], windows: Sequence[Window], chosen: Chosen, offset: int, topics: Topics
) -> list[Explanation]:
    """What logs say of one offset: an explanation for each share-partition and log that has records of it.

    Args:
        logs: to be read.
        windows: which records of each count.
        chosen: the share-partition; several where a part of its name is left out.
        offset: of the topic-partition.
        topics: the names that are known.
    Raises:
        InputError: if a segment cannot be read.
    """
    found: list[Explanation] = []
    for log, window in zip(logs, windows, strict=True):
        found += _of_log(log, window, chosen, offset, topics)
    return found


def _of_log(log: LogPartition, window: Window, chosen: Chosen, offset: int, topics: Topics) -> list[Explanation]:
    losses: list[int] = []
    found: dict[int, tuple[Explanation, Timeline]] = {}
    for records, keys in decode_log(log, window, losses):
        mask = chosen.of(keys, topics)
        for number in np.flatnonzero(mask).tolist():
            if number not in found:
                found[number] = _begun(log, keys, number, offset, topics), Timeline(points=_POINTS, ranges=_RANGES)
            of_one = np.zeros(len(keys), bool)
            of_one[number] = True
            explanation, timeline = found[number]
            own = StateRecords(records.rows[records.rows["key"] == number], records.batches)
            unreadable = list(_unreadable(own.rows, offset))
            for points in timeline.take(own, of_one):
                _go_on(explanation, points, records.batches, losses)
            explanation.touches += unreadable
            explanation.touches.sort(key=lambda touch: touch.offset)
    return [explanation for explanation, _ in found.values()]


def _begun(log: LogPartition, keys: KeyTable, number: int, offset: int, topics: Topics) -> Explanation:
    groups, ids, partitions = keys.columns()
    name = topics.name_of(ids.slice(number, 1))[0].as_py()
    return Explanation(groups[number].as_py(), ids[number].as_py(), name, partitions[number].as_py(), offset, log.name)


def _unreadable(rows: np.ndarray, offset: int) -> Iterator[Touch]:
    nothing = Standing(Place.UNKNOWN)
    for row in rows[rows["fault"] & UNREADABLE != 0]:
        yield Touch(
            int(row["offset"]), int(row["timestamp"]), Kind(row["kind"]).name.lower(), False, False, (), NOWHERE,
            nothing, nothing,
        )  # fmt: skip


def _go_on(explanation: Explanation, points: Points, batches: np.ndarray, losses: list[int]) -> None:
    """Take the points of one share-partition into its explanation."""
    offset, rows, chains = explanation.offset, points.rows, points.chains
    starts = chains["start_offset"].copy()
    ends = end_offsets(starts, points.ends, points.batches)
    covering, at = _covering(points.batches, points.ends[:-1], points.ends[1:], offset)
    place = np.select(
        [~chains["exists"], starts < 0, offset < starts, at >= 0, offset >= ends],
        np.arange(5),
        5,
    )
    state = np.where(place == 3, points.batches["state"][covering][at] if len(covering) else 0, 0)
    count = np.where(place == 3, points.batches["count"][covering][at] if len(covering) else 0, 0)
    _, said_at = _covering(batches, rows["batches"], rows["batches"] + rows["batch_count"], offset)
    value = np.stack((place, state, count))
    changed = np.append(True, (value[:, 1:] != value[:, :-1]).any(axis=0))
    before, start_before = explanation.standing, explanation.start_offset
    for row in np.flatnonzero(changed | (said_at >= 0)).tolist():
        if row:
            before, start_before = _standing(value[:, row - 1]), _start(chains[row - 1])
        after, record, chain = _standing(value[:, row]), rows[row], chains[row]
        if said_at[row] < 0 and before == after:
            continue
        own = batches[record["batches"] : record["batches"] + record["batch_count"]]
        own = own[(own["first"] <= offset) & (offset <= own["last"])]
        has_start, exists = _start(chain) is not None, bool(chain["exists"])
        explanation.touches.append(
            Touch(
                offset=int(record["offset"]),
                timestamp=int(record["timestamp"]),
                kind=Kind(record["kind"]).name.lower(),
                is_cold=before.place not in _NO_STATE and record["create_time"] != record["write_time"],
                is_readable=True,
                ranges=tuple((first, last, state, count) for first, last, count, state in own.tolist()),
                start_said=int(record["start_offset"]),
                before=before,
                after=after,
                start_before=start_before,
                start_offset=_start(chain),
                end_offset=int(ends[row]) if has_start else None,
                **{name: int(chain[name]) if exists else None for name in _OF_STATE},
            )
        )
    last = len(rows) - 1
    explanation.standing, explanation.start_offset = _standing(value[:, last]), _start(chains[last])
    explanation.end_offset = int(ends[last]) if explanation.start_offset is not None else None
    final = points.batches[points.ends[last] : points.ends[last + 1]]
    leads = effective_starts(starts[last:], np.array([0, len(final)]), final)
    explanation.effective_start = int(leads[0]) if explanation.start_offset is not None else None
    explanation.gap = _gap(explanation, final) if explanation.standing.place == Place.GAP else None
    explanation.is_suspect = bool(suspects(points, losses)[last] and chains[last]["exists"])
    explanation.records += len(rows)
    explanation.last_offset, explanation.last_timestamp = int(rows[last]["offset"]), int(rows[last]["timestamp"])


_OF_STATE = ("snapshot_epoch", "state_epoch", "leader_epoch", "delivery_complete_count")
_PLACES = (
    Place.DELETED,
    Place.UNINITIALISED,
    Place.BELOW_START,
    Place.IN_FLIGHT,
    Place.BEYOND_END,
    Place.GAP,
)
_NO_STATE = (Place.UNKNOWN, Place.DELETED)


def _covering(batches: np.ndarray, begins: np.ndarray, ends: np.ndarray, offset: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of `batches` that cover an offset, and for each list of them which of those rows is its last; -1 none."""
    hits = np.flatnonzero((batches["first"] <= offset) & (offset <= batches["last"]))
    # The last hit before a list's end, if it does not lie before the list's begin.
    at = np.searchsorted(hits, ends) - 1
    inside = (at >= 0) & (hits[at] >= begins) if len(hits) else np.zeros(len(ends), bool)
    return hits, np.where(inside, at, -1)


def _standing(value: np.ndarray) -> Standing:
    place = _PLACES[int(value[0])]
    return Standing(place, int(value[1]), int(value[2])) if place == Place.IN_FLIGHT else Standing(place)


def _start(chain: np.void) -> int | None:
    return int(chain["start_offset"]) if chain["exists"] and chain["start_offset"] >= 0 else None


def _gap(explanation: Explanation, ranges: np.ndarray) -> tuple[int, int]:
    before = ranges["last"][ranges["last"] < explanation.offset]
    behind = ranges["first"][ranges["first"] > explanation.offset]
    start = explanation.start_offset or 0
    return max(start, int(before.max()) + 1 if len(before) else start), int(behind.min()) - 1


def explain_control(
    log: LogPartition, window: Window, chosen: Chosen, offset: int, mode: str = STRICT
) -> Explanation | None:
    """What the control records of one topic-partition say of an offset.

    Args:
        log: of `find_topic_logs`.
        window: which records count.
        chosen: the share-partition; its group is named.
        offset: of the topic-partition.
        mode: as in ControlOptions.
    Returns:
        The explanation; None where no control record tells of the group, or another topic-partition is meant.
    Raises:
        InputError: if a segment cannot be read.
    """
    if chosen.topic not in (None, log.topic) or chosen.partition not in (None, log.partition):
        return None
    records = _records_of(log, window, chosen.group_id)
    if not len(records.rows):
        return None
    told = Explanation(chosen.group_id or "", None, log.topic, log.partition or 0, offset, log.name)
    _tell(told, records, strict=mode == STRICT)
    folded = fold_control_log(log, window, mode=mode)
    for number, state in zip(folded.numbers.tolist(), folded.states.to_pylist(), strict=True):
        if state["group_id"] == chosen.group_id:
            told.effective_start, told.is_suspect = state["effective_start_offset"], bool(folded.suspect[number])
    if told.standing.place == Place.GAP:
        told.gap = next(
            (row["first_offset"], row["last_offset"])
            for row in folded.in_flight.to_pylist()
            if row["group_id"] == chosen.group_id and row["first_offset"] <= offset <= row["last_offset"]
        )
    return told


def _records_of(log: LogPartition, window: Window, group_id: str | None) -> ControlRecords:
    """The records of one group, all of it."""
    parts = []
    for records, groups in decode_control_log(log, window):
        names = groups.names().to_pylist()
        if group_id in names:
            parts.append(records.only(records.rows["group"] == names.index(group_id)))
    found = joined(parts)
    found.rows["group"] = 0
    return found


def _tell(told: Explanation, records: ControlRecords, *, strict: bool) -> None:
    """Fold only as far as records that touch the offset.

    Between two checkpoints start and end only grow, and no tuple but one that covers an offset gives it another value:
    where it stands alike at both ends of a stretch without such tuples, it did so all along.
    """
    rows, tuples, offset = records.rows, records.tuples, told.offset
    readable = rows["fault"] & UNREADABLE_CONTROL_RECORD == 0
    is_base = readable & (rows["kind"] == ControlKind.CHECKPOINT)
    bases = np.maximum.accumulate(np.where(is_base, np.arange(len(rows)), NOWHERE))

    @cache
    def after(place: int) -> tuple[Standing, int | None, int | None, int | None]:
        base = int(bases[place])
        if base == NOWHERE:
            return Standing(Place.UNKNOWN), None, None, None
        part = records.only((np.arange(len(rows)) >= base) & (np.arange(len(rows)) <= place))
        chains = fold_control(part, 1, strict=strict)
        (chain,) = chains.chains
        start, end = int(chain["start_offset"]), int(chain["end_offset"])
        return _control_standing(chains.batches, start, end, offset), start, end, int(chain["epoch"])

    owner = np.repeat(np.arange(len(rows)), rows["tuple_count"])
    covering = set(owner[(tuples["first"] <= offset) & (offset <= tuples["last"])].tolist())
    turns = sorted({0, len(rows) - 1, *covering, *np.flatnonzero(is_base | ~readable).tolist()})
    looked_at = sorted({place for turn in turns for place in (turn - 1, turn) if place >= 0})
    seen = set(looked_at)

    def look_between(first: int, last: int) -> None:
        if last - first > 1 and after(first)[0] != after(last)[0]:
            middle = (first + last) // 2
            seen.add(middle)
            look_between(first, middle)
            look_between(middle, last)

    for first, last in pairwise(looked_at):
        look_between(first, last)
    before = Standing(Place.UNKNOWN)
    for place in sorted(seen):
        standing, start, end, epoch = after(place)
        row = rows[place]
        if place in covering or standing != before or not readable[place]:
            own = tuples[row["tuples"] : row["tuples"] + row["tuple_count"]]
            own = own[(own["first"] <= offset) & (offset <= own["last"])]
            told.touches.append(
                Touch(
                    offset=int(row["offset"]),
                    timestamp=int(row["timestamp"]),
                    kind=ControlKind(row["kind"]).name.lower(),
                    is_cold=False,
                    is_readable=bool(readable[place]),
                    ranges=tuple((first, last, state, count) for first, last, count, state in own.tolist()),
                    start_said=int(row["start_offset"]) if is_base[place] else NOWHERE,
                    before=before,
                    after=standing,
                    start_before=after(place - 1)[1] if place else None,
                    start_offset=start,
                    end_offset=end,
                    snapshot_epoch=epoch,
                )
            )
        before = standing
    told.standing, told.start_offset, told.end_offset, _ = after(len(rows) - 1)
    told.effective_start, told.records = told.start_offset, len(rows)
    told.last_offset, told.last_timestamp = int(rows[-1]["offset"]), int(rows[-1]["timestamp"])


def _control_standing(ranges: np.ndarray, start: int, end: int, offset: int) -> Standing:
    if offset < start:
        return Standing(Place.BELOW_START)
    covering = ranges[(ranges["first"] <= offset) & (offset <= ranges["last"])]
    if len(covering):
        return Standing(Place.IN_FLIGHT, int(covering[0]["state"]), int(covering[0]["count"]))
    return Standing(Place.GAP if offset < end else Place.BEYOND_END)


@dataclass(slots=True)
class Holders:
    """Who had a topic-partition over time. The topic is compacted, so that old assignments may be gone.

    Attributes:
        times: ms, when it changed, ascending.
        members: the ids of the members that had it from then on, sorted.
    """

    times: list[int] = field(default_factory=list)
    members: list[tuple[str, ...]] = field(default_factory=list)

    def at(self, time: int) -> tuple[str, ...] | None:
        """The members that had it at a time in ms; None before anything is known."""
        place = bisect_right(self.times, time)
        return self.members[place - 1] if place else None


def holders(logs: Sequence[LogPartition], group_id: str, topic_id: str, partition: int) -> Holders:
    """Who had a topic-partition of a share group: several members at once, as share groups do.

    Args:
        logs: of `find_group_logs`.
        group_id, topic_id, partition: the share-partition.
    Raises:
        InputError: if a segment cannot be read.
    Source: Kafka ShareGroupCurrentMemberAssignmentValue.
    """
    changes: list[tuple[int, tuple[str, ...]]] = []
    for log in logs:
        replay, had = GroupReplay(log.partition), ()
        for part in read_chunks(log, merge=True):
            records = located(part, 0, Window()).records
            for told in told_records(part.data, records, record_types(part.data, records)):
                if told.key is None or group_id.encode() not in told.key:
                    continue
                replay.apply(told)
                group = replay.groups.get(group_id)
                members = group.members.values() if group else ()
                has = tuple(sorted(one.member_id for one in members if partition in one.assigned.get(topic_id, ())))
                if has != had:
                    changes.append((told.timestamp, has))
                had = has
    changes.sort(key=lambda change: change[0])
    return Holders([time for time, _ in changes], [members for _, members in changes])
