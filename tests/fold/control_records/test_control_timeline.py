"""The state after every control record, against folds that stop behind it."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import share_state
from share_state.fold.draft.control_log import decode_control_log, fold_control_log
from share_state.fold.draft.control_replay import ControlReplay
from share_state.fold.fold_options import SharePartitionFilter
from share_state.fold.timeline import timeline_tables
from share_state.schema.declarations import table_schema
from share_state.sources.as_of import Window
from share_state.sources.discovery import find_topic_logs
from share_state.sources.log_partition import LogPartition
from tests.fold.control_records.logs import checkpoint, control, control_options, delta, log_of
from tests.fold.control_records.model import Checkpoint, Delta
from tests.fold.control_records.test_against_model import batches, logs
from tests.warehouses import arrow

OF_RECORD = ("offset", "timestamp", "kind")
STATE = table_schema("timeline").names[9:]


def timeline(
    log: LogPartition,
    window: Window | None = None,
    key_filter: SharePartitionFilter | None = None,
    mode: str = "strict",
):
    """All rows in log order."""
    tables = list(timeline_tables(log, window, key_filter, control_options(mode=mode)))
    assert {table.schema for table in tables} <= {table_schema("timeline")}
    return sorted((row for table in tables for row in table.to_pylist()), key=lambda row: row["offset"])


def assert_is_the_fold(log: LogPartition, row: dict, mode: str) -> None:
    """Hold a row against the share-partition's row of a fold that stops behind the record."""
    folded = fold_control_log(log, Window(until_offset=row["offset"] + 1), control_options(mode=mode))
    found = [state for state in folded.states.to_pylist() if state["group_id"] == row["group_id"]]
    if found:
        assert {name: row[name] for name in row if name not in OF_RECORD} == {
            name: found[0][name] for name in found[0] if name in row
        }
    else:
        assert [row[name] for name in STATE] == [None] * len(STATE)


@given(log=logs(), mode=st.sampled_from(["strict", "best-effort"]), data=st.data())
def test_a_drawn_log_has_the_states_of_folds_that_stop_behind_each_control_record(
    tmp_path_factory: pytest.TempPathFactory, log: dict[int, Checkpoint | Delta], mode: str, data: st.DataObject
):
    found = log_of(tmp_path_factory.mktemp("log"), batches(log, data))
    rows = timeline(found, mode=mode)
    kinds = {Checkpoint: "checkpoint", Delta: "delta"}
    assert [(row["offset"], row["group_id"], row["kind"]) for row in rows] == [
        (offset, record.group, kinds[type(record)]) for offset, record in log.items()
    ]
    for row in rows:
        assert_is_the_fold(found, row, mode)


@given(log=logs(), step=st.sampled_from([1, 3]), points=st.integers(1, 5), ranges=st.integers(1, 40))
def test_states_after_control_records_depend_neither_on_chunks_nor_on_room(
    tmp_path_factory: pytest.TempPathFactory, log: dict[int, Checkpoint | Delta], step: int, points: int, ranges: int
):
    decoded = list(decode_control_log(log_of(tmp_path_factory.mktemp("log"), batches(log)), Window()))

    def states(replay: ControlReplay, step: int) -> dict[int, tuple]:
        found = {}
        for records, groups in decoded:
            numbers = np.arange(len(records.rows))
            for begin in range(0, len(numbers), step):
                part = records.take(numbers[begin : begin + step])
                for made in replay.apply(part, np.ones(len(groups), bool)):
                    for at, row in enumerate(made.rows):
                        own = made.batches[made.ends[at] : made.ends[at + 1]]
                        found[int(row["offset"])] = (made.chains[at].tolist(), own.tolist())
        return found

    assert states(ControlReplay(states=points, ranges=ranges), step) == states(ControlReplay(), 10**6)


def test_only_the_chosen_share_partitions_have_rows(tmp_path: Path):
    log = log_of(tmp_path, [control(0, checkpoint("a", 1, 0, 0), checkpoint("b", 1, 5, 5), delta("a", 1, 0))])
    assert [row["offset"] for row in timeline(log, key_filter=SharePartitionFilter("a", "T", 0))] == [0, 2]
    assert [row["offset"] for row in timeline(log, key_filter=SharePartitionFilter("b"))] == [1]
    assert (
        timeline(log, key_filter=SharePartitionFilter("a", "U"))
        == timeline(log, key_filter=SharePartitionFilter(partition=1))
        == []
    )


def test_an_unreadable_control_record_has_no_row_and_makes_the_next_suspect(tmp_path: Path):
    bad = delta("a", 1, 0)
    log = log_of(
        tmp_path,
        [control(0, checkpoint("a", 1, 0, 0), type(bad)(bad.key, (bad.value or b"") + b"\0"), delta("a", 1, 0))],
    )
    assert [(row["offset"], row["suspect"]) for row in timeline(log)] == [(0, False), (2, True)]


def test_copies_that_differ_leave_the_state_suspect_until_a_control_record(tmp_path: Path):
    one = [control(0, checkpoint("a", 1, 0, 0)), control(1, delta("a", 1, 0, [(0, 3, 0, 1)]), leader_epoch=1)]
    other = [control(1, delta("a", 1, 0, [(0, 4, 0, 1)])), control(2, delta("a", 1, 1), leader_epoch=1)]
    for copy, written in (("x", one), ("y", other)):
        log_of(tmp_path / copy, written)
    (both,) = find_topic_logs([str(tmp_path / "x"), str(tmp_path / "y")])
    assert both.has_replicas
    rows = timeline(both)
    assert [(row["offset"], row["suspect"], row["end_offset"]) for row in rows] == [
        (0, False, 0), (1, True, 4), (2, False, 4)
    ]  # fmt: skip
    for row in rows:
        assert_is_the_fold(both, row, "strict")


def test_many_small_deltas_cost_their_own_ranges(tmp_path: Path):
    """Thousands of deltas over a wide window end in the state of one fold."""
    records = [checkpoint("a", 1, 0, 6000)]
    records += [delta("a", 1, number, [(2 * number, 2 * number, 0, 1)]) for number in range(300)]
    log = log_of(tmp_path, [control(0, *records)])
    rows = timeline(log)
    assert [len(row["state_batches"]) for row in rows] == list(range(301))
    assert_is_the_fold(log, rows[-1], "strict")


def test_timeline_and_explain_in_python_read_control_records(tmp_path: Path):
    log = log_of(tmp_path, [control(0, checkpoint("a", 1, 0, 0)), control(1, delta("a", 1, 0, [(0, 3, 2, 1)]))])
    assert log.topic == "T"
    found = share_state.timeline(tmp_path, dialect="control_records")
    assert isinstance(found, pa.Table)
    assert arrow(found).to_pylist() == timeline(log)
    told = share_state.explain(tmp_path, "a", "T", 0, 2)
    assert "acknowledged" in told.sentence
    assert told.records["kind"].to_pylist() == ["checkpoint", "delta"]
