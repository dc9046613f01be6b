"""Folded control records as the tables `share_partition_state` and `in_flight`."""

import numpy as np
import pyarrow as pa

from share_state.fold.control_chains import ControlChains
from share_state.fold.pieces import Pieces, in_one_piece, packed
from share_state.fold.ranges import AVAILABLE, TILE, tiles
from share_state.fold.states import batch_lists, declared, flights
from share_state.wire.log_folder import LogPartition

DIALECT = "control_records"


def control_key_columns(groups: pa.Array, numbers: np.ndarray, log: LogPartition) -> dict[str, pa.Array]:
    """The key columns of share-partitions of one topic-partition.

    Args:
        groups: ids of the groups.
        numbers: which of them, in order.
        log: the topic-partition.
    """
    count = len(numbers)
    return {
        "dialect": pa.repeat(DIALECT, count),
        "group_id": groups.take(pa.array(numbers)),
        "topic_id": pa.nulls(count, pa.string()),
        "topic": pa.repeat(log.topic, count),
        "partition": pa.repeat(pa.scalar(log.partition, pa.int32()), count),
    }


def control_state_table(
    chains: ControlChains,
    key: dict[str, pa.Array],
    effective: np.ndarray,
    suspect: np.ndarray,
    next_offset: int | np.ndarray,
) -> pa.Table:
    """The table `share_partition_state` of the groups that have a checkpoint.

    Args:
        chains: every group of the topic-partition.
        key: key columns of those with a checkpoint.
        effective: int64, one a group: where a leader that loads the state starts.
        suspect: bool, one a group.
        next_offset: end of the topic-partition's log; one number, or one a share-partition with a checkpoint.
    Returns:
        Columns of schemas/tables/share_partition_state.yaml; what the draft does not record is null (-1 in
        delivery_complete_count).
    """
    exists = chains.chains["exists"]
    rows, count = chains.chains[exists], int(exists.sum())
    start = rows["start_offset"].copy()
    columns = key | {
        "start_offset": pa.array(start),
        "effective_start_offset": pa.array(effective[exists]),
        "end_offset": pa.array(rows["end_offset"].copy(), mask=start < 0),
        "snapshot_epoch": pa.array(rows["epoch"].copy()),
        "delivery_complete_count": pa.array(np.full(count, -1)),
        "state_batches": batch_lists(_ends_of_live(chains), chains.batches),
        "updates_since_snapshot": pa.array(rows["deltas"].astype(np.int32)),
        "snapshot_offset": pa.array(rows["snapshot_offset"].copy()),
        "last_offset": pa.array(rows["last_offset"].copy()),
        "suspect": pa.array(suspect[exists]),
        "topic_end_offset": pa.array(np.full(count, next_offset)),
    }
    for name in ("state_partition", "state_epoch", "leader_epoch", "max_leader_epoch", "max_state_epoch"):
        columns[name] = pa.nulls(count, pa.int32())
    for name in ("create_time", "write_time"):
        columns[name] = pa.nulls(count, pa.timestamp("us", "UTC"))
    return declared("share_partition_state", columns)


def control_in_flight(chains: ControlChains, key: dict[str, pa.Array]) -> Pieces:
    """The table `in_flight` of the groups that have a checkpoint: each one's rows tile [start_offset, end_offset)."""
    rows = chains.chains[chains.chains["exists"]]
    return in_one_piece("in_flight", flights(packed(key), *_tiled(rows, _ends_of_live(chains), chains.batches)))


def _ends_of_live(chains: ControlChains) -> np.ndarray:
    """A group without a checkpoint has no ranges, so those of the others lie side by side."""
    return np.concatenate((chains.ends[:1], chains.ends[1:][chains.chains["exists"]]))


def _tiled(rows: np.ndarray, ends: np.ndarray, batches: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The tiles of each share-partition; a checkpoint's end may lie behind its last range, which leaves a gap there."""
    start = rows["start_offset"].copy()
    tile_ends, found = tiles(start, ends, batches)
    covered = start.copy()
    some = np.diff(tile_ends) > 0
    covered[some] = found["last"][tile_ends[1:][some] - 1] + 1
    open_end = np.flatnonzero((start >= 0) & (rows["end_offset"] > covered))
    if not len(open_end):
        return tile_ends, found
    tails = np.zeros(len(open_end), TILE)
    tails["first"], tails["last"] = covered[open_end], rows["end_offset"][open_end] - 1
    tails["state"], tails["gap"] = AVAILABLE, True
    added = np.zeros(len(tile_ends), np.int64)
    np.add.at(added, open_end + 1, 1)
    return tile_ends + np.cumsum(added), np.insert(found, tile_ends[open_end + 1], tails)
