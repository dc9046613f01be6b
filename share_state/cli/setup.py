"""`share-state setup`: compiles kernels, fetches jars and dumps the JVM classes for later commands."""

import compileall
import logging
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
import pyarrow as pa
import typer

from share_state.cli.command import Quiet, command
from share_state.errors import SetupError, require
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
from share_state.fold.timeline import decoded_tables, timeline_tables
from share_state.jit import compile
from share_state.kafka.control_records import CONTROL_RECORD, ControlRecords
from share_state.kafka.record_batches import Chunk, locate_records
from share_state.kafka.share_partition_keys import KeyTable
from share_state.kafka.state_records import STATE_BATCH
from share_state.pipeline.progress import Progress
from share_state.rules.findings import judge, judge_records
from share_state.simulator.simulation import simulate
from share_state.sources import jars
from share_state.sources.as_of import Window
from share_state.sources.dead_letter_topics import SegmentLetters
from share_state.sources.discovery import METADATA_FOLDER, find_logs, find_topic_logs
from share_state.sources.log_partition import LogPartition
from share_state.sources.metadata_log import read_metadata_log
from share_state.sources.partition_count import PartitionCount
from share_state.sources.record_tables import Rows, concat_table_rows, rows_to_chunk
from share_state.sources.segments import read_chunks

_LOG = logging.getLogger("share_state")

_CORES = 3
"""Enough to fold slices of share-partitions in parallel."""


def warm_up_kernels(scratch: Path) -> None:
    """Compile every kernel by folding small logs in every way.

    numba compiles a kernel per argument type, and the type of a one-row array differs from that of a longer
    one, so logs of zero, one and many records are folded. They are written to `scratch`, an empty folder.
    """
    simulate(
        scratch / "many", groups=4, minutes=2, dialect="both", state_partitions=1, updates_per_snapshot=5
    )
    many = _only_log(scratch / "many")
    first = next(read_chunks(many))
    # Bytes that are not a batch run the kernels that search for the next batch.
    none = _made(scratch / "none", bytes(range(200)))
    for log in (none, _made(scratch / "one", first.data[: first.batches["size"][0]].tobytes()), many):
        _fold(log)
    for log in (replace(none, topic="none"), *find_topic_logs([str(scratch / "many")])):
        fold_control_log(log)
        _run(timeline_tables(log))
        SegmentLetters([log]).read({})
    checkpoint = ControlRecords(np.zeros(1, CONTROL_RECORD), np.zeros(0, STATE_BATCH))
    _run(ControlReplay().apply(checkpoint, np.ones(1, bool)))
    KeyTable().grow(0)
    metadata = scratch / METADATA_FOLDER
    metadata.mkdir()
    (metadata / f"{0:020}.log").write_bytes(first.data.tobytes())
    read_metadata_log(metadata)
    rows = _rows(first)
    rows_to_chunk(concat_table_rows([rows, rows]))
    rows.compact()


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


@command("share-state setup")
def setup(
    with_kafka: Annotated[
        bool,
        typer.Option("--with-kafka", help="Also fetch Kafka's client, which compare and live audits use."),
    ] = False,
    with_test_jars: Annotated[
        bool, typer.Option("--with-test-jars", help="Also fetch the test broker and Kafka's classes.")
    ] = False,
    *,
    quiet: Quiet = False,
) -> None:
    """Compile the kernels and fetch the jars that Spark needs.

    Otherwise the first commands that need them do so. Without Spark or Java, it compiles only the kernels:
    everything but Spark works.
    """
    progress = Progress(quiet=quiet)
    lacking = _describe_lacking()
    names = [] if lacking else _jars_to_fetch(with_kafka, with_test_jars)
    # Ivy mostly waits for the registry, while compiling keeps one core busy.
    with ThreadPoolExecutor(max_workers=len(jars.COORDINATES)) as waiting, ExitStack() as started:
        begun = time.monotonic()
        finishes = {name: started.enter_context(jars.start_fetch(name)) for name in names}
        fetches = {waiting.submit(_seconds_until, begun, finish): name for name, finish in finishes.items()}
        _timed(progress, "compile kernels", compile_kernels)
        with progress(f"fetch jars {', '.join(names)}"):
            _report_fetches(fetches)
    if names:
        from share_state.spark import session  # noqa: PLC0415  imports Spark

        _timed(progress, "store Java's classes, so that Spark starts sooner", session.dump_class_archive)
    _compile_modules()
    if lacking:
        _LOG.info("%s", lacking)


def _describe_lacking() -> str | None:
    """What jars need and is missing, and what works without it; None if nothing is missing."""
    try:
        require("pyspark")
    except SetupError as error:
        return f"everything but Spark and `compare` works; for them, {error}, then `share-state setup`"
    if jars.find_java() is None:
        return "no Java found: everything but Spark works; for Spark, install Java 17 and run `share-state setup`"
    return None


def _jars_to_fetch(with_kafka: bool, with_test_jars: bool) -> list[str]:
    if with_test_jars:
        return list(jars.COORDINATES)
    return [jars.DELTA, jars.KAFKA_CLIENTS] if with_kafka else [jars.DELTA]


def _seconds_until(begun: float, finish: Callable[[], None]) -> float:
    finish()
    return time.monotonic() - begun


def _report_fetches(fetches: Mapping[Future[float], str]) -> None:
    """Report each set of jars as soon as it is there.

    Raises:
        SetupError: the first failure, once all others are there.
    """
    errors = list[BaseException]()
    for fetch in as_completed(fetches):
        if (error := fetch.exception()) is not None:
            errors.append(error)
        else:
            _LOG.info("fetch jars %s: %.1f s", fetches[fetch], fetch.result())
    if errors:
        raise errors[0]


def _timed(progress: Progress, phase: str, step: Callable[[], None]) -> None:
    with progress(phase):
        step()
    _LOG.info("%s: %.1f s", phase, progress.seconds[phase])


def _compile_modules() -> None:
    """Compile this package and the modules of other packages that are loaded by now.

    Many containers set PYTHONDONTWRITEBYTECODE, and every command would then compile everything that it
    imports.
    """
    compileall.compile_dir(Path(__file__).parents[1], quiet=2)
    for source in [getattr(module, "__file__", None) for module in list(sys.modules.values())]:
        if source and source.endswith(".py"):
            compileall.compile_file(source, quiet=2)


def compile_kernels() -> None:
    """Compile the kernels into the cache of share_state/jit/compile.py."""
    with tempfile.TemporaryDirectory(prefix="share-state-kernels-") as scratch:
        warm_up_kernels(Path(scratch))
    compile.remove_stale_kernels()
