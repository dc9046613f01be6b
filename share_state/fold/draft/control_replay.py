"""The dialect of the KIP-932 draft: checkpoints and deltas are control records in the log of a topic-partition.

`ControlReplay` folds record by record and lays the ranges of a record over the current ranges of its group.
The cost of a record depends on these ranges, not on the number of records before it.

Source: KIP-932 draft (SHARE_CHECKPOINT, SHARE_DELTA, recovery).
"""

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from share_state.fold.draft.control_chains import (
    CONTROL_CHAIN,
    FOLD_NOTE,
    INITIAL_CONTROL_CHAIN,
    boundaries,
    emit_ranges,
    fold_control,
    fold_record,
    follow_link,
    is_stale,
    is_suspect,
    starts_in_log,
)
from share_state.fold.draft.control_log import decode_control_log
from share_state.fold.fold_options import STRICT, FoldOptions, SharePartitionFilter
from share_state.fold.interval_merge import append_range
from share_state.fold.losses import Losses
from share_state.fold.state_chains import NO_OFFSET, Chains
from share_state.fold.states import RecordStates, RecordView, control_key_columns, control_state_table
from share_state.jit.compile import allocating_kernel, kernel
from share_state.kafka.buffers import clone_rows
from share_state.kafka.control_records import (
    CONTROL_RECORD,
    UNREADABLE_CONTROL_FAULTS,
    ControlKind,
    ControlRecords,
    GroupTable,
    concat_control_records,
)
from share_state.kafka.delivery_states import is_terminal
from share_state.kafka.state_records import STATE_BATCH
from share_state.sources.as_of import Window
from share_state.sources.log_partition import LogPartition

_FOLD = 0
_FOLD_AGAIN = 1
_EMIT = 2
"""Next step of `_replay` for a record."""


def open_control_log(log: LogPartition, window: Window, options: FoldOptions) -> "_ControlLogReader":
    """Open a topic-partition to follow its groups record by record."""
    return _ControlLogReader(log, window, options)


class _ControlLogReader:
    """Follows the share groups of a topic-partition record by record; the protocol is `dialect.LogReader`."""

    state_partition: int | None = None
    place_without_state: str = "unknown"
    epochs: Mapping[str, str] = {"snapshot_epoch": "epoch"}

    def __init__(self, log: LogPartition, window: Window, options: FoldOptions) -> None:
        self.log, self._window = log, window
        self._groups, self._losses = GroupTable(), Losses()
        self._replay = ControlReplay(strict=options.control.mode == STRICT)

    def __len__(self) -> int:
        return len(self._groups)

    def may_match(self, key_filter: SharePartitionFilter) -> bool:
        return key_filter.topic in (None, self.log.topic) and key_filter.partition in (
            None,
            self.log.partition,
        )

    def chunks(self) -> Iterator[ControlRecords]:
        for records, groups in decode_control_log(self.log, self._window, self._losses):
            self._groups = groups
            yield records

    def selected(self, key_filter: SharePartitionFilter) -> np.ndarray:
        names = self._groups.names().to_pylist()
        return np.array(
            [self.may_match(key_filter) and key_filter.group_id in (None, name) for name in names], bool
        )

    def key_columns(self, numbers: np.ndarray) -> dict[str, pa.Array]:
        return control_key_columns(self._groups.names(), numbers, self.log)

    def view(self, rows: np.ndarray, records: ControlRecords) -> RecordView:
        is_readable = rows["fault"] & UNREADABLE_CONTROL_FAULTS == 0
        repeats = np.zeros(len(rows), bool)
        return RecordView(
            rows["group"], is_readable, repeats, rows["tuples"], rows["tuple_count"], records.tuples
        )

    def value_columns(self, rows: np.ndarray) -> dict[str, pa.Array]:
        no_value = (rows["group"] < 0) | (rows["fault"] & UNREADABLE_CONTROL_FAULTS != 0)
        no_checkpoint = no_value | (rows["kind"] != ControlKind.CHECKPOINT)
        no_delta = no_value | (rows["kind"] != ControlKind.DELTA)
        return {
            "snapshot_epoch": pa.array(rows["epoch"].copy(), mask=no_value),
            "start_offset": pa.array(rows["start_offset"].copy(), mask=no_checkpoint),
            "end_offset": pa.array(rows["end_offset"].copy(), mask=no_checkpoint),
            "back_offset": pa.array(rows["back_offset"].copy(), mask=no_delta),
        }

    def replay(self, records: ControlRecords, selected: np.ndarray) -> Iterator[RecordStates]:
        return self._replay.apply(records, selected)

    def state_table(self, states: RecordStates) -> pa.Table:
        rows, chains = states.rows, states.chains
        suspect = is_suspect(chains) | np.isin(rows["offset"], list(self._losses.conflicting))
        return control_state_table(
            Chains(chains, states.ends - states.ends[0], states.batches[states.ends[0] :]),
            self.key_columns(rows["group"]),
            self.windows(states)[2],
            suspect,
            pa.array(rows["offset"] + 1),
        )

    def suspect_at_end(self) -> np.ndarray:
        chains = self._replay.groups
        return chains["exists"] & is_suspect(chains, self._losses.last)

    def windows(self, states: RecordStates) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        log, chains = self.log, states.chains
        leads = starts_in_log(chains, states.ends, states.batches, log.log_start_offset)
        return chains["exists"], chains["end_offset"], leads


class ControlReplay:
    """Folds the control records of selected groups one by one, from chunk to chunk.

    `states` and `ranges` are as in `StateReplay`, `strict` as in `fold_control`.

    Attributes:
        groups: CONTROL_CHAIN, entry n is the state of group number n after its last record.
    """

    def __init__(self, *, strict: bool = True, states: int = 1 << 16, ranges: int = 1 << 20) -> None:
        self._strict = strict
        self.groups = np.zeros(0, CONTROL_CHAIN)
        self._previous = np.zeros(0, np.int64)
        self._ranges: list[np.ndarray] = []
        # Records since the latest checkpoint, to fold again at a fork; strict folds stop there.
        self._since_checkpoint: list[ControlRecords] = []
        self._chains, self._at = np.empty(states, CONTROL_CHAIN), np.empty(states, np.int64)
        self._ends, self._batches = np.zeros(states + 1, np.int64), np.empty(ranges, STATE_BATCH)

    def apply(self, records: ControlRecords, selected: np.ndarray) -> Iterator[RecordStates]:
        """Yield the states after the records of a chunk; exhaust the iterator before the next chunk.

        Args:
            records: the records of the chunk.
            selected: bool, entry n for group number n; records of other groups are ignored.
        """
        new = len(selected) - len(self.groups)
        self.groups = np.concatenate((self.groups, np.full(new, INITIAL_CONTROL_CHAIN, CONTROL_CHAIN)))
        self._previous = np.concatenate((self._previous, np.full(new, NO_OFFSET)))
        self._ranges += [np.zeros(0, STATE_BATCH)] * new
        self._since_checkpoint += [concat_control_records([])] * new
        rows, filled = records.rows, 0
        # The extra entry is for number -1: a record of no group.
        numbers = np.flatnonzero(np.append(selected, False)[rows["group"]])
        numbers = numbers[np.argsort(rows["group"][numbers], kind="stable")]
        groups, begins = np.unique(rows["group"][numbers], return_index=True)
        for group, group_rows in zip(groups.tolist(), np.split(numbers, begins[1:]), strict=False):
            chain, before = self.groups[group : group + 1], len(self._since_checkpoint[group].rows)
            position, step = 0, _FOLD
            if not self._strict:
                self._since_checkpoint[group] = concat_control_records(
                    [self._since_checkpoint[group], records.take(group_rows)]
                )
            while position < len(group_rows):
                position, filled, self._previous[group], self._ranges[group], step = _replay(
                    rows, records.tuples, group_rows, position, step, self._strict, chain, self._previous[group],
                    self._ranges[group], self._chains, self._at, self._ends, self._batches, filled,
                )  # fmt: skip
                if step == _FOLD_AGAIN:
                    self._fold_again(group, before + position + 1)
                    self._previous[group], step = rows["offset"][group_rows[position]], _EMIT
                elif position < len(group_rows):
                    if filled:
                        yield self._states(rows, filled)
                    else:
                        self._batches = np.empty(2 * len(self._batches), STATE_BATCH)
                    filled = 0
            if not self._strict:
                since = self._since_checkpoint[group]
                self._since_checkpoint[group] = since.take(
                    np.flatnonzero(since.rows["offset"] >= chain["snapshot_offset"])
                )
        if filled:
            yield self._states(rows, filled)

    def _fold_again(self, group: int, count: int) -> None:
        """Fold the first `count` records since the latest checkpoint of a group, along the branch of the last one."""
        records = self._since_checkpoint[group].take(np.arange(count))
        records.rows["group"] = 0
        folded = fold_control(records, 1, strict=False)
        self.groups[group], self._ranges[group] = folded.chains[0], folded.batches

    def _states(self, rows: np.ndarray, count: int) -> RecordStates:
        ends = self._ends[: count + 1].copy()
        chains, batches = clone_rows(self._chains[:count]), clone_rows(self._batches[: ends[-1]])
        return RecordStates(rows[self._at[:count]], chains, ends, batches)


@allocating_kernel
def _replay(
    rows, tuples, group_rows, position, step, strict, chains, previous, state_ranges,
    out_chains, out_at, out_ends, out, filled,
):  # fmt: skip
    """Fold records of one group until all are folded or the output is full.

    Args:
        group_rows: int64, rows of the group's records; `position` is the next of them.
        step: _FOLD the record, or _EMIT the state that `_fold_again` has computed.
        chains: CONTROL_CHAIN of the group, one row, updated.
        previous: offset that the next delta must name.
        state_ranges: STATE_BATCH, the current ranges of the group, canonical.
        out_chains, out_at, out_ends, out: the states: CONTROL_CHAIN, row of the record, ends, STATE_BATCH.
        filled: number of states in the output.
    Returns:
        (position, filled, previous, state_ranges, step), updated; step is _FOLD_AGAIN if the fold is not
        strict and the next delta does not name the record before it.
    """
    chain = chains[0]
    while position < len(group_rows):
        row = rows[group_rows[position]]
        range_end = out_ends[filled]
        if filled == len(out_chains) or range_end + len(state_ranges) + 4 * (
            np.int64(row.tuple_count) + 1
        ) > len(out):
            break
        is_readable = row.fault & UNREADABLE_CONTROL_FAULTS == 0
        if step == _EMIT:
            step = _FOLD
        else:
            is_delta = is_readable and row.kind == ControlKind.DELTA and chain.exists
            if not strict and is_delta and row.back_offset != previous and not is_stale(row, chain):
                return position, filled, previous, state_ranges, _FOLD_AGAIN
            is_folded, previous = follow_link(row, chain, previous, strict)
            if is_folded:
                state_ranges = _with_record(row, tuples, chain, state_ranges)
        if is_readable:
            out_chains[filled] = chain
            out_at[filled] = group_rows[position]
            for number in range(len(state_ranges)):
                out[range_end + number] = state_ranges[number]
            filled += 1
            out_ends[filled] = range_end + len(state_ranges)
        position += 1
    return position, filled, previous, state_ranges, step


@allocating_kernel
def _with_record(row, tuples, chain, state_ranges):
    """The ranges of a group after one more record; updates the start and end of its chain."""
    record = np.zeros(2, CONTROL_RECORD)
    record[0].kind = ControlKind.CHECKPOINT
    record[0].start_offset, record[0].end_offset = chain.start_offset, chain.end_offset
    record[1] = row
    # A checkpoint replaces the state. A delta is folded onto an empty checkpoint, then laid over the current
    # ranges.
    first, size = np.int64(1), np.int64(0)
    if row.kind == ControlKind.DELTA:
        first, size = np.int64(0), len(state_ranges)
    points = boundaries(record, tuples, np.arange(2), first, 2, np.ones(2, np.bool_))
    ranges = len(points) - 1
    start = np.int64(0)
    note = np.zeros(1, FOLD_NOTE)
    writers = np.zeros(2 * ranges + 2, np.int64)
    for number in range(first, 2):
        start = fold_record(record[number], tuples, points, ranges, writers, start, chain, note[0])
    record_ranges = np.empty(ranges + 1, STATE_BATCH)
    record_ranges = record_ranges[
        : emit_ranges(tuples, points, ranges, writers, start, chain, record_ranges, 0)
    ]
    out = np.empty(size + 2 * len(record_ranges), STATE_BATCH)
    end = _overlay(state_ranges[:size], record_ranges, chain.start_offset, out)
    begin = 0
    while begin < end and out[begin].first == chain.start_offset and is_terminal(out[begin].state):
        chain.start_offset = out[begin].last + 1
        begin += 1
    return out[begin:end].copy()


@kernel
def _overlay(state_ranges, record_ranges, start, out):
    """Write the current ranges from `start` on, overlaid by the ranges of a record; returns the end."""
    filled, row = np.int64(0), 0
    for number in range(len(state_ranges)):
        first, last = max(state_ranges[number].first, start), state_ranges[number].last
        while first <= last:
            while row < len(record_ranges) and record_ranges[row].last < first:
                filled = append_range(
                    out,
                    0,
                    filled,
                    record_ranges[row].first,
                    record_ranges[row].last,
                    record_ranges[row].state,
                    record_ranges[row].count,
                )
                row += 1
            end = min(last, record_ranges[row].first - 1) if row < len(record_ranges) else last
            if first <= end:
                filled = append_range(
                    out, 0, filled, first, end, state_ranges[number].state, state_ranges[number].count
                )
            first = record_ranges[row].last + 1 if end < last else last + 1
    for number in range(row, len(record_ranges)):
        filled = append_range(
            out,
            0,
            filled,
            record_ranges[number].first,
            record_ranges[number].last,
            record_ranges[number].state,
            record_ranges[number].count,
        )
    return filled
