"""Runs every kernel, so that set-up compiles them and nobody waits for that later; see share_state/kernels.py.

numba compiles a kernel for the types of what it is given, and arrays of one row are of another type than longer ones
that lie the same. So logs of no, one and many records are folded, in every way there is.

`python -m share_state.cli.setup`: fetch the jars, dump the JVM's classes, compile the kernels; no later command does.
"""

import compileall
import sys
import tempfile
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from share_state.errors import SetupError
from share_state.fold.checkpoint import carried_log, carried_share_partitions, restored
from share_state.fold.control_log import fold_control_log
from share_state.fold.decoded import decoded_tables
from share_state.fold.log import fold_log
from share_state.fold.timeline import ControlTimeline, control_timeline_tables, timeline_tables
from share_state.fold.verify import verify_cutoff
from share_state.jit import compile
from share_state.kafka.control_records import CONTROL_RECORD, ControlRecords
from share_state.kafka.record_batches import Chunk, locate_records
from share_state.kafka.share_partition_keys import KeyTable
from share_state.kafka.state_records import STATE_BATCH
from share_state.rules.registry import judge, judge_records
from share_state.simulator.simulation import simulate
from share_state.sources.discovery import LogPartition, Window, find_logs, find_topic_logs
from share_state.sources.segments import read_chunks
from share_state.sources.tables import Rows, chunk_of, joined
from share_state.sources.topics import Topics
from share_state.spark import jars, session

_CORES = 3
"""Enough to fold slices of share-partitions side by side."""


def run_every_kernel(scratch: Path) -> None:
    """Fold logs too small to matter.

    Args:
        scratch: an empty folder for them.
    """
    simulate(scratch / "many", groups=4, minutes=2, dialect="both", state_partitions=1, updates_per_snapshot=5)
    many = _only_log(scratch / "many")
    first = next(read_chunks(many))
    # Bytes that are no batch send every framing path through its kernel.
    none = _made(scratch / "none", bytes(range(200)))
    for log in (none, _made(scratch / "one", first.data[: first.batches["size"][0]].tobytes()), many):
        _fold(log)
    for log in (replace(none, topic="none"), *find_topic_logs([str(scratch / "many")])):
        fold_control_log(log)
        _run(control_timeline_tables(log))
    checkpoint = ControlRecords(np.zeros(1, CONTROL_RECORD), np.zeros(0, STATE_BATCH))
    _run(ControlTimeline().take(checkpoint, np.ones(1, bool)))
    KeyTable().grow(0)
    rows = _rows(first)
    chunk_of(joined([rows, rows]))
    rows.compact()


def _fold(log: LogPartition) -> None:
    folded = fold_log(log, state_partitions=1, judge=judge_records)
    judge(folded)
    verify_cutoff(folded, Window(), Topics())
    fold_log(log, cores=_CORES)
    for made in (timeline_tables(log), decoded_tables(log, Window(), Topics()), read_chunks(log, merge=True)):
        _run(made)
    _run(folded.state_pieces)
    _run(folded.in_flight_pieces)
    if (carried := folded.carried) is not None:
        row = carried_log(log.name, carried)["carried"]
        share_partitions = pa.concat_tables(carried_share_partitions(log.name, carried))
        fold_log(log, restore=lambda: restored(row, share_partitions), judge=judge_records)


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


def _run(made: Iterable[object]) -> None:
    deque(made, maxlen=0)


def set_up() -> None:
    """Prepare this environment.

    `--with-kafka` also fetches Kafka's client, with which `compare` asks a broker; `--with-test-jars` fetches all that
    tests and the benchmark use.
    """
    wanted = [jars.DELTA, *([jars.KAFKA_CLIENTS] if "--with-kafka" in sys.argv[1:] else [])]
    wanted = list(jars.COORDINATES) if "--with-test-jars" in sys.argv[1:] else wanted
    try:
        for name in wanted:
            jars.fetch(name)
        session.dump()
    except SetupError as error:
        sys.exit(f"share-state: {error}")
    # Where Python is told to write no bytecode, as in many a container, every command would compile all it imports.
    compileall.compile_dir(Path(__file__).parents[1], quiet=2)
    compile_kernels()


def compile_kernels() -> None:
    """Compile the kernels and keep them; see share_state/kernels.py for where."""
    with tempfile.TemporaryDirectory(prefix="share-state-kernels-") as scratch:
        run_every_kernel(Path(scratch))
    compile.forget_others()


if __name__ == "__main__":
    set_up()
