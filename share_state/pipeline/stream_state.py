"""The state of a stream's fold between two micro-batches: in memory, as one value, and as rows of a warehouse."""

from collections.abc import Mapping
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
from share_state.schema.declarations import table_schema

CARRIED_LOGS = "carried_logs"
"""A table of audits, of a reconstruct that a stream may continue, and of a stream in this process."""

_LOG = b"log"


def to_ipc(table: pa.Table, compression: str = "lz4") -> bytes:
    """A table as an Arrow stream; Spark copies it several times, so it is compressed."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)
    ) as stream:
        stream.write_table(table)
    return sink.getvalue().to_pybytes()


def from_ipc(data: bytes | memoryview) -> pa.Table:
    """Read what `to_ipc` wrote."""
    with pa.ipc.open_stream(pa.py_buffer(data)) as stream:
        return stream.read_all()


def state_bytes(name: str, checkpoint: FoldCheckpoint) -> bytes:
    """The state of a fold as one value."""
    kept = _with_one_cell(checkpoint)
    rows = pa.concat_tables(checkpoint_share_partitions(name, kept))
    # Spark pickles it byte by byte.
    return to_ipc(rows.replace_schema_metadata({_LOG: checkpoint_row(name, kept)["carried"]}), "zstd")


def checkpoint_of(state: bytes) -> FoldCheckpoint | None:
    """Read what `state_bytes` wrote; None if another release wrote it in another format."""
    rows = from_ipc(state)
    log = (rows.schema.metadata or {})[_LOG].decode()
    return None if resume_point_of(log) is None else restore_checkpoint(log, rows)


class CarriedState:
    """What `carried_share_partitions` and `carried_logs` hold of a log partition, to find which rows change."""

    def __init__(self, name: str, checkpoint: FoldCheckpoint | None) -> None:
        """Note what the tables hold.

        Args:
            name: of the log partition.
            checkpoint: the state from which the tables are read or were written; None if they hold none.
        """
        self._name = name
        self._keys = pa.array([], pa.binary())
        self._hashes = np.zeros(0, np.uint64)
        if checkpoint is not None:
            self._note(pa.concat_tables(checkpoint_share_partitions(name, checkpoint)))

    def changes(self, checkpoint: FoldCheckpoint | None) -> dict[str, pa.Table]:
        """The changed rows of both tables, as an audit writes them, once the state is another; None for none."""
        before, hashes_before = self._keys, self._hashes
        rows, log = table_schema(CHECKPOINT_TABLE).empty_table(), table_schema(CARRIED_LOGS).empty_table()
        if checkpoint is not None:
            rows = pa.concat_tables(checkpoint_share_partitions(self._name, checkpoint))
        self._note(rows)
        if checkpoint is not None:
            digest, row = RowDigest(), checkpoint_row(self._name, checkpoint)
            digest.take_hashes(self._hashes)
            row["carried"] = sealed(self._name, with_digest(row["carried"], digest.text))
            log = pa.Table.from_pylist([row], schema=log.schema)
        place = pc.index_in(self._keys, before).fill_null(-1).to_numpy(zero_copy_only=False)
        is_same = (place >= 0) & (np.append(hashes_before, np.uint64(0))[place] == self._hashes)
        gone = before.filter(pc.invert(pc.is_in(before, self._keys)))
        gone_logs = pa.array([self._name] if checkpoint is None else [], pa.string())
        of_gone = {
            CHECKPOINT_TABLE: {"log": pa.repeat(self._name, len(gone)), "key": gone},
            CARRIED_LOGS: {"log": gone_logs},
        }
        changed = {CHECKPOINT_TABLE: rows.filter(pa.array(~is_same)), CARRIED_LOGS: log}
        return {
            table: pa.concat_tables([without_deleted(kept), _deleted_rows(table, of_gone[table])])
            for table, kept in changed.items()
        }

    def _note(self, rows: pa.Table) -> None:
        self._keys = rows["key"].combine_chunks()
        self._hashes = row_hashes(rows)


def _deleted_rows(table: str, key: Mapping[str, pa.Array]) -> pa.Table:
    """Changed rows of a table, of which only the key columns are known, and which are gone."""
    schema, count = table_schema(table), len(next(iter(key.values())))
    rows = {one.name: key[one.name] if one.name in key else pa.nulls(count, one.type) for one in schema}
    return pa.table(rows, schema=schema).append_column(DELETED, pa.repeat(True, count))


def settled_state(name: str, checkpoint: FoldCheckpoint) -> FoldCheckpoint:
    """The state after a micro-batch, without deleted share-partitions whose records are not in the log any more."""
    kept = _with_one_cell(checkpoint)
    scalars, cells = kept.chains.chains, kept.extent.cells
    floor = cells["first"][0] if len(cells) else 0
    is_in_log = scalars["exists"] | (scalars["last_offset"] >= floor) | (scalars["suspect_offset"] >= floor)
    if is_in_log.all():
        return kept
    rows = pa.concat_tables(checkpoint_share_partitions(name, kept))
    return restore_checkpoint(checkpoint_row(name, kept)["carried"], rows)


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
