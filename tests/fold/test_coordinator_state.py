"""What the share coordinator holds after each record, with numbers from Kafka 4.3.1's own classes (K-09, K-35 to K-53).

Group G1, partition 0 of the topic with id 0x...2a.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from share_state.fold.fold_options import FoldOptions
from share_state.fold.state_log import FoldedLog, fold_log
from share_state.fold.states import compute_lags
from share_state.kafka.codec import encode
from share_state.rules.findings import judge, judge_records
from share_state.schema.declarations import layout
from share_state.sources.as_of import Window
from share_state.sources.discovery import find_logs
from tests.kafka.batches import NOW, Record
from tests.log_writer import Range, batch, snapshot, tombstone, update, write_log_folder

KEY = ("G1", "AAAAAAAAAAAAAAAAAAAAKg", 0)

# (kind, value) of each record of the worked example.
WORKED = [
    (0, "000000000000000000010000000000000000000000640000018bcfe568000000018bcfe568000101000400000000"),
    (1, "000000000000000000000000000000000064020000000000000064000000000000006d020001000100040000000a"),
    (1, "00000000000000000000000000000000006e02000000000000006e000000000000006e0000010001000400000000"),
    (1, "00000000000000000000000000000000006e02000000000000007700000000000000770200010001000400000001"),
    (1, "00000000000000000000000000000000006e02000000000000006f000000000000006f0000010001000400000001"),
    (1, "00000000000000000000000000000000006e02000000000000007000000000000000700000010001000400000001"),
    (1, "00000000000000000000000000000000006e02000000000000007100000000000000760200010001000400000007"),
    (1, "00000000000000000000000000000000006e02000000000000006e000000000000006e0200020001000400000008"),
    (1, "00000000000000000000000000000000006f02000000000000006f00000000000000700200020001000400000009"),
]
# Start, effective start, delivery complete count and batches after each of them.
HELD = [
    (100, 100, 0, ""),
    (100, 110, 10, "100-109:2/1"),
    (110, 110, 0, "110:0/1"),
    (110, 110, 1, "110:0/1, 119:2/1"),
    (110, 110, 1, "110-111:0/1, 119:2/1"),
    (110, 110, 1, "110-112:0/1, 119:2/1"),
    (110, 110, 7, "110-112:0/1, 113-119:2/1"),
    (110, 111, 8, "110:2/2, 111-112:0/1, 113-119:2/1"),
    (111, 120, 9, "111-112:2/2, 113-119:2/1"),
]


def folded(folder: Path, records: Sequence[Record], window: Window | None = None) -> FoldedLog:
    """Records of one log, a batch each, folded and judged."""
    write_log_folder(folder, 0, [batch([record]) for record in records])
    (log,) = find_logs([str(folder)])
    return fold_log(log, window, FoldOptions(judge=judge_records))


def codes(found: FoldedLog) -> list[str]:
    return judge(found, records=found.record_breaches)["rule"].to_pylist()


def short(batches: Sequence[dict]) -> str:
    """Batches as "110-112:0/1": offsets, state, delivery count."""
    told = []
    for one in batches:
        first, last = one["first_offset"], one["last_offset"]
        where = f"{first}" if first == last else f"{first}-{last}"
        told.append(f"{where}:{one['delivery_state']}/{one['delivery_count']}")
    return ", ".join(told)


def held(found: FoldedLog) -> tuple[int, int, int, str]:
    (row,) = found.states.to_pylist()
    numbers = row["start_offset"], row["effective_start_offset"], row["delivery_complete_count"]
    return *numbers, short(row["state_batches"])


def merged(folder: Path, before: Sequence[Range], after: Sequence[Range], *, start: int = -1) -> str:
    """The batches of a snapshot with those of an update laid over them."""
    return held(folded(folder, [snapshot(KEY, before), update(KEY, after, start_offset=start)]))[-1]


def worked_example() -> list[Record]:
    return [Record(key_of(kind), bytes.fromhex(value)) for kind, value in WORKED]


def key_of(kind: int) -> bytes:
    name = ("share_snapshot_key", "share_update_key")[kind]
    return encode(layout(name, "4.1+"), dict(zip(("group_id", "topic_id", "partition"), KEY, strict=True)))


@pytest.mark.parametrize("until", range(1, len(WORKED) + 1))
def test_a_replay_holds_after_every_record_what_its_writer_held(tmp_path: Path, until: int):
    """K-09: the fold is the function that the writer used."""
    assert held(folded(tmp_path, worked_example(), Window(until_offset=until))) == HELD[until - 1]


def test_a_share_partition_is_held_with_its_epochs_offsets_batches_and_times(tmp_path: Path):
    """K-35; the times and the state epoch are those of the snapshot, which no update changes (K-40)."""
    found = folded(tmp_path, worked_example())
    (row,) = found.states.to_pylist()
    assert (row["group_id"], row["topic_id"], row["partition"]) == KEY
    assert (row["snapshot_epoch"], row["state_epoch"], row["leader_epoch"]) == (0, 1, 0)
    times = [row[name].timestamp() * 1000 for name in ("create_time", "write_time")]
    assert times == [NOW, NOW]
    assert codes(found) == []


def test_a_key_is_its_type_and_who_it_is_about(tmp_path: Path):
    """K-36: int16, group, 16 bytes of topic id, int32; a type beyond 1 is told and skipped."""
    assert key_of(0).hex() == "0000000247310000000000000000000000000000002a00000000"
    assert (len(key_of(0)), key_of(1)[:2]) == (26, b"\0\1")
    newer = Record(b"\0\2" + key_of(0)[2:], bytes.fromhex(WORKED[0][1]))
    found = folded(tmp_path, [*worked_example(), newer])
    assert held(found) == HELD[-1]
    assert codes(found) == ["UNKNOWN_RECORD_TYPE"]


@pytest.mark.parametrize(("batches", "count", "size"), [(0, None, 40), (0, 0, 46), (1, 0, 66), (2, None, 80)])
def test_a_snapshot_is_38_bytes_20_a_batch_and_its_count(batches: int, count: int | None, size: int):
    """K-37: 38 + varint + 20 n + 1, or 7 in place of 1 with the delivery complete count."""
    ranges = [(10 * number, 10 * number + 9, 0, 1) for number in range(batches)]
    fields: dict[str, Any] = {} if count is None else {"delivery_complete_count": count}
    assert len(snapshot(KEY, ranges, **fields).value or b"") == size


def test_snapshots_are_written_as_kafka_writes_them():
    """K-37: initialised at 100, and without a start."""
    at_100 = snapshot(KEY, start_offset=100, state_epoch=1, delivery_complete_count=0)
    assert (at_100.value or b"").hex() == WORKED[0][1]
    unset = "0000000000000000000200000000ffffffffffffffff0000018bcfe568000000018bcfe568000100"
    assert (snapshot(KEY, start_offset=-1, state_epoch=2).value or b"").hex() == unset


def test_an_update_is_written_as_kafka_writes_it():
    """K-38: 18 + varint + 20 n + 1 or 7 bytes; neither a state epoch nor times."""
    fields: dict[str, Any] = {"leader_epoch": 0, "start_offset": 100, "delivery_complete_count": 10}
    acknowledged = update(KEY, [(100, 109, 2, 1)], **fields).value or b""
    assert (acknowledged.hex(), len(acknowledged)) == (WORKED[1][1], 18 + 1 + 20 + 7)
    assert len(update(KEY, []).value or b"") == 18 + 1 + 1


def test_a_tombstone_takes_everything_and_the_next_snapshot_begins_at_0(tmp_path: Path):
    """K-39, V-14."""
    begun = [snapshot(KEY, start_offset=10, state_epoch=1), update(KEY, [(10, 12, 2, 1)], start_offset=10)]
    assert folded(tmp_path / "gone", [*begun, tombstone(KEY)]).states.num_rows == 0
    again = folded(tmp_path / "again", [*begun, tombstone(KEY), snapshot(KEY, start_offset=-1, state_epoch=2)])
    (row,) = again.states.to_pylist()
    assert (row["snapshot_epoch"], row["state_epoch"], row["max_leader_epoch"]) == (0, 2, 0)
    assert held(again) == (-1, -1, -1, "")


def test_an_update_keeps_what_it_does_not_tell(tmp_path: Path):
    """K-40: a start of -1 leaves the start, a leader epoch of -1 that epoch; the count is taken in any case."""
    first = snapshot(KEY, [(0, 4, 2, 1)], start_offset=0, leader_epoch=7, state_epoch=3, delivery_complete_count=5)
    found = folded(tmp_path, [first, update(KEY, leader_epoch=-1, start_offset=-1)])
    (row,) = found.states.to_pylist()
    assert (row["start_offset"], row["leader_epoch"], row["state_epoch"]) == (0, 7, 3)
    assert row["delivery_complete_count"] == -1


def test_batches_are_cut_at_the_start_and_the_higher_value_wins(tmp_path: Path):
    """K-40."""
    before, after = [(0, 10, 0, 1), (20, 30, 0, 1)], [(5, 25, 2, 1)]
    assert merged(tmp_path / "start", before, after, start=3) == "3-4:0/1, 5-25:2/1, 26-30:0/1"
    assert merged(tmp_path / "none", before, after) == "0-4:0/1, 5-25:2/1, 26-30:0/1"


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((10, 20, 0, 2), (10, 20, 2, 1), "10-20:0/2"),
        ((100, 110, 2, 1), (105, 115, 0, 1), "100-110:2/1, 111-115:0/1"),
    ],
)
def test_the_higher_count_then_the_higher_state_wins_not_the_later_record(tmp_path: Path, before, after, expected):
    """K-41."""
    assert merged(tmp_path / "one", [before], [after]) == expected
    assert merged(tmp_path / "other", [after], [before]) == expected


def test_what_kafka_s_own_test_forgets_is_kept(tmp_path: Path):
    """K-42: "overlapping batches in newBatches, same state", whose expectation leaves 124-130 out."""
    before, after = [(100, 110, 0, 1), (121, 130, 0, 1)], [(111, 119, 2, 2), (116, 123, 2, 2)]
    assert merged(tmp_path, before, after) == "100-110:0/1, 111-123:2/2, 124-130:0/1"


def test_batches_of_one_range_are_ordered_by_count_then_state(tmp_path: Path):
    """K-43: (5-7, count 1, state 2) comes before (5-7, count 2, state 0), which wins over it in either order."""
    lower, higher = (5, 7, 2, 1), (5, 7, 0, 2)
    assert merged(tmp_path / "a", [lower, higher], []) == "5-7:0/2"
    assert merged(tmp_path / "b", [higher, lower], []) == "5-7:0/2"


@pytest.mark.parametrize(("state", "found"), [(0, []), (2, []), (3, []), (4, []), (1, ["UNKNOWN_DELIVERY_STATE"])])
def test_the_states_that_are_persisted_are_known(tmp_path: Path, state: int, found: list[str]):
    """K-44; 3 is ARCHIVING, which 4.4 does persist."""
    count = 1 if state in (2, 4) else 0
    records = [snapshot(KEY, delivery_complete_count=0),
               update(KEY, [(5, 5, state, 1)], start_offset=0, delivery_complete_count=count)]  # fmt: skip
    assert [code for code in codes(folded(tmp_path, records)) if code == "UNKNOWN_DELIVERY_STATE"] == found


def test_snapshots_come_after_so_many_updates_and_count_up(tmp_path: Path):
    """K-45, V-7 with N = 2: snapshot 0, two updates, snapshot 1, two updates, snapshot 2, update."""
    records = [snapshot(KEY, snapshot_epoch=0, delivery_complete_count=0)]
    for offset in range(7):
        fields: dict[str, Any] = {"start_offset": offset, "delivery_complete_count": 1}
        epoch = (offset + 1) // 3
        if offset in (2, 5):
            records.append(snapshot(KEY, [(offset, offset, 2, 1)], snapshot_epoch=epoch, **fields))
        else:
            records.append(update(KEY, [(offset, offset, 2, 1)], snapshot_epoch=epoch, **fields))
    found = folded(tmp_path / "right", records)
    assert held(found) == (6, 7, 1, "6:2/1")
    (row,) = found.states.to_pylist()
    assert (row["snapshot_epoch"], row["snapshot_offset"], row["updates_since_snapshot"]) == (2, 6, 1)
    assert found.cutoff["cutoff_offset"].to_pylist() == [6]
    assert codes(found) == []
    skipped = [*records[:6], snapshot(KEY, [(5, 5, 2, 1)], snapshot_epoch=3, start_offset=5, delivery_complete_count=1)]
    assert codes(folded(tmp_path / "gap", skipped)) == ["SNAPSHOT_EPOCH_GAP"]
    early = [*records[:6], update(KEY, [(5, 5, 2, 1)], snapshot_epoch=2, start_offset=5, delivery_complete_count=1)]
    assert codes(folded(tmp_path / "update", early)) == ["UPDATE_EPOCH_MISMATCH"]


def test_a_new_leader_s_update_has_no_batches(tmp_path: Path):
    """K-46, V-6: leader epoch 1, start 0, count 0; the batches stay."""
    record = Record(key_of(1), bytes.fromhex("0000000000000000000100000000000000000101000400000000"))
    before = [snapshot(KEY, delivery_complete_count=0),
              update(KEY, [(0, 10, 0, 1)], start_offset=0, delivery_complete_count=0)]  # fmt: skip
    found = folded(tmp_path, [*before, record])
    assert held(found) == (0, 0, 0, "0-10:0/1")
    assert found.states["leader_epoch"].to_pylist() == [1]
    assert codes(found) == []


def test_without_a_start_nothing_is_known(tmp_path: Path):
    """K-47: the leader will choose one by share.auto.offset.reset; nothing is in flight and no lag is known."""
    found = folded(tmp_path, [snapshot(KEY, start_offset=-1, state_epoch=2)])
    (row,) = found.states.to_pylist()
    assert (row["start_offset"], row["effective_start_offset"], row["end_offset"]) == (-1, -1, None)
    assert found.in_flight.num_rows == 0
    assert (
        compute_lags(pa.array([42]), found.states["start_offset"], found.states["delivery_complete_count"]).null_count
        == 1
    )


@pytest.mark.parametrize(
    ("ranges", "code"), [([(8, 12, 0, 1)], "BATCH_BELOW_START"), ([(12, 10, 0, 1)], "INVERTED_RANGE")]
)
def test_what_a_leader_could_not_load_is_found(tmp_path: Path, ranges: list[Range], code: str):
    """K-48: a batch below the start, and one that ends before it begins."""
    assert code in codes(folded(tmp_path, [snapshot(KEY, ranges, start_offset=10)]))


def test_the_window_ends_behind_the_last_batch_and_its_first_hole_is_a_gap(tmp_path: Path):
    """K-49: the end is that of the last batch, or the start where there is none."""
    found = folded(tmp_path / "gap", [snapshot(KEY, [(0, 10, 0, 1), (20, 30, 0, 1)])])
    assert found.states["end_offset"].to_pylist() == [31]
    gaps = [(row["first_offset"], row["last_offset"]) for row in found.in_flight.to_pylist() if row["gap"]]
    assert gaps == [(11, 19)]
    empty = folded(tmp_path / "empty", [snapshot(KEY, start_offset=7)])
    assert empty.states["end_offset"].to_pylist() == [7]


def test_the_effective_start_passes_what_has_ended_and_no_gap(tmp_path: Path):
    """K-50: start 10, 10-12 acknowledged, 20-22 available."""
    found = folded(tmp_path, [snapshot(KEY, [(10, 12, 2, 1), (20, 22, 0, 1)], start_offset=10)])
    assert found.states["effective_start_offset"].to_pylist() == [13]
    assert found.states["end_offset"].to_pylist() == [23]


@pytest.mark.parametrize(("count", "finished"), [(9, []), (8, ["9"]), (10, ["9"])])
def test_the_count_is_that_of_the_finished_offsets_from_the_start_on(tmp_path: Path, count: int, finished: list[str]):
    """K-51: 111-112 and 113-119 are finished, nine of them."""
    last = update(KEY, [(111, 112, 2, 2)], leader_epoch=0, start_offset=111, delivery_complete_count=count)
    found = folded(tmp_path, [*worked_example()[:-1], last])
    rows = judge(found, records=found.record_breaches).to_pylist()
    assert {row["rule"] for row in rows} == ({"DELIVERY_COMPLETE_COUNT_MISMATCH"} if finished else set())
    assert [dict(row["evidence"])["finished"] for row in rows] == finished


def test_the_lag_is_what_is_neither_passed_nor_finished(tmp_path: Path):
    """K-52: 130 - 111 - 9 = 10, and 130 - 120 - 0 = 10 from the effective start on."""
    (row,) = folded(tmp_path, worked_example()).states.to_pylist()
    assert compute_lags(pa.array([130]), pa.array([row["start_offset"]]), pa.array([9])).to_pylist() == [10]
    assert compute_lags(pa.array([130]), pa.array([row["effective_start_offset"]]), pa.array([0])).to_pylist() == [10]
    assert compute_lags(pa.array([130]), pa.array([-1]), pa.array([9])).to_pylist() == [None]
    assert compute_lags(pa.array([130]), pa.array([111]), pa.array([-1])).to_pylist() == [None]


# What was held before, the record, and what is held after: what changes a share-partition's state.
CHANGES = {
    "acknowledged": ("0-9:0/1", update(KEY, [(0, 9, 2, 1)], start_offset=0), (0, 10, "0-9:2/1")),
    "released": ("", update(KEY, [(0, 9, 0, 1)], start_offset=0), (0, 0, "0-9:0/1")),
    "timed out at the limit": ("0-9:0/4", update(KEY, [(0, 9, 4, 5)], start_offset=0), (0, 10, "0-9:4/5")),
    "a member closed": ("0-3:2/1", update(KEY, [(3, 3, 0, 2)], start_offset=3), (3, 3, "3:0/2")),
    "a new leader": ("0-9:0/1", update(KEY, leader_epoch=1, start_offset=0), (0, 0, "0-9:0/1")),
    "initialised again": ("0-9:0/1", snapshot(KEY, snapshot_epoch=1, state_epoch=4, start_offset=10), (10, 10, "")),
    "a cold snapshot": (
        "0-1:2/1",
        snapshot(KEY, [(0, 1, 2, 1)], snapshot_epoch=1, write_timestamp=NOW + 300_000),
        (0, 2, "0-1:2/1"),
    ),
    "deleted": ("0-9:0/1", tombstone(KEY), None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_a_state(tmp_path: Path, change: str):
    """K-53: acknowledging and releasing are not all of it."""
    before, record, expected = CHANGES[change]
    ranges = []
    if before:
        where, _, what = before.partition(":")
        first, _, last = where.partition("-")
        state, _, count = what.partition("/")
        ranges = [(int(first), int(last), int(state), int(count))]
    found = folded(tmp_path, [snapshot(KEY, ranges, state_epoch=3), record])
    if expected is None:
        assert found.states.num_rows == 0
    else:
        start, effective, _, batches = held(found)
        assert (start, effective, batches) == expected
