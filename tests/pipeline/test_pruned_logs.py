"""A log that its broker prunes while it is read, as a running cluster does."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from share_state.errors import InputError, PrunedError
from share_state.fold.dialect import NOT_COMPARED
from share_state.fold.history import history_pieces
from share_state.fold.state_log import fold_log
from share_state.kafka.record_batches import Chunk
from share_state.pipeline.local_executor import LocalExecutor
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.progress import Progress
from share_state.sources.as_of import Window
from share_state.sources.discovery import find_logs
from share_state.sources.kafka_client import KAFKA_FORM
from share_state.sources.log_partition import LogPartition
from share_state.sources.pruned_logs import MOST_PASSES, copy_log, read_pieces, read_whole
from share_state.sources.record_tables import arrow_rows, rows_of_batches, rows_to_chunk
from share_state.spark.choice import ExecutorChoice, _fits_in_process, open_executor
from share_state.spark.spark_executor import SparkExecutor
from tests.fold.groups.group_tables import rows_of
from tests.truth import DATA

PRUNE = DATA / "4.3.1/prune"


@dataclass(frozen=True)
class PrunedSource:
    """Yields the first records of a log, then finds that the broker has deleted all before another start."""

    records: pa.Table
    end_offset: int
    pruned: LogPartition | None

    form = KAFKA_FORM
    has_offsets = True
    has_times = True
    has_sizes = False

    def chunks(self, log: LogPartition, chunk: int, *, merge: bool) -> Iterator[Chunk]:
        for rows in self.records.to_batches(max_chunksize=50):
            times = rows["timestamp"].cast(pa.int64()).to_numpy() // 1000
            offsets = rows["offset"].to_numpy()
            yield rows_to_chunk(arrow_rows(rows["key"], rows["value"], offsets, times, 0, np.arange(len(rows))))
        if self.pruned is not None:
            raise PrunedError("pruned", self.pruned)


def _log_of(folder: Path, number: int) -> LogPartition:
    return next(log for log in find_logs([str(folder)]) if log.partition == number)


@pytest.mark.parametrize("number", range(3))
def test_a_log_that_is_pruned_while_it_is_read_is_read_from_its_new_start(number: int):
    pruned, archive = _log_of(PRUNE, number), _log_of(PRUNE / "archive-unpruned", number)
    assert pruned.log_start_offset > archive.log_start_offset == 0
    end = fold_log(archive).next_offset
    left = replace(pruned, segments=(), source=PrunedSource(rows_of([pruned]), end, None))
    first = rows_of([archive]).slice(0, 60)
    read = replace(archive, segments=(), source=PrunedSource(first, end, left))
    folded, expected = FoldPlan([read]).fold(read), fold_log(pruned)
    assert folded.states.equals(expected.states)
    assert folded.in_flight.equals(expected.in_flight)
    assert (folded.first_offset, folded.next_offset) == (expected.first_offset, expected.next_offset)
    assert not FoldPlan([read]).judge(folded)["rule"].to_pylist()


@pytest.mark.parametrize(
    ("records", "chosen"), [(98, LocalExecutor), (1_000_000, LocalExecutor), (1_000_001, SparkExecutor)]
)
def test_a_small_cluster_is_read_in_process(
    records: int, chosen: type[object], spark: SparkSession, monkeypatch: pytest.MonkeyPatch
):
    """Records of all its partitions count, from their log starts on; the session is there but not the caller's."""
    assert spark is SparkSession.getActiveSession()
    monkeypatch.setattr("share_state.spark.choice._is_spark_active", lambda: False)
    log = _log_of(PRUNE, 0)
    ends = (500 + records - 1, 501)
    logs = [
        replace(
            log, segments=(), partition=number, log_start_offset=500, source=PrunedSource(rows_of([log]), end, None)
        )
        for number, end in enumerate(ends)
    ]
    assert sum(end - 500 for end in ends) == records
    with open_executor(ExecutorChoice(), FoldPlan(logs), Progress()) as executor:
        assert isinstance(executor, chosen)


@pytest.mark.parametrize(("size", "is_segments", "fits"), [(50 << 30, True, True), (128 << 20, False, True),
                                                          (129 << 20, False, False)])  # fmt: skip
def test_segments_of_any_size_are_read_in_process(size: int, is_segments: bool, fits: bool):
    segment = replace(_log_of(PRUNE, 0).segments[0], size=size)
    # A form that needs no sorting by Spark: a text, which one core reads.
    source = None if is_segments else PrunedSource(rows_of([_log_of(PRUNE, 0)]), 1, None)
    log = replace(_log_of(PRUNE, 0), segments=(segment,), source=source)
    assert _fits_in_process(FoldPlan([log])) is fits


def test_a_share_partition_of_which_only_a_cold_snapshot_is_left_has_no_active_time():
    (log,) = (one for one in find_logs([str(DATA / "4.4.0/dead-letters")]) if one.partition == 2)
    rows = pa.concat_tables(history_pieces(fold_log(log)))
    assert (rows["active_time"].null_count, len(rows)) == (10, 15)


class GrowingLog:
    """A log that its broker extends and prunes, step by step, while it is read.

    Attributes:
        records: all records that are ever written, columns of CONSUMED.
        ends, starts: the end of the log at each step, and the cutoff that the coordinator prunes to then.
        step: the present step; the last one lasts.
    """

    def __init__(self, records: pa.Table, ends: Sequence[int], starts: Sequence[int]) -> None:
        self.records, self.ends, self.starts, self.step = records, ends, starts, 0

    def advance(self, steps: int) -> None:
        """Let the broker write and prune."""
        self.step = min(self.step + steps, len(self.ends) - 1)


@dataclass(frozen=True)
class GrowingSource:
    """Reads a growing log as a consumer does, a few records a fetch; the broker goes on between two fetches."""

    log: GrowingLog
    end_offset: int
    pauses: Iterator[int]

    form = KAFKA_FORM
    has_offsets = True
    has_times = True
    has_sizes = False
    is_extended = False

    def batches(self, log: LogPartition) -> Iterator[pa.RecordBatch]:
        position = log.log_start_offset
        while position < self.end_offset:
            self.log.advance(next(self.pauses, 1))
            start = self.log.starts[self.log.step]
            if position < start:
                source = replace(self, end_offset=self.log.ends[self.log.step])
                raise PrunedError("pruned", replace(log, log_start_offset=start, source=source))
            count = min(16, self.end_offset - position)
            yield from self.log.records.slice(position, count).combine_chunks().to_batches()
            position += count

    def chunks(self, log: LogPartition, chunk: int, *, merge: bool) -> Iterator[Chunk]:
        yield from (rows_to_chunk(rows) for rows, _ in rows_of_batches(self.batches(log)))


@cache
def _history() -> tuple[LogPartition, pa.Table, list[int], list[int]]:
    """A log that was never pruned: its records, and ends with the cutoffs up to which it could be pruned then."""
    log = _log_of(PRUNE / "archive-unpruned", 0)
    rows = rows_of([log])
    times = pc.cast(rows["timestamp"], pa.timestamp("ms", "UTC")).cast(pa.int64())
    records = rows.select(["key", "value", "offset"]).append_column("timestamp", times)
    ends = list(range(10, len(records) + 1, 10))
    cutoffs = (fold_log(log, Window(until_offset=end)).cutoff["cutoff_offset"][0].as_py() for end in ends)
    return log, records, ends, [cutoff or 0 for cutoff in cutoffs]


def _growing(pauses: Sequence[int]) -> tuple[LogPartition, LogPartition, GrowingLog]:
    """The log that was never pruned, and as it is read while its broker prunes it."""
    log, records, ends, starts = _history()
    growing = GrowingLog(records, ends, starts)
    source = GrowingSource(growing, ends[0], iter(pauses))
    return log, replace(log, segments=(), log_start_offset=starts[0], source=source), growing


def _ordered(rows: pa.Table) -> pa.Table:
    """Rows in the order of their keys, without columns that depend on deleted records."""
    by_key = ["group_id", "topic_id", "partition", *(name for name in rows.schema.names if name == "first_offset")]
    kept = [name for name in rows.schema.names if name not in NOT_COMPARED]
    return rows.select(kept).sort_by([(name, "ascending") for name in by_key]).combine_chunks()


def _batches(log: LogPartition) -> Iterator[pa.RecordBatch]:
    assert isinstance(log.source, GrowingSource)
    return log.source.batches(log)


_PAUSES = st.lists(st.integers(0, 12), max_size=30)


@given(_PAUSES, st.booleans())
def test_a_log_that_is_pruned_at_any_moment_is_read_whole(pauses: list[int], is_copied: bool):
    whole, log, growing = _growing(pauses)
    folded = FoldPlan([log]).fold(copy_log(log) if is_copied else log)
    expected = fold_log(whole, Window(until_offset=folded.next_offset))
    assert folded.next_offset in growing.ends
    assert _ordered(folded.states).equals(_ordered(expected.states))
    assert _ordered(folded.in_flight).equals(_ordered(expected.in_flight))
    assert not {"BASE_LOST", "ORPHAN_UPDATE", "OFFSET_GAP"} & {*FoldPlan([log]).judge(folded)["rule"].to_pylist()}


@given(_PAUSES)
def test_pieces_of_a_log_that_is_pruned_are_in_order_and_without_repeats(pauses: list[int]):
    _, log, growing = _growing(pauses)
    pieces = read_pieces(log, _batches)
    offsets = [offset for piece in pieces for offset in piece["offset"].to_pylist()]
    assert offsets == sorted(set(offsets))
    left = growing.starts[growing.step]
    assert {offset for offset in offsets if offset >= left} == {*range(left, max(offsets) + 1)}


def test_a_copied_log_can_be_read_again_after_the_broker_has_pruned_it():
    _, log, growing = _growing([0] * 100)
    copied = copy_log(log)
    growing.advance(1000)
    assert fold_log(copied).states.equals(fold_log(copied).states)
    assert copy_log(copied) is copied


def test_a_reader_that_the_log_start_always_overtakes_gives_up():
    log, passes = _log_of(PRUNE, 0), list[int]()

    def overtaken(part: LogPartition) -> None:
        passes.append(part.log_start_offset)
        raise PrunedError("pruned", replace(part, log_start_offset=part.log_start_offset + 1))

    with pytest.raises(InputError, match="__share_group_state-0: the broker deleted records before they were read, 50"):
        read_whole(log, overtaken)
    assert len(passes) == MOST_PASSES
    assert passes == sorted({*passes})
