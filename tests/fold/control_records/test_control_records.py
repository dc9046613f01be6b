"""The strict reader of control records: bytes of the specification, right and wrong."""

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.fold.draft.control_log import decode_control_log, fold_control_log
from share_state.kafka.codec import decode, encode
from share_state.kafka.control_records import ControlFault, ControlKind, ControlRecords, GroupTable
from share_state.schema.declarations import layout
from share_state.sources.as_of import Window
from tests.fold.control_records.logs import (
    ABORT,
    at,
    checkpoint,
    checkpoint_value,
    control,
    control_key,
    delta,
    delta_value,
    log_of,
    marker,
    user_data,
)
from tests.fold.control_records.test_worked_example import DELTAS, LITERAL, findings
from tests.kafka.batches import Batch, Record

TUPLE = (0, 9, 0, 1)


def decoded(folder: Path, *batches: Batch) -> tuple[ControlRecords, GroupTable]:
    """The control records of a log that fits one chunk."""
    (found,) = decode_control_log(log_of(folder, batches), Window())
    return found


def decoded_value(folder: Path, kind: int, value: bytes | None) -> tuple[np.void, list[tuple[int, ...]], list[str]]:
    """One control record: its row, its tuples, the groups."""
    records, groups = decoded(folder, control(0, Record(control_key(kind), value)))
    tuples = [(int(row["first"]), int(row["last"]), int(row["state"]), int(row["count"])) for row in records.tuples]
    return records.rows[0], tuples, groups.names().to_pylist()


def test_the_delta_of_the_specification(tmp_path: Path):
    """D-05, D-15."""
    value = bytes.fromhex(DELTAS[131])
    assert len(value) == 37 == 16 + 2 + 19
    row, tuples, groups = decoded_value(tmp_path, 6, value)
    assert (row["kind"], row["epoch"], row["back_offset"], row["fault"]) == (ControlKind.DELTA, 1, 130, 0)
    assert (tuples, groups) == ([(100, 109, 2, 1)], ["G1"])


def test_a_delta_of_two_tuples(tmp_path: Path):
    row, tuples, _ = decoded_value(tmp_path, 6, bytes.fromhex(DELTAS[133]))
    assert (row["back_offset"], tuples) == (132, [(111, 118, 0, 0), (119, 119, 2, 1)])


def test_the_checkpoint_of_the_specification(tmp_path: Path):
    """D-06."""
    value = bytes.fromhex(LITERAL)
    assert len(value) == 26 == 24 + 2
    row, tuples, groups = decoded_value(tmp_path, 5, value)
    assert (row["kind"], row["epoch"], row["start_offset"], row["end_offset"]) == (ControlKind.CHECKPOINT, 1, 110, 110)
    assert (tuples, groups, row["fault"]) == ([], ["G1"], 0)


@pytest.mark.parametrize(("kind", "value"), [(5, LITERAL), (6, DELTAS[133])])
def test_a_version_prefix_changes_nothing_else(tmp_path: Path, kind: int, value: str):
    """D-08."""
    plain, tuples, groups = decoded_value(tmp_path / "plain", kind, bytes.fromhex(value))
    prefixed, same_tuples, same_groups = decoded_value(tmp_path / "prefixed", kind, bytes.fromhex("0000" + value))
    assert (plain["prefixed"], prefixed["prefixed"]) == (False, True)
    assert (tuples, groups) == (same_tuples, same_groups)
    for name in ("group", "kind", "epoch", "start_offset", "end_offset", "back_offset", "tuple_count", "fault"):
        assert plain[name] == prefixed[name]


def test_chains_with_and_without_the_prefix_are_one(tmp_path: Path):
    mixed = {0: checkpoint("G", 1, 0, 0), 1: Record(control_key(6), delta_value("G", 1, 0, [TUPLE], prefix=True))}
    found = fold_control_log(log_of(tmp_path, at(mixed)))
    assert found.states["updates_since_snapshot"].to_pylist() == [1]


def test_the_epoch_is_unsigned(tmp_path: Path):
    """D-09."""
    row, _, _ = decoded_value(tmp_path, 6, delta_value("G1", 65535, 7))
    assert row["epoch"] == 65535


def test_which_control_records_are_read_and_which_are_stepped_over(tmp_path: Path):
    """D-03: 5 and 6 are read, others are counted, a key of 3 bytes is malformed."""
    found = fold_control_log(
        log_of(
            tmp_path,
            [
                control(0, checkpoint("G1", 1, 0, 0)),
                control(1, delta("G1", 1, 0, [TUPLE])),
                marker(2),
                marker(3, ABORT),
                marker(4),
                control(5, Record(bytes.fromhex("000005"), b"")),
                control(6, Record(None, b"")),
                control(7, Record(b"\xff\xff\0\5", checkpoint_value("G1", 2, 0, 0))),
            ],
        )
    )
    assert found.skipped == {0: 1, 1: 2}
    assert found.record_count == 2
    malformed = findings(found)["KEY_MALFORMED"]
    assert [(row["offset"], row["group_id"], row["topic"], row["partition"]) for row in malformed] == [
        (offset, None, "T", 0) for offset in (5, 6, 7)
    ]


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("transactional", [False, True])
def test_user_data_with_keys_like_those_of_control_records_is_left_alone(
    tmp_path: Path, codec: int, transactional: bool
):
    """D-02, D-04."""
    batches = [
        user_data(0, 5, codec=codec, transactional=transactional),
        marker(5, ABORT),
        control(6, checkpoint("G1", 1, 0, 0)),
        user_data(7, 3, codec=codec, transactional=transactional),
        control(10, delta("G1", 1, 6, [TUPLE]), codec=codec),
        marker(11),
    ]
    found = fold_control_log(log_of(tmp_path, batches))
    assert found.groups.to_pylist() == ["G1"]
    assert (found.record_count, found.next_offset) == (2, 12)
    assert findings(found) == {}


def test_a_topic_without_share_groups_has_no_state_and_no_cutoff(tmp_path: Path):
    found = fold_control_log(log_of(tmp_path, [user_data(0, 3), marker(3)]))
    assert (found.states.num_rows, found.in_flight.num_rows, found.record_count, found.next_offset) == (0, 0, 0, 4)
    (row,) = found.cutoff.to_pylist()
    assert (row["cutoff_offset"], row["redundant_records"], row["safe"], row["reason"]) == (None, 0, True, None)
    assert findings(found) == {}


def test_what_compressed_user_data_holds_is_never_looked_into(tmp_path: Path):
    garbage = Batch([Record(b"k", b"v")], base_offset=0, attributes=4, body=b"not zstd at all")
    found = fold_control_log(log_of(tmp_path, [garbage, control(1, checkpoint("G1", 1, 0, 0))]))
    assert found.states.num_rows == 1
    assert findings(found) == {}


def test_several_records_of_one_control_batch(tmp_path: Path):
    batch = control(0, checkpoint("G1", 1, 0, 0), delta("G1", 1, 0, [TUPLE]), delta("G1", 1, 1))
    found = fold_control_log(log_of(tmp_path, [batch]))
    assert found.states.select(["snapshot_offset", "last_offset", "updates_since_snapshot"]).to_pylist() == [
        {"snapshot_offset": 0, "last_offset": 2, "updates_since_snapshot": 2}
    ]
    assert findings(found) == {}


RIGHT = delta_value("G1", 1, 130, [(100, 109, 2, 1)])


@pytest.mark.parametrize(
    ("value", "fault", "group"),
    [
        (RIGHT + b"\0", ControlFault.VALUE_TRAILING, "G1"),
        (RIGHT[:-1], ControlFault.VALUE_MALFORMED, "G1"),
        (RIGHT[:10], ControlFault.VALUE_MALFORMED, "G1"),
        (RIGHT[:14] + struct.pack(">i", -1) + RIGHT[18:], ControlFault.VALUE_MALFORMED, "G1"),
        (RIGHT[:14] + struct.pack(">i", 2**31 - 1) + RIGHT[18:], ControlFault.VALUE_MALFORMED, "G1"),
        (RIGHT[:14] + struct.pack(">i", 0) + RIGHT[18:], ControlFault.VALUE_TRAILING, "G1"),
        (b"\xff\xff" + RIGHT[2:], ControlFault.VALUE_MALFORMED, None),
        (b"\x7f\xff" + RIGHT[2:], ControlFault.VALUE_MALFORMED, None),
        (b"\0\0\0\0" + RIGHT[4:], ControlFault.VALUE_MALFORMED, None),
        (b"\0", ControlFault.VALUE_MALFORMED, None),
        (b"", ControlFault.VALUE_MALFORMED, None),
        (None, ControlFault.VALUE_MALFORMED, None),
    ],
)
def test_a_value_that_is_not_exactly_a_delta_is_left_out(tmp_path: Path, value, fault: ControlFault, group: str | None):
    """D-05, D-07; C-02: what does not even name a group is no more than a warning."""
    row, tuples, groups = decoded_value(tmp_path, 6, value)
    assert (row["fault"], tuples, groups) == (fault, [], [group] if group else [])
    good = {0: checkpoint("G1", 1, 0, 0), 1: Record(control_key(6), value), 2: delta("G1", 1, 0, [(0, 0, 2, 1)])}
    found = fold_control_log(log_of(tmp_path, at(good)))
    (finding,) = findings(found)["VALUE_MALFORMED"]
    assert (finding["offset"], finding["group_id"]) == (1, group)
    assert finding["severity"] == ("error" if group else "warning")
    assert found.states["start_offset"].to_pylist() == [1]
    assert found.states["suspect"].to_pylist() == [group is not None]


@pytest.mark.parametrize(
    ("states", "code", "severity", "suspect", "folded"),
    [
        ([(5, 5, 1, 3)], "PERSISTED_ACQUIRED", "warning", True, [(5, 5, 0, 2)]),
        ([(5, 5, 1, 0)], "PERSISTED_ACQUIRED", "warning", True, [(5, 5, 0, 0)]),
        ([(5, 5, 3, 1)], "UNKNOWN_DELIVERY_STATE", "warning", True, [(5, 5, 3, 1)]),
        ([(5, 5, -7, 1)], "UNKNOWN_DELIVERY_STATE", "warning", True, [(5, 5, -7, 1)]),
        ([(5, 5, 0, -1)], "DELIVERY_COUNT_INVALID", "warning", False, [(5, 5, 0, -1)]),
        ([(110, 109, 2, 1), (5, 5, 0, 1)], "INVERTED_RANGE", "error", True, [(5, 5, 0, 1)]),
        ([(5, 2**63 - 1, 2, 1), (5, 5, 0, 1)], "INVERTED_RANGE", "error", True, [(5, 5, 0, 1)]),
        ([(-9, 5, 2, 1), (5, 5, 0, 1)], "INVERTED_RANGE", "error", True, [(5, 5, 0, 1)]),
        ([(5, 9, 0, 1), (7, 7, 2, 1)], "OVERLAP_IN_DELTA", "warning", False,
         [(5, 6, 0, 1), (7, 7, 2, 1), (8, 9, 0, 1)]),
    ],
)  # fmt: skip
def test_a_tuple_that_should_not_be_is_named(tmp_path: Path, states, code: str, severity: str, suspect: bool, folded):
    """D-10, D-11, D-28."""
    log = log_of(tmp_path, at({0: checkpoint("G1", 1, 5, 5), 1: delta("G1", 1, 0, states)}))
    found = fold_control_log(log)
    (finding,) = findings(found)[code]
    assert (finding["offset"], finding["severity"], finding["group_id"]) == (1, severity, "G1")
    assert set(findings(found)) == {code, *(["STATE_SUSPECT"] if suspect else [])}
    (row,) = found.states.to_pylist()
    assert [tuple(batch.values()) for batch in row["state_batches"]] == folded
    assert row["suspect"] == suspect


def test_disjoint_tuples_out_of_order_do_not_overlap(tmp_path: Path):
    log = log_of(tmp_path, at({0: checkpoint("G1", 1, 5, 5), 1: delta("G1", 1, 0, [(8, 9, 0, 1), (5, 7, 0, 2)])}))
    assert findings(fold_control_log(log)) == {}


@pytest.mark.parametrize(("start", "end"), [(-1, -1), (-5, 3), (7, 6)])
def test_a_window_that_cannot_be_is_named(tmp_path: Path, start: int, end: int):
    found = findings(fold_control_log(log_of(tmp_path, at({0: checkpoint("G1", 1, start, end)}))))
    assert [row["offset"] for row in found["START_OFFSET_INVALID"]] == [0]


def test_an_end_behind_the_last_range_leaves_a_gap_in_flight(tmp_path: Path):
    records = {
        0: checkpoint("G1", 1, 5, 20, [(7, 8, 0, 1)]),
        1: checkpoint("G2", 1, 5, 9),
        2: checkpoint("G3", 1, 3, 3),
    }
    found = fold_control_log(log_of(tmp_path, at(records)))
    assert [
        (row["group_id"], row["first_offset"], row["last_offset"], row["gap"]) for row in found.in_flight.to_pylist()
    ] == [("G1", 5, 6, True), ("G1", 7, 8, False), ("G1", 9, 19, True), ("G2", 5, 8, True)]


def test_more_groups_than_the_table_first_has_room_for(tmp_path: Path):
    names = [f"group-{number}-{'x' * (number % 300)}" for number in range(5000)]
    batches = [
        control(base, *(checkpoint(name, 1, 0, 0) for name in names[base : base + 100])) for base in range(0, 5000, 100)
    ]
    found = fold_control_log(log_of(tmp_path, batches))
    assert found.states["group_id"].to_pylist() == names


def test_group_ids_that_are_not_utf8_stay_apart(tmp_path: Path):
    names = (b"G\xff", b"G\xfe", b"\\\xff", "é".encode(), b"a\\")
    values = [checkpoint_value("G" * len(name), 1, 0, 0).replace(b"G" * len(name), name) for name in names]
    found = fold_control_log(log_of(tmp_path, at({n: Record(control_key(5), value) for n, value in enumerate(values)})))
    assert found.groups.to_pylist() == [r"G\xff", r"G\xfe", r"\\\xff", "é", "a\\"]


@given(value=st.binary(max_size=80), kind=st.sampled_from([5, 6]), key=st.binary(max_size=6))
def test_no_bytes_crash_the_reader(tmp_path_factory: pytest.TempPathFactory, value: bytes, kind: int, key: bytes):
    folder = tmp_path_factory.mktemp("log")
    batch = control(
        0, Record(control_key(kind), value), Record(key, value), Record(control_key(kind), b"\0\1g" + value)
    )
    found = fold_control_log(log_of(folder, [batch]))
    findings(found)


DECLARED = {5: layout("share_checkpoint_value", "draft"), 6: layout("share_delta_value", "draft")}
BATCH = ("first_offset", "last_offset", "delivery_state", "delivery_count")


@given(
    kind=st.sampled_from([5, 6]),
    group=st.text(min_size=1, max_size=8),
    epoch=st.integers(0, 65535),
    offsets=st.tuples(st.integers(0, 2**62), st.integers(0, 2**62)),
    states=st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 2**62), st.integers(-128, 127),
                              st.integers(-(2**15), 2**15 - 1)), max_size=4),
    prefix=st.booleans(),
)  # fmt: skip
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, kind, group, epoch, offsets, states, prefix):
    if kind == 5:
        value = checkpoint_value(group, epoch, offsets[0], offsets[1], states, prefix=prefix)
    else:
        value = delta_value(group, epoch, offsets[0], states, prefix=prefix)
    row, tuples, groups = decoded_value(tmp_path_factory.mktemp("log"), kind, value)
    read = (row["start_offset"], row["end_offset"]) if kind == 5 else (row["back_offset"], offsets[1])
    # Else an id that spells `\x` itself would be that of bytes that are not UTF-8.
    named = group.replace("\\", "\\\\") if "\\x" in group else group
    assert (groups, row["epoch"], read, tuples, row["prefixed"]) == ([named], epoch, offsets, states, prefix)
    fields = {"group_id": group, "checkpoint_epoch": epoch}
    fields |= {"start_offset": offsets[0], "end_offset": offsets[1]} if kind == 5 else {"back_offset": offsets[0]}
    fields["states"] = [dict(zip(BATCH, state, strict=True)) for state in states]
    with_prefix = value if prefix else b"\0\0" + value
    assert decode(DECLARED[kind], with_prefix) == (fields, len(with_prefix))
    assert encode(DECLARED[kind], fields) == with_prefix
