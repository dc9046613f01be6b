"""Points in time: by offset, by moment, by a moment's text."""

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

import share_state
from share_state.fold.state_log import fold_log
from share_state.fold.timeline import timeline_tables
from share_state.sources.as_of import Window, to_epoch_ms
from share_state.sources.discovery import find_logs
from tests.kafka.batches import NOW
from tests.log_writer import batch, snapshot, update, write_log_folder
from tests.truth import DATA, cases

CHAOS = DATA / "4.3.1/chaos"


def test_a_moment_is_a_datetime_or_its_text_with_and_without_a_zone():
    moment = datetime(2026, 11, 21, 2, 10, 0, 7000, tzinfo=UTC)
    elsewhere = moment.astimezone(timezone(timedelta(hours=5)))
    same = (moment, "2026-11-21T02:10:00.007Z", "2026-11-21T02:10:00.007", elsewhere, moment.replace(tzinfo=None))
    assert {to_epoch_ms(text) for text in same} == {1_795_227_000_007}


@pytest.mark.parametrize("time", [1_795_227_000_000 + step for step in range(0, 1000, 37)])
def test_no_millisecond_is_lost(time: int):
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time)
    assert to_epoch_ms(moment) == to_epoch_ms(moment.isoformat()) == time


@pytest.mark.parametrize("case", [case for case in cases() if case.is_as_of][::4], ids=lambda case: case.name)
def test_the_fold_as_of_a_checkpoint_is_the_truth(case):
    expected = case.rows
    for log in find_logs([str(case.folder)]):
        states = fold_log(log, Window(until_offset=case.partitions[log.partition]["nextOffset"])).states.to_pylist()
        found = {(row["group_id"], row["topic_id"], row["partition"]): row for row in states}
        assert found.keys() == {key for key, row in expected.items() if row["state_partition"] == log.partition}
        for key, row in found.items():
            assert {name: row[name] for name in expected[key]} == expected[key]


def test_what_was_written_after_a_moment_does_not_count(tmp_path: Path):
    key = ("g", "AAAAAAAAAAAAAAAAAAAAAA", 0)
    records = [[snapshot(key), update(key)], [update(key)], [update(key)]]
    batches = [batch(records, timestamp=NOW + 1000 * number) for number, records in enumerate(records)]
    (log,) = find_logs([str(write_log_folder(tmp_path, 0, batches))])
    for window in (Window(until_time_ms=NOW + 1500), Window(until_offset=3)):
        folded = fold_log(log, window)
        assert (folded.record_count, folded.newest_time, folded.next_offset) == (3, NOW + 1000, 3)
        assert folded.cutoff["log_end_offset"].to_pylist() == [3]


@pytest.mark.parametrize("lost", [1, 2, 3, 4])
def test_what_is_missing_after_a_moment_does_not_count(tmp_path: Path, lost: int):
    key = ("g", "AAAAAAAAAAAAAAAAAAAAAA", 0)
    records = [snapshot(key), *[update(key)] * 5]
    batches = [batch([record], timestamp=NOW + 1000 * number) for number, record in enumerate(records)]
    segments = write_log_folder(tmp_path, 0, batches, a_segment=1)
    sorted(segments.iterdir())[lost].unlink()
    (log,) = find_logs([str(segments)])
    folded = fold_log(log, Window(until_time_ms=NOW + 2500))
    # Record 3 may have been written before the moment; record 4 was not, as record 3 was not.
    is_seen = lost < 4
    assert (folded.suspect.tolist(), folded.cutoff["safe"].to_pylist()) == ([is_seen], [not is_seen])
    assert bool(folded.observations.gaps) is is_seen
    last = list(timeline_tables(log, Window(until_time_ms=NOW + 2500)))[-1]
    assert last["suspect"].to_pylist()[-1] is (lost < 2)


def test_a_moment_takes_every_record_up_to_it():
    (log,) = find_logs([str(CHAOS / "__share_group_state-0")])
    moment = "2026-11-21T03:07:05Z"
    tables = share_state.reconstruct(CHAOS / "__share_group_state-0", as_of=moment)
    folded = fold_log(log, Window(until_time_ms=to_epoch_ms(moment)))
    offsets = folded.states.sort_by("snapshot_offset")["snapshot_offset"]
    assert tables.share_partition_state.sort_by("snapshot_offset")["snapshot_offset"].equals(offsets)
    assert len(offsets) > 0
    assert fold_log(log, Window(until_time_ms=to_epoch_ms("2000-01-01"))).record_count == 0
