"""A log read, decoded and folded by several threads, in slices of share-partitions, is what one thread makes of it."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from share_state.errors import InputError
from share_state.fold.checkpoint import checkpoint_row, checkpoint_share_partitions
from share_state.fold.fold_options import FoldOptions
from share_state.fold.record_context import ContextChunk
from share_state.fold.state_chains import Chains
from share_state.fold.state_log import FoldedLog, decode_log, fold_log
from share_state.kafka.record_batches import CHUNK_SIZE
from share_state.pipeline.plan import cores_per_log
from share_state.rules.findings import RecordRules, judge, judge_records
from share_state.sources.as_of import Window
from share_state.sources.discovery import find_logs
from share_state.sources.log_partition import LogPartition, Segment
from tests.fold.model import Written
from tests.fold.random_logs import folder_of, logs
from tests.profiles import by_profile, some_of
from tests.truth import DATA, scenarios

LOGS = by_profile([path for path in scenarios() if path.name not in ("happy", "happy-sharev1", "crash")], scenarios())
"""The small logs have one chunk, which one thread reads; crash has the records of fuzz, written by other requests."""


def folded(log: LogPartition, cores: int, chunk: int = CHUNK_SIZE) -> FoldedLog:
    return fold_log(log, options=FoldOptions(cores=cores, judge=judge_records), chunk=chunk)


def check_same(found: FoldedLog, expected: FoldedLog) -> None:
    for name in ("states", "in_flight", "cutoff"):
        assert getattr(found, name).equals(getattr(expected, name))
    assert judge(found, records=found.record_breaches).equals(judge(expected, records=expected.record_breaches))
    assert (found.checkpoint is None) == (expected.checkpoint is None)
    if found.checkpoint is not None and expected.checkpoint is not None:
        assert checkpoint_row("", found.checkpoint) == checkpoint_row("", expected.checkpoint)
        ours, theirs = (checkpoint_share_partitions("", one) for one in (found.checkpoint, expected.checkpoint))
        assert pa.concat_tables(ours).equals(pa.concat_tables(theirs))


@pytest.mark.parametrize("scenario", some_of(LOGS, 3), ids=lambda path: str(path.relative_to(DATA)))
@pytest.mark.parametrize("cores", by_profile([5], [2, 5]))
def test_a_real_log_is_the_same_by_one_thread_and_by_several(scenario: Path, cores: int):
    for log in find_logs([str(scenario)]):
        check_same(folded(log, cores, 1 << 14), folded(log, 1, 1 << 14))


@settings(max_examples=by_profile(8, 3000))
@given(logs(), st.integers(2, 4), st.sampled_from([0, 1, 4]))
def test_a_drawn_log_is_the_same_by_one_thread_and_by_several(
    tmp_path_factory: pytest.TempPathFactory, content: list[list[Written]], cores: int, codec: int
):
    log = folder_of(content, tmp_path_factory.mktemp("log"), codec=codec)
    check_same(folded(log, cores, 300), folded(log, 1, 300))


@pytest.mark.parametrize("slices", [1, 2, 3, 7, 40])
def test_slices_of_share_partitions_fold_to_the_whole(slices: int):
    (log, *_) = find_logs([str(DATA / "4.3.1/fuzz")])
    whole, sliced = Chains(), Chains()
    for records, keys in decode_log(log, Window()):
        whole.apply(records, len(keys))
        sliced.apply(records, len(keys), slices)
    assert len(whole.batches)
    for name in ("chains", "ends", "batches"):
        assert np.array_equal(getattr(sliced, name), getattr(whole, name))
    assert sliced.last_snapshot_record == whole.last_snapshot_record


def test_what_goes_wrong_in_a_thread_is_told_as_ever(tmp_path: Path):
    (log, *_) = find_logs([str(DATA / "4.3.1/happy")])
    gone = Segment(str(tmp_path / f"{0:020}.log"), 0, 100)
    lost = LogPartition(log.topic, log.partition, (*log.segments, gone), log.log_start_offset)
    with pytest.raises(InputError, match="cannot be read"):
        folded(lost, 3, 1 << 12)


def test_a_judge_that_fails_is_heard():
    (log, *_) = find_logs([str(DATA / "4.3.1/happy")])

    class Failing(RecordRules):
        def __call__(self, chunk: ContextChunk) -> list:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fold_log(log, options=FoldOptions(cores=2, judge=Failing()))


def of_size(partition: int, size: int) -> LogPartition:
    return LogPartition("__share_group_state", partition, (Segment("", 0, size),), 0)


def test_a_log_has_as_many_cores_as_its_share_of_the_bytes():
    assert cores_per_log([of_size(0, 100)], 4) == {"__share_group_state-0": 4}
    assert cores_per_log([of_size(0, 800), *(of_size(number, 4) for number in range(1, 51))], 4) == {
        "__share_group_state-0": 3
    }
    assert cores_per_log([of_size(number, 100) for number in range(4)], 4) == {}
    assert cores_per_log([of_size(0, 0)], 4) == {}
    assert cores_per_log([], 4) == {}


def test_no_log_has_more_cores_than_one_executor():
    logs = [of_size(number, 100) for number in range(2)]
    assert cores_per_log(logs, 200, 4) == {"__share_group_state-0": 4, "__share_group_state-1": 4}
    assert cores_per_log(logs, 200, 1) == {}
