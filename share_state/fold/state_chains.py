"""Folds the records of many share-partitions at once into the state that a coordinator has after replaying them.

Closed form: the base r0 is the last snapshot after the last tombstone, or the first update if there is none.
With updates r1..rn and their resolved starts S, clip the batches of r_i at max(S_i..S_n) and those of the
base at max(S_1..S_n). The value of an offset is the greatest (delivery count, delivery state) of the batches
that cover it. The state is kept from chunk to chunk, so folding a log in any two parts gives the same result.

Source: Kafka ShareCoordinatorShard.replay, handleShareSnapshot, handleShareUpdate, merge;
PersisterStateBatchCombiner.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import overload

import numpy as np

from share_state.fold.interval_merge import clip_ranges, range_columns, sweep
from share_state.jit.compile import allocating_kernel, inlined, kernel
from share_state.jit.intrinsics import copy_rows, prefetch
from share_state.kafka.buffers import allocate_rows, clone_rows, concat_rows, fill_rows, write_rows
from share_state.kafka.state_records import STATE_BATCH, UNREADABLE_FAULTS, Fault, Kind, Layout, StateRecords

Fold = Callable[..., object]
"""A function that folds a slice of share-partitions; takes the arguments of `_fold`."""

NO_OFFSET = -1
"""No offset."""

PREFETCH_DISTANCE = 16
"""Number of records to prefetch: the records of one share-partition are far apart in memory."""

_BATCHES_TO_PREFETCH = 8
_BATCHES_PER_CACHE_LINE = 3

CHAIN = np.dtype(
    [
        ("start_offset", "i8"),
        ("create_time", "i8"),
        ("write_time", "i8"),
        ("snapshot_offset", "i8"),  # offset of the latest snapshot, the base of the state
        ("orphan_offset", "i8"),  # offset of the first update, if no snapshot of the log precedes it
        ("last_offset", "i8"),
        (
            "suspect_offset",
            "i8",
        ),  # offset of a record since the latest snapshot that the broker could not load
        ("updates", "i8"),  # number of updates since the latest snapshot
        ("last_timestamp", "i8"),  # ms, timestamp of the last record
        ("last_consumed_at", "i8"),  # ms, timestamp of the last record that is not a cold snapshot
        ("start_advanced_at", "i8"),  # ms, timestamp of the record that set the current start offset
        (
            "first_delivery_at",
            "i8",
        ),  # ms, timestamp of the first record since then with a delivery; -1 for none
        (
            "archiving_at",
            "i8",
        ),  # ms, when its first ARCHIVING offset became the first; -1 for none or if not judged
        ("snapshot_epoch", "i4"),
        ("state_epoch", "i4"),
        ("leader_epoch", "i4"),
        ("delivery_complete_count", "i4"),
        ("max_leader_epoch", "i4"),
        ("max_state_epoch", "i4"),
        ("exists", "?"),
        ("was_deleted", "?"),  # the log has a tombstone of it
        ("has_max_state_epoch", "?"),
        (
            "break_offset",
            "i8",
        ),  # offset of the latest record whose snapshot epoch does not follow the one before it
        ("begins_here", "?"),  # the first record of its current life is in the log, if any is
    ]
)
"""One row per share-partition: its state without the batches."""

UPDATED, REPLACED = 1, 2
"""Effects of a record: it updates the state before it, or replaces it."""

INITIAL_CHAIN = np.zeros(1, CHAIN)[0]
"""The row of a share-partition before its first record."""
for _name in ("start_offset", "snapshot_offset", "orphan_offset", "last_offset", "suspect_offset",
              "last_timestamp", "last_consumed_at", "start_advanced_at", "first_delivery_at",
              "archiving_at", "break_offset"):  # fmt: skip
    INITIAL_CHAIN[_name] = NO_OFFSET
INITIAL_CHAIN["delivery_complete_count"] = -1


@dataclass(slots=True)
class Chains:
    """The folded state of a log partition so far.

    Attributes:
        chains: CHAIN rows, row n for share-partition number n.
        ends: int64; the batches of number n are rows ends[n] to ends[n + 1].
        batches: STATE_BATCH rows, canonical within each share-partition.
        last_snapshot_record: offset of the latest snapshot or tombstone of any share-partition.
        begins_at_zero: whether the log begins at offset 0, so that it has the first record of every
            share-partition.
    """

    chains: np.ndarray = field(default_factory=lambda: np.zeros(0, CHAIN))
    ends: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))
    batches: np.ndarray = field(default_factory=lambda: np.zeros(0, STATE_BATCH))
    last_snapshot_record: int = NO_OFFSET
    begins_at_zero: bool = False

    @property
    def last_break(self) -> int:
        """The latest offset at which snapshot epochs show that records are missing or foreign, -1 for none."""
        return int(self.chains["break_offset"].max(initial=NO_OFFSET))

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return self.chains.nbytes + self.ends.nbytes + self.batches.nbytes

    def grown(self, keys: int) -> tuple[np.ndarray, np.ndarray]:
        """Copies of `chains` and `ends` with rows for `keys` share-partitions.

        New ones are INITIAL_CHAIN and empty.
        """
        chains = allocate_rows(keys, CHAIN)
        write_rows(self.chains, chains)
        fill_rows(chains[len(self.chains) :], INITIAL_CHAIN)
        chains["begins_here"][len(self.chains) :] = self.begins_at_zero
        ends = np.full(keys + 1, self.ends[-1], np.int64)
        ends[: len(self.ends)] = self.ends
        return chains, ends

    def apply(self, records: StateRecords, keys: int, slices: int = 1, fold: Fold | None = None) -> None:
        """Fold a chunk of records; chunks come in log order.

        Args:
            keys: number of share-partitions so far.
            slices: number of slices of share-partitions to fold concurrently.
            fold: the fold function; the default computes no state between two records.
        """
        rows, fold_slice = records.rows, fold or _fold
        chains, old_ends = self.grown(keys)
        numbers, last_snapshot_record = records.grouping()
        order, starts = group_by_key(numbers, keys)
        self.last_snapshot_record = max(self.last_snapshot_record, last_snapshot_record)
        ends = np.zeros(keys + 1, np.int64)

        def fold_range(begin: int, end: int) -> np.ndarray:
            new = (
                len(records.batches)
                if slices == 1
                else int(_batches_of(rows, order, starts[begin], starts[end]))
            )
            out = allocate_rows(2 * (new + int(old_ends[end] - old_ends[begin])), STATE_BATCH)
            fold_slice(
                begin, end, rows, records.batches, order, starts, chains, old_ends, self.batches, out, ends
            )
            return out[: ends[end]]

        if slices == 1:
            batches = fold_range(0, keys)
            # Unwritten rows take no memory, and copying takes time, so copy only if few rows are used.
            self.batches = (
                clone_rows(batches)
                if batches.base is not None and 4 * len(batches) < len(batches.base)
                else batches
            )
        else:
            bounds = _bounds(starts + old_ends, slices)
            with ThreadPoolExecutor(slices) as threads:
                parts = list(threads.map(fold_range, bounds[:-1], bounds[1:]))
            part_ends = np.cumsum([len(part) for part in parts])
            for begin, end, before in zip(bounds[1:-1], bounds[2:], part_ends[:-1], strict=True):
                ends[begin + 1 : end + 1] += before
            self.batches = concat_rows(parts)
        self.chains, self.ends = chains, ends


def _bounds(work: np.ndarray, slices: int) -> np.ndarray:
    """Bounds of slices of similar work; `work` is the amount before each share-partition, and in total."""
    bounds = np.searchsorted(work, np.linspace(0, work[-1], slices + 1))
    bounds[0], bounds[-1] = 0, len(work) - 1
    return bounds


@kernel
def _batches_of(rows, order, begin, end):
    """Number of state batches of the records order[begin:end]."""
    count = np.int64(0)
    for number in range(begin, end):
        count += rows[order[number]].batch_count
    return count


@allocating_kernel
def group_by_key(numbers, keys):
    """A stable counting sort.

    Args:
        numbers: int32, share-partition number of each row; -1 for none.
        keys: number of share-partitions.
    Returns:
        (order, starts): the rows of number n are order[starts[n]:starts[n + 1]], in log order.
    """
    starts = np.zeros(keys + 1, np.int64)
    for row in range(len(numbers)):
        if numbers[row] >= 0:
            starts[numbers[row] + 1] += 1
    for key in range(keys):
        starts[key + 1] += starts[key]
    order = np.empty(starts[keys], np.int64)
    free = starts[:-1].copy()
    for row in range(len(numbers)):
        key = numbers[row]
        if key >= 0:
            order[free[key]] = row
            free[key] += 1
    return order, starts


@allocating_kernel
def _fold(from_key, to_key, rows, batches, order, starts, chains, old_ends, old_batches, out, ends):
    """Fold a slice of share-partitions.

    Args:
        rows, batches: all STATE_RECORD rows of the chunk, and the STATE_BATCH rows that they point into.
        order, starts: from `group_by_key`.
        chains: CHAIN rows, updated.
        old_ends: int64; the previous ranges of number n are rows old_ends[n] to old_ends[n + 1] of
            `old_batches`.
        out: the new ranges, from row 0 on.
        ends: int64; entry n + 1 is set to the row of `out` after the ranges of number n.
    """
    first, last, packed = range_columns(64)
    spare_first, spare_last, spare_packed = range_columns(64)
    cuts, numbers = np.empty(64, np.int64), np.empty(64, np.int64)
    range_end = np.int64(0)
    for key in range(from_key, to_key):
        chain = chains[key]
        begin, end = starts[key], starts[key + 1]
        if begin == end:
            copy_rows(old_batches, old_ends[key], out, range_end, old_ends[key + 1] - old_ends[key])
            range_end += old_ends[key + 1] - old_ends[key]
            ends[key + 1] = range_end
            continue
        if end - begin > len(cuts):
            cuts, numbers = np.empty(2 * (end - begin), np.int64), np.empty(2 * (end - begin), np.int64)
        if end - begin <= PREFETCH_DISTANCE:
            for number in range(begin, min(end, len(order) - PREFETCH_DISTANCE // 2)):
                ahead = rows[order[number + PREFETCH_DISTANCE // 2]]
                prefetch_batches(batches, ahead)
        base, update = fold_scalars(rows, order, begin, end, chain, cuts)
        if not chain.exists:
            ends[key + 1] = range_end
            continue
        # Backwards: the cut of an update is the greatest start from it to the end; the base has the cut of
        # the first update. The last places of `numbers` and `cuts` receive the records with ranges at or
        # after their cut.
        cut = np.int64(-1)
        size = np.int64(0)
        from_place = end - begin
        for number in range(end - 1, update - 1, -1):
            row = rows[order[number]]
            if row.kind == Kind.UPDATE and not row.fault & UNREADABLE_FAULTS:
                cut = max(cut, cuts[number - begin])
                if row.batch_count > 0 and row.max_offset >= cut:
                    size += row.batch_count
                    prefetch_batches(batches, row)
                    from_place -= 1
                    numbers[from_place], cuts[from_place] = order[number], cut
        is_new_base = base >= begin
        base_batches = batches if is_new_base else old_batches
        base_begin = rows[order[base]].batches if is_new_base else old_ends[key]
        base_end = base_begin + rows[order[base]].batch_count if is_new_base else old_ends[key + 1]
        size += base_end - base_begin
        if size > len(first):
            first, last, packed = range_columns(2 * size)
            spare_first, spare_last, spare_packed = range_columns(2 * size)
        size = clip_ranges(base_batches, base_begin, base_end, cut, first, last, packed, np.int64(0))
        for place in range(from_place, end - begin):
            row = rows[numbers[place]]
            ranges_end = row.batches + row.batch_count
            size = clip_ranges(batches, row.batches, ranges_end, cuts[place], first, last, packed, size)
        range_end = sweep(first, last, packed, size, spare_first, spare_last, spare_packed, out, range_end)
        ends[key + 1] = range_end


@inlined
def prefetch_batches(batches, row):
    """Prefetch the first few batches of a record."""
    for number in range(0, min(row.batch_count, _BATCHES_TO_PREFETCH), _BATCHES_PER_CACHE_LINE):
        prefetch(batches, row.batches + number)


@inlined
def is_cold(row):
    """Whether a record is a cold snapshot: it repeats the state so that older records can be deleted (4.1+).

    Source: Kafka ShareCoordinatorShard.snapshotColdPartitions keeps the create time and sets a new write
    time.
    """
    return row.kind == Kind.SNAPSHOT and row.create_time != row.write_time


@kernel
def fold_scalars(rows, order, begin, end, chain, starts):
    """Fold the scalars of one share-partition.

    Args:
        rows, order: the records are rows[order[n]] for n from `begin` to `end`.
        chain: its CHAIN row, updated.
        starts: int64, set to the start offset after each update since the base; entry 0 is for `begin`.
    Returns:
        (place of the base in `order`, begin - 1 if it is the previous state; place of the first update after
        it).
    """
    base = begin - 1
    update = begin
    for number in range(begin, end):
        if number + PREFETCH_DISTANCE < len(order):
            prefetch(rows, order[number + PREFETCH_DISTANCE])
        effect = fold_record(rows[order[number]], chain)
        if effect == UPDATED:
            starts[number - begin] = chain.start_offset
        elif effect == REPLACED:
            base = number
            update = number + 1
    return base, update


@inlined
def breaks_epochs(row, chain):
    """Whether the snapshot epoch of a record shows that one before it is missing, or was written by another leader.

    A damaged record may be between the two, if one is noted; then the epochs show nothing new.
    Source: Kafka ShareCoordinatorShard.generateShareStateRecord, initializeState.
    """
    if not chain.exists:
        return chain.begins_here and (row.kind != Kind.SNAPSHOT or row.snapshot_epoch != 0)
    if chain.suspect_offset != NO_OFFSET:
        return False
    if row.kind == Kind.SNAPSHOT:
        return row.snapshot_epoch != np.int64(chain.snapshot_epoch) + 1
    return row.snapshot_epoch != chain.snapshot_epoch


@inlined
def fold_record(row, chain):
    """Fold the scalars of a STATE_RECORD into the CHAIN row of its share-partition.

    Returns:
        REPLACED if the record replaces the state, UPDATED if it adds to it, 0 if neither.
    """
    if row.fault & UNREADABLE_FAULTS:
        chain.suspect_offset = row.offset
        return 0
    chain.last_offset = row.offset
    chain.last_timestamp = row.timestamp
    if row.kind == Kind.TOMBSTONE:
        chain.exists = False
        chain.was_deleted = True
        chain.begins_here = True
        chain.has_max_state_epoch = False
        chain.snapshot_offset = NO_OFFSET
        chain.orphan_offset = NO_OFFSET
        chain.suspect_offset = NO_OFFSET
        chain.archiving_at = NO_OFFSET
        return 0
    if breaks_epochs(row, chain):
        chain.break_offset = row.offset
    inverted = row.fault & Fault.INVERTED_RANGE != 0
    sets_start = not chain.exists or (
        row.start_offset != chain.start_offset and (row.kind == Kind.SNAPSHOT or row.start_offset != -1)
    )
    if sets_start:
        chain.start_advanced_at = row.timestamp
        chain.first_delivery_at = NO_OFFSET
    if not is_cold(row):
        chain.last_consumed_at = row.timestamp
        if chain.first_delivery_at == NO_OFFSET and row.batch_count > 0:
            chain.first_delivery_at = row.timestamp
    chain.max_leader_epoch = (
        max(chain.max_leader_epoch, row.leader_epoch) if chain.exists else row.leader_epoch
    )
    if row.kind == Kind.SNAPSHOT:
        chain.max_state_epoch = (
            max(chain.max_state_epoch, row.state_epoch) if chain.has_max_state_epoch else row.state_epoch
        )
        chain.has_max_state_epoch = True
        chain.state_epoch = row.state_epoch
        chain.snapshot_offset = row.offset
        chain.orphan_offset = NO_OFFSET
        chain.suspect_offset = row.offset if inverted else NO_OFFSET
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
        # An update without a snapshot before it: the broker uses it as the whole state.
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


class ColumnCache:
    """Structured rows, optionally selected by `numbers`, with cached contiguous columns for the rules."""

    def __init__(self, rows: np.ndarray, numbers: np.ndarray | None = None) -> None:
        self.rows, self._numbers = rows, numbers
        self._columns: dict[str, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self.rows if self._numbers is None else self._numbers)

    @overload
    def __getitem__(self, selector: str) -> np.ndarray: ...
    @overload
    def __getitem__(self, selector: np.ndarray) -> "ColumnCache": ...
    def __getitem__(self, selector: "str | np.ndarray") -> "np.ndarray | ColumnCache":
        """A contiguous, read-only column by name; or a selection of rows, by numbers or a bool mask."""
        if not isinstance(selector, str):
            numbers = np.flatnonzero(selector) if selector.dtype == np.bool_ else selector
            return ColumnCache(self.rows, numbers if self._numbers is None else self._numbers[numbers])
        if selector not in self._columns:
            column = self.rows[selector]
            self._columns[selector] = column = (
                column.copy() if self._numbers is None else column[self._numbers]
            )
            column.flags.writeable = False
        return self._columns[selector]
