"""What writers from 4.4 on guarantee, and how it is known that they wrote."""

from contextlib import nullcontext
from pathlib import Path

import pytest

from share_state.pipeline.audit import run_audit
from share_state.pipeline.local_executor import LocalExecutor
from share_state.pipeline.plan import FoldPlan
from share_state.sources.log_partition import LogPartition
from tests.kafka.batches import NOW, Batch, Record, consecutive, in_bytes, log_of
from tests.rules.histories import ACKNOWLEDGED, ARCHIVED, ARCHIVING, BREACHES, OF_4_4, found, snapshot, update
from tests.warehouses import WrittenTables

GUARANTEES = ["START_NOT_CARRIED", "COUNT_REGRESSION", "ARCHIVING_PASSED", "BATCHES_NOT_JOINED"]
BEFORE_ARCHIVING = {"START_NOT_CARRIED", "COUNT_REGRESSION", "BATCHES_NOT_JOINED"}


@pytest.mark.parametrize("code", GUARANTEES)
@pytest.mark.parametrize("writer", ["4.0", "4.1", "4.2", "4.3"])
def test_earlier_writers_promise_nothing(tmp_path: Path, code: str, writer: str):
    judged = found(tmp_path, *BREACHES[code].records, limits={"writer_version": writer})
    assert code not in judged.codes


@pytest.mark.parametrize("code", sorted(BEFORE_ARCHIVING))
def test_a_log_without_archiving_may_be_of_any_writer(tmp_path: Path, code: str):
    assert code not in found(tmp_path, *BREACHES[code].records).codes


@pytest.mark.parametrize("code", sorted(BEFORE_ARCHIVING))
def test_behind_a_range_in_archiving_of_any_share_partition_the_writer_is_known(tmp_path: Path, code: str):
    sign = snapshot([(0, 0, ARCHIVING, 1)], partition=1)
    (row,) = found(tmp_path / "behind", sign, *BREACHES[code].records).of(code)
    assert row["message"].endswith(" (the writer must be 4.4 or later: ARCHIVING is in the log since offset 0)")
    assert code not in found(tmp_path / "before", *BREACHES[code].records, sign).codes


CONDITIONAL = ["START_NOT_CARRIED", "COUNT_REGRESSION"]
NEXT_SECOND = (NOW // 1000 + 1) * 1000


@pytest.mark.parametrize("code", CONDITIONAL)
@pytest.mark.parametrize("written_before", [True, False])
def test_archiving_in_another_log_shows_the_writer_of_later_records(tmp_path: Path, code: str, written_before: bool):
    archiving = _log(tmp_path, 1, NOW if written_before else NEXT_SECOND, snapshot([(0, 0, ARCHIVING, 1)]))
    plan, lake = FoldPlan([_log(tmp_path, 0, NEXT_SECOND, *BREACHES[code].records), archiving]), tmp_path / "lake"
    result = run_audit(lambda _: nullcontext(LocalExecutor()), plan, str(lake))
    rows = [row for row in WrittenTables(lake).read("findings").to_pylist() if row["rule"] == code]
    assert len(rows) == result.findings.get(("warning", code), 0) == int(written_before)
    for row in rows:
        why = " (the writer must be 4.4 or later: ARCHIVING is in __share_group_state-1 since offset 0)"
        assert row["message"] == BREACHES[code].message + why
    (note,) = result.notes
    assert note.endswith("inferred from state ARCHIVING in __share_group_state-1 at offset 0")


def _log(folder: Path, number: int, time: int, *records: Record) -> LogPartition:
    data = in_bytes(consecutive([Batch([record], base_timestamp=time) for record in records]))
    return log_of(folder / str(number), data, partition=number)


def test_a_named_writer_is_not_explained(tmp_path: Path):
    (row,) = found(tmp_path, *BREACHES["START_NOT_CARRIED"].records, limits=OF_4_4).of("START_NOT_CARRIED")
    assert "writer" not in row["message"]


def test_before_there_is_a_start_an_update_carries_none(tmp_path: Path):
    history = (snapshot(start=-1, count=None, leader_epoch=0), update(start=-1, count=None), update(start=5))
    assert found(tmp_path, *history, limits=OF_4_4).codes == {}


def test_a_count_may_fall_when_the_start_moves(tmp_path: Path):
    history = (snapshot([(0, 4, ACKNOWLEDGED, 1)], count=5), update(start=3, count=2), update(start=5, count=0))
    assert found(tmp_path, *history, limits=OF_4_4).codes == {}


def test_a_count_may_fall_when_the_share_partition_is_initialised(tmp_path: Path):
    history = (snapshot([(0, 4, ACKNOWLEDGED, 1)], count=5), snapshot(epoch=1, leader_epoch=0))
    assert found(tmp_path, *history, limits=OF_4_4).codes == {}


def test_a_snapshot_whose_start_passes_an_archiving_offset_is_found(tmp_path: Path):
    judged = found(tmp_path, snapshot([(1, 3, ARCHIVING, 1)]), snapshot(start=4, epoch=1), limits=OF_4_4)
    assert judged.codes == {"ARCHIVING_PASSED": 1}
    assert judged.of("ARCHIVING_PASSED")[0]["evidence"] == {"passed_offset": "1"}


def test_an_offset_that_was_archived_may_be_passed(tmp_path: Path):
    history = (snapshot([(1, 3, ARCHIVING, 1)]), update([(1, 3, ARCHIVED, 1)], count=3), update(start=4))
    assert found(tmp_path, *history, limits=OF_4_4).codes == {}


def test_initialising_may_pass_an_archiving_offset(tmp_path: Path):
    history = (snapshot([(1, 3, ARCHIVING, 1)]), snapshot(start=9, epoch=1, leader_epoch=0))
    assert found(tmp_path, *history, limits=OF_4_4).codes == {}


def test_batches_that_do_not_touch_or_differ_need_not_be_joined(tmp_path: Path):
    ranges = [(0, 0, ACKNOWLEDGED, 1), (2, 2, ACKNOWLEDGED, 1), (3, 3, ACKNOWLEDGED, 2), (4, 4, ARCHIVED, 2)]
    assert found(tmp_path, snapshot(), update(ranges, count=4), limits=OF_4_4).codes == {}


def test_batches_of_two_records_are_not_neighbours(tmp_path: Path):
    history = (snapshot(), update([(0, 0, ACKNOWLEDGED, 1)], count=1), update([(1, 1, ACKNOWLEDGED, 1)], count=2))
    assert found(tmp_path, *history, limits=OF_4_4).codes == {}


def test_a_cold_snapshot_may_repeat_what_an_older_writer_left(tmp_path: Path):
    ranges = [(0, 0, ACKNOWLEDGED, 1), (1, 1, ACKNOWLEDGED, 1)]
    history = (snapshot(ranges, count=2), snapshot(ranges, count=2, epoch=1, written=1_800_000_000_000))
    assert [row["offset"] for row in found(tmp_path, *history, limits=OF_4_4).of("BATCHES_NOT_JOINED")] == [0]
