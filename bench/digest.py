"""A few numbers of the folded state, equal to those bench/java/Digest.java takes from Kafka's coordinator."""

import zlib

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_STIR = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(32)
_SCALARS = ("start_offset", "delivery_complete_count", "snapshot_epoch", "state_epoch", "leader_epoch")
_TIMES = ("create_time", "write_time")
_RANGE = ("first_offset", "last_offset", "delivery_state", "delivery_count")


class Digest:
    """Sums over live share-partitions, the same whatever their order."""

    def __init__(self) -> None:
        self._share_partitions = 0
        self._start_offsets = 0
        self._ranges = 0
        self._mix = np.uint64(0)

    def add(self, states: pa.Table) -> None:
        """Take in rows of share_partition_state (columns of schemas/tables/share_partition_state.yaml)."""
        for batch in states.to_batches():
            self._add(batch)

    def as_json(self) -> dict[str, int | str]:
        """The numbers under the names that the Java side gives them."""
        return {
            "share_partitions": self._share_partitions,
            "start_offsets": self._start_offsets,
            "ranges": self._ranges,
            "mix": f"{int(self._mix):016x}",
        }

    def _add(self, states: pa.RecordBatch) -> None:
        seeds = np.array([zlib.crc32(key.encode()) for key in keys(states)], dtype=np.uint64)
        mixed = seeds
        for column in _scalars(states):
            mixed = _stirred(mixed, column)
        batches = states.column("state_batches")
        first, last, state, count = _range_columns(batches)
        per_range = seeds[pc.list_parent_indices(batches).to_numpy()]
        per_range = _stirred(_stirred(_stirred(per_range, first), last), 256 * count + state)
        self._share_partitions += states.num_rows
        self._start_offsets += pc.sum(states.column("start_offset")).as_py() or 0
        self._ranges += len(first)
        with np.errstate(over="ignore"):
            self._mix += np.sum(mixed, dtype=np.uint64) + np.sum(per_range, dtype=np.uint64)


def keys(states: pa.RecordBatch) -> list[str]:
    """The routing text of every row, as SharePartitionKey.asCoordinatorKey writes it."""
    named = (states.column(name).to_pylist() for name in ("group_id", "topic_id", "partition"))
    return [f"{group}:{topic}:{partition}" for group, topic, partition in zip(*named, strict=True)]


def described(states: pa.Table) -> dict[str, tuple[list[int], list[list[int]]]]:
    """Every share-partition's scalars and ranges by routing text, in the order the digest takes them."""
    by_key = {}
    for batch in states.to_batches():
        scalars = np.stack(_scalars(batch), axis=1).tolist()
        state_batches = batch.column("state_batches").to_pylist()
        ranges = [[[one[name] for name in _RANGE] for one in of_one_key] for of_one_key in state_batches]
        by_key |= dict(zip(keys(batch), zip(scalars, ranges, strict=True), strict=True))
    return by_key


def _scalars(states: pa.RecordBatch) -> list[np.ndarray]:
    columns = [states.column(name) for name in _SCALARS]
    columns += [states.column(name).cast(pa.timestamp("ms", "UTC")) for name in _TIMES]
    return [column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False) for column in columns]


def _range_columns(batches: pa.ListArray) -> list[np.ndarray]:
    structs = batches.flatten()
    return [structs.field(name).to_numpy(zero_copy_only=False).astype(np.int64) for name in _RANGE]


def _stirred(hashes: np.ndarray, values: np.ndarray) -> np.ndarray:
    product = (hashes ^ values.astype(np.int64).view(np.uint64)) * _STIR
    return product ^ (product >> _HALF)
