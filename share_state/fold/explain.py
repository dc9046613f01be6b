"""Everything that the log says of one offset: each record that touched it, and where it stood after that."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from share_state.fold.chains import NOWHERE
from share_state.fold.chosen import Chosen
from share_state.fold.log import decode_log
from share_state.fold.ranges import ACKNOWLEDGED, ARCHIVED, effective_starts, end_offsets
from share_state.fold.timeline import Points, Timeline, suspects
from share_state.fold.topics import Topics
from share_state.wire.keys import KeyTable
from share_state.wire.log_folder import LogPartition, Window
from share_state.wire.share_group_state import UNREADABLE, Kind, StateRecords

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
