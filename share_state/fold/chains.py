"""Folds the records of many share-partitions at once, exactly as the coordinator would replay them one by one.

Closed form: with base r0 (the last snapshot after the last tombstone, or the first update where there is none) and
updates r1..rn, each with its resolved start S, clip the batches of r_i at max(S_i..S_n) and those of the base at
max(S_1..S_n); the value of an offset is the greatest (delivery count, delivery state) that still covers it.
The fold carries its state from chunk to chunk, so `fold(a then b) == fold(b) after fold(a)` for any cut.

Source: Kafka ShareCoordinatorShard.replay, handleShareSnapshot, handleShareUpdate, merge; PersisterStateBatchCombiner.

Rows of several fields by column: what many rules look at lies side by side in memory once the first has asked.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import overload

import numpy as np

from share_state.fold.interval_merge import priority, range_columns, sweep
from share_state.jit.compile import allocating_kernel, inlined, kernel, prefetch
from share_state.kafka.buffers import copied, fill, joined, move_rows, put, used_once
from share_state.kafka.state_records import LARGEST_OFFSET, STATE_BATCH, UNREADABLE, Fault, Kind, Layout, StateRecords

Fold = Callable[..., object]
"""Folds a stretch of share-partitions; called as `_fold` is."""

NOWHERE = -1
"""In place of an offset: there is none."""

AHEAD = 16
"""Records of one share-partition lie far apart: this many are on their way from memory while one is folded."""

_BATCHES_AHEAD = 8
_BATCHES_A_LINE = 3

CHAIN = np.dtype(
    [
        ("start_offset", "i8"),
        ("create_time", "i8"),
        ("write_time", "i8"),
        ("snapshot_offset", "i8"),  # of the latest snapshot that the state rests on
        ("orphan_offset", "i8"),  # of the first update, where no snapshot of the log precedes it
        ("last_offset", "i8"),
        ("suspect_offset", "i8"),  # of a record since the latest snapshot that the broker could not load
        ("updates", "i8"),  # folded since the latest snapshot
        ("last_timestamp", "i8"),  # ms, stamp of the last record
        ("active_time", "i8"),  # ms, stamp of the last record that is no cold snapshot: somebody consumed
        ("moved_time", "i8"),  # ms, stamp of the record that brought the start offset to where it is
        ("held_time", "i8"),  # ms, stamp of the first record since then that tells of a delivery; -1 for none
        ("snapshot_epoch", "i4"),
        ("state_epoch", "i4"),
        ("leader_epoch", "i4"),
        ("delivery_complete_count", "i4"),
        ("max_leader_epoch", "i4"),
        ("max_state_epoch", "i4"),
        ("exists", "?"),
        ("was_deleted", "?"),  # a tombstone of it was seen
        ("has_max_state_epoch", "?"),
    ]
)
"""One row a share-partition: everything of its state but the batches."""

UPDATED, REPLACED = 1, 2
"""What a record does to the state before it."""

FRESH = np.zeros(1, CHAIN)[0]
"""The row of a share-partition before its first record."""
for _name in ("start_offset", "snapshot_offset", "orphan_offset", "last_offset", "suspect_offset",
              "last_timestamp", "active_time", "moved_time", "held_time"):  # fmt: skip
    FRESH[_name] = NOWHERE
FRESH["delivery_complete_count"] = -1


@dataclass(slots=True)
class Chains:
    """The folded state of a log partition so far.

    Attributes:
        chains: CHAIN rows, row n for share-partition number n.
        ends: int64; the batches of number n are rows ends[n] to ends[n + 1].
        batches: STATE_BATCH rows, canonical within each share-partition.
        last_snapshot_record: offset of the latest snapshot or tombstone of any share-partition.
    """

    chains: np.ndarray = field(default_factory=lambda: np.zeros(0, CHAIN))
    ends: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))
    batches: np.ndarray = field(default_factory=lambda: np.zeros(0, STATE_BATCH))
    last_snapshot_record: int = NOWHERE

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return self.chains.nbytes + self.ends.nbytes + self.batches.nbytes

    def grown(self, keys: int) -> tuple[np.ndarray, np.ndarray]:
        """Copies of `chains` and `ends` with rows for so many share-partitions; new ones are FRESH and hold nothing."""
        chains = used_once(keys, CHAIN)
        put(self.chains, chains)
        fill(chains[len(self.chains) :], FRESH)
        ends = np.full(keys + 1, self.ends[-1], np.int64)
        ends[: len(self.ends)] = self.ends
        return chains, ends

    def apply(self, records: StateRecords, keys: int, slices: int = 1, way: Fold | None = None) -> None:
        """Fold more records, later in the log than all before.

        Args:
            records: decoded records in log order.
            keys: how many share-partitions have numbers by now.
            slices: how many parts of them are folded side by side.
            way: to fold; by default one that makes no state between two records.
        """
        rows, fold = records.rows, way or _fold
        self.last_snapshot_record = max(self.last_snapshot_record, int(_last_snapshot_record(rows)))
        chains, carried = self.grown(keys)
        order, starts = by_key(rows, keys)
        ends = np.zeros(keys + 1, np.int64)

        def folded(begin: int, end: int) -> np.ndarray:
            new = len(records.batches) if slices == 1 else int(_batches_of(rows, order, starts[begin], starts[end]))
            out = used_once(2 * (new + int(carried[end] - carried[begin])), STATE_BATCH)
            fold(begin, end, rows, records.batches, order, starts, chains, carried, self.batches, out, ends)
            return out[: ends[end]]

        if slices == 1:
            made = folded(0, keys)
            # What lies behind was never written to, so it takes no memory; to copy all that is live would take time.
            self.batches = copied(made) if made.base is not None and 4 * len(made) < len(made.base) else made
        else:
            bounds = _bounds(starts + carried, slices)
            with ThreadPoolExecutor(slices) as threads:
                parts = list(threads.map(folded, bounds[:-1], bounds[1:]))
            behind = np.cumsum([len(part) for part in parts])
            for begin, end, before in zip(bounds[1:-1], bounds[2:], behind[:-1], strict=True):
                ends[begin + 1 : end + 1] += before
            self.batches = joined(parts)
        self.chains, self.ends = chains, ends


def _bounds(work: np.ndarray, slices: int) -> np.ndarray:
    """Where to cut share-partitions into slices of about as much work each.

    Args:
        work: int64, how much there is before each of them, and in all.
    """
    bounds = np.searchsorted(work, np.linspace(0, work[-1], slices + 1))
    bounds[0], bounds[-1] = 0, len(work) - 1
    return bounds


@kernel
def _batches_of(rows, order, begin, end):
    """How many state batches the records order[begin:end] have."""
    count = np.int64(0)
    for number in range(begin, end):
        count += rows[order[number]].batch_count
    return count


@allocating_kernel
def by_key(rows, keys):
    """A stable counting sort: the rows of number n are order[starts[n]:starts[n + 1]], in log order."""
    starts = np.zeros(keys + 1, np.int64)
    for row in range(len(rows)):
        if rows[row].key >= 0:
            starts[rows[row].key + 1] += 1
    for key in range(keys):
        starts[key + 1] += starts[key]
    order = np.empty(starts[keys], np.int64)
    free = starts[:-1].copy()
    for row in range(len(rows)):
        key = rows[row].key
        if key >= 0:
            order[free[key]] = row
            free[key] += 1
    return order, starts


@kernel
def _last_snapshot_record(rows):
    """The offset of the latest snapshot or tombstone that counts."""
    for number in range(len(rows) - 1, -1, -1):
        row = rows[number]
        if row.key >= 0 and not row.fault & UNREADABLE and (row.kind == Kind.SNAPSHOT or row.kind == Kind.TOMBSTONE):
            return row.offset
    return np.int64(NOWHERE)


@allocating_kernel
def _fold(from_key, to_key, rows, batches, order, starts, chains, carried, carried_batches, out, ends):
    """Fold a stretch of share-partitions.

    Args:
        from_key, to_key: the share-partitions.
        rows: STATE_RECORD, all of the chunk.
        batches: STATE_BATCH rows that they point into.
        order, starts: of `by_key`.
        chains: CHAIN rows, brought to the state behind the records.
        carried: int64; the ranges of number n before them are rows carried[n] to carried[n + 1] of `carried_batches`.
        out: takes the ranges behind them, from row 0 on.
        ends: int64; entry n + 1 takes the row of `out` behind those of number n.
    """
    room = np.int64(64)
    first, last, packed = range_columns(room)
    spare_first, spare_last, spare_packed = range_columns(room)
    cuts = np.empty(room, np.int64)
    at = np.int64(0)
    for key in range(from_key, to_key):
        chain = chains[key]
        begin, end = starts[key], starts[key + 1]
        if begin == end:
            move_rows(carried_batches, carried[key], out, at, carried[key + 1] - carried[key])
            at += carried[key + 1] - carried[key]
            ends[key + 1] = at
            continue
        if end - begin > len(cuts):
            cuts = np.empty(2 * (end - begin), np.int64)
        if end - begin <= AHEAD:
            for number in range(begin, min(end, len(order) - AHEAD // 2)):
                ahead = rows[order[number + AHEAD // 2]]
                ask_for_batches(batches, ahead)
        base, update = walk(rows, order, begin, end, chain, cuts)
        if not chain.exists:
            ends[key + 1] = at
            continue
        # From the last update back, the cut is the greatest start from here to the end; that of the base is the last.
        cut, size = np.int64(-1), np.int64(0)
        for number in range(end - 1, update - 1, -1):
            row = rows[order[number]]
            if row.kind == Kind.UPDATE and not row.fault & UNREADABLE:
                cut = max(cut, cuts[number - begin])
                if row.reach >= cut:
                    size += row.batch_count
                    ask_for_batches(batches, row)
            cuts[number - begin] = cut
        own = base >= begin
        held = batches if own else carried_batches
        held_from = rows[order[base]].batches if own else carried[key]
        held_to = held_from + rows[order[base]].batch_count if own else carried[key + 1]
        size += held_to - held_from
        if size > len(first):
            first, last, packed = range_columns(2 * size)
            spare_first, spare_last, spare_packed = range_columns(2 * size)
        size = _clip(held, held_from, held_to, cut, first, last, packed, np.int64(0))
        for number in range(update, end):
            row = rows[order[number]]
            cut = cuts[number - begin]
            if row.kind == Kind.UPDATE and not row.fault & UNREADABLE and row.reach >= cut:
                size = _clip(batches, row.batches, row.batches + row.batch_count, cut, first, last, packed, size)
        at = sweep(first, last, packed, size, spare_first, spare_last, spare_packed, out, at)
        ends[key + 1] = at


@inlined
def ask_for_batches(batches, row):
    """Begin to load the batches of a record, the first few of them."""
    for number in range(0, min(row.batch_count, _BATCHES_AHEAD), _BATCHES_A_LINE):
        prefetch(batches, row.batches + number)


@inlined
def is_cold(row):
    """True for a snapshot that repeats an idle share-partition's state, so that older records can go (4.1 and later).

    Source: Kafka ShareCoordinatorShard.snapshotColdPartitions: the create time stays, the write time is new.
    """
    return row.kind == Kind.SNAPSHOT and row.create_time != row.write_time


@kernel
def walk(rows, order, begin, end, chain, starts):
    """Follow one share-partition's records for the scalars.

    Args:
        rows: STATE_RECORD.
        order: int64; the records are rows[order[n]] for n from `begin` to `end`.
        chain: its CHAIN row, brought to the state behind them.
        starts: int64, takes the start offset as of each update behind the base, from 0 for `begin` on.
    Returns:
        (place of the base in `order`, or begin - 1 where it is the carried state; place of the first update after it).
    """
    base = begin - 1
    update = begin
    for number in range(begin, end):
        if number + AHEAD < len(order):
            prefetch(rows, order[number + AHEAD])
        taken = step(rows[order[number]], chain)
        if taken == UPDATED:
            starts[number - begin] = chain.start_offset
        elif taken == REPLACED:
            base = number
            update = number + 1
    return base, update


@inlined
def step(row, chain):
    """Take one record of a share-partition, as far as the scalars go.

    Args:
        row: STATE_RECORD.
        chain: its CHAIN row, brought to the state behind the record.
    Returns:
        REPLACED where the record is the state from now on, UPDATED where it adds to it, 0 where it does neither.
    """
    if row.fault & UNREADABLE:
        chain.suspect_offset = row.offset
        return 0
    chain.last_offset = row.offset
    chain.last_timestamp = row.timestamp
    if row.kind == Kind.TOMBSTONE:
        chain.exists = False
        chain.was_deleted = True
        chain.has_max_state_epoch = False
        chain.snapshot_offset = NOWHERE
        chain.orphan_offset = NOWHERE
        chain.suspect_offset = NOWHERE
        return 0
    inverted = row.fault & Fault.INVERTED_RANGE != 0
    moves = not chain.exists or (
        row.start_offset != chain.start_offset and (row.kind == Kind.SNAPSHOT or row.start_offset != -1)
    )
    if moves:
        chain.moved_time = row.timestamp
        chain.held_time = NOWHERE
    if not is_cold(row):
        chain.active_time = row.timestamp
        if chain.held_time == NOWHERE and row.batch_count > 0:
            chain.held_time = row.timestamp
    chain.max_leader_epoch = max(chain.max_leader_epoch, row.leader_epoch) if chain.exists else row.leader_epoch
    if row.kind == Kind.SNAPSHOT:
        chain.max_state_epoch = (
            max(chain.max_state_epoch, row.state_epoch) if chain.has_max_state_epoch else row.state_epoch
        )
        chain.has_max_state_epoch = True
        chain.state_epoch = row.state_epoch
        chain.snapshot_offset = row.offset
        chain.orphan_offset = NOWHERE
        chain.suspect_offset = row.offset if inverted else NOWHERE
        chain.updates = 0
    else:
        chain.updates += 1
        if inverted:
            chain.suspect_offset = row.offset
        if chain.exists:
            if row.start_offset != -1:
                chain.start_offset = row.start_offset
            if row.leader_epoch != -1:
                chain.leader_epoch = row.leader_epoch
            chain.delivery_complete_count = row.delivery_complete_count
            return UPDATED
        # An orphan: the broker takes the update as the state itself.
        chain.updates = 1
        chain.orphan_offset = row.offset
        chain.state_epoch = -1 if row.layout == Layout.EARLY else 0
    chain.exists = True
    chain.snapshot_epoch = row.snapshot_epoch
    chain.leader_epoch = row.leader_epoch
    chain.start_offset = row.start_offset
    chain.delivery_complete_count = row.delivery_complete_count
    chain.create_time = row.create_time
    chain.write_time = row.write_time
    return REPLACED


@kernel
def _clip(batches, start, end, cut, first, last, packed, size):
    """Append the ranges at or after `cut` (-1: all); inverted ranges cover nothing and are left out."""
    for number in range(start, end):
        batch = batches[number]
        if batch.first > batch.last or batch.last == LARGEST_OFFSET or (cut != -1 and batch.last < cut):
            continue
        first[size] = max(batch.first, cut) if cut != -1 else batch.first
        last[size] = batch.last
        packed[size] = priority(batch.count, batch.state)
        size += 1
    return size


class Columns:
    """Rows that nobody changes, or some of them; a column that was asked for is kept, read-only."""

    def __init__(self, rows: np.ndarray, numbers: np.ndarray | None = None) -> None:
        """Take rows.

        Args:
            rows: of a structured type.
            numbers: int64, which of them; all by default.
        """
        self.rows, self._numbers = rows, numbers
        self._kept: dict[str, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self.rows if self._numbers is None else self._numbers)

    @overload
    def __getitem__(self, wanted: str) -> np.ndarray: ...
    @overload
    def __getitem__(self, wanted: np.ndarray) -> "Columns": ...
    def __getitem__(self, wanted: "str | np.ndarray") -> "np.ndarray | Columns":
        """A column by its name, contiguous; or some of the rows, by their numbers here or a bool for each."""
        if not isinstance(wanted, str):
            chosen = np.flatnonzero(wanted) if wanted.dtype == np.bool_ else wanted
            return Columns(self.rows, chosen if self._numbers is None else self._numbers[chosen])
        if wanted not in self._kept:
            column = self.rows[wanted]
            self._kept[wanted] = column = column.copy() if self._numbers is None else column[self._numbers]
            column.flags.writeable = False
        return self._kept[wanted]
