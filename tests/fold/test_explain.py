"""What is told of one offset, against folds that stop behind each record."""

import random
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.fold import state_replay
from share_state.fold.fold_options import SharePartitionFilter
from share_state.fold.offset_history import Explanation, OffsetState, Place, explain
from share_state.fold.state_log import fold_log
from share_state.sources.as_of import Window
from share_state.sources.discovery import find_logs
from share_state.sources.log_partition import LogPartition
from tests.fold.model import SNAPSHOT_KIND, TOMBSTONE_KIND, UPDATE_KIND, Written, replay
from tests.fold.random_logs import FARTHEST, folder_of, logs, numbered
from tests.kafka.batches import Batch, consecutive, in_bytes, log_of
from tests.profiles import some_of
from tests.truth import DATA, value_by_offset


def explained(
    log: LogPartition, chosen: SharePartitionFilter, offset: int, window: Window | None = None
) -> Explanation:
    (found,) = explain(log, window or Window(), chosen, offset)
    return found


def standing_in_model(states: dict, partition: int, offset: int, seen: bool) -> OffsetState:
    """Where the dictionary has the offset."""
    state = states.get(partition)
    if state is None:
        return OffsetState(Place.DELETED if seen else Place.UNKNOWN)
    if state.start < 0:
        return OffsetState(Place.UNINITIALISED)
    if offset < state.start:
        return OffsetState(Place.BELOW_START)
    if offset in state.values:
        count, delivery_state = state.values[offset]
        return OffsetState(Place.IN_FLIGHT, delivery_state, count)
    return OffsetState(Place.GAP if offset < max([state.start, *(at + 1 for at in state.values)]) else Place.BEYOND_END)


@given(logs(), st.integers(0, 2), st.integers(0, FARTHEST + 8))
def test_the_records_that_touch_an_offset_are_those_that_a_dictionary_says(
    tmp_path_factory: pytest.TempPathFactory, log: list[list[Written]], partition: int, offset: int
):
    records = numbered(log)
    own = [at for at, written in records if written.partition == partition]
    chosen = SharePartitionFilter("g", None, partition)
    found = explain(folder_of(log, tmp_path_factory.mktemp("log")), Window(), chosen, offset)
    assert len(found) == bool(own)
    if not own:
        return
    expected, before = [], OffsetState(Place.UNKNOWN)
    for number, (at, written) in enumerate(records):
        if written.partition != partition:
            continue
        after = standing_in_model(replay(records[: number + 1]), partition, offset, seen=True)
        covers = written.kind != TOMBSTONE_KIND and offset in value_by_offset(written.batches)
        if covers or before != after:
            expected.append((at, written.kind, covers, before, after))
        before = after
    (one,) = found
    touches = [(touch.offset, touch.kind, bool(touch.ranges), touch.before, touch.after) for touch in one.touches]
    assert touches == expected
    assert (one.offset_state, one.records, one.last_offset) == (before, len(own), own[-1])


@pytest.mark.parametrize("scenario", some_of(["4.0.2/chaos", "4.3.1/chaos", "4.3.1/codec-zstd", "4.4.0/dlq"], 2))
def test_an_offset_of_a_broker_s_log_stands_where_the_fold_has_it_as_of_any_record(scenario: str):
    draw = random.Random(scenario)
    places = set()
    for log in find_logs([str(DATA / scenario)]):
        whole = fold_log(log)
        for _ in range(5):
            until = draw.randrange(whole.first_offset + 1, whole.next_offset + 1)
            folded = fold_log(log, Window(until_offset=until))
            state = draw.choice(folded.states.to_pylist())
            chosen = SharePartitionFilter(state["group_id"], state["topic_id"], state["partition"])
            tiles = [
                row
                for row in folded.in_flight.to_pylist()
                if all(row[name] == state[name] for name in ("group_id", "topic_id", "partition"))
            ]
            start, end = max(state["start_offset"], 0), state["end_offset"] or 0
            for offset in {end + 2, *(draw.randrange(max(end, 1)) for _ in range(3))}:
                found = explained(log, chosen, offset, Window(until_offset=until))
                places.add(found.offset_state.place)
                inside = [row for row in tiles if row["first_offset"] <= offset <= row["last_offset"]]
                assert (found.start_offset or 0, found.end_offset or 0) == (start, end)
                assert found.first_gap_start == next((row["first_offset"] for row in tiles if row["gap"]), None)
                assert (found.offset_state.place in (Place.IN_FLIGHT, Place.GAP)) == bool(inside)
                if found.offset_state.place == Place.GAP:
                    assert inside[0]["gap"]
                    assert found.gap == (inside[0]["first_offset"], inside[0]["last_offset"])
                elif inside:
                    (row,) = inside
                    assert (row["delivery_state"], row["delivery_count"]) == (
                        found.offset_state.state, found.offset_state.delivery_count,
                    )  # fmt: skip
                elif state["start_offset"] >= 0:
                    assert (found.offset_state.place == Place.BELOW_START) == (offset < start)
    assert {Place.IN_FLIGHT, Place.BELOW_START, Place.BEYOND_END} <= places


@pytest.mark.parametrize("offset", some_of([10, 142, 300], 1))
def test_what_is_told_does_not_depend_on_how_many_states_are_held_at_a_time(
    offset: int, monkeypatch: pytest.MonkeyPatch
):
    (log,) = find_logs([str(DATA / "4.3.1/chaos/__share_group_state-0")])
    chosen = [
        SharePartitionFilter(row["group_id"], row["topic_id"], row["partition"])
        for row in fold_log(log).states.to_pylist()
    ]
    whole = [explained(log, one, offset) for one in chosen]
    monkeypatch.setattr(state_replay, "StateReplay", partial(state_replay.StateReplay, states=1))
    assert [explained(log, one, offset) for one in chosen] == whole
    assert sum(len(one.touches) for one in whole) > len(whole)


def test_a_record_that_cannot_be_read_is_told_and_changes_nothing(tmp_path: Path):
    first = Written(SNAPSHOT_KIND, 0, ((0, 9, 0, 1),), start=0).record
    bad = type(first)(Written(UPDATE_KIND, 0).record.key, b"\0\0\1")
    log = log_of(tmp_path, in_bytes(consecutive([Batch([first]), Batch([bad])])))
    found = explained(log, SharePartitionFilter("g", None, 0), 4)
    assert [(touch.offset, touch.is_readable) for touch in found.touches] == [(0, True), (1, False)]
    assert found.offset_state == OffsetState(Place.IN_FLIGHT, 0, 1)


def test_a_share_partition_is_suspect_behind_records_that_are_lost(tmp_path: Path):
    written = [
        [Written(SNAPSHOT_KIND, 0, ((0, 9, 0, 1),), start=0)],
        [Written(UPDATE_KIND, 0, ((0, 0, 2, 1),))],
        [Written(UPDATE_KIND, 0, ((1, 1, 2, 1),))],
    ]
    batches = consecutive([Batch([one.record for one in batch]) for batch in written])
    whole = log_of(tmp_path / "whole", in_bytes(batches))
    holed = log_of(tmp_path / "holed", in_bytes([batches[0], batches[2]]))
    assert not explained(whole, SharePartitionFilter("g"), 1).is_suspect
    assert explained(holed, SharePartitionFilter("g"), 1).is_suspect


def test_the_record_that_brought_an_offset_to_where_it_stands_is_known(tmp_path: Path):
    log = folder_of(
        [
            [Written(SNAPSHOT_KIND, 0, start=-1)],
            [Written(UPDATE_KIND, 0, ((0, 9, 0, 1),), start=0)],
            [Written(UPDATE_KIND, 0, ((4, 4, 2, 2),))],
            [Written(UPDATE_KIND, 0, ((4, 4, 2, 2),))],
            [Written(UPDATE_KIND, 0, start=6)],
        ],
        tmp_path,
    )
    found = explained(log, SharePartitionFilter("g"), 4)
    assert [touch.offset for touch in found.touches] == [0, 1, 2, 3, 4]
    assert found.since is not None
    assert (found.since.offset, found.since.start_before, found.since.start_offset) == (4, 0, 6)
    assert found.since.before == OffsetState(Place.IN_FLIGHT, 2, 2)
    earlier = explained(log, SharePartitionFilter("g"), 4, Window(until_offset=4))
    assert earlier.since is not None
    assert earlier.since.offset == 2
