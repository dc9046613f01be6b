"""This project's side: `find_logs` and `fold_log` in one process, one log partition at a time.

It answers requests as bench/java/Replay.java does, and stays, so that later passes find the kernels loaded. A request
is an export's folder, a file for the states or nothing, and a number of cores, with tabs between them.
"""

import json
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from share_state.cli.process import keep_freed_memory
from share_state.fold.fold_options import FoldOptions
from share_state.fold.state_log import FoldedLog, fold_log
from share_state.sources.discovery import find_logs
from share_state.sources.log_partition import LogPartition
from share_state.sources.record_tables import Columns
from share_state.sources.table_plan import list_table_files, plan_table

_KEY = ("group_id", "topic_id", "partition")
_SCALARS = ("start_offset", "delivery_complete_count", "snapshot_epoch", "state_epoch", "leader_epoch")
_TIMES = ("create_time", "write_time")
_RANGE = "{first_offset}-{last_offset}:{delivery_state}:{delivery_count}"


def make_tables(folded: FoldedLog) -> None:
    """Build the tables `share_partition_state` and `in_flight`, which a fold only prepares, and drop them."""
    for pieces in (folded.state_pieces, folded.in_flight_pieces):
        deque(pieces, maxlen=0)


def write_states(states: Iterable[pa.Table], file: Path) -> None:
    """Write rows of `share_partition_state` as Replay.java writes Kafka's state: a line per share-partition."""
    file.write_text("".join(f"{line}\n" for table in states for line in _state_lines(table)))


def _state_lines(table: pa.Table) -> Iterator[str]:
    times = [table[name].cast(pa.timestamp("ms", "UTC")) for name in _TIMES]
    scalars = [
        column.cast(pa.int64()).fill_null(0).to_pylist() for column in (*map(table.column, _SCALARS), *times)
    ]
    keys = zip(*(table[name].to_pylist() for name in _KEY), strict=True)
    for key, numbers, ranges in zip(
        keys, zip(*scalars, strict=True), table["state_batches"].to_pylist(), strict=True
    ):
        texts = [":".join(map(str, key)), *map(str, numbers), *(_RANGE.format(**one) for one in ranges)]
        yield " ".join(texts)


def _find(folder: str) -> list[LogPartition]:
    """The log partitions of an export: segments, or the table that `bench.inputs.parquet_of` wrote."""
    files = sorted(Path(folder).glob("*.parquet"))
    return plan_table(list_table_files(files, Path(folder)), Columns()).logs if files else find_logs([folder])


def _fold(folder: str, states_file: str, cores: int) -> dict[str, float]:
    records, tables_s, states = 0, 0.0, list[pa.Table]()
    wall, cpu = time.perf_counter(), time.process_time()
    for log in _find(folder):
        folded = fold_log(log, options=FoldOptions(cores=cores))
        begun = time.perf_counter()
        make_tables(folded)
        tables_s += time.perf_counter() - begun
        records += folded.record_count
        if states_file:
            states.append(folded.states)
        del folded  # before the next log is folded
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    if states_file:
        write_states(states, Path(states_file))
    return {"records": records, "wall_s": wall, "cpu_s": cpu, "tables_s": tables_s}


if __name__ == "__main__":
    keep_freed_memory()
    for line in sys.stdin:
        request = line.rstrip("\n").split("\t")
        print(json.dumps(_fold(request[0], request[1], int(request[2]))), flush=True)
