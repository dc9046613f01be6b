"""`share-state decode`: records as JSON lines, with the names of delivery states and the batch that holds each."""

import sys
from collections.abc import Iterator
from pathlib import PurePath

import numpy as np
import pyarrow as pa

from share_state.fold.fold_options import SharePartitionFilter
from share_state.kafka.delivery_states import state_name
from share_state.kafka.record_batches import BATCH, CODEC_BITS, BatchStatus
from share_state.pipeline.plan import FoldPlan
from share_state.report.console import json_lines
from share_state.sources.log_partition import LogPartition
from share_state.sources.segments import frame_segments

_PIECE_ROWS = 10_000
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def print_records(plan: FoldPlan, selection: SharePartitionFilter, limit: int | None = None) -> None:
    """Print the records of a plan as one JSON object per line, one log partition after another.

    Nulls are omitted.

    Args:
        plan: the log partitions.
        selection: only these share-partitions.
        limit: maximum number of records.
    Raises:
        InputError: if the selection matches nothing.
    """
    for rows in described_records(plan, selection, limit):
        for batch in rows.to_batches(max_chunksize=_PIECE_ROWS):
            if sys.stdout.closed:  # its reader is gone, as after `| head`
                return
            sys.stdout.write(json_lines(batch))


def described_records(
    plan: FoldPlan, selection: SharePartitionFilter, limit: int | None = None
) -> Iterator[pa.Table]:
    """The records of a plan, one log partition after another: decoded, with state names and batches.

    Args:
        plan: the log partitions.
        selection: only these share-partitions.
        limit: maximum number of records.
    Raises:
        InputError: if the selection matches nothing.
    """
    found = 0
    for log in plan.logs:
        for table in _described(plan, log, selection):
            rows = table if limit is None else table.slice(0, limit - found)
            found += len(rows)
            if len(rows):
                yield rows
            if limit is not None and found >= limit:
                return
    if not found:
        plan.check(selection)


def _described(plan: FoldPlan, log: LogPartition, selection: SharePartitionFilter) -> Iterator[pa.Table]:
    """The decoded records of a log that are selected, with state names and batches."""
    where, batches = selection.of_rows, BatchFacts(log)
    for table in plan.decode(log):
        of_batches = batches.of(table["offset"].to_numpy()) if batches.are_known else None
        described = _with_state_names(table)
        if of_batches is not None:
            described = described.append_column("batch", of_batches)
        yield described if where is None else described.filter(where)


def _with_state_names(table: pa.Table) -> pa.Table:
    """The table, whose `state_batches` also have the names of their delivery states."""
    place, lists = table.schema.get_field_index("state_batches"), table["state_batches"].combine_chunks()
    values = lists.values
    codes = values.field("delivery_state").fill_null(-1).to_numpy()
    distinct, inverse = np.unique(codes, return_inverse=True)
    names = pa.array([state_name(code) for code in distinct.tolist()], pa.string()).take(pa.array(inverse))
    fields = [field.name for field in values.type]
    structs = pa.StructArray.from_arrays(
        [*(values.field(name) for name in fields), names], [*fields, "state"]
    )
    named = pa.ListArray.from_arrays(
        lists.offsets, structs, mask=lists.is_null() if lists.null_count else None
    )
    return table.set_column(place, "state_batches", named)


class BatchFacts:
    """The record batches of a log, as its first replica holds them, read along with its records.

    Attributes:
        are_known: whether the log consists of segments.
    """

    def __init__(self, log: LogPartition) -> None:
        """Take the segments of a log; they are read when records ask for them."""
        segments = tuple(
            one for one in log.segments if log.source is None and one.replica == log.segments[0].replica
        )
        self.are_known = bool(segments)
        self._names = pa.array([PurePath(str(one.path)).name for one in segments], pa.string())
        self._chunks = frame_segments(segments)
        self._batches = np.empty(0, BATCH)

    def of(self, offsets: np.ndarray) -> pa.StructArray:
        """The batch of each record: segment, position and size in bytes, codec and leader epoch; null if unknown.

        Args:
            offsets: of records, ascending over all calls.
        """
        if len(offsets):
            self._read(int(offsets[0]), int(offsets[-1]))
        batches = self._batches
        rows = np.searchsorted(batches["last_offset"], offsets)
        is_known = rows < len(batches)
        rows = np.minimum(rows, max(len(batches) - 1, 0))
        found = batches[rows] if len(batches) else np.zeros(len(offsets), BATCH)
        is_known &= found["base_offset"] <= offsets
        codecs = pa.array(_CODECS, pa.string())
        codec = np.minimum(found["attributes"] & CODEC_BITS, len(_CODECS) - 1)
        columns = {
            "segment": self._names.take(pa.array(found["segment"].copy())),
            "position": pa.array(found["file_position"].copy()),
            "size": pa.array(found["size"].copy()),
            "codec": codecs.take(pa.array(codec)),
            "leader_epoch": pa.array(found["leader_epoch"].copy()),
        }
        return pa.StructArray.from_arrays([*columns.values()], [*columns], mask=pa.array(~is_known))

    def _read(self, first: int, last: int) -> None:
        """Read the batches of records from a first to a last offset, and forget those before them."""
        self._batches = self._batches[self._batches["last_offset"] >= first]
        while not len(self._batches) or self._batches["last_offset"][-1] < last:
            chunk = next(self._chunks, None)
            if chunk is None:
                return
            batches = chunk.batches
            kept = batches[(batches["status"] == BatchStatus.VALID) & (batches["last_offset"] >= first)]
            self._batches = np.sort(np.concatenate((self._batches, kept)), order="last_offset")
