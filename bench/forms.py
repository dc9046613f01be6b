"""The same records as a table of keys and values and as segments, folded by turns."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.exports import Export
from share_state.fold.log import fold_log
from share_state.kafka.record_batches import locate_records
from share_state.sources.discovery import LogPartition, find_logs
from share_state.sources.segments import read_chunks
from share_state.sources.table_plan import plan, table_files
from share_state.sources.tables import Columns


@dataclass(frozen=True, slots=True)
class FormsRun:
    """What was measured.

    Attributes:
        records: of the export.
        segment_bytes, table_bytes: on disk.
        segments_s, table_s: median seconds of wall time to find and fold all log partitions, one after the other.
        is_equal: whether both fold to the same states.
    """

    records: int
    segment_bytes: int
    table_bytes: int
    segments_s: float
    table_s: float
    is_equal: bool

    @property
    def share(self) -> float:
        """Speed of the table over that of the segments, in records a second."""
        return self.segments_s / self.table_s


def measured(export: Export, runs: int) -> FormsRun:
    """Write an export as Parquet unless it is there, and fold both forms by turns, one pass of each to warm up."""
    files = _written(export)

    def table() -> list[LogPartition]:
        return plan(table_files(files, files[0].parent), Columns()).logs

    def segments() -> list[LogPartition]:
        return find_logs([str(export.folder)])

    seconds = {segments: [], table: []}
    states = {find: _folded(find)[1] for find in seconds}
    for _ in range(runs):
        for find, spent in seconds.items():
            spent.append(_folded(find)[0])
    return FormsRun(
        export.shape.records,
        export.bytes,
        sum(file.stat().st_size for file in files),
        statistics.median(seconds[segments]),
        statistics.median(seconds[table]),
        states[segments] == states[table],
    )


def _folded(find: Callable[[], Sequence[LogPartition]]) -> tuple[float, list[pa.Table]]:
    begun, states = time.perf_counter(), []
    for log in find():
        states.append(fold_log(log).states)
    return time.perf_counter() - begun, states


def _written(export: Export) -> list[Path]:
    """One Parquet file a log partition, as a sink keeps them, with Spark's default compression."""
    folder = export.folder.with_name(f"{export.folder.name}-table")
    folder.mkdir(exist_ok=True)
    files = []
    for log in find_logs([str(export.folder)]):
        file = folder / f"{log.partition}.parquet"
        files.append(file)
        if not file.exists():
            partial = file.with_suffix(".partial")
            pq.write_table(_table(log), partial, compression="snappy", use_dictionary=["topic", "partition"])
            partial.rename(file)
    return files


def _table(log: LogPartition) -> pa.Table:
    parts = []
    for chunk in read_chunks(log):
        records = locate_records(chunk.data, chunk.batches)
        columns = {part: _column(chunk.data, records, part) for part in ("key", "value")}
        columns["topic"] = pa.array(np.full(len(records), log.topic, object))
        columns["partition"] = pa.array(np.full(len(records), log.partition, np.int32))
        columns["offset"] = pa.array(records["offset"].copy())
        columns["timestamp"] = pa.array(records["timestamp"] * 1000).cast(pa.timestamp("us", "UTC"))
        parts.append(pa.table(columns))
    return pa.concat_tables(parts)


def _column(data: np.ndarray, records: np.ndarray, part: str) -> pa.Array:
    plain, starts, sizes = data.tobytes(), records[f"{part}_at"].tolist(), records[f"{part}_size"].tolist()
    spans = zip(starts, sizes, strict=True)
    return pa.array([None if size < 0 else plain[at : at + size] for at, size in spans], pa.binary())
