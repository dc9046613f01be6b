"""A log that its broker prunes while it is read, as a running cluster does."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from share_state.errors import PrunedError
from share_state.fold.history import history_pieces
from share_state.fold.state_log import fold_log
from share_state.kafka.record_batches import Chunk
from share_state.pipeline.executor import LocalExecutor, Progress
from share_state.pipeline.plan import FoldPlan
from share_state.sources.discovery import LogPartition, find_logs
from share_state.sources.kafka_client import KAFKA_FORM
from share_state.sources.tables import arrow_rows, rows_to_chunk
from share_state.spark.choice import ExecutorChoice, open_executor
from share_state.spark.executor import SparkExecutor
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
    logs = [
        replace(
            log, segments=(), partition=number, log_start_offset=500, source=PrunedSource(rows_of([log]), end, None)
        )
        for number, end in enumerate((500 + records - 1, 501))
    ]
    assert (sum(one.source.end_offset - one.log_start_offset for one in logs if one.source)) == records
    with open_executor(ExecutorChoice(), FoldPlan(logs), Progress()) as executor:
        assert isinstance(executor, chosen)


def test_a_share_partition_of_which_only_a_cold_snapshot_is_left_has_no_active_time():
    (log,) = (one for one in find_logs([str(DATA / "4.4.0/dead-letters")]) if one.partition == 2)
    rows = pa.concat_tables(history_pieces(fold_log(log)))
    assert (rows["active_time"].null_count, len(rows)) == (10, 15)
