"""States that rest on what is missing: a snapshot that never was, a base that was cut away, records that were lost."""

from dataclasses import replace
from pathlib import Path

import pytest

from share_state.rules.breaches import ERROR, WARNING
from share_state.sources.discovery import find_logs
from share_state.sources.log_partition import STATE_TOPIC
from tests.kafka.batches import SNAPSHOT, UPDATE, Batch, Record, consecutive, in_bytes, key, log_of, snapshot, update
from tests.kafka.judged import Judged, judged

S, U, D = (
    Record(key(SNAPSHOT), snapshot([(0, 4, 2, 1)])),
    Record(key(UPDATE), update([(5, 9, 2, 1)])),
    Record(key(SNAPSHOT), None),
)
OTHER = Record(key(SNAPSHOT, partition=1), snapshot())


def _judged(folder: Path, *records: Record, base_offset: int = 0) -> Judged:
    batches = consecutive([Batch([record]) for record in records], base_offset)
    return judged(log_of(folder, in_bytes(batches), base_offset=base_offset))


def test_an_update_that_no_snapshot_precedes_is_found(tmp_path: Path):
    found = _judged(tmp_path, OTHER, U, U)
    assert found.codes == {"ORPHAN_UPDATE": 1}
    (row,) = found.of("ORPHAN_UPDATE")
    assert (row["offset"], row["severity"], row["group_id"], row["partition"]) == (1, ERROR, "g", 0)
    assert row["evidence"] == {"updates": "2"}


def test_an_update_behind_a_tombstone_is_an_orphan(tmp_path: Path):
    assert _judged(tmp_path, S, D, U).codes == {"ORPHAN_UPDATE": 1}


@pytest.mark.parametrize("last", [S, D])
def test_a_redundant_update_without_a_snapshot_before_it_is_quiet(tmp_path: Path, last: Record):
    assert _judged(tmp_path, U, U, last).codes == {}


def test_an_orphan_in_a_log_that_does_not_reach_back_to_its_beginning_is_a_warning(tmp_path: Path):
    (row,) = _judged(tmp_path, U, base_offset=7).of("ORPHAN_UPDATE")
    assert (row["offset"], row["severity"]) == (7, WARNING)
    assert "the log begins at offset 7" in row["message"]


def _with_noted_start(folder: Path, start: int, *records: Record) -> Judged:
    (folder / "log-start-offset-checkpoint").write_text(f"0\n1\n{STATE_TOPIC} 0 {start}\n")
    return _judged(folder, *records)


def test_a_base_that_the_broker_has_deleted_is_found(tmp_path: Path):
    found = _with_noted_start(tmp_path, 1, S, U, OTHER)
    assert found.codes == {"BASE_LOST": 1, "ORPHAN_UPDATE": 1}
    (row,) = found.of("BASE_LOST")
    assert (row["offset"], row["severity"], row["partition"]) == (1, ERROR, 0)


def test_a_base_at_the_log_start_is_there(tmp_path: Path):
    assert _with_noted_start(tmp_path, 1, OTHER, S, U).codes == {}


def test_a_state_that_began_with_an_update_behind_a_tombstone_has_lost_no_base(tmp_path: Path):
    assert _with_noted_start(tmp_path, 1, S, D, U).codes == {"ORPHAN_UPDATE": 1}


def test_a_log_that_only_begins_later_may_have_been_cut_by_whoever_copied_it(tmp_path: Path):
    assert "BASE_LOST" not in _judged(tmp_path, U, base_offset=7).codes


def test_a_state_that_rests_on_lost_records_is_suspect(tmp_path: Path):
    batches = consecutive([Batch([record]) for record in (S, OTHER, U, OTHER)])
    log = log_of(tmp_path, in_bytes([*batches[:2], replace(batches[2], crc=1), batches[3]]))
    found = judged(log)
    assert found.codes == {"CRC_MISMATCH": 1, "STATE_SUSPECT": 1}
    (row,) = found.of("STATE_SUSPECT")
    assert (row["offset"], row["severity"], row["partition"]) == (2, WARNING, 0)
    assert row["evidence"] == {"snapshot_offset": "0"}
    assert found.states["g", 0]["suspect"]
    assert not found.states["g", 1]["suspect"]


def test_a_lost_record_at_the_end_makes_every_state_suspect(tmp_path: Path):
    # Nobody knows what it was about.
    batches = consecutive([Batch([record]) for record in (S, OTHER, U)])
    found = judged(log_of(tmp_path, in_bytes([*batches[:2], replace(batches[2], crc=1)])))
    assert found.suspects == {0, 1}


def test_a_torn_tail_makes_no_state_suspect(tmp_path: Path):
    # Recovery cuts it off: it was never acknowledged to anyone.
    batches = consecutive([Batch([record]) for record in (S, OTHER, U)])
    found = judged(log_of(tmp_path, in_bytes(batches)[:-1]))
    assert found.codes == {"TORN_TAIL": 1}
    assert not found.suspects


def test_a_torn_segment_before_another_loses_what_it_lacks(tmp_path: Path):
    batches = consecutive([Batch([record]) for record in (S, OTHER, U, OTHER)])
    log_of(tmp_path, in_bytes(batches[:3])[:-1])
    log_of(tmp_path, in_bytes(batches[3:]), base_offset=3)
    (log,) = find_logs([str(tmp_path)])
    found = judged(log)
    assert found.codes == {"TORN_TAIL": 1, "OFFSET_GAP": 1, "STATE_SUSPECT": 1}
    assert found.suspects == {0}
