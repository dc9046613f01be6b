"""Going on with a log after an earlier run: where it is read from, and how its fate is told."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from share_state.kafka.record_batches import HEADER_SIZE
from share_state.sources.discovery import find_logs
from share_state.sources.log_partition import LogPartition
from share_state.sources.resume_point import ResumeStatus, resume
from tests.fold.nights import Auditor, same_tables
from tests.kafka.batches import NOW, Batch, Record, consecutive, in_bytes, key, snapshot

TOPIC = "__share_group_state"
LOG = consecutive(
    [Batch([Record(key(partition=number % 3), snapshot([(number, number, 2, 1)]))],
           base_timestamp=NOW + number, max_timestamp=NOW + number) for number in range(12)]
)  # fmt: skip
"""A batch an offset, each later than the one before."""


def copy_of(folder: Path, *segments: list[Batch], topic_id: str | None = None) -> Path:
    """A broker's copy of the log partition in these segments."""
    place = folder / f"{TOPIC}-0"
    place.mkdir(parents=True, exist_ok=True)
    for old in place.glob("*.log"):
        old.unlink()
    for batches in segments:
        (place / f"{batches[0].base_offset:020}.log").write_bytes(in_bytes(batches))
    if topic_id is not None:
        (place / "partition.metadata").write_text(f"version: 0\ntopic_id: {topic_id}\n")
    return folder


def found(*folders: Path) -> LogPartition:
    (log,) = find_logs([str(folder) for folder in folders])
    return log


@pytest.fixture
def audited(tmp_path: Path) -> Callable[..., Auditor]:
    """An auditor that has read the first eight batches."""

    def audited(*, topic_id: str | None = None) -> Auditor:
        auditor = Auditor()
        auditor.audit(found(copy_of(tmp_path / "first", LOG[:8], topic_id=topic_id)))
        return auditor

    return audited


def _left(auditor: Auditor, log: LogPartition) -> tuple[int, ResumeStatus]:
    """Bytes that are left to read, and the log's fate."""
    assert auditor.last.checkpoint is not None
    left, fate = resume(log, auditor.last.checkpoint.mark)
    return left.size, fate


def _goes_on(auditor: Auditor, log: LogPartition) -> None:
    auditor.audit(log)
    once = Auditor()
    once.audit(log)
    same_tables(auditor.last, once.last)


def _told(auditor: Auditor) -> list[str]:
    """What is said of the log's fate."""
    return [row["rule"] for row in auditor.settled if row["rule"].startswith("LOG_")]


def test_only_what_is_behind_the_mark_is_read(audited: Callable[..., Auditor], tmp_path: Path):
    auditor = audited()
    log = found(copy_of(tmp_path / "b", LOG))
    assert _left(auditor, log) == (len(in_bytes(LOG[8:])), ResumeStatus.GROWN)
    _goes_on(auditor, log)


def test_new_segments_are_read_and_old_ones_are_not(audited: Callable[..., Auditor], tmp_path: Path):
    auditor = audited()
    log = found(copy_of(tmp_path / "b", LOG[:8], LOG[8:10], LOG[10:]))
    assert _left(auditor, log) == (len(in_bytes(LOG[8:])), ResumeStatus.GROWN)
    _goes_on(auditor, log)


def test_a_replica_that_cuts_its_segments_elsewhere_is_the_same_log(audited: Callable[..., Auditor], tmp_path: Path):
    auditor = audited()
    log = found(copy_of(tmp_path / "b", LOG[:3], LOG[3:]))
    assert _left(auditor, log) == (len(in_bytes(LOG[8:])), ResumeStatus.GROWN)
    _goes_on(auditor, log)


def test_nothing_new_is_unchanged(audited: Callable[..., Auditor], tmp_path: Path):
    assert _left(audited(), found(copy_of(tmp_path / "b", LOG[:8]))) == (0, ResumeStatus.UNCHANGED)
    # A log start that moved is news, although there is nothing to read.
    assert _left(audited(), found(copy_of(tmp_path / "c", LOG[4:8]))) == (0, ResumeStatus.GROWN)


@pytest.mark.parametrize("kept", [1, 5, 7])
def test_a_replica_that_lags_is_behind(audited: Callable[..., Auditor], tmp_path: Path, kept: int):
    assert _left(audited(), found(copy_of(tmp_path / "b", LOG[:kept]))) == (0, ResumeStatus.BEHIND)


def test_of_several_exports_the_one_that_is_ahead_is_read(audited: Callable[..., Auditor], tmp_path: Path):
    auditor = audited()
    folders = copy_of(tmp_path / "b", LOG[:5]), copy_of(tmp_path / "c", LOG[:10]), copy_of(tmp_path / "d", LOG[6:])
    log = found(*folders)
    assert _left(auditor, log)[1] == ResumeStatus.GROWN
    _goes_on(auditor, log)
    assert auditor.last.next_offset == 12


def test_a_log_cleaned_up_to_where_it_was_read_goes_on(audited: Callable[..., Auditor], tmp_path: Path):
    auditor = audited()
    assert _left(auditor, found(copy_of(tmp_path / "b", LOG[8:]))) == (len(in_bytes(LOG[8:])), ResumeStatus.GROWN)


def test_a_log_cleaned_past_that_is_read_anew(audited: Callable[..., Auditor], tmp_path: Path):
    log = found(copy_of(tmp_path / "b", LOG[10:]))
    assert _left(audited(), log) == (log.size, ResumeStatus.CLEANED)


def test_a_log_that_reaches_further_back_is_read_anew(tmp_path: Path):
    auditor = Auditor()
    auditor.audit(found(copy_of(tmp_path / "a", LOG[4:8])))
    log = found(copy_of(tmp_path / "b", LOG))
    assert _left(auditor, log) == (log.size, ResumeStatus.LONGER)
    _goes_on(auditor, log)


def test_other_bytes_at_the_mark_are_another_history(audited: Callable[..., Auditor], tmp_path: Path):
    other = [*LOG[:7], replace(LOG[7], records=LOG[6].records), *LOG[8:]]
    auditor, log = audited(), found(copy_of(tmp_path / "b", other))
    assert _left(auditor, log) == (log.size, ResumeStatus.DIVERGED)
    auditor.audit(log)
    assert _told(auditor) == ["LOG_DIVERGED"]


@pytest.mark.parametrize("count", [3, 8, 12])
def test_a_log_that_is_younger_than_all_that_was_read_began_again(
    audited: Callable[..., Auditor], tmp_path: Path, count: int
):
    younger = [replace(batch, base_timestamp=NOW + 10_000, max_timestamp=NOW + 10_000) for batch in LOG[:count]]
    auditor, log = audited(), found(copy_of(tmp_path / "b", younger))
    assert _left(auditor, log) == (log.size, ResumeStatus.RECREATED)
    auditor.audit(log)
    assert _told(auditor) == ["LOG_BEGUN_AGAIN"]


def test_another_topic_id_is_another_topic(audited: Callable[..., Auditor], tmp_path: Path):
    first = "AAAAAAAAAAAAAAAAAAAAAA"
    auditor = audited(topic_id=first)
    same, other = (copy_of(tmp_path / name, LOG, topic_id=topic_id) for name, topic_id in
                   (("b", first), ("c", "BBBBBBBBBBBBBBBBBBBBBB")))  # fmt: skip
    assert _left(auditor, found(same))[1] == ResumeStatus.GROWN
    assert _left(auditor, found(other)) == (found(other).size, ResumeStatus.RECREATED)


def test_a_torn_tail_is_read_once_it_is_whole(tmp_path: Path):
    place = copy_of(tmp_path / "a", LOG[:9]) / f"{TOPIC}-0" / f"{0:020}.log"
    whole = in_bytes(LOG)
    auditor = Auditor()
    place.write_bytes(whole[: len(in_bytes(LOG[:8])) + HEADER_SIZE + 3])
    auditor.audit(found(tmp_path / "a"))
    assert [row["rule"] for row in auditor.unsettled if row["rule"] == "TORN_TAIL"] == ["TORN_TAIL"]
    place.write_bytes(whole)
    _goes_on(auditor, found(tmp_path / "a"))
    assert not [row for row in (*auditor.settled, *auditor.unsettled) if row["rule"] == "TORN_TAIL"]
