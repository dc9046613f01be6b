"""Builds the tables `share_partition_state` and `in_flight` from folded states of both dialects."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.fold.interval_merge import TILE, effective_starts, end_offsets, tiles
from share_state.fold.log_stats import Pieces, dictionary_encoded
from share_state.fold.state_chains import NO_OFFSET, Chains
from share_state.kafka.delivery_states import AVAILABLE, are_terminal, state_name
from share_state.kafka.primitives import partition_for
from share_state.kafka.share_partition_keys import KeyTable
from share_state.kafka.state_records import STATE_BATCH
from share_state.schema.declarations import table_schema
from share_state.sources.log_partition import LogPartition
from share_state.sources.topics import Topics

SHARE_GROUP_STATE = "share_group_state"

KEY = ("dialect", "group_id", "topic_id", "topic", "partition")
"""The columns that identify a share-partition."""


def key_texts(rows: pa.Table, *more: str) -> pa.ChunkedArray:
    """Join group id, topic id, partition and `more` columns of each row to one text.

    Null for control records.
    """
    texts = [rows[name].cast(pa.string()) for name in ("group_id", "topic_id", "partition", *more)]
    return pc.call_function("binary_join_element_wise", [*texts, pa.scalar(":")])


def row_texts(columns: Iterable[pa.ChunkedArray]) -> pa.Array:
    """Join columns to one text per row, in which null is a value like any other."""
    texts = [pc.fill_null(column.cast(pa.string()), "\1") for column in columns]
    return pc.call_function("binary_join_element_wise", [*texts, pa.scalar("\0")]).combine_chunks()


def split_keys(states: pa.Table, state_partitions: int | None, *, is_inferred: bool = False) -> pa.Table:
    """Find the share-partitions that have state in several logs.

    Args:
        states: at least KEY, `state_partition` and `log` (name of the log) of every live share-partition.
        state_partitions: number of partitions of the state topic; None if unknown.
        is_inferred: whether it is only that of the logs in the input.
    Returns:
        Their rows with `key` (`key_texts`), `owner` (the state partition that the broker loads; null if
        unknown, or if the number of any of the logs is), `supposed` (what `owner` supposes, as the end of a
        sentence) and `logs` (state partitions, or names of logs without a number, as text).
    """
    rows = states.filter(pc.field("dialect") == SHARE_GROUP_STATE)
    rows = rows.append_column("key", key_texts(rows))
    several = rows.group_by("key").aggregate([([], "count_all")]).filter(pc.field("count_all") > 1)
    rows = rows.filter(pc.is_in(rows["key"], several["key"].combine_chunks()))
    rows = rows.sort_by([("key", "ascending"), ("state_partition", "ascending"), ("log", "ascending")])
    keys = rows["key"].to_pylist()
    numbers = dict[str, list[int | None]]()
    names = dict[str, list[str]]()
    for key, number, log in zip(
        keys, *(rows[name].to_pylist() for name in ("state_partition", "log")), strict=True
    ):
        numbers.setdefault(key, []).append(number)
        names.setdefault(key, []).append(log if number is None else str(number))
    numbered = [key for key in numbers if None not in numbers[key]]
    owners = {key: partition_for(key, state_partitions) for key in numbered} if state_partitions else {}
    owner = [owners[key] if owners.get(key, -1) in numbers[key] else None for key in keys]
    rows = rows.append_column("owner", pa.array(owner, pa.int32()))
    supposed = f", as the input has {state_partitions} state partitions" if is_inferred else ""
    texts = [None if number is None else supposed for number in owner]
    rows = rows.append_column("supposed", pa.array(texts, pa.string()))
    return rows.append_column("logs", pa.array([", ".join(names[key]) for key in keys], pa.string()))


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR_1, _YEAR_10000 = -62_135_596_800_000, 253_402_300_800_000


def existing_chains(chains: Chains) -> Chains:
    """The share-partitions that have a state, in the same order."""
    is_live = chains.chains["exists"]
    if is_live.all():
        return chains
    sizes = np.diff(chains.ends)[is_live]
    # The others have no ranges, so the ranges that remain are adjacent.
    return Chains(
        chains.chains[is_live],
        np.concatenate(([0], np.cumsum(sizes))),
        chains.batches,
        chains.last_snapshot_record,
    )


def slice_chains(chains: Chains, begin: int, end: int) -> Chains:
    """Share-partitions `begin` to `end` of live chains."""
    ends = chains.ends[begin : end + 1]
    return Chains(chains.chains[begin:end], ends - ends[0], chains.batches[ends[0] : ends[-1]])


class RecordView(NamedTuple):
    """Fields of records that every dialect has; one entry per record.

    Attributes:
        numbers: share-partition numbers, -1 for none.
        is_readable: bool, whether it can be folded.
        repeats_state: bool, whether it only repeats the state before it.
        range_begins, range_counts: int; the ranges of record n are range_counts[n] rows of `ranges` from
            range_begins[n] on.
        ranges: STATE_BATCH rows of the chunk.
    """

    numbers: np.ndarray
    is_readable: np.ndarray
    repeats_state: np.ndarray
    range_begins: np.ndarray
    range_counts: np.ndarray
    ranges: np.ndarray


@dataclass(frozen=True, slots=True)
class RecordStates:
    """States of share-partitions, each after one record.

    Attributes:
        rows: the records, STATE_RECORD or CONTROL_RECORD; the records of a share-partition are adjacent, in
            log order.
        chains: CHAIN or CONTROL_CHAIN after each record; `exists` is false if there is no state.
        ends: int64; the ranges of state n are rows ends[n] to ends[n + 1] of `batches`.
        batches: STATE_BATCH rows, canonical within each state.
    """

    rows: np.ndarray
    chains: np.ndarray
    ends: np.ndarray
    batches: np.ndarray

    def slice(self, begin: int, end: int) -> "RecordStates":
        """States `begin` to `end`; their `ends` still point into all batches."""
        return RecordStates(
            self.rows[begin:end], self.chains[begin:end], self.ends[begin : end + 1], self.batches
        )

    def existing(self) -> "RecordStates":
        """The states that exist."""
        exists = self.chains["exists"]
        if exists.all():
            return self
        # The others have no ranges, so the ranges that remain are adjacent.
        ends = np.concatenate((self.ends[:1], self.ends[1:][exists]))
        return RecordStates(self.rows[exists], self.chains[exists], ends, self.batches)


def key_columns(keys: KeyTable, numbers: np.ndarray, topics: Topics) -> dict[str, pa.Array]:
    """The key columns of share-partitions of a log by number; null for -1."""
    columns = keys.columns()
    if len(numbers) != len(keys) or (numbers != np.arange(len(keys))).any():
        columns = tuple(column.take(_places(numbers)) for column in columns)
    groups, ids, partitions = columns
    return {
        "dialect": pa.repeat(SHARE_GROUP_STATE, len(numbers)),
        "group_id": groups,
        "topic_id": ids,
        "topic": topics.name_of(ids),
        "partition": partitions,
    }


def _places(numbers: np.ndarray) -> pa.Array:
    unknown = numbers < 0
    return pa.array(numbers, mask=unknown) if unknown.any() else pa.array(numbers)


def state_table(
    chains: Chains,
    key: dict[str, pa.Array],
    state_partition: int | pa.Array | None,
    suspect: np.ndarray,
    topic_ends: pa.Array,
    *,
    has_offsets: bool = True,
    with_batches: bool = True,
) -> pa.Table:
    """Build the table `share_partition_state` of live chains.

    Args:
        chains: the live chains.
        key: their key columns.
        state_partition: number of the log partition, or of that of each chain.
        suspect: bool, one per chain: whether records since its latest snapshot are missing or unreadable.
        topic_ends: int64, end offset of each topic-partition, null if unknown.
        has_offsets: whether record offsets are known; if not, their columns are null.
        with_batches: whether state_batches is read; if not, it is null.
    """
    rows, count = chains.chains, len(chains.chains)
    start = rows["start_offset"].copy()
    ends = end_offsets(start, chains.ends, chains.batches)
    of_chain = ("start_offset", "snapshot_epoch", "state_epoch", "leader_epoch", "delivery_complete_count",
                "max_leader_epoch")  # fmt: skip
    columns = key | {name: pa.array(rows[name].copy()) for name in of_chain}
    if not isinstance(state_partition, pa.Array):
        state_partition = pa.repeat(pa.scalar(state_partition, pa.int32()), count)
    columns |= {
        "state_partition": state_partition,
        "effective_start_offset": pa.array(effective_starts(start, chains.ends, chains.batches)),
        "end_offset": pa.array(ends, mask=start < 0),
        "state_batches": batch_lists(chains.ends, chains.batches) if with_batches else pa.nulls(count),
        "create_time": to_timestamps(rows["create_time"]),
        "write_time": to_timestamps(rows["write_time"]),
        "max_state_epoch": pa.array(rows["max_state_epoch"].copy(), mask=~rows["has_max_state_epoch"]),
        "updates_since_snapshot": pa.array(rows["updates"].astype(np.int32)),
        "snapshot_offset": pa.array(
            rows["snapshot_offset"].copy(), mask=(rows["snapshot_offset"] == NO_OFFSET) | (not has_offsets)
        ),
        "last_offset": pa.array(rows["last_offset"].copy(), mask=np.full(count, not has_offsets)),
        "suspect": pa.array(suspect),
        "topic_end_offset": topic_ends,
    }
    return declared_table("share_partition_state", columns)


def table_in_pieces(
    table: str,
    chains: Chains,
    key: Callable[[], Mapping[str, pa.Array]],
    build: Callable[[Chains, dict[str, pa.Array], slice], pa.Table],
) -> Pieces:
    """A table of live chains in pieces.

    Args:
        table: name of the table.
        chains: the live chains.
        key: returns their key columns, which only pieces need; texts may be dictionary-encoded.
        build: returns the rows for the chains of a piece, their key columns, and their positions in `chains`.
    """

    def build_piece(begin: int, end: int) -> pa.Table:
        piece_key = {name: column[begin:end] for name, column in key().items()}
        return build(slice_chains(chains, begin, end), piece_key, slice(begin, end))

    return Pieces(table, sizes_before(chains), build_piece)


def in_large_pieces(
    pieces: Iterable[pa.Table], least: int, measure: Literal["num_rows", "nbytes"] = "num_rows"
) -> Iterator[pa.Table]:
    """Join small pieces: each joined piece but the last has at least so many rows, or bytes."""
    waiting, size = list[pa.Table](), 0
    for piece in pieces:
        waiting.append(piece)
        size += getattr(piece, measure)
        if size >= least:
            yield pa.concat_tables(waiting)
            waiting, size = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


def in_flight_in_pieces(chains: Chains, key: Callable[[], Mapping[str, pa.Array]]) -> Pieces:
    """The table `in_flight` in pieces; arguments as for `table_in_pieces`.

    Rows of a share-partition cover [start_offset, end_offset) without overlap.
    """
    return table_in_pieces(
        "in_flight", chains, key, lambda piece, piece_key, _: in_flight_table(piece_key, *window_tiles(piece))
    )


def sizes_before(chains: Chains) -> np.ndarray:
    """`Pieces.size` of chains."""
    return chains.ends + np.arange(len(chains.ends))


def in_flight_table(key: dict[str, pa.Array], tile_ends: np.ndarray, rows: np.ndarray) -> pa.Table:
    """Build the table `in_flight` from key columns and the result of `tiles`."""
    owner = pa.array(np.repeat(np.arange(len(tile_ends) - 1), np.diff(tile_ends)))
    state = rows["state"].copy()
    columns = {name: column.take(owner) for name, column in key.items()} | {
        "first_offset": pa.array(rows["first"].copy()),
        "last_offset": pa.array(rows["last"].copy()),
        "record_count": pa.array(rows["last"] - rows["first"] + 1),
        "delivery_state": pa.array(state),
        "state": state_names(state),
        "delivery_count": pa.array(rows["count"].copy()),
        "terminal": pa.array(are_terminal(state)),
        "gap": pa.array(rows["gap"].copy()),
    }
    return declared_table("in_flight", columns)


def state_names(states: np.ndarray) -> pa.DictionaryArray:
    """The names of delivery states, by their codes (int8)."""
    names = list(map(state_name, range(-128, 128)))
    return pa.DictionaryArray.from_arrays(pa.array(states.astype(np.int16) + 128), names)


_OFFSETS_OF_STATE = np.dtype([("start_offset", "i8"), ("end_offset", "i8")])


def in_flight_of(states: pa.Table) -> pa.Table:
    """The rows of `in_flight` for rows of `share_partition_state`."""
    lists = states["state_batches"].combine_chunks()
    chains = np.zeros(len(states), _OFFSETS_OF_STATE)
    for name in chains.dtype.names or ():
        chains[name] = pc.fill_null(states[name], -1).to_numpy()
    ends = lists.offsets.to_numpy().astype(np.int64)
    batches = np.zeros(int(ends[-1] - ends[0]), STATE_BATCH)
    read_batch_lists(lists, batches)
    key = dictionary_encoded({name: states[name].combine_chunks() for name in KEY})
    return in_flight_table(key, *window_tiles(Chains(chains, ends - ends[0], batches)))


RANGE_COLUMNS = {
    "first": "first_offset",
    "last": "last_offset",
    "state": "delivery_state",
    "count": "delivery_count",
}
"""Field of STATE_BATCH -> field of the column `state_batches`."""


def batch_lists(ends: np.ndarray, rows: np.ndarray) -> pa.ListArray:
    """Convert STATE_BATCH rows to lists: list n has rows ends[n] to ends[n + 1]."""
    structs = pa.StructArray.from_arrays(
        [pa.array(rows[name].copy()) for name in RANGE_COLUMNS], names=list(RANGE_COLUMNS.values())
    )
    return pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), structs)


def read_batch_lists(lists: pa.ListArray, rows: np.ndarray) -> None:
    """Write the ranges of all lists to STATE_BATCH rows, as many as there are."""
    ranges = lists.flatten()
    for name, column in RANGE_COLUMNS.items():
        rows[name] = ranges.field(column).to_numpy(zero_copy_only=False)


def to_timestamps(milliseconds: np.ndarray) -> pa.Array:
    """Convert milliseconds to timestamps; 0 and values outside the years 1 to 9999 become null."""
    unknown = (milliseconds == 0) | (milliseconds < _YEAR_1) | (milliseconds >= _YEAR_10000)
    return pa.array(np.where(unknown, 0, milliseconds) * 1000, pa.int64(), mask=unknown).cast(
        pa.timestamp("us", "UTC")
    )


def to_datetime(milliseconds: int) -> datetime | None:
    """Convert milliseconds since 1970; None for 0, negative values and years after 9999."""
    return _EPOCH + timedelta(milliseconds=milliseconds) if 0 < milliseconds < _YEAR_10000 else None


def declared_table(table: str, columns: dict[str, pa.Array]) -> pa.Table:
    """Build a table with the declared columns and types; missing columns become null.

    Dictionary-encoded columns stay encoded.
    """
    schema, count = table_schema(table), len(next(iter(columns.values())))
    every = {name: columns[name] if name in columns else pa.nulls(count) for name in schema.names}
    return pa.table({
        name: column if pa.types.is_dictionary(column.type) else as_type(column, schema.field(name).type)
        for name, column in every.items()
    })  # fmt: skip


def as_type(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column in a type; a cast to its own type would cost as much as any other."""
    return column if column.type == kind else column.cast(kind)


def fault_names(faults: np.ndarray, bits: type[IntEnum]) -> pa.Array:
    """The names of the fault bits of each record, comma-separated; null for none."""
    distinct, place = np.unique(faults, return_inverse=True)
    names = [",".join(bit.name for bit in bits if fault & bit) or None for fault in distinct.tolist()]
    return pa.array(names, pa.string()).take(pa.array(place))


CONTROL_RECORDS = "control_records"


def control_key_columns(groups: pa.Array, numbers: np.ndarray, log: LogPartition) -> dict[str, pa.Array]:
    """The key columns of share-partitions of one topic-partition, by numbers of `groups`.

    Null group for -1.
    """
    count = len(numbers)
    return {
        "dialect": pa.repeat(CONTROL_RECORDS, count),
        "group_id": groups.take(_places(numbers)),
        "topic_id": pa.nulls(count, pa.string()),
        "topic": pa.repeat(log.topic, count),
        "partition": pa.repeat(pa.scalar(log.partition, pa.int32()), count),
    }


def control_state_table(
    chains: Chains,
    key: dict[str, pa.Array],
    effective: np.ndarray,
    suspect: np.ndarray,
    topic_ends: pa.Array,
    redundant_retained: pa.Array | None = None,
    unfinished: pa.Array | None = None,
) -> pa.Table:
    """Build the table `share_partition_state` of groups that have a checkpoint.

    Fields that the draft lacks are null (-1 for delivery_complete_count).

    Args:
        chains: chains of these groups.
        key: their key columns.
        effective: int64, where a leader that loads the state starts.
        suspect: bool, one per group.
        topic_ends: int64, end offset of the topic-partition for each group, null if unknown.
        redundant_retained: int64, the column of that name.
        unfinished: int64, the column unfinished_offsets.
    """
    rows, count = chains.chains, len(chains.chains)
    start, delivered = rows["start_offset"].copy(), rows["delivered"]
    columns = key | {
        name: pa.array(rows[name].copy()) for name in ("start_offset", "snapshot_offset", "last_offset")
    }
    columns |= {
        "effective_start_offset": pa.array(effective),
        "end_offset": pa.array(rows["end_offset"].copy(), mask=start < 0),
        "snapshot_epoch": pa.array(rows["epoch"].copy()),
        "delivery_complete_count": pa.array(np.full(count, -1)),
        "state_batches": batch_lists(chains.ends, chains.batches),
        "updates_since_snapshot": pa.array(rows["deltas"].astype(np.int32)),
        "suspect": pa.array(suspect),
        "topic_end_offset": topic_ends,
        "deltas_per_1000_offsets": pa.array(
            1000 * rows["deltas"] / np.maximum(delivered, 1), mask=delivered == 0
        ),
    }
    if redundant_retained is not None:
        columns["redundant_retained"] = redundant_retained
    if unfinished is not None:
        columns["unfinished_offsets"] = unfinished
    return declared_table("share_partition_state", columns)


def window_ends(chains: Chains) -> np.ndarray:
    """SPEO of each share-partition: the recorded one (control records), otherwise the offset after its last range."""
    rows = chains.chains
    if "end_offset" in (rows.dtype.names or ()):
        return rows["end_offset"].copy()
    return end_offsets(rows["start_offset"].copy(), chains.ends, chains.batches)


def window_tiles(chains: Chains) -> tuple[np.ndarray, np.ndarray]:
    """The result of `tiles`, with a gap after the last range of a share-partition if a recorded SPEO is later."""
    start = chains.chains["start_offset"].copy()
    tile_ends, rows = tiles(start, chains.ends, chains.batches)
    if "end_offset" not in (chains.chains.dtype.names or ()):
        return tile_ends, rows
    ends = window_ends(chains)
    covered = start.copy()
    has_tiles = np.diff(tile_ends) > 0
    covered[has_tiles] = rows["last"][tile_ends[1:][has_tiles] - 1] + 1
    open_end = np.flatnonzero((start >= 0) & (ends > covered))
    if not len(open_end):
        return tile_ends, rows
    tails = np.zeros(len(open_end), TILE)
    tails["first"], tails["last"] = covered[open_end], ends[open_end] - 1
    tails["state"], tails["gap"] = AVAILABLE, True
    added = np.zeros(len(tile_ends), np.int64)
    np.add.at(added, open_end + 1, 1)
    return tile_ends + np.cumsum(added), np.insert(rows, tile_ends[open_end + 1], tails)


def compute_lags(end_offsets: Any, start_offsets: Any, complete_counts: Any) -> pa.Array:
    """Lag as Kafka computes it: end offset - start offset - delivery complete count.

    Returns:
        int64, null if one of them is unknown (null or -1) or the result is negative.
    Source: Kafka GroupCoordinatorService.computeShareGroupLagAndBuildResponse.
    """
    ends, starts, complete = (_numbers(column) for column in (end_offsets, start_offsets, complete_counts))
    behind = ends - starts - complete
    known = (ends >= 0) & (starts >= 0) & (complete >= 0) & (behind >= 0)
    return pa.array(behind, mask=~known)


def _numbers(column: Any) -> np.ndarray:
    """Convert to int64, with -1 for null; known values are not negative."""
    return column.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
