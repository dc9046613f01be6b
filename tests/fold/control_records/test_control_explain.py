"""What control records say of one offset, against folds that stop behind each of them."""

from pathlib import Path

import pytest

from share_state.fold.draft.control_log import fold_control_log
from share_state.fold.fold_options import SharePartitionFilter
from share_state.fold.offset_history import Explanation, OffsetState, Place, explain
from share_state.sources.as_of import Window
from share_state.sources.log_partition import LogPartition
from tests.cli.commands import run_cli
from tests.fold.control_records.logs import at, checkpoint, delta, log_of, user_data

RECORDS = {
    130: checkpoint("G1", 1, 100, 100),
    131: delta("G1", 1, 130, [(100, 109, 2, 1)]),
    132: delta("G1", 1, 131, [(110, 110, 0, 1)]),
    133: delta("G1", 1, 132, [(114, 118, 0, 0), (119, 119, 2, 1)]),
    134: delta("G1", 1, 133, [(111, 112, 0, 1)]),
    135: delta("G1", 1, 134, [(113, 118, 2, 1)]),
    136: checkpoint("G1", 2, 110, 120, [(111, 112, 0, 1), (113, 119, 2, 1)]),
    137: delta("G1", 2, 136, [(110, 110, 2, 2)]),
    138: delta("G1", 2, 137, [(111, 112, 2, 2)]),
    139: checkpoint("G2", 1, 0, 5),
}


@pytest.fixture
def log(tmp_path: Path) -> LogPartition:
    """A topic-partition with user data and two groups."""
    return log_of(tmp_path / "broker", [*at(RECORDS), user_data(100, 20), user_data(150, 3)], topic="orders")


def _standing(log: LogPartition, until: int, offset: int) -> tuple[OffsetState, int | None]:
    folded = fold_control_log(log, Window(until_offset=until))
    states = [row for row in folded.states.to_pylist() if row["group_id"] == "G1"]
    if not states:
        return OffsetState(Place.UNKNOWN), None
    (state,) = states
    tiles = [row for row in folded.in_flight.to_pylist() if row["group_id"] == "G1"]
    inside = [row for row in tiles if row["first_offset"] <= offset <= row["last_offset"]]
    if inside and inside[0]["gap"]:
        return OffsetState(Place.GAP), state["start_offset"]
    if inside:
        here = OffsetState(Place.IN_FLIGHT, inside[0]["delivery_state"], inside[0]["delivery_count"])
        return here, state["start_offset"]
    below = offset < state["start_offset"]
    return OffsetState(Place.BELOW_START if below else Place.BEYOND_END), state["start_offset"]


def _told(log: LogPartition, offset: int) -> Explanation:
    (found,) = explain(log, Window(), SharePartitionFilter("G1", "orders", log.partition), offset)
    return found


@pytest.mark.parametrize("offset", [99, 100, 109, 110, 111, 112, 113, 114, 118, 119, 120, 500])
def test_an_offset_stands_where_a_fold_that_stops_there_has_it(log: LogPartition, offset: int):
    told, before = _told(log, offset), OffsetState(Place.UNKNOWN)
    touches = {touch.offset: touch for touch in told.touches}
    for record in range(130, 139):
        after, start = _standing(log, record + 1, offset)
        if after != before:
            assert (touches[record].before, touches[record].after) == (before, after)
            assert touches[record].start_offset == start
        elif record in touches:
            assert touches[record].ranges
            assert touches[record].after == after
        before = after
    assert told.offset_state == before
    assert touches.keys() <= set(range(130, 139))


def test_another_group_topic_or_partition_is_not_told(log: LogPartition):
    assert explain(log, Window(), SharePartitionFilter("G3"), 110) == []
    assert explain(log, Window(), SharePartitionFilter("G1", "payments"), 110) == []
    assert explain(log, Window(), SharePartitionFilter("G1", None, 77), 110) == []


def test_the_command_tells_it(log: LogPartition, capfd: pytest.CaptureFixture[str]):
    folder = Path(log.segments[0].path).parent
    said = run_cli(capfd, "explain", folder, "--group", "G1", "--topic", "orders", "--partition", log.partition,
               "--offset", 110, "--json").json  # fmt: skip
    assert [record["kind"] for record in said["records"]] == ["checkpoint", "delta", "checkpoint", "delta"]
    assert "(record 132); the checkpoint at " in said["sentence"]
    assert "; acknowledged in delivery 2; below SPSO since " in said["sentence"]
    assert said["sentence"].endswith("(record 137), which moved SPSO from 110 to 111.")
    wrong = run_cli(capfd, "explain", folder, "--group", "G9", "--topic", "orders", "--partition", 0, "--offset", 1)
    assert (wrong.code, wrong.err) == (2, "share-state: group G9: not found; there are G1, G2\n")
