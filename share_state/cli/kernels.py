"""Compiles kernels before a command needs them: all of them at set-up, or some beside a first command."""

import os
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread

import numpy as np
import pyarrow as pa

from share_state.cli.second_compiler import start_second_compiler
from share_state.fold.checkpoint import (
    RowDigest,
    checkpoint_row,
    checkpoint_share_partitions,
    restore_checkpoint,
)
from share_state.fold.dialect import verify_cutoff
from share_state.fold.draft.control_log import fold_control_log
from share_state.fold.draft.control_replay import ControlReplay
from share_state.fold.fold_options import FoldOptions
from share_state.fold.limits import Limits
from share_state.fold.state_log import fold_log
from share_state.fold.states import SHARE_GROUP_STATE
from share_state.fold.timeline import decoded_tables, timeline_tables
from share_state.jit import compile
from share_state.kafka.control_records import CONTROL_RECORD, ControlRecords
from share_state.kafka.record_batches import Chunk, locate_records
from share_state.kafka.share_partition_keys import KeyTable
from share_state.kafka.state_records import STATE_BATCH
from share_state.pipeline.given_records import fold_decoded_table
from share_state.rules.findings import judge, judge_records
from share_state.schema.declarations import table_schema
from share_state.simulator.simulation import simulate
from share_state.sources.as_of import Window
from share_state.sources.dead_letter_topics import SegmentLetters
from share_state.sources.discovery import METADATA_FOLDER, find_logs, find_topic_logs
from share_state.sources.log_partition import LogPartition
from share_state.sources.metadata_log import read_metadata_log
from share_state.sources.partition_count import PartitionCount
from share_state.sources.record_tables import Rows, concat_table_rows, rows_to_chunk
from share_state.sources.segments import read_chunks

_CORES = 3
"""Enough to fold slices of share-partitions in parallel."""


def compile_kernels() -> None:
    """Compile the kernels into the cache of share_state/jit/compile.py."""
    with tempfile.TemporaryDirectory(prefix="share-state-kernels-") as scratch:
        own, other = Path(scratch, "own"), Path(scratch, "other")
        own.mkdir()
        other.mkdir()
        end = start_second_compiler(other)
        try:
            warm_up_kernels(own)
        finally:
            end()
    compile.remove_stale_kernels()


def warm_up_kernels(scratch: Path, *, last_first: bool = False) -> None:
    """Compile every kernel by folding small logs in every way.

    numba compiles a kernel per argument type, and the type of a one-row array differs from that of a longer
    one, so logs of zero, one and many records are folded.

    Args:
        scratch: an empty folder, where the logs are written.
        last_first: in the other order.
    """
    simulate(
        scratch / "many", groups=4, minutes=2, dialect="both", state_partitions=1, updates_per_snapshot=5
    )
    many = _only_log(scratch / "many")
    first = next(read_chunks(many))
    # Bytes that are not a batch run the kernels that search for the next batch.
    none = _made(scratch / "none", bytes(range(200)))
    one = _made(scratch / "one", first.data[: first.batches["size"][0]].tobytes())
    of_topics = [replace(none, topic="none"), *find_topic_logs([str(scratch / "many")])]
    metadata = scratch / METADATA_FOLDER
    metadata.mkdir()
    (metadata / f"{0:020}.log").write_bytes(first.data.tobytes())
    steps: list[Callable[[], object]] = [partial(_fold, log) for log in (none, one, many)]
    steps += [partial(_fold_control_records, log) for log in of_topics]
    steps += [_replay_checkpoint, partial(KeyTable().grow, 0), partial(read_metadata_log, metadata)]
    steps.append(partial(_join_rows, first))
    for step in reversed(steps) if last_first else steps:
        step()


def compile_fold() -> None:
    """Compile what folds records that break no rule, but not what reads them."""
    names = ("first_offset", "last_offset", "delivery_state", "delivery_count")
    every = {
        "dialect": SHARE_GROUP_STATE,
        "group_id": "g",
        "topic_id": "A" * 22,
        "state_partition": 0,
        "layout": "4.1+",
        "snapshot_epoch": 0,
        "state_epoch": 0,
        "leader_epoch": 0,
        "start_offset": 0,
        "delivery_complete_count": 0,
        "state_batches": [dict(zip(names, one, strict=True)) for one in ((0, 1, 0, 1), (5, 6, 0, 2))],
    }
    records = [
        {**every, "partition": offset % 2, "offset": offset, "kind": kind}
        for offset, kind in enumerate(("snapshot", "snapshot", "update", "update"))
    ]
    fold_decoded_table(pa.Table.from_pylist(records, table_schema("decoded_records")))


def _fold(log: LogPartition) -> None:
    folded = fold_log(
        log,
        options=FoldOptions(
            partition_count=PartitionCount(1), limits=Limits(delivery_count=0), judge=judge_records
        ),
    )
    judge(folded)
    verify_cutoff(folded, Window(), FoldOptions())
    fold_log(log, options=FoldOptions(cores=_CORES))
    for pieces in (timeline_tables(log), decoded_tables(log, Window()), read_chunks(log, merge=True)):
        _run(pieces)
    _run(folded.state_pieces)
    _run(folded.in_flight_pieces)
    if (checkpoint := folded.checkpoint) is not None:
        row = checkpoint_row(log.name, checkpoint)["carried"]
        share_partitions = pa.concat_tables(checkpoint_share_partitions(log.name, checkpoint))
        RowDigest().take(share_partitions)
        fold_log(
            log,
            options=FoldOptions(
                restore=lambda: restore_checkpoint(row, share_partitions), judge=judge_records
            ),
        )


def _fold_control_records(log: LogPartition) -> None:
    fold_control_log(log)
    _run(timeline_tables(log))
    SegmentLetters([log]).read({})


def _replay_checkpoint() -> None:
    checkpoint = ControlRecords(np.zeros(1, CONTROL_RECORD), np.zeros(0, STATE_BATCH))
    _run(ControlReplay().apply(checkpoint, np.ones(1, bool)))


def _join_rows(chunk: Chunk) -> None:
    rows = _rows(chunk)
    rows_to_chunk(concat_table_rows([rows, rows]))
    rows.compact()


def _rows(chunk: Chunk) -> Rows:
    records = locate_records(chunk.data, chunk.batches)
    return Rows(chunk.data, records, np.zeros(len(records), np.int32), np.arange(len(records)))


def _only_log(folder: Path) -> LogPartition:
    (log,) = find_logs([str(folder)])
    return log


def _made(folder: Path, data: bytes) -> LogPartition:
    place = folder / "__share_group_state-0"
    place.mkdir(parents=True)
    (place / f"{0:020}.log").write_bytes(data)
    return _only_log(folder)


def _run(pieces: Iterable[object]) -> None:
    deque(pieces, maxlen=0)


def _end_with_parent() -> None:
    """End when the process that started this one does: its end of the pipe is closed."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(0)


if __name__ == "__main__":
    Thread(target=_end_with_parent, daemon=True).start()
    compile_fold()
    for folder in sys.argv[1:]:
        warm_up_kernels(Path(folder), last_first=True)
