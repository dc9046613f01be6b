"""The state of a stream's fold between two micro-batches: in memory, as one value, and as rows of a warehouse."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.delta.merge import DELETED, without_deleted
from share_state.fold.checkpoint import (
    CHECKPOINT_TABLE,
    FoldCheckpoint,
    RowDigest,
    checkpoint_row,
    checkpoint_share_partitions,
    restore_checkpoint,
    resume_point_of,
    row_hashes,
    sealed,
    with_digest,
)
from share_state.fold.outcomes import blank_outcomes
from share_state.fold.state_chains import Chains
from share_state.kafka.buffers import concat_rows, range_rows, take_rows
from share_state.kafka.share_partition_keys import KeyTable
from share_state.schema.declarations import table_schema

CARRIED_LOGS = "carried_logs"
"""A table of audits, and of a stream in this process."""

_LOG = b"log"


def to_ipc(table: pa.Table) -> bytes:
    """A table as an Arrow stream; Spark copies it several times, and pickles it byte by byte, so it is compressed."""
    return ipc_buffer(table).to_pybytes()


def ipc_buffer(table: pa.Table) -> pa.Buffer:
    """As `to_ipc`, without a copy."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        stream.write_table(table)
    return sink.getvalue()


def from_ipc(data: bytes | memoryview) -> pa.Table:
    """Read what `to_ipc` wrote."""
    with pa.ipc.open_stream(pa.py_buffer(data)) as stream:
        return stream.read_all()


def state_bytes(name: str, checkpoint: FoldCheckpoint) -> bytes:
    """The state of a fold as one value."""
    kept = _with_one_cell(checkpoint)
    return _of_log(name, kept, pa.concat_tables(checkpoint_share_partitions(name, kept)))


def change_bytes(name: str, before: FoldCheckpoint, after: FoldCheckpoint) -> bytes | None:
    """What some records have changed of a state, as one value; None if that is most of it.

    Args:
        name: of the log partition.
        before, after: states as `settled_state` leaves them; between them the log was not read anew.
    """
    place = numbers_in(before.keys, after.keys)
    numbers = np.flatnonzero(changed_since(before.chains, after.chains, place))
    if len(numbers) > len(after.keys) / 2:
        return None
    none = table_schema(CHECKPOINT_TABLE).empty_table()
    rows = pa.concat_tables([none, *checkpoint_share_partitions(name, _part_of(after, numbers))])
    gone = before.keys.binary().filter(pa.array(place < 0))
    changed = pa.concat_tables(
        [
            without_deleted(rows),
            _deleted_rows(CHECKPOINT_TABLE, {"log": pa.repeat(name, len(gone)), "key": gone}),
        ]
    )
    return _of_log(name, after, changed)


def _of_log(name: str, checkpoint: FoldCheckpoint, rows: pa.Table) -> bytes:
    return to_ipc(rows.replace_schema_metadata({_LOG: checkpoint_row(name, checkpoint)["carried"]}))


def checkpoint_of(state: bytes, changes: Sequence[bytes] = ()) -> FoldCheckpoint | None:
    """Read what `state_bytes` wrote; None if another release wrote it in another format.

    Args:
        state: the state.
        changes: from `change_bytes`, what has changed since, in order.
    """
    rows = from_ipc(state)
    if (carried := _carried(rows)) is None:
        return None
    return changed_state(restore_checkpoint(carried, rows), changes)


def changed_state(state: FoldCheckpoint, changes: Sequence[bytes]) -> FoldCheckpoint | None:
    """A state after changes from `change_bytes`, in order; None if another release wrote them otherwise."""
    if not changes:
        return state
    parts = [from_ipc(one) for one in changes]
    if (carried := _carried(parts[-1])) is None:
        return None
    rows = _latest_rows(parts)
    is_gone = rows[DELETED]
    part = restore_checkpoint(carried, rows.filter(pc.invert(is_gone)).drop_columns(DELETED).combine_chunks())
    before, place = len(state.keys), numbers_in(part.keys, state.keys)
    is_known = place >= 0
    # Those that were known keep their numbers, by which metrics and later changes find them at once.
    source = np.arange(before)
    source[place[is_known]] = before + np.flatnonzero(is_known)
    gone = pc.is_in(state.keys.binary(), rows["key"].filter(is_gone).combine_chunks())
    source = source[~gone.to_numpy(zero_copy_only=False)]
    return _joined(state, part, np.concatenate((source, before + np.flatnonzero(~is_known))))


def _joined(state: FoldCheckpoint, part: FoldCheckpoint, numbers: np.ndarray) -> FoldCheckpoint:
    """Some share-partitions of two states of a log, of which the second is later.

    Args:
        numbers: theirs; those of the second begin behind all of the first.
    """
    first, second = state.chains, part.chains
    ends = np.concatenate((first.ends, first.ends[-1] + second.ends[1:]))
    chains = concat_rows([first.chains, second.chains])
    batches = concat_rows([first.batches, second.batches])
    both = replace(second, chains=chains, ends=ends, batches=batches)
    keys = pa.concat_arrays([state.keys.binary(), part.keys.binary()]).take(pa.array(numbers))
    outcomes = None
    if state.outcomes is not None or part.outcomes is not None:
        outcomes = take_rows(concat_rows([_outcomes(state), _outcomes(part)]), numbers)
    return replace(
        part, keys=KeyTable.of(pa.chunked_array([keys])), chains=taken(both, numbers), outcomes=outcomes
    )


def _outcomes(state: FoldCheckpoint) -> np.ndarray:
    """The OUTCOMES rows of a state; blank ones where an audit has left it."""
    return blank_outcomes(len(state.keys)) if state.outcomes is None else state.outcomes


def _carried(rows: pa.Table) -> str | None:
    """What the state or change says of its log; None if another release wrote it in another format."""
    carried = (rows.schema.metadata or {})[_LOG].decode()
    return None if resume_point_of(carried) is None else carried


def _latest_rows(parts: Sequence[pa.Table]) -> pa.Table:
    """The last row of each key."""
    rows = pa.concat_tables(part.replace_schema_metadata() for part in parts)
    codes = rows["key"].combine_chunks().dictionary_encode()
    latest = np.zeros(len(codes.dictionary), np.int64)
    # Of places with equal codes, the last one stays.
    latest[codes.indices.to_numpy()] = np.arange(len(rows))
    return rows.take(pa.array(np.sort(latest)))


class CarriedState:
    """What `carried_share_partitions` and `carried_logs` hold of a log partition, to find which rows change."""

    def __init__(self, name: str, checkpoint: FoldCheckpoint | None) -> None:
        """Note what the tables hold.

        Args:
            name: of the log partition.
            checkpoint: the state from which the tables are read or were written; None if they hold none.
        """
        self._name = name
        self._state: FoldCheckpoint | None = None
        self._hashes = np.zeros(0, np.uint64)
        self._is_in = np.zeros(0, bool)
        if checkpoint is not None:
            self.changes(checkpoint)

    def changes(self, checkpoint: FoldCheckpoint | None, *, is_all: bool = False) -> dict[str, pa.Table]:
        """The changed rows of both tables, as an audit writes them, once the state is another.

        Args:
            checkpoint: the state; None for none.
            is_all: whether share-partitions may have changed that `changed_since` does not find.
        """
        keys_before, was_in = KeyTable() if self._state is None else self._state.keys, self._is_in
        place = numbers_in(keys_before, KeyTable() if checkpoint is None else checkpoint.keys)
        rows, log = table_schema(CHECKPOINT_TABLE).empty_table(), table_schema(CARRIED_LOGS).empty_table()
        if checkpoint is not None:
            rows = self._changed_rows(checkpoint, place, is_all=is_all)
            digest, row = RowDigest(), checkpoint_row(self._name, checkpoint)
            digest.take_hashes(self._hashes[self._is_in])
            row["carried"] = sealed(self._name, with_digest(row["carried"], digest.text))
            log = pa.Table.from_pylist([row], schema=log.schema)
        else:
            self._hashes, self._is_in = np.zeros(0, np.uint64), np.zeros(0, bool)
        self._state = checkpoint
        gone = keys_before.binary().filter(pa.array(was_in & ~np.append(self._is_in, False)[place]))
        gone_logs = pa.array([self._name] if checkpoint is None else [], pa.string())
        of_gone = {
            CHECKPOINT_TABLE: {"log": pa.repeat(self._name, len(gone)), "key": gone},
            CARRIED_LOGS: {"log": gone_logs},
        }
        changed_rows = {CHECKPOINT_TABLE: without_deleted(rows), CARRIED_LOGS: without_deleted(log)}
        for table, keys in of_gone.items():
            if len(keys["log"]):
                changed_rows[table] = pa.concat_tables([changed_rows[table], _deleted_rows(table, keys)])
        return changed_rows

    def _changed_rows(self, checkpoint: FoldCheckpoint, place: np.ndarray, *, is_all: bool) -> pa.Table:
        """The rows of a state that are new or have another hash; notes the hashes.

        Args:
            checkpoint, is_all: as for `changes`.
            place: int64, the number in it of each share-partition before.
        """
        count, stays = len(checkpoint.keys), place >= 0
        hashes = np.zeros(count, np.uint64)
        hashes[place[stays]] = self._hashes[stays]
        was_in = np.zeros(count, bool)
        was_in[place[stays]] = self._is_in[stays]
        changed = np.ones(count, bool)
        if self._state is not None and not is_all:
            changed = changed_since(self._state.chains, checkpoint.chains, place)
        self._is_in = _is_in_log(checkpoint)
        numbers = np.flatnonzero(changed & self._is_in)
        pieces = checkpoint_share_partitions(self._name, _part_of(checkpoint, numbers))
        rows = pa.concat_tables([table_schema(CHECKPOINT_TABLE).empty_table(), *pieces])
        now = row_hashes(rows)
        is_same = was_in[numbers] & (hashes[numbers] == now)
        hashes[numbers] = now
        self._hashes = hashes
        return rows.filter(pa.array(~is_same))


def numbers_in(keys: KeyTable, others: KeyTable) -> np.ndarray:
    """int64, the number that each key has among others, -1 for none."""
    count, size = len(keys), keys.starts[len(keys)]
    if (
        count <= len(others)
        and np.array_equal(keys.starts[: count + 1], others.starts[: count + 1])
        and np.array_equal(keys.arena[:size], others.arena[:size])
    ):
        # A fold adds keys and keeps the numbers of those before.
        return np.arange(count)
    place = pc.index_in(keys.binary(), others.binary()).fill_null(-1)
    return place.to_numpy(zero_copy_only=False).astype(np.int64)


def changed_since(before: Chains, after: Chains, place: np.ndarray) -> np.ndarray:
    """bool, one per share-partition after some records of the same log: whether any of them is its own.

    Args:
        before: the states before the records.
        after: the states after them.
        place: int64, the number in `after` of each share-partition of `before`, -1 for none.
    """
    changed, (was, now) = np.ones(len(after.chains), bool), places_kept(place)
    changed[now] = False
    for name in ("last_offset", "suspect_offset"):
        changed[now] |= before.chains[name][was] != after.chains[name][now]
    return changed


def places_kept(place: np.ndarray) -> tuple[slice | np.ndarray, slice | np.ndarray]:
    """Which of the share-partitions of `numbers_in` the others have, and their numbers there."""
    if np.array_equal(place, np.arange(len(place))):
        # As nearly always; to choose by number takes ten times as long.
        return slice(None), slice(len(place))
    return place >= 0, place[place >= 0]


def taken(chains: Chains, numbers: np.ndarray) -> Chains:
    """Some share-partitions, by their numbers."""
    if len(numbers) == len(chains.chains):
        return chains
    sizes = np.diff(chains.ends)[numbers]
    ends = np.concatenate(([0], np.cumsum(sizes)))
    batches = take_rows(chains.batches, range_rows(chains.ends[numbers], sizes))
    return replace(chains, chains=take_rows(chains.chains, numbers), ends=ends, batches=batches)


def _part_of(checkpoint: FoldCheckpoint, numbers: np.ndarray) -> FoldCheckpoint:
    """The state of some share-partitions, by their numbers."""
    keys = KeyTable.of(pa.chunked_array([checkpoint.keys.binary().take(pa.array(numbers))]))
    outcomes = None if checkpoint.outcomes is None else take_rows(checkpoint.outcomes, numbers)
    return replace(checkpoint, keys=keys, chains=taken(checkpoint.chains, numbers), outcomes=outcomes)


def _deleted_rows(table: str, key: Mapping[str, pa.Array]) -> pa.Table:
    """Changed rows of a table, of which only the key columns are known, and which are gone."""
    schema, count = table_schema(table), len(next(iter(key.values())))
    rows = {one.name: key[one.name] if one.name in key else pa.nulls(count, one.type) for one in schema}
    return pa.table(rows, schema=schema).append_column(DELETED, pa.repeat(True, count))


def settled_state(name: str, checkpoint: FoldCheckpoint) -> FoldCheckpoint:
    """The state after a micro-batch, without deleted share-partitions whose records are not in the log any more."""
    kept = _with_one_cell(checkpoint)
    if _is_in_log(kept).all():
        return kept
    rows = pa.concat_tables(checkpoint_share_partitions(name, kept))
    return restore_checkpoint(checkpoint_row(name, kept)["carried"], rows)


def _is_in_log(checkpoint: FoldCheckpoint) -> np.ndarray:
    """bool, the share-partitions that `checkpoint_share_partitions` has a row of."""
    scalars, cells = checkpoint.chains.chains, checkpoint.extent.cells
    floor = cells["first"][0] if len(cells) else 0
    return scalars["exists"] | (scalars["last_offset"] >= floor) | (scalars["suspect_offset"] >= floor)


def _with_one_cell(checkpoint: FoldCheckpoint) -> FoldCheckpoint:
    """A state of records without batches, of which there are no bytes to count by cell."""
    cells = checkpoint.extent.cells
    if checkpoint.mark.position >= 0 or len(cells) < 2:
        return checkpoint
    extent, whole = deepcopy(checkpoint.extent), cells[-1:].copy()
    whole["first"] = max(int(cells["first"][0]), checkpoint.mark.log_start_offset)
    whole["bytes"] = np.sum(cells["bytes"])
    extent.cells = whole
    return replace(checkpoint, extent=extent)
