"""The ranges of offsets that enter and leave ARCHIVING: collected while a log is folded, and merged over audits.

A record that shows a range in ARCHIVING or ARCHIVED, moves the start offset, or resets the share-partition is
an event about a range of offsets. `resolve` gives each offset its history from the events about it.
"""

from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.fold.state_chains import NO_OFFSET, Chains
from share_state.fold.states import KEY, declared_table, key_columns, row_texts, to_timestamps
from share_state.kafka.delivery_states import ARCHIVED, ARCHIVING
from share_state.kafka.share_partition_keys import KeyTable
from share_state.kafka.state_records import LARGEST_OFFSET, UNREADABLE_FAULTS, Kind, StateRecords, initializes
from share_state.schema.declarations import table_schema
from share_state.sources.topics import Topics

RANGES = "archiving_ranges"

EVERY_GROUP = frozenset({""})
"""Selects all groups."""

RETURNED = pa.field("returned_offset", pa.int64())
"""Offset of the first record after which the offsets of a range are unfinished again: of a reset to an earlier
start, or a deletion; null for none. Audits do not keep it, because a later one may reset what an earlier one saw."""

RESET, ENTERED, LEFT, PASSED = range(4)
"""Kinds of events, in the order of those of one record."""

LEFT_BY = pa.array(["RESET", None, "ARCHIVED", "START_OFFSET"])
"""Kind of event -> column `left_by`."""

_EVENT = np.dtype(
    [
        ("key", "i8"),  # number of the share-partition
        ("first", "i8"),
        ("end", "i8"),  # exclusive
        ("at", "i8"),  # offset of the record in the state log
        ("time", "i8"),  # ms, its timestamp; 0 if the time of the change is unknown
        ("count", "i8"),  # deliveries, -1 if the kind has none
        ("kind", "i8"),
    ]
)

_HISTORY = np.dtype(
    [
        ("key", "i8"),
        ("entered_at", "i8"),  # offset of the first record with the range in ARCHIVING; -1 for none
        ("left_at", "i8"),  # offset of the record that ended it; -1 for none
        ("count", "i8"),
        ("left_by", "i8"),  # LEFT, PASSED or RESET; -1 for none
        ("entered_time", "i8"),
        ("left_time", "i8"),
        ("first", "i8"),
        ("end", "i8"),
        ("returned_at", "i8"),  # offset of the record after which they are unfinished again; -1 for none
    ]
)

_RESTART = np.dtype([("key", "i8"), ("at", "i8"), ("start", "i8")])
"""A record after which no offset from `start` on is finished: an empty window, or a deletion."""

_MOST_EVENTS = 1 << 18
"""Number of events to collect before they are merged into histories: 15 MB."""


class ArchivingRanges:
    """Collects the events of one log partition.

    Those of a share-partition count from its first range in ARCHIVING on; in `groups`, from the start of the
    log: the write of ARCHIVING may have failed before the dead letter was written.

    Attributes:
        first_time: ms, timestamp of the first record; None before it.
    """

    first_time: int | None

    def __init__(
        self,
        groups: Collection[str],
        chains: Chains,
        next_offset: int,
        *,
        is_whole: bool,
        marks_returned: bool = False,
    ) -> None:
        """Begin a log partition.

        Args:
            groups: groups with dead letters, or EVERY_GROUP.
            chains: the state that the fold resumes from; its ranges entered ARCHIVING at an unknown time.
            next_offset: offset of the next record, if the fold resumes.
            is_whole: whether the log begins with its first record.
            marks_returned: whether the table has the column RETURNED.
        """
        self._groups, self._is_whole = pa.array(sorted(groups), pa.string()), is_whole
        self._is_every = groups == EVERY_GROUP
        self._wanted = np.zeros(0, bool)
        self._merged = 0
        self._restarts = [np.zeros(0, _RESTART)] if marks_returned else None
        self.first_time = None
        waiting = np.flatnonzero(chains.batches["state"] == ARCHIVING)
        held = np.zeros(len(waiting), _EVENT)
        held["key"] = np.searchsorted(chains.ends, waiting, side="right") - 1
        held["at"], held["kind"] = next_offset - 1, ENTERED
        _set_ranges(held, chains.batches[waiting])
        self._waiting, self._events = np.unique(held["key"]), [held]

    def note_keys(self, keys: KeyTable) -> None:
        """Note the share-partitions of the next chunk."""
        known, count = len(self._wanted), len(keys)
        if known < count:
            self._wanted = np.concatenate((self._wanted, np.full(count - known, self._is_every)))
            if len(self._groups) and not self._is_every:
                new = keys.columns()[0][known:]
                self._wanted[known:] = pc.is_in(new, self._groups).to_numpy(zero_copy_only=False)
            self._wanted[self._waiting] = True

    def take(self, records: StateRecords, chains: Chains) -> None:
        """Collect the events of a chunk; chunks come in log order.

        Args:
            records: decoded records of share-partitions that were noted.
            chains: the state before them.
        """
        rows, batches = records.rows, records.batches
        if self.first_time is None:
            self.first_time = int(rows["timestamp"][0])
        shown = np.flatnonzero(batches["state"] >= ARCHIVING)
        if not len(shown) and not self._wanted.any():
            return
        ends = np.cumsum(rows["batch_count"])
        entering = shown[batches["state"][shown] == ARCHIVING]
        owners = rows["key"][np.searchsorted(ends, entering, side="right")]
        self._wanted[owners[owners >= 0]] = True
        if not self._wanted.any():
            return
        is_own = (rows["key"] >= 0) & (rows["fault"] & UNREADABLE_FAULTS == 0)
        is_own &= self._wanted[np.maximum(rows["key"], 0)]
        own = np.flatnonzero(is_own)
        own = own[np.argsort(rows["key"][own], kind="stable")]
        if not len(own):
            return
        is_first = np.diff(rows["key"][own], prepend=-1) != 0
        starts = _starts(rows[own], is_first, chains)
        self._events += [
            _resets(rows[own], chains, *starts),
            _passed(rows[own], *starts),
            self._shown(rows, batches, shown, ends, is_own, own[is_first], chains),
        ]
        if self._restarts is not None:
            self._restarts.append(_restarts(rows[own]))
        collected = (*self._events, *(self._restarts or ()))
        if sum(map(len, collected)) - self._merged > max(_MOST_EVENTS, self._merged):
            self._events = [_events_of(self._histories())]
            self._merged = len(self._events[0]) + sum(map(len, self._restarts or ()))

    def _histories(self) -> np.ndarray:
        """The histories of offsets from all events; keeps only the restarts that return some of them."""
        histories = resolve(np.concatenate(self._events))
        if self._restarts is None:
            return histories
        self._restarts = [_effective_restarts(np.concatenate(self._restarts), histories)]
        return _returned(histories, self._restarts[0])

    def _shown(
        self,
        rows: np.ndarray,
        batches: np.ndarray,
        shown: np.ndarray,
        ends: np.ndarray,
        is_own: np.ndarray,
        first_rows: np.ndarray,
        chains: Chains,
    ) -> np.ndarray:
        """The events of ranges in ARCHIVING and ARCHIVED; in an incomplete log, a first snapshot repeats older ones."""
        owners = np.searchsorted(ends, shown, side="right")
        states = batches["state"][shown]
        counts = is_own[owners] & (states <= ARCHIVED) & (batches["first"][shown] <= batches["last"][shown])
        shown = shown[counts]
        owners = owners[counts]
        states = states[counts]
        found = np.zeros(len(shown), _EVENT)
        for name, column in (("key", "key"), ("at", "offset"), ("time", "timestamp")):
            found[name] = rows[column][owners]
        found["kind"] = np.where(states == ARCHIVING, ENTERED, LEFT)
        _set_ranges(found, batches[shown])
        if not self._is_whole:
            begins = first_rows[
                (rows["kind"][first_rows] == Kind.SNAPSHOT) & ~_exist(chains, rows["key"][first_rows])
            ]
            found["time"][np.isin(owners, begins) & (found["kind"] == ENTERED)] = 0
        return found

    def table(self, keys: KeyTable, topics: Topics, state_partition: int) -> pa.Table:
        """The table `archiving_ranges` of the log."""
        found = self._histories()
        numbers, found["key"] = np.unique(found["key"], return_inverse=True)
        columns = key_columns(keys, numbers, topics)
        number = pa.repeat(pa.scalar(state_partition, pa.int32()), len(numbers))
        rows = _ranges_table(found, pa.table(columns | {"state_partition": number}))
        if self._restarts is None:
            return rows
        returned = pa.array(found["returned_at"].copy(), mask=found["returned_at"] < 0)
        return rows.append_column(RETURNED, returned)


def _set_ranges(events: np.ndarray, batches: np.ndarray) -> None:
    events["first"], events["count"] = batches["first"], batches["count"]
    events["end"] = np.minimum(batches["last"], LARGEST_OFFSET - 1) + 1


def _exist(chains: Chains, keys: np.ndarray) -> np.ndarray:
    known = keys < len(chains.chains)
    exists = np.zeros(len(keys), bool)
    exists[known] = chains.chains["exists"][keys[known]]
    return exists


def _before(rows: np.ndarray, chains: Chains, field: str, given: np.ndarray) -> np.ndarray:
    """The value of a field before each row, NO_OFFSET for none; `given` holds it after each.

    Rows are sorted by key.
    """
    before = np.concatenate(([NO_OFFSET], given[:-1]))
    first = np.flatnonzero(np.diff(rows["key"], prepend=-1) != 0)
    keys = rows["key"][first]
    known = np.flatnonzero(_exist(chains, keys))
    if field == "state_epoch":
        known = known[chains.chains["snapshot_offset"][keys[known]] != NO_OFFSET]
    before[first] = NO_OFFSET
    before[first[known]] = chains.chains[field][keys[known]]
    return before


def _starts(rows: np.ndarray, is_first: np.ndarray, chains: Chains) -> tuple[np.ndarray, np.ndarray]:
    """The start offset before each row, and after it.

    Rows are sorted by key, `is_first` marks the first of each.
    """
    given = rows["start_offset"].copy()
    given[rows["kind"] == Kind.TOMBSTONE] = 0
    # An update without a start offset keeps the last one.
    numbers = np.arange(len(rows))
    last = np.maximum.accumulate(np.where((given >= 0) | is_first, numbers, 0))
    before_first = np.maximum(_before(rows, chains, "start_offset", given), 0)
    starts = np.where(given[last] >= 0, given[last], before_first[last])
    return np.where(is_first, before_first, np.concatenate(([0], starts[:-1]))), starts


def _resets(rows: np.ndarray, chains: Chains, before: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Tombstones, and snapshots of a live share-partition that initialize it; rows are sorted by key.

    A reset in 4.4 may keep the state epoch. The snapshot of a window that is empty has the same content, but does
    not take the start offset back.

    Source: Kafka ShareCoordinatorShard.initializeState, deleteState.
    """
    goes_back = initializes.py_func(rows.view(np.recarray)) & (starts < before)
    is_update = rows["kind"] == Kind.UPDATE
    rows, goes_back = rows[~is_update], goes_back[~is_update]
    epochs = np.where(rows["kind"] == Kind.SNAPSHOT, rows["state_epoch"].astype(np.int64), NO_OFFSET)
    epochs_before = _before(rows, chains, "state_epoch", epochs)
    return _events(rows[(epochs_before != NO_OFFSET) & (goes_back | (epochs_before != epochs))], RESET)


def _passed(rows: np.ndarray, before: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """The offsets that the start offset passes."""
    moved = starts > before
    return _events(rows[moved], PASSED, before[moved], starts[moved])


def _restarts(rows: np.ndarray) -> np.ndarray:
    """The snapshots of empty windows and the tombstones among some rows.

    A snapshot holds every finished offset from its start offset on. Source: Kafka
    ShareCoordinatorShard.initializeState, generateShareStateRecord.
    """
    is_empty = (rows["kind"] == Kind.SNAPSHOT) & (rows["batch_count"] == 0)
    rows = rows[is_empty | (rows["kind"] == Kind.TOMBSTONE)]
    found = np.zeros(len(rows), _RESTART)
    found["key"] = rows["key"]
    found["at"] = rows["offset"]
    found["start"] = np.where(rows["kind"] == Kind.SNAPSHOT, np.maximum(rows["start_offset"], 0), 0)
    return found


def _events(
    rows: np.ndarray, kind: int, first: np.ndarray | int = 0, end: np.ndarray | int = LARGEST_OFFSET
) -> np.ndarray:
    found = np.zeros(len(rows), _EVENT)
    found["key"] = rows["key"]
    found["at"] = rows["offset"]
    found["time"] = rows["timestamp"]
    found["first"] = first
    found["end"] = end
    found["kind"] = kind
    found["count"] = NO_OFFSET
    return found


def resolve(events: np.ndarray) -> np.ndarray:
    """The histories of offsets: _HISTORY rows by key and range, from _EVENT rows in any order.

    The first record that shows a range in ARCHIVING begins its history. ARCHIVED, the start offset or a reset
    ends it; the first ARCHIVED counts. After an end the same offset may enter again.
    """
    # All offsets between two adjacent bounds of ranges have the same history.
    keys, edges = (
        np.concatenate([events[side], events[other]]) for side, other in (("key", "key"), ("first", "end"))
    )
    order = np.lexsort((edges, keys))
    is_new = np.ones(len(order), bool)
    is_new[1:] = (np.diff(keys[order]) != 0) | (np.diff(edges[order]) != 0)
    place = np.empty(len(order), np.int64)
    place[order] = np.cumsum(is_new) - 1
    cuts = edges[order][is_new]
    begin, end = place[: len(events)], place[len(events) :]
    # A reset covers every offset; only those with a range in ARCHIVING or ARCHIVED matter.
    matters = np.zeros(len(cuts) + 1, np.int64)
    held = (events["kind"] == ENTERED) | (events["kind"] == LEFT)
    np.add.at(matters, begin[held], 1)
    np.add.at(matters, end[held], -1)
    pieces = np.flatnonzero(np.cumsum(matters) > 0)
    begin, end = np.searchsorted(pieces, begin), np.searchsorted(pieces, end)
    spread = np.repeat(np.arange(len(events)), end - begin)
    piece = np.arange(len(spread)) + np.repeat(begin - np.cumsum(end - begin) + (end - begin), end - begin)
    events_of_pieces = events[spread]
    order = np.lexsort((-events_of_pieces["time"], events_of_pieces["kind"], events_of_pieces["at"], piece))
    piece, events_of_pieces = piece[order], events_of_pieces[order]
    kind, before = events_of_pieces["kind"], np.concatenate(([RESET], events_of_pieces["kind"][:-1]))
    begins = np.diff(piece, prepend=-1) != 0
    begins |= (before == RESET) | ((kind == ENTERED) & ((before == LEFT) | (before == PASSED)))
    starts = np.flatnonzero(begins)
    if not len(starts):
        return np.zeros(0, _HISTORY)
    first = {event: np.minimum.reduceat(np.where(kind == event, np.arange(len(kind)), len(kind)), starts)
             for event in (ENTERED, LEFT, PASSED, RESET)}  # fmt: skip
    has = {event: rows < len(kind) for event, rows in first.items()}
    ended = np.where(has[LEFT], first[LEFT], np.minimum(first[PASSED], first[RESET]))
    has_end = ended < len(kind)
    entered, ended = np.minimum(first[ENTERED], len(kind) - 1), np.minimum(ended, len(kind) - 1)
    rows = np.zeros(len(starts), _HISTORY)
    rows["key"], rows["first"] = events_of_pieces["key"][starts], cuts[pieces[piece[starts]]]
    rows["end"] = cuts[pieces[piece[starts]] + 1]
    rows["count"] = np.where(
        has[ENTERED], events_of_pieces["count"][entered], events_of_pieces["count"][ended]
    )
    rows["entered_at"] = np.where(has[ENTERED], events_of_pieces["at"][entered], NO_OFFSET)
    rows["entered_time"] = np.where(has[ENTERED], events_of_pieces["time"][entered], 0)
    rows["left_at"] = np.where(has_end, events_of_pieces["at"][ended], NO_OFFSET)
    rows["left_time"] = np.where(has_end, events_of_pieces["time"][ended], 0)
    rows["left_by"] = np.where(has_end, kind[ended], NO_OFFSET)
    rows["returned_at"] = NO_OFFSET
    return _joined(rows[has[ENTERED] | has[LEFT]])


def _last_record(rows: np.ndarray) -> np.ndarray:
    """The offset of the last record with the range of each history in ARCHIVING or ARCHIVED."""
    return np.where(rows["left_by"] == LEFT, rows["left_at"], rows["entered_at"])


def _effective_restarts(restarts: np.ndarray, histories: np.ndarray) -> np.ndarray:
    """The restarts that return an offset of a history, by key and offset of the record; healthy logs have none."""
    restarts = restarts[np.lexsort((restarts["at"], restarts["key"]))]
    histories = histories[np.lexsort((_last_record(histories), histories["key"]))]
    keeps = np.zeros(len(restarts), bool)
    for key in np.intersect1d(restarts["key"], histories["key"]):
        own = slice(*np.searchsorted(restarts["key"], [key, key + 1]))
        before = slice(*np.searchsorted(histories["key"], [key, key + 1]))
        ends = np.maximum.accumulate(histories["end"][before])
        earlier = np.searchsorted(_last_record(histories[before]), restarts["at"][own])
        keeps[own] = (earlier > 0) & (ends[np.maximum(earlier, 1) - 1] > restarts["start"][own])
    return restarts[keeps]


def _returned(histories: np.ndarray, restarts: np.ndarray) -> np.ndarray:
    """The histories with the first record that returned their offsets, split where it returned a part.

    Args:
        histories: from `resolve`.
        restarts: from `_effective_restarts`.
    """
    pieces = [histories]
    for restart in restarts:
        rows = np.concatenate(pieces)
        is_hit = (rows["key"] == restart["key"]) & (_last_record(rows) < restart["at"])
        is_hit &= (rows["end"] > restart["start"]) & (rows["returned_at"] == NO_OFFSET)
        hit = rows[is_hit]
        below = hit[hit["first"] < restart["start"]]
        below["end"] = restart["start"]
        hit["first"] = np.maximum(hit["first"], restart["start"])
        hit["returned_at"] = restart["at"]
        pieces = [rows[~is_hit], below, hit]
    return _joined(np.concatenate(pieces)) if len(restarts) else histories


def _joined(rows: np.ndarray) -> np.ndarray:
    """Join adjacent ranges with the same history."""
    names = ("key", "entered_at", "left_at", "count", "left_by", "entered_time", "left_time", "returned_at")
    rows = rows[np.lexsort((rows["first"], *(rows[name] for name in reversed(names))))]
    joins = rows["first"][1:] == rows["end"][:-1]
    for name in names:
        joins &= rows[name][1:] == rows[name][:-1]
    heads = np.flatnonzero(np.concatenate((np.ones(min(len(rows), 1), bool), ~joins)))
    ends = rows["end"][np.append(heads[1:], len(rows)) - 1] if len(rows) else rows["end"]
    rows = rows[heads]
    rows["end"] = ends
    return rows


def _events_of(rows: np.ndarray) -> np.ndarray:
    """The events that `resolve` turns into these histories."""
    entered = rows[rows["entered_at"] != NO_OFFSET]
    left = rows[rows["left_by"] != NO_OFFSET]
    # Without it, an offset that is archived again would have one history.
    returned = rows[(rows["returned_at"] != NO_OFFSET) & (rows["left_by"] != RESET)]
    ends = len(entered) + len(left)
    found = np.zeros(ends + len(returned), _EVENT)
    for name in ("key", "first", "end", "count"):
        found[name] = np.concatenate((entered[name], left[name], returned[name]))
    found["at"] = np.concatenate((entered["entered_at"], left["left_at"], returned["returned_at"]))
    found["time"][:ends] = np.concatenate((entered["entered_time"], left["left_time"]))
    found["kind"] = RESET
    found["kind"][:ends] = np.concatenate((np.full(len(entered), ENTERED), left["left_by"]))
    return found


def _ranges_table(rows: np.ndarray, keys: pa.Table) -> pa.Table:
    """Build the table `archiving_ranges` from histories; their `key` is a row number of `keys`."""
    owners = pa.array(rows["key"])
    return declared_table(
        RANGES,
        {
            **{name: keys[name].take(owners) for name in (*KEY, "state_partition")},
            "first_offset": pa.array(rows["first"].copy()),
            "last_offset": pa.array(rows["end"] - 1),
            "delivery_count": pa.array(rows["count"].copy()),
            "archiving_offset": pa.array(rows["entered_at"].copy(), mask=rows["entered_at"] < 0),
            "archiving_time": to_timestamps(rows["entered_time"]),
            "left_offset": pa.array(rows["left_at"].copy(), mask=rows["left_at"] < 0),
            "left_time": to_timestamps(rows["left_time"]),
            "left_by": LEFT_BY.take(pa.array(rows["left_by"].copy(), mask=rows["left_by"] < 0)),
        },
    )


def milliseconds(column: pa.ChunkedArray) -> np.ndarray:
    """Convert a column of timestamps to int64 ms; 0 for null."""
    return column.cast(pa.int64()).fill_null(0).to_numpy() // 1000


def row_codes(*columns: pa.ChunkedArray) -> np.ndarray:
    """A number for each row, equal for equal rows: int64."""
    return np.asarray(row_texts(columns).dictionary_encode().indices).astype(np.int64)


def merge_ranges(tables: Sequence[pa.Table]) -> pa.Table:
    """Merge the tables `archiving_ranges` of several audits of the same logs, in any order."""
    schema = table_schema(RANGES)
    rows = pa.concat_tables([schema.empty_table(), *(table.cast(schema) for table in tables)])
    codes = row_codes(rows["group_id"], rows["topic_id"], rows["partition"])
    # The topic may have been unknown in some of them.
    order = np.lexsort((rows["topic"].is_null().to_numpy(), codes))
    distinct, first = np.unique(codes[order], return_index=True)
    known = np.zeros(len(rows), _HISTORY)
    known["key"] = np.searchsorted(distinct, codes)
    known["first"], known["end"] = rows["first_offset"].to_numpy(), rows["last_offset"].to_numpy() + 1
    known["count"] = rows["delivery_count"].to_numpy()
    for name, column in (("entered", "archiving"), ("left", "left")):
        known[f"{name}_at"] = rows[f"{column}_offset"].fill_null(NO_OFFSET).to_numpy()
        known[f"{name}_time"] = milliseconds(rows[f"{column}_time"])
    by = pc.index_in(rows["left_by"], LEFT_BY.take(pa.array([RESET, LEFT, PASSED])))
    kinds = np.array([RESET, LEFT, PASSED, NO_OFFSET])
    known["left_by"] = kinds[by.fill_null(len(kinds) - 1).to_numpy()]
    known["returned_at"] = NO_OFFSET
    return _ranges_table(resolve(_events_of(known)), rows.take(pa.array(order[first])))
