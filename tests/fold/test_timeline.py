"""The state after every record, against folds that stop behind it."""

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.fold.dialect import STATE_DIALECT
from share_state.fold.fold_options import FoldOptions, SharePartitionFilter
from share_state.fold.state_log import decode_log, fold_log
from share_state.fold.state_replay import StateReplay
from share_state.fold.timeline import timeline_tables
from share_state.schema.declarations import table_schema
from share_state.sources.as_of import Window
from share_state.sources.discovery import find_logs
from share_state.sources.log_partition import LogPartition
from share_state.sources.topics import Topics
from tests.fold.model import SNAPSHOT_KIND, TOMBSTONE_KIND, UPDATE_KIND, Written
from tests.fold.random_logs import folder_of, logs
from tests.kafka.batches import Batch, consecutive, in_bytes, log_of
from tests.present import present
from tests.profiles import some_of
from tests.truth import DATA, Case, cases

KEY = ("group_id", "topic_id", "partition")
OF_RECORD = ("offset", "timestamp", "kind")


def timeline(
    log: LogPartition, window: Window | None = None, key_filter: SharePartitionFilter | None = None
) -> list[dict]:
    """All rows in log order."""
    tables = list(timeline_tables(log, window, key_filter))
    assert {table.schema for table in tables} <= {table_schema("timeline")}
    return sorted((row for table in tables for row in table.to_pylist()), key=lambda row: row["offset"])


def state_after(log: LogPartition, row: dict) -> dict | None:
    """The share-partition's row of a fold that stops behind the record; None where it has no state."""
    folded = fold_log(log, Window(until_offset=row["offset"] + 1))
    found = [state for state in folded.states.to_pylist() if all(state[name] == row[name] for name in KEY)]
    return found[0] if found else None


def assert_is_the_fold(log: LogPartition, row: dict) -> None:
    expected = state_after(log, row)
    if row["kind"] == "tombstone":
        assert expected is None
        state = table_schema("timeline").names[9:]
        assert [row[name] for name in state] == [None] * len(state)
    else:
        assert expected is not None
        shown = {name: value for name, value in expected.items() if name in row}
        assert {name: value for name, value in row.items() if name not in OF_RECORD} == shown
        assert {expected[name] for name in expected.keys() - row.keys()} == {None}


def small_log(folder: Path) -> LogPartition:
    """Real records with a flawed batch and a torn end among them."""
    place = folder / "__share_group_state-0"
    place.mkdir()
    data = next((DATA / "4.3.1/chaos/__share_group_state-0").glob("*.log")).read_bytes()
    (place / f"{0:020}.log").write_bytes(data[:2500] + bytes([data[2500] ^ 1]) + data[2501:9000])
    (log,) = find_logs([str(place)])
    return log


def test_the_state_after_every_record_is_that_of_a_fold_that_stops_there(tmp_path: Path):
    log = small_log(tmp_path)
    rows = timeline(log)
    assert {row["suspect"] for row in rows} == {False, True}
    for row in rows:
        assert_is_the_fold(log, row)
    assert [row["offset"] for row in rows] == [offset for offset, _ in _kinds(log)]
    assert [row["kind"] for row in rows] == [kind for _, kind in _kinds(log)]


def _kinds(log: LogPartition) -> list[tuple[int, str]]:
    names = ("snapshot", "update", "tombstone")
    return [
        (int(row["offset"]), names[row["kind"]]) for records, _ in decode_log(log, Window()) for row in records.rows
    ]


@pytest.mark.parametrize(
    "scenario",
    some_of(
        ["4.0.2/chaos", "4.1.2/fuzz", "4.2.1/chaos", "4.3.1/pruneraw", "4.3.1/codec-lz4", "4.4.0/fuzz", "4.4.0/dlq"], 1
    ),
)
def test_the_state_after_a_broker_s_record_is_that_of_a_fold_that_stops_there(scenario: str):
    draw = random.Random(scenario)
    for log in find_logs([str(DATA / scenario)]):
        rows = timeline(log)
        for row in draw.sample(rows, 12):
            assert_is_the_fold(log, row)


@given(logs(), st.data())
def test_a_drawn_log_has_the_states_of_folds_that_stop_behind_each_record(
    tmp_path_factory: pytest.TempPathFactory, log: list[list[Written]], data: st.DataObject
):
    found = folder_of(log, tmp_path_factory.mktemp("log"))
    rows = timeline(found)
    assert len(rows) == sum(map(len, log))
    for row in data.draw(st.lists(st.sampled_from(rows), max_size=6)) if rows else []:
        assert_is_the_fold(found, row)


@pytest.mark.parametrize("case", some_of((case for case in cases() if case.is_as_of), 3), ids=lambda case: case.name)
def test_the_latest_states_as_of_a_checkpoint_are_the_truth(case: Case):
    expected = case.rows
    for log in find_logs([str(case.folder)]):
        until = case.partitions[present(log.partition)]["nextOffset"]
        latest: dict[tuple, dict] = {}
        for row in timeline(log, Window(until_offset=until)):
            latest[tuple(row[name] for name in KEY)] = row
        live = {key: row for key, row in latest.items() if row["kind"] != "tombstone"}
        assert live.keys() == {key for key, row in expected.items() if row["state_partition"] == log.partition}
        for key, row in live.items():
            assert {name: row[name] for name in expected[key]} == expected[key]


@pytest.mark.parametrize("step", [1, 37, 10**6])
@pytest.mark.parametrize("room", [(1, 1), (7, 40), (1000, 100_000)])
def test_states_depend_neither_on_chunks_nor_on_the_room_for_them(step: int, room: tuple[int, int]):
    (log,) = find_logs([str(DATA / "4.2.1/fuzz/__share_group_state-1")])
    ((records, keys),) = decode_log(log, Window())
    size = min(len(records.rows), 400)

    def all_points(step: int, points: int, ranges: int) -> dict[int, tuple]:
        replay, found = StateReplay(states=points, ranges=ranges), {}
        for begin in range(0, size, step):
            part = type(records)(records.rows[begin : min(begin + step, size)], records.batches)
            for made in replay.apply(part, np.ones(len(keys), bool)):
                assert len(made.rows) <= points
                for at, row in enumerate(made.rows):
                    ranges_of = made.batches[made.ends[at] : made.ends[at + 1]].tolist()
                    found[int(row["offset"])] = (made.chains[at].tolist(), ranges_of)
        return found

    found = all_points(step, *room)
    assert len(found) == size
    assert found == all_points(10**6, 1 << 16, 1 << 20)


def test_only_what_is_chosen_has_a_timeline():
    (log,) = find_logs([str(DATA / "4.3.1/chaos/__share_group_state-1")])
    rows = timeline(log)
    for wanted in rows[:: len(rows) // 9]:
        group, topic, partition = (wanted[name] for name in KEY)
        chosen = timeline(log, key_filter=SharePartitionFilter(group, topic, partition))
        assert chosen == [row for row in rows if [row[name] for name in KEY] == [group, topic, partition]]
        assert timeline(log, key_filter=SharePartitionFilter(group)) == [
            row for row in rows if row["group_id"] == group
        ]
    assert timeline(log, key_filter=SharePartitionFilter("nobody")) == []


def test_a_topic_is_chosen_by_its_name_where_that_is_known():
    (log,) = find_logs([str(DATA / "4.3.1/chaos/__share_group_state-1")])
    (first, *_) = timeline(log)
    topics = Topics(names=pa.table({"topic_id": [first["topic_id"]], "topic": ["orders"]}))
    found = [
        row
        for table in timeline_tables(log, None, SharePartitionFilter(topic="orders"), FoldOptions(topics=topics))
        for row in table.to_pylist()
    ]
    assert {(row["topic"], row["topic_id"]) for row in found} == {("orders", first["topic_id"])}
    assert timeline(log, key_filter=SharePartitionFilter(topic="orders")) == []


def test_an_unreadable_record_has_no_row_and_makes_the_next_suspect(tmp_path: Path):
    written = [Written(SNAPSHOT_KIND, 0, start=0), Written(UPDATE_KIND, 0, ((0, 3, 0, 1),)), Written(TOMBSTONE_KIND, 0)]
    first, second, gone = (one.record for one in written)
    bad = type(second)(second.key, b"\0\0\1")
    log = log_of(tmp_path, in_bytes(consecutive([Batch([first, bad, second, gone])])))
    rows = timeline(log)
    assert [(row["offset"], row["suspect"]) for row in rows] == [(0, False), (2, True), (3, None)]


def test_a_record_of_more_ranges_than_there_is_room_for_is_told(tmp_path: Path):
    many = tuple((2 * number, 2 * number, 2, 1) for number in range(3000))
    log = folder_of([[Written(SNAPSHOT_KIND, 0, start=0)], [Written(UPDATE_KIND, 0, many)]], tmp_path)
    ((records, keys),) = decode_log(log, Window())
    made = list(StateReplay(states=4, ranges=8).apply(records, np.ones(len(keys), bool)))
    assert [np.diff(states.ends).tolist() for states in made] == [[0], [3000]]


def test_the_numbers_of_a_chunk_are_known_when_its_states_are_returned():
    (log,) = find_logs([str(DATA / "4.3.1/happy/__share_group_state-0")])
    reader = STATE_DIALECT.open(log, Window(), FoldOptions())
    for records in reader.chunks():
        for states in reader.replay(records, np.ones(len(reader), bool)):
            assert states.rows["key"].max() < len(reader)
