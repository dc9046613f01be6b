"""Decoded records as a table: every record once, in log order, as it was written."""

import json
from pathlib import Path

import pytest

from share_state.fold.timeline import decoded_tables
from share_state.schema.declarations import table_schema
from share_state.sources.as_of import Window
from share_state.sources.discovery import find_logs
from share_state.sources.log_partition import LogPartition
from tests.kafka.batches import (
    NOW,
    SNAPSHOT,
    UPDATE,
    Batch,
    Record,
    consecutive,
    in_bytes,
    key,
    log_of,
    snapshot,
    update,
)
from tests.truth import DATA

RECORDS = [
    Record(key(SNAPSHOT), snapshot([(5, 9, 2, 1), (3, 7, 0, 2)], start=3, epoch=4, state_epoch=6, written=NOW + 5)),
    Record(key(UPDATE), update([(9, 5, 4, 1)], start=-1, leader_epoch=-1, count=None)),
    Record(key(SNAPSHOT, "é"), None),
    Record(key(9), b"x"),
    Record(None, b"x"),
    Record(key(UPDATE), None),
    Record(key(SNAPSHOT), snapshot(start=-1, early=True)),
]


def _decoded(log: LogPartition, window: Window | None = None) -> list[dict]:
    tables = list(decoded_tables(log, window or Window()))
    assert {table.schema for table in tables} <= {table_schema("decoded_records")}
    return [row for table in tables for row in table.to_pylist()]


@pytest.fixture
def log(tmp_path: Path) -> LogPartition:
    return log_of(tmp_path, in_bytes(consecutive([Batch([record]) for record in RECORDS])), partition=7)


def test_every_record_is_told_as_it_was_written(log: LogPartition):
    rows = _decoded(log)
    assert [row["offset"] for row in rows] == list(range(7))
    assert {row["state_partition"] for row in rows} == {7}
    assert [row["kind"] for row in rows] == [
        "snapshot", "update", "tombstone", "skipped", "skipped", "update", "snapshot",
    ]  # fmt: skip
    assert [row["group_id"] for row in rows] == ["g", "g", "é", None, None, "g", "g"]
    assert [row["layout"] for row in rows] == ["4.1+", "4.1+", None, None, None, None, "4.0"]
    assert [row["snapshot_epoch"] for row in rows] == [4, 0, None, None, None, None, 0]
    assert [row["state_epoch"] for row in rows] == [6, None, None, None, None, None, 1]
    assert [row["leader_epoch"] for row in rows] == [2, -1, None, None, None, None, 2]
    assert [row["start_offset"] for row in rows] == [3, -1, None, None, None, None, -1]
    assert [row["delivery_complete_count"] for row in rows] == [0, -1, None, None, None, None, -1]
    assert [row["fault"] for row in rows] == [
        None, "INVERTED_RANGE", None, "UNKNOWN_TYPE", "KEY_MALFORMED", "UPDATE_TOMBSTONE", None,
    ]  # fmt: skip


def test_the_batches_of_a_record_are_neither_sorted_nor_joined(log: LogPartition):
    lists = [[tuple(batch.values()) for batch in row["state_batches"]] for row in _decoded(log)]
    assert lists == [[(5, 9, 2, 1), (3, 7, 0, 2)], [(9, 5, 4, 1)], [], [], [], [], []]


def test_a_window_leaves_records_out(log: LogPartition):
    assert [row["offset"] for row in _decoded(log, Window(until_offset=3))] == [0, 1, 2]


def test_a_log_of_nothing_that_can_be_read_is_told(tmp_path: Path):
    (row,) = _decoded(log_of(tmp_path, Batch([Record(None, None)]).written()))
    assert (row["kind"], row["group_id"], row["partition"]) == ("skipped", None, None)


def test_batches_out_of_order_are_told_in_order(tmp_path: Path):
    batches = consecutive([Batch([record]) for record in RECORDS])
    rows = _decoded(log_of(tmp_path, in_bytes([batches[0], *batches[:0:-1]])))
    assert [row["offset"] for row in rows] == list(range(7))


def test_the_copies_of_a_log_are_told_once():
    names = [str(DATA / "4.3.1/happy"), str(DATA / "4.3.1/happy/__share_group_state-0")]
    (log, *_) = find_logs(names)
    assert _decoded(log) == _decoded(find_logs(names[:1])[0])


def test_times_that_no_calendar_holds_are_unknown(tmp_path: Path):
    for time in (2**63 - 1, -(2**63), 253_402_300_800_000, -62_135_596_800_001, 0):
        (row,) = _decoded(log_of(tmp_path, Batch([Record(key(), snapshot(created=time, written=time))]).written()))
        assert (row["create_time"], row["write_time"]) == (None, None)
        batch = Batch([Record(key(), snapshot())], base_timestamp=time)
        assert [row["timestamp"] for row in _decoded(log_of(tmp_path, batch.written()))] == [None]


def test_a_broker_s_own_decoding_is_ours():
    """The truth's counters tell how many records of each kind the coordinator met."""
    for log in find_logs([str(DATA / "4.3.1/chaos")]):
        (truth,) = [
            row
            for row in json.loads((DATA / "4.3.1/chaos/redundant.json").read_text())
            if row["statePartition"] == log.partition
        ]
        kinds = [row["kind"] for row in _decoded(log)]
        assert [kinds.count(kind) for kind in ("snapshot", "update", "tombstone")] == [
            truth["snapshots"], truth["updates"], truth["tombstones"],
        ]  # fmt: skip
