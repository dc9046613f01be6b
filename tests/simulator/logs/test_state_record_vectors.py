"""Records byte for byte as Kafka's own classes wrote them for the same requests (4.3.1 unless a release is named)."""

import pytest

from share_state.kafka.releases import LATEST, RELEASES, UNRELEASED, Release
from share_state.simulator.coordinator import CoordinatorResponse, ShareCoordinator
from share_state.simulator.state_values import (
    DurableState,
    StateKey,
    StateRecord,
    UpdateValue,
    encode_record,
)
from share_state.simulator.types import ErrorCode, StateWrite
from tests.present import present
from tests.simulator.logs.conversations import snapshot_cold
from tests.simulator.logs.kept_records import coordinator_of, hex_values
from tests.simulator.state_batches import state_batch

KEY = StateKey("G1", "AAAAAAAAAAAAAAAAAAAAKg", 0)
OTHER = StateKey("g1", "AAAAAAAAAAEAAAAAAAAAAg", 3)
NOW = 1_700_000_000_000
RELEASED, ACKED = 0, 2


def write(start: int, count: int, *batches: tuple[int, int, int, int], leader: int = 0, epoch: int = 1) -> StateWrite:
    return StateWrite(leader, epoch, start, count, tuple(state_batch(*batch) for batch in batches))


# Start, count, batch, and the value that Kafka wrote.
WORKED_EXAMPLE = [
    (100, 10, (100, 109, ACKED, 1),
     "000000000000000000000000000000000064020000000000000064000000000000006d020001000100040000000a"),
    (110, 0, (110, 110, RELEASED, 1),
     "00000000000000000000000000000000006e02000000000000006e000000000000006e0000010001000400000000"),
    (110, 1, (119, 119, ACKED, 1),
     "00000000000000000000000000000000006e02000000000000007700000000000000770200010001000400000001"),
    (110, 1, (111, 111, RELEASED, 1),
     "00000000000000000000000000000000006e02000000000000006f000000000000006f0000010001000400000001"),
    (110, 1, (112, 112, RELEASED, 1),
     "00000000000000000000000000000000006e02000000000000007000000000000000700000010001000400000001"),
    (110, 7, (113, 118, ACKED, 1),
     "00000000000000000000000000000000006e02000000000000007100000000000000760200010001000400000007"),
    (110, 8, (110, 110, ACKED, 2),
     "00000000000000000000000000000000006e02000000000000006e000000000000006e0200020001000400000008"),
    (111, 9, (111, 112, ACKED, 2),
     "00000000000000000000000000000000006f02000000000000006f00000000000000700200020001000400000009"),
]  # fmt: skip


@pytest.mark.parametrize("release", ["4.2", "4.3", "4.4"])
def test_the_worked_example_is_written_as_kafka_does(release):
    coordinator, log = coordinator_of(release)
    assert coordinator.initialize(KEY, 1, 100, NOW) == CoordinatorResponse(offset=0)
    for number, (start, count, batch, _) in enumerate(WORKED_EXAMPLE, 1):
        assert coordinator.write(KEY, write(start, count, batch), NOW + number).offset == number
    initial = "000000000000000000010000000000000000000000640000018bcfe568000000018bcfe568000101000400000000"
    assert hex_values(log, release) == [initial, *(value for *_, value in WORKED_EXAMPLE)]
    keys = [encode_record(record, RELEASES[release])[0].hex() for record in log.records]
    tail = "00024731" + "0000000000000000000000000000002a" + "00000000"
    assert keys == ["0000" + tail] + ["0001" + tail] * 8
    state = coordinator.entries[KEY].state
    assert (state.start_offset, state.delivery_complete_count) == (111, 9)
    assert state.batches == ((111, 112, ACKED, 2), (113, 119, ACKED, 1))


def test_what_was_never_read_begins_without_a_start():
    coordinator, log = coordinator_of("4.3")
    coordinator.initialize(KEY, 2, -1, NOW)
    assert hex_values(log, "4.3") == [
        "0000000000000000000200000000ffffffffffffffff0000018bcfe568000000018bcfe568000100"
    ]


@pytest.mark.parametrize(
    ("release", "record", "key", "value"),
    [
        (
            "4.3",
            DurableState(
                0, 1, 2, 100, 10, (state_batch(100, 109, ACKED, 1), state_batch(110, 110, 0, 2)), NOW, NOW + 1
            ),
            "0000 0002 6731 00000000000000010000000000000002 00000003",
            "0000 00000000 00000001 00000002 0000000000000064 0000018bcfe56800 0000018bcfe56801 03"
            "0000000000000064 000000000000006d 02 0001 00 000000000000006e 000000000000006e 00 0002 00"
            "01 00 04 0000000a",
        ),
        (
            "4.1",
            DurableState(0, 1, 2, 100, -1, (state_batch(100, 109, ACKED, 1),), NOW, NOW + 1),
            "0000 0002 6731 00000000000000010000000000000002 00000003",
            "0000 00000000 00000001 00000002 0000000000000064 0000018bcfe56800 0000018bcfe56801 02"
            "0000000000000064 000000000000006d 02 0001 00 00",
        ),
        (
            "4.4",
            UpdateValue(0, 2, -1, 11, (state_batch(110, 110, 4, 3),)),
            "0001 0002 6731 00000000000000010000000000000002 00000003",
            "0000 00000000 00000002 ffffffffffffffff 02 000000000000006e 000000000000006e 04 0003 00 01 00 04 0000000b",
        ),
        (
            "4.0",
            DurableState(5, 1, 2, 100, -1, (state_batch(100, 109, ACKED, 1),)),
            "0000 0002 6731 00000000000000010000000000000002 00000003",
            "0000 0005 00000001 00000002 0000000000000064 02 0000000000000064 000000000000006d 02 0001 00 00",
        ),
        (
            "4.0",
            UpdateValue(5, 2, 100, -1, (state_batch(100, 109, ACKED, 1),)),
            "0001 0002 6731 00000000000000010000000000000002 00000003",
            "0000 0005 00000002 0000000000000064 02 0000000000000064 000000000000006d 02 0001 00 00",
        ),
    ],
)
def test_a_record_is_written_in_the_layout_of_its_release(release, record, key, value):
    written = encode_record(StateRecord(OTHER, record), RELEASES[release])
    assert written == (bytes.fromhex(key), bytes.fromhex(value))


def test_a_new_leader_is_recorded_without_batches():
    coordinator, log = coordinator_of("4.3")
    coordinator.initialize(KEY, 1, 0, NOW)
    assert coordinator.read(KEY, 0, NOW).offset is None
    assert coordinator.read(KEY, 1, NOW).offset == 1
    assert hex_values(log, "4.3")[1] == "0000000000000000000100000000000000000101000400000000"


def test_old_epochs_are_refused_and_nothing_is_written():
    coordinator, log = coordinator_of("4.3")
    coordinator.initialize(KEY, 3, 50, NOW)
    assert coordinator.read(KEY, 2, NOW).offset == 1
    assert coordinator.read(KEY, 5, NOW).offset == 2
    late = coordinator.write(KEY, write(50, 2, (50, 51, ACKED, 1), leader=2, epoch=3), NOW)
    assert late == CoordinatorResponse(ErrorCode.FENCED_LEADER_EPOCH)
    assert coordinator.initialize(KEY, 2, 10, NOW) == CoordinatorResponse(ErrorCode.FENCED_STATE_EPOCH)
    assert coordinator.initialize(KEY, 4, 10, NOW).offset == 3
    assert coordinator.initialize(KEY, -1, -1, NOW).offset == 4
    assert [record.value for record in log.records[3:]] == [
        DurableState(1, 4, 0, 10, 0, (), NOW, NOW),
        DurableState(2, -1, 0, -1, -1, (), NOW, NOW),
    ]
    held = coordinator.entries[KEY]
    assert (held.max_leader_epoch, held.max_state_epoch) == (5, 4)


@pytest.mark.parametrize(("release", "kinds"), [("4.3", "SUUSUUSU"), ("4.1", "SUUUSUUS")])
def test_two_updates_then_a_snapshot(release, kinds):
    # Up to 4.1 the first update of a share-partition does not count.
    coordinator, log = coordinator_of(release, updates_per_snapshot=2)
    coordinator.initialize(KEY, 1, 0, NOW)
    for offset in range(7):
        coordinator.write(KEY, write(max(0, offset - 1), 1, (offset, offset, ACKED, 1)), NOW)
    assert "".join("S" if isinstance(record.value, DurableState) else "U" for record in log.records) == kinds
    snapshots = [record.value for record in log.records if isinstance(record.value, DurableState)]
    assert [value.snapshot_epoch for value in snapshots] == [0, 1, 2]


def test_a_cold_snapshot_repeats_the_state_and_keeps_its_time_of_creation():
    coordinator, log = coordinator_of("4.3")
    coordinator.initialize(KEY, 1, 0, NOW)
    coordinator.write(KEY, write(0, 2, (0, 1, ACKED, 1)), NOW)
    assert coordinator.cold_keys(NOW + 299_999) == []
    assert snapshot_cold(coordinator, NOW + 300_000) == [2]
    assert log.records[2].value == DurableState(1, 1, 0, 0, 2, (state_batch(0, 1, ACKED, 1),), NOW, NOW + 300_000)
    assert coordinator.cold_keys(NOW + 900_000) == []
    coordinator.write(KEY, write(2, 2, (2, 3, ACKED, 1)), NOW)
    assert log.records[3].value == UpdateValue(1, 0, 2, 2, (state_batch(2, 3, ACKED, 1),))
    assert coordinator.last_redundant_offset() == 2


def test_what_is_deleted_begins_anew():
    coordinator, log = coordinator_of("4.3")
    coordinator.initialize(KEY, 1, 10, NOW)
    coordinator.write(KEY, write(10, 3, (10, 12, ACKED, 1)), NOW)
    assert coordinator.delete(KEY, NOW) == CoordinatorResponse(offset=2)
    assert coordinator.delete(KEY, NOW) == CoordinatorResponse()
    assert coordinator.write(KEY, write(10, 3), NOW) == CoordinatorResponse(ErrorCode.INVALID_REQUEST)
    assert coordinator.initialize(KEY, 2, -1, NOW).offset == 3
    assert log.records[2:] == [StateRecord(KEY, None), StateRecord(KEY, DurableState(0, 2, 0, -1, -1, (), NOW, NOW))]


def test_what_4_4_carries_along():
    """Its rules for start and count, in a sequence that was run through 4.4.0."""
    coordinator, log = coordinator_of("4.4", updates_per_snapshot=3)
    coordinator.initialize(KEY, 1, -1, NOW)
    coordinator.read(KEY, 2, NOW)
    for start, count, *batches in (
        (-1, -1),
        (10, 3, (8, 12, 3, 1)),
        (5, 7, (5, 12, 2, 1)),
        (10, 2),
        (-1, 9),
        (12, -1),
        (12, 1),
    ):
        coordinator.write(KEY, write(start, count, *batches, leader=2), NOW)
    coordinator.initialize(KEY, 4, 4, NOW)
    told = [
        ("S" if isinstance(one.value, DurableState) else "U", one.value.start_offset, one.value.delivery_complete_count)
        for one in log.records
        if one.value
    ]
    assert told == [
        ("S", -1, -1), ("U", -1, -1), ("U", -1, -1), ("U", 10, 3), ("S", 10, 3), ("U", 10, 3), ("U", 10, 3),
        ("U", 12, -1), ("S", 12, 1), ("S", 4, 0),
    ]  # fmt: skip
    # Equal counts: the greater state stays, and what lies below the start is cut off.
    assert present(log.records[4].value).batches == ((10, 12, 3, 1),)


def test_4_4_refuses_negative_epochs():
    coordinator, log = coordinator_of("4.4")
    coordinator.initialize(KEY, 1, 0, NOW)
    invalid = CoordinatorResponse(ErrorCode.INVALID_REQUEST)
    assert coordinator.initialize(KEY, -1, 0, NOW) == invalid
    assert coordinator.read(KEY, -1, NOW) == invalid
    assert coordinator.write(KEY, write(0, 0, leader=-1), NOW) == invalid
    assert coordinator.write(KEY, write(0, 0, epoch=-1), NOW) == invalid
    assert len(log.records) == 1


def test_4_0_makes_the_state_with_the_first_read():
    coordinator, log = coordinator_of("4.0")
    assert coordinator.initialize(KEY, 1, 0, NOW) == CoordinatorResponse(ErrorCode.UNSUPPORTED_VERSION)
    answer = coordinator.read(KEY, 0, NOW)
    assert (answer.offset, present(answer.state).start_offset) == (0, -1)
    assert log.records == [StateRecord(KEY, DurableState(0, 0, 0, -1))]


@pytest.mark.parametrize(("release", "written"), [(LATEST, 3), (UNRELEASED, 2)], ids=["4.4", "4.5"])
def test_from_4_5_on_an_initialize_that_changes_nothing_writes_nothing(release: Release, written: int):
    records = list[StateRecord]()

    def append(record: StateRecord, _: int) -> int:
        records.append(record)
        return len(records) - 1

    coordinator = ShareCoordinator(append, release)
    for start in (7, 7, 9):
        assert coordinator.initialize(OTHER, 1, start, NOW).error is ErrorCode.NONE
    assert len(records) == written
    assert coordinator.entries[OTHER].state.start_offset == 9
