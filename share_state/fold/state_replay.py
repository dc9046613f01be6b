"""The dialect of `__share_group_state`: snapshots and updates of Kafka 4.0 and later.

`StateReplay` folds record by record and keeps the ranges of each share-partition canonical in place
(`interval_map`). The cost of a record depends on these ranges, not on the number of records before it.

Source: Kafka ShareCoordinatorShard.replay; KIP-932, ShareSnapshotValue and ShareUpdateValue.
"""

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa

from share_state.fold.context_fold import advance
from share_state.fold.fold_options import FoldOptions, SharePartitionFilter
from share_state.fold.interval_map import count_terminal, ensure_capacity, has_capacity
from share_state.fold.interval_merge import effective_starts, end_offsets
from share_state.fold.losses import Losses, is_suspect
from share_state.fold.outcomes import OUTCOMES
from share_state.fold.record_context import RECORD_CONTEXT
from share_state.fold.state_chains import CHAIN, Chains, group_by_key
from share_state.fold.state_log import decode_log
from share_state.fold.states import RecordStates, RecordView, key_columns, state_table, to_timestamps
from share_state.jit.compile import allocating_kernel
from share_state.jit.intrinsics import copy_rows
from share_state.kafka.buffers import clone_rows
from share_state.kafka.share_partition_keys import KeyTable
from share_state.kafka.state_records import STATE_BATCH, UNREADABLE_FAULTS, Kind, StateRecords
from share_state.sources.as_of import Window
from share_state.sources.log_partition import LogPartition

LAYOUTS = pa.array([None, "4.0", "4.1+"])
"""Name of each Layout."""


def open_state_log(log: LogPartition, window: Window, options: FoldOptions) -> "_StateLogReader":
    """Open a log partition of `__share_group_state` to follow it record by record."""
    return _StateLogReader(log, window, options)


class _StateLogReader:
    """Follows the share-partitions of a log partition record by record.

    The protocol is `dialect.LogReader`.
    """

    place_without_state: str = "deleted"
    epochs: Mapping[str, str] = {
        name: name for name in ("snapshot_epoch", "state_epoch", "leader_epoch", "delivery_complete_count")
    }

    def __init__(self, log: LogPartition, window: Window, options: FoldOptions) -> None:
        self.log = log
        self._window = window
        self._topics = options.topics
        self.state_partition: int | None = log.partition
        self._keys, self._losses = KeyTable(), Losses()
        self._replay = StateReplay()

    def __len__(self) -> int:
        return len(self._keys)

    def may_match(self, key_filter: SharePartitionFilter) -> bool:
        del key_filter
        return True

    def chunks(self) -> Iterator[StateRecords]:
        for records, keys in decode_log(self.log, self._window, self._losses):
            self._keys = keys
            yield records

    def selected(self, key_filter: SharePartitionFilter) -> np.ndarray:
        return key_filter.matches(self._keys, self._topics)

    def key_columns(self, numbers: np.ndarray) -> dict[str, pa.Array]:
        return key_columns(self._keys, numbers, self._topics)

    def view(self, rows: np.ndarray, records: StateRecords) -> RecordView:
        is_readable = rows["fault"] & UNREADABLE_FAULTS == 0
        is_cold = rows["create_time"] != rows["write_time"]
        return RecordView(
            rows["key"], is_readable, is_cold, rows["batches"], rows["batch_count"], records.batches
        )

    def value_columns(self, rows: np.ndarray) -> dict[str, pa.Array]:
        no_value = (
            (rows["kind"] == Kind.TOMBSTONE) | (rows["key"] < 0) | (rows["fault"] & UNREADABLE_FAULTS != 0)
        )
        no_snapshot = no_value | (rows["kind"] != Kind.SNAPSHOT)
        columns = {
            "layout": LAYOUTS.take(pa.array(rows["layout"].copy())),
            "create_time": to_timestamps(np.where(no_snapshot, 0, rows["create_time"])),
            "write_time": to_timestamps(np.where(no_snapshot, 0, rows["write_time"])),
            "state_epoch": pa.array(rows["state_epoch"].copy(), mask=no_snapshot),
        }
        for name in ("snapshot_epoch", "leader_epoch", "start_offset", "delivery_complete_count"):
            columns[name] = pa.array(rows[name].copy(), mask=no_value)
        return columns

    def replay(self, records: StateRecords, selected: np.ndarray) -> Iterator[RecordStates]:
        return self._replay.apply(records, selected)

    def state_table(self, states: RecordStates) -> pa.Table:
        key = self.key_columns(states.rows["key"])
        chains = Chains(states.chains, states.ends, states.batches)
        topic_ends = self._topics.end_of(key["topic_id"], key["partition"])
        return state_table(chains, key, self.log.partition, self._suspect(states), topic_ends)

    def _suspect(self, states: RecordStates) -> np.ndarray:
        lost_by_then = self._losses.last_before(states.rows["offset"])
        return is_suspect(states.chains, lost_by_then, start_is_shown=self.log.shows_its_start)

    def suspect_at_end(self) -> np.ndarray:
        chains = self._replay.chains.chains
        suspect = is_suspect(chains, self._losses.last, start_is_shown=self.log.shows_its_start)
        return chains["exists"] & suspect

    def windows(self, states: RecordStates) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        starts = states.chains["start_offset"].copy()
        lists = states.ends, states.batches
        return (
            states.chains["exists"] & (starts >= 0),
            end_offsets(starts, *lists),
            effective_starts(starts, *lists),
        )


class StateReplay:
    """Folds the records of selected share-partitions one by one, from chunk to chunk.

    Args:
        states: maximum number of states per `RecordStates`.
        ranges: initial capacity for their ranges.
    """

    def __init__(self, *, states: int = 1 << 16, ranges: int = 1 << 20) -> None:
        self.chains = Chains()
        self._chains, self._at = np.empty(states, CHAIN), np.empty(states, np.int64)
        self._ends, self._batches = np.zeros(states + 1, np.int64), np.empty(ranges, STATE_BATCH)

    def apply(self, records: StateRecords, selected: np.ndarray) -> Iterator[RecordStates]:
        """Yield the states after the records of a chunk; exhaust the iterator before the next chunk.

        Args:
            records: the records of the chunk.
            selected: bool, entry n for share-partition number n; records of other share-partitions are
                ignored.
        """
        # The extra entry is for number -1: a record of no share-partition.
        rows = records.rows[np.append(selected, False)[records.rows["key"]]]
        keys = len(selected)
        order, starts = group_by_key(rows["key"].copy(), keys)
        chains, old_ends = self.chains.grown(keys)
        position, buffer = np.array([0, -1, 0, 0]), np.empty(1024, STATE_BATCH)
        while True:
            count, buffer = _replay(
                rows, records.batches, order, starts, chains, old_ends, self.chains.batches, position, buffer,
                self._chains, self._at, self._ends, self._batches,
            )  # fmt: skip
            if count:
                ends = self._ends[: count + 1].copy()
                chains_after = clone_rows(self._chains[:count])
                batches_after = clone_rows(self._batches[: ends[-1]])
                yield RecordStates(rows[self._at[:count]], chains_after, ends, batches_after)
            elif position[0] < keys:
                self._batches = np.empty(2 * len(self._batches), STATE_BATCH)
            if position[0] == keys:
                break
        self.chains.apply(StateRecords(rows, records.batches), keys)


@allocating_kernel
def _replay(
    rows,
    batches,
    order,
    starts,
    chains,
    old_ends,
    old_batches,
    position,
    buffer,
    out_chains,
    out_at,
    out_ends,
    out,
):
    """Fold records of a chunk until all are folded or the output is full.

    Args:
        old_ends, old_batches: int64 and STATE_BATCH, the ranges of each share-partition before the chunk.
        position: int64, where to continue, updated: share-partition, place in `order` (-1: its first), number
            of its ranges and of its terminal offsets.
        buffer: holds the ranges of the share-partition (`interval_map`).
        out_chains, out_at, out_ends, out: the states: CHAIN, row of the record, ends, STATE_BATCH.
    Returns:
        (number of states, the buffer).
    """
    contexts, outcomes = np.empty(1, RECORD_CONTEXT), np.zeros(1, OUTCOMES)
    key = position[0]
    number = position[1]
    size = position[2]
    finished = position[3]
    filled, range_end = np.int64(0), np.int64(0)
    is_full = False
    while key < len(chains) and not is_full:
        if number < 0:
            number = starts[key]
            size = old_ends[key + 1] - old_ends[key]
            if starts[key] < starts[key + 1]:
                buffer = ensure_capacity(buffer, 0, size)
                copy_rows(old_batches, old_ends[key], buffer, 0, size)
                finished = count_terminal(buffer, 0, size, chains[key].start_offset)
        while number < starts[key + 1]:
            row = rows[order[number]]
            count = np.int64(row.batch_count)
            # A wide range may fill the gaps between all others.
            if filled == len(out_chains) or range_end + 2 * (size + count + 1) > len(out):
                is_full = True
                break
            if not has_capacity(buffer, size, count):
                buffer = ensure_capacity(buffer, size, count)
            size, finished = advance(
                row, batches, chains[key], buffer, size, finished, contexts[0], outcomes[0]
            )
            if not row.fault & UNREADABLE_FAULTS:
                out_chains[filled] = chains[key]
                out_at[filled] = order[number]
                copy_rows(buffer, 0, out, range_end, size)
                range_end += size
                filled += 1
                out_ends[filled] = range_end
            number += 1
        if not is_full:
            key += 1
            number = np.int64(-1)
    position[0] = key
    position[1] = number
    position[2] = size
    position[3] = finished
    return filled, buffer
