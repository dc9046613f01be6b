"""Writes logs as tables with the columns of Spark's Kafka source, and compares what two forms of a log fold to."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from share_state.fold.state_log import FoldedLog
from share_state.kafka.record_batches import locate_records
from share_state.rules.findings import judge
from share_state.sources.formats import AUTO, ExportPaths
from share_state.sources.input_detection import read_export
from share_state.sources.log_partition import STATE_TOPIC, LogPartition
from share_state.sources.segments import read_chunks
from tests.present import present

SIZES = ["redundant_bytes", "pinned_bytes"]
PLACES = ["state_partition", "snapshot_offset", "last_offset"]
BY_KEY = [(name, "ascending") for name in ("group_id", "topic_id", "partition")]


def no_spark() -> None:
    """In place of a session where none is needed."""
    raise AssertionError("Spark was asked for")


def found(*inputs: Path | str, form: str = AUTO) -> list[LogPartition]:
    """The log partitions of inputs that can be read without Spark."""
    return read_export(ExportPaths([str(given) for given in inputs]), form).logs


def table_of(logs: Sequence[LogPartition]) -> pa.Table:
    """The records of logs as a consumer gets them: from the log start on."""
    return pa.concat_tables(_rows(log) for log in logs)


def _rows(log: LogPartition) -> pa.Table:
    parts = []
    for chunk in read_chunks(log, merge=True):
        records, data = locate_records(chunk.data, chunk.batches), chunk.data.tobytes()
        records = records[records["offset"] >= log.log_start_offset]
        spans = {
            part: [
                None if size < 0 else data[at : at + size]
                for at, size in zip(records[f"{part}_at"], records[f"{part}_size"], strict=True)
            ]
            for part in ("key", "value")
        }
        offsets, times = records["offset"].tolist(), records["timestamp"].tolist()
        parts.append(rows(present(log.partition), offsets, times, spans["key"], spans["value"]))
    return pa.concat_tables(parts)


def rows(partition: int, offsets: Sequence[int], times: Sequence[int], keys: list, values: list) -> pa.Table:
    """Records of the state topic as Spark's Kafka source gives them; times in ms."""
    count = len(offsets)
    return pa.table(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "topic": pa.array([STATE_TOPIC] * count, pa.string()),
            "partition": pa.array([partition] * count, pa.int32()),
            "offset": pa.array(np.asarray(offsets, np.int64)),
            "timestamp": pa.array(np.asarray(times, np.int64) * 1000).cast(pa.timestamp("us", "UTC")),
            "timestampType": pa.array([0] * count, pa.int32()),
        }
    )


def write(table: pa.Table, path: Path, *, row_group: int = 1 << 20) -> Path:
    """A Parquet file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=row_group)
    return path


def shuffled(table: pa.Table, seed: int = 1) -> pa.Table:
    """The same rows in another order."""
    return table.take(np.random.default_rng(seed).permutation(len(table)))


def tables_of(folded: FoldedLog, *, without: Sequence[str] = ()) -> dict[str, pa.Table]:
    """The tables of a fold as they are compared, sorted where the order of the log does not show."""
    cutoff = folded.cutoff
    return {
        "share_partition_state": folded.states.sort_by(BY_KEY).combine_chunks(),
        "in_flight": folded.in_flight.sort_by([*BY_KEY, ("first_offset", "ascending")]).combine_chunks(),
        "cutoff": cutoff.drop_columns([name for name in without if name in cutoff.column_names]),
        "findings": judge(folded).combine_chunks(),
    }
