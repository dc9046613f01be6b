"""Folded chains as the tables `share_partition_state` and `in_flight`.

Folded control records as the tables `share_partition_state` and `in_flight`.

How far share-partitions are behind.
"""

from enum import IntEnum
from typing import Any

import numpy as np
import pyarrow as pa

from share_state.fold.chains import NOWHERE, Chains
from share_state.fold.control_chains import ControlChains
from share_state.fold.interval_merge import (
    ACKNOWLEDGED,
    ARCHIVED,
    AVAILABLE,
    STATE_NAMES,
    TILE,
    effective_starts,
    end_offsets,
    tiles,
)
from share_state.fold.log_stats import Pieces, in_one_piece, packed
from share_state.kafka.share_partition_keys import KeyTable
from share_state.schema.declarations import table_schema
from share_state.sources.discovery import LogPartition
from share_state.sources.topics import Topics

SHARE_GROUP_STATE = "share_group_state"

KEY = ("dialect", "group_id", "topic_id", "topic", "partition")
"""The columns that name a share-partition."""

_YEAR_1, _YEAR_10000 = -62_135_596_800_000, 253_402_300_800_000


def live(chains: Chains) -> Chains:
    """Only the share-partitions that have a state, in the same order."""
    exists = chains.chains["exists"]
    if exists.all():
        return chains
    sizes = np.diff(chains.ends)[exists]
    # A share-partition without state has no batches, so the batches of the others are whole.
    return Chains(
        chains.chains[exists], np.concatenate(([0], np.cumsum(sizes))), chains.batches, chains.last_snapshot_record
    )


def part(chains: Chains, begin: int, end: int) -> Chains:
    """Rows `begin` to `end` of live chains."""
    ends = chains.ends[begin : end + 1]
    return Chains(chains.chains[begin:end], ends - ends[0], chains.batches[ends[0] : ends[-1]])


def key_columns(keys: KeyTable, numbers: np.ndarray, topics: Topics) -> dict[str, pa.Array]:
    """The key columns of share-partitions.

    Args:
        keys: the log's share-partitions.
        numbers: which of them, in order.
        topics: the names that are known.
    """
    groups, ids, partitions = (column.take(pa.array(numbers)) for column in keys.columns())
    return {
        "dialect": pa.repeat(SHARE_GROUP_STATE, len(numbers)),
        "group_id": groups,
        "topic_id": ids,
        "topic": topics.name_of(ids),
        "partition": partitions,
    }


def state_table(
    chains: Chains,
    key: dict[str, pa.Array],
    state_partition: int | None,
    suspect: np.ndarray,
    topic_ends: pa.Array,
    *,
    placed: bool = True,
) -> pa.Table:
    """The table `share_partition_state`.

    Args:
        chains: live chains.
        key: their key columns.
        state_partition: the log partition they come from, None where unknown.
        suspect: bool, one a chain: the log cannot be trusted since its latest snapshot.
        topic_ends: int64, the end offset of each one's topic-partition, null where it is not known.
        placed: whether the offsets of the records are known; their columns are null where they are not.
    Returns:
        Columns of schemas/tables/share_partition_state.yaml.
    """
    rows, count = chains.chains, len(chains.chains)
    start = rows["start_offset"].copy()
    ends = end_offsets(start, chains.ends, chains.batches)
    columns = key | {
        "state_partition": pa.repeat(pa.scalar(state_partition, pa.int32()), count),
        "start_offset": pa.array(start),
        "effective_start_offset": pa.array(effective_starts(start, chains.ends, chains.batches)),
        "end_offset": pa.array(ends, mask=start < 0),
        "snapshot_epoch": pa.array(rows["snapshot_epoch"].copy()),
        "state_epoch": pa.array(rows["state_epoch"].copy()),
        "leader_epoch": pa.array(rows["leader_epoch"].copy()),
        "delivery_complete_count": pa.array(rows["delivery_complete_count"].copy()),
        "state_batches": batch_lists(chains.ends, chains.batches),
        "create_time": times(rows["create_time"]),
        "write_time": times(rows["write_time"]),
        "max_leader_epoch": pa.array(rows["max_leader_epoch"].copy()),
        "max_state_epoch": pa.array(rows["max_state_epoch"].copy(), mask=~rows["has_max_state_epoch"]),
        "updates_since_snapshot": pa.array(rows["updates"].astype(np.int32)),
        "snapshot_offset": pa.array(
            rows["snapshot_offset"].copy(), mask=(rows["snapshot_offset"] == NOWHERE) | (not placed)
        ),
        "last_offset": pa.array(rows["last_offset"].copy(), mask=np.full(count, not placed)),
        "suspect": pa.array(suspect),
        "topic_end_offset": topic_ends,
    }
    return declared("share_partition_state", columns)


def states_in_pieces(
    chains: Chains,
    key: dict[str, pa.Array],
    state_partition: int | None,
    suspect: np.ndarray,
    topic_ends: pa.Array,
    *,
    placed: bool = True,
) -> Pieces:
    """The table of `state_table` in pieces; the arguments are the same, texts of `key` maybe packed."""

    def made(begin: int, end: int) -> pa.Table:
        own, ends = part(chains, begin, end), topic_ends[begin:end]
        return state_table(own, _sliced(key, begin, end), state_partition, suspect[begin:end], ends, placed=placed)

    return Pieces("share_partition_state", rows_before(chains), made)


def in_flight_in_pieces(chains: Chains, key: dict[str, pa.Array]) -> Pieces:
    """The table `in_flight`: the rows of a share-partition tile its [start_offset, end_offset) exactly."""

    def made(begin: int, end: int) -> pa.Table:
        own = part(chains, begin, end)
        return flights(_sliced(key, begin, end), *tiles(own.chains["start_offset"].copy(), own.ends, own.batches))

    return Pieces("in_flight", rows_before(chains), made)


def _sliced(key: dict[str, pa.Array], begin: int, end: int) -> dict[str, pa.Array]:
    return {name: column[begin:end] for name, column in key.items()}


def rows_before(chains: Chains) -> np.ndarray:
    """What Pieces goes by: about how many rows and ranges there are before each share-partition, and in all."""
    return chains.ends + np.arange(len(chains.ends))


def flights(key: dict[str, pa.Array], tile_ends: np.ndarray, rows: np.ndarray) -> pa.Table:
    """Tiles as the table `in_flight`.

    Args:
        key: key columns, one row a share-partition.
        tile_ends: int64; the tiles of share-partition n are rows tile_ends[n] to tile_ends[n + 1].
        rows: TILE rows.
    """
    owner = pa.array(np.repeat(np.arange(len(tile_ends) - 1), np.diff(tile_ends)))
    state = rows["state"].copy()
    known = [STATE_NAMES.get(code, f"UNKNOWN({code})") for code in range(-128, 128)]
    columns = {name: column.take(owner) for name, column in key.items()} | {
        "first_offset": pa.array(rows["first"].copy()),
        "last_offset": pa.array(rows["last"].copy()),
        "record_count": pa.array(rows["last"] - rows["first"] + 1),
        "delivery_state": pa.array(state),
        "state": pa.DictionaryArray.from_arrays(pa.array(state.astype(np.int16) + 128), known),
        "delivery_count": pa.array(rows["count"].copy()),
        "terminal": pa.array((state == ACKNOWLEDGED) | (state == ARCHIVED)),
        "gap": pa.array(rows["gap"].copy()),
    }
    return declared("in_flight", columns)


def batch_lists(ends: np.ndarray, rows: np.ndarray) -> pa.ListArray:
    """STATE_BATCH rows as lists: list n holds rows ends[n] to ends[n + 1]."""
    structs = pa.StructArray.from_arrays(
        [pa.array(rows[name].copy()) for name in ("first", "last", "state", "count")],
        names=["first_offset", "last_offset", "delivery_state", "delivery_count"],
    )
    return pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), structs)


def times(milliseconds: np.ndarray) -> pa.Array:
    """Milliseconds as timestamps; 0 and what lies outside the years 1 to 9999 are null."""
    unknown = (milliseconds == 0) | (milliseconds < _YEAR_1) | (milliseconds >= _YEAR_10000)
    return pa.array(np.where(unknown, 0, milliseconds) * 1000, pa.int64(), mask=unknown).cast(pa.timestamp("us", "UTC"))


def declared(table: str, columns: dict[str, pa.Array]) -> pa.Table:
    """Columns in the order and the types that the declaration of a table gives; null those that are not given.

    What is dictionary-encoded stays so.
    """
    schema, count = table_schema(table), len(next(iter(columns.values())))
    arrays = (_typed(columns[f.name], f.type) if f.name in columns else pa.nulls(count, f.type) for f in schema)
    return pa.table(list(arrays), names=schema.names)


def _typed(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    return column if pa.types.is_dictionary(column.type) else column.cast(wanted)


def fault_names(faults: np.ndarray, bits: type[IntEnum]) -> pa.Array:
    """The names of the fault bits of each record, comma-separated; null where there is none."""
    distinct, place = np.unique(faults, return_inverse=True)
    names = [",".join(bit.name for bit in bits if fault & bit) or None for fault in distinct.tolist()]
    return pa.array(names, pa.string()).take(pa.array(place))


CONTROL_RECORDS = "control_records"


def control_key_columns(groups: pa.Array, numbers: np.ndarray, log: LogPartition) -> dict[str, pa.Array]:
    """The key columns of share-partitions of one topic-partition.

    Args:
        groups: ids of the groups.
        numbers: which of them, in order.
        log: the topic-partition.
    """
    count = len(numbers)
    return {
        "dialect": pa.repeat(CONTROL_RECORDS, count),
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


def lags(end_offsets: Any, start_offsets: Any, complete_counts: Any) -> pa.Array:
    """Records behind, as Kafka computes it: end offset - start offset - delivery complete count.

    Args:
        end_offsets: int64 column, the next offset to be written to each topic-partition; null where unknown.
        start_offsets: int64 column, SPSO; -1 where it is not initialised.
        complete_counts: int32 column; -1 where unknown.
    Returns:
        int64, null where one of them is unknown or they contradict each other.
    Source: Kafka GroupCoordinatorService.computeShareGroupLagAndBuildResponse.
    """
    ends, starts, complete = (_numbers(column) for column in (end_offsets, start_offsets, complete_counts))
    behind = ends - starts - complete
    known = (ends >= 0) & (starts >= 0) & (complete >= 0) & (behind >= 0)
    return pa.array(behind, mask=~known)


def _numbers(column: Any) -> np.ndarray:
    """int64, -1 for null: none of the three is negative where it is known."""
    return column.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
