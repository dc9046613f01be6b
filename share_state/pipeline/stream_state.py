"""The state of a stream's fold between two micro-batches: in memory, as one value, and as rows of a warehouse."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pyarrow as pa

from share_state.delta.merge import without_deleted
from share_state.fold.checkpoint import (
    CHECKPOINT_TABLE,
    FoldCheckpoint,
    RowDigest,
    checkpoint_row,
    checkpoint_share_partitions,
    restore_checkpoint,
    resume_point_of,
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


def state_rows(name: str, checkpoint: FoldCheckpoint) -> dict[str, pa.Table]:
    """The state of a fold as changed rows of `carried_share_partitions` and `carried_logs`, as an audit writes them."""
    digest, row = RowDigest(), checkpoint_row(name, checkpoint)
    rows = pa.concat_tables(digest.of_each(checkpoint_share_partitions(name, checkpoint)))
    row["carried"] = sealed(name, with_digest(row["carried"], digest.text))
    log = pa.Table.from_pylist([row], schema=table_schema(CARRIED_LOGS))
    return {CHECKPOINT_TABLE: without_deleted(rows), CARRIED_LOGS: without_deleted(log)}


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
