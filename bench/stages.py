"""Where the time of one log goes: read, frame, checksum, locate, number, decode, fold, tables, Parquet, by CPU time.

Each stage is this project's own function over the same log, timed chunk by chunk. Framing reads and checksums, too:
those are timed alone, in passes of their own, and taken off it.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar

import numpy as np
import pyarrow as pa

from bench.core import make_tables
from bench.crc_pass import crc_pass
from bench.exports import Export
from bench.kafka import DATA
from share_state.delta.files import ROWS_A_GROUP, TableFiles
from share_state.fold.chains import Chains
from share_state.fold.log import CHUNKS_A_FOLD, STRETCHES, fold_log
from share_state.fold.log_stats import Counts, Extent, packed
from share_state.fold.states import in_flight_in_pieces, key_columns, live, states_in_pieces
from share_state.kafka.buffers import RecordRoom
from share_state.kafka.record_batches import CHUNK, Chunk, facts_of, locate_records
from share_state.kafka.share_partition_keys import KeyTable
from share_state.kafka.state_records import SPARE, StateRecords, decode_state_records
from share_state.sources.discovery import LogPartition, find_logs
from share_state.sources.segments import framed_segments, read_chunks
from share_state.sources.topics import Topics

_T = TypeVar("_T")
_TABLES = ("share_partition_state", "in_flight")


@dataclass(frozen=True, slots=True)
class Stages:
    """Medians over the passes.

    Attributes:
        export: what was read; its largest log partition alone.
        log: that partition.
        records: in it.
        seconds: stage -> CPU seconds, in the order in which they happen.
        fold_log_s: CPU seconds of `fold_log` over the same log.
    """

    export: Export
    log: LogPartition
    records: int
    seconds: dict[str, float]
    fold_log_s: float

    @property
    def rest_s(self) -> float:
        """What `fold_log` takes beyond the stages: gaps, faults, the cutoff. Parquet is written behind it."""
        return self.fold_log_s - sum(seconds for stage, seconds in self.seconds.items() if stage != "Parquet")


class _Clock:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def __call__(self, stage: str, work: Callable[[], _T]) -> _T:
        begun = time.process_time()
        done = work()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.process_time() - begun
        return done


def measured(export: Export, runs: int) -> Stages:
    """Time the stages over the largest log partition of an export, one pass first that is not counted."""
    log = max(find_logs([str(export.folder)]), key=lambda one: one.size)
    passes = [_pass(log) for _ in range(runs + 1)][1:]
    seconds = {stage: median(one[0][stage] for one in passes) for stage in passes[0][0]}
    whole = [_whole(log) for _ in range(runs)]
    return Stages(export, log, passes[0][1], seconds, median(whole))


def _whole(log: LogPartition) -> float:
    clock = _Clock()
    clock("fold_log", lambda: make_tables(fold_log(log)))
    return clock.seconds["fold_log"]


def _pass(log: LogPartition) -> tuple[dict[str, float], int]:
    clock = _Clock()
    buffer = np.zeros(CHUNK, np.uint8)
    clock("read", lambda: _read(log, buffer))
    checksum = crc_pass([log]) - clock.seconds["read"]
    clock("framed", lambda: [None for _ in framed_segments(log.segments, stretches=STRETCHES)])
    clock("chunks", lambda: [None for _ in read_chunks(log, stretches=STRETCHES)])
    keys, chains, extent, counts, records = KeyTable(), Chains(), Extent(), Counts(), 0
    room, enough = SPARE.room(), CHUNKS_A_FOLD * CHUNK
    for chunk in read_chunks(log, stretches=STRETCHES):
        located = clock("locate", lambda chunk=chunk: locate_records(chunk.data, chunk.batches))
        decoded = clock("decoded", lambda of=chunk.data, located=located: decode_state_records(of, located, keys, room))
        clock("counted", lambda chunk=chunk, decoded=decoded: _count(chunk, decoded, extent, counts))
        records += len(located)
        if room.size >= enough:
            clock("fold", lambda: _fold(room, chains, len(keys)))
    clock("fold", lambda: _fold(room, chains, len(keys)))
    SPARE.take_back(room)
    tables = clock("tables", lambda: _tables(log, chains, keys))
    with tempfile.TemporaryDirectory(prefix="stages-", dir=DATA) as scratch:
        clock("Parquet", lambda: _write(TableFiles(str(Path(scratch))), tables))
    spent = clock.seconds
    return {
        "read": spent["read"],
        "CRC-32C": checksum,
        "frame": spent["framed"] - spent["read"] - checksum,
        "decompress, order of batches": spent["chunks"] - spent["framed"],
        "locate": spent["locate"],
        "number keys, decode": spent["decoded"],
        "fold": spent["fold"],
        "extents and counts": spent["counted"],
        "tables": spent["tables"],
        "Parquet": spent["Parquet"],
    }, records


def _read(log: LogPartition, buffer: np.ndarray) -> None:
    for segment in log.segments:
        with Path(segment.path).open("rb", buffering=0) as file:
            while file.readinto(buffer.data):
                pass


def _fold(room: RecordRoom, chains: Chains, keys: int) -> None:
    chains.apply(StateRecords(room.rows, room.batches), keys)
    room.clear()


def _count(chunk: Chunk, records: StateRecords, extent: Extent, counts: Counts) -> None:
    extent.take(chunk.batches, records.rows["offset"])
    counts.take(chunk.batches, facts_of(chunk.batches), records)


def _tables(log: LogPartition, chains: Chains, keys: KeyTable) -> Sequence[pa.Table]:
    alive, numbers = live(chains), np.flatnonzero(chains.chains["exists"])
    key = key_columns(keys, numbers, Topics())
    suspect = np.zeros(len(numbers), bool)
    topic_ends, repeated = Topics().end_of(key["topic_id"], key["partition"]), packed(key)
    states = states_in_pieces(alive, repeated, log.partition, suspect, topic_ends)
    return [pa.concat_tables(one) for one in (states, in_flight_in_pieces(alive, repeated))]


def _write(files: TableFiles, tables: Sequence[pa.Table]) -> None:
    for name, table in zip(_TABLES, tables, strict=True):
        files.write(name, table.combine_chunks().to_batches(max_chunksize=ROWS_A_GROUP))
