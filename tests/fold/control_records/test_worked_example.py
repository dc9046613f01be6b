"""The worked example of both draft documents, the state after every record; and the spec's other vectors."""

from pathlib import Path
from typing import Any

import pytest

from share_state.fold.draft.control_log import FoldedControlLog, fold_control_log
from share_state.kafka.control_records import CHECKPOINT_TYPE, DELTA_TYPE
from share_state.kafka.record_batches import CHUNK_SIZE
from share_state.rules.findings import judge
from share_state.sources.as_of import Window
from tests.fold.control_records.logs import (
    at,
    checkpoint,
    control,
    control_key,
    control_options,
    delta,
    log_of,
    user_data,
)
from tests.kafka.batches import Record

G = "G1"
LITERAL = "000247310001000000000000006e000000000000006e00000000"
CORRECTED = "0002473100010000000000000064000000000000006400000000"
DELTAS = {
    131: "0002473100010000000000000082000000010000000000000064000000000000006d020001",
    132: "000247310001000000000000008300000001000000000000006e000000000000006e000001",
    133: "000247310001000000000000008400000002"
    "000000000000006f0000000000000076000000"
    "00000000000000770000000000000077020001",
    134: "000247310001000000000000008500000001000000000000006f0000000000000070000001",
    135: "00024731000100000000000000860000000100000000000000710000000000000076020001",
    136: "000247310001000000000000008700000001000000000000006e000000000000006e020002",
    137: "000247310001000000000000008800000001000000000000006f0000000000000070020002",
}
SECOND_CHECKPOINT = "0002473100020000000000000078000000000000007800000000"

AFTER = {
    131: (110, 110, []),
    132: (110, 111, [(110, 110, 0, 1)]),
    133: (110, 120, [(110, 110, 0, 1), (111, 118, 0, 0), (119, 119, 2, 1)]),
    134: (110, 120, [(110, 112, 0, 1), (113, 118, 0, 0), (119, 119, 2, 1)]),
    135: (110, 120, [(110, 112, 0, 1), (113, 119, 2, 1)]),
    136: (111, 120, [(111, 112, 0, 1), (113, 119, 2, 1)]),
    137: (120, 120, []),
}
STARTS = {LITERAL: (110, 110, []), CORRECTED: (100, 100, [])}


def records(first: str, last: str | None = None) -> dict[int, Record]:
    """The example's records by offset, with one of the two checkpoints at 130 and one of the two endings."""
    found = {130: Record(control_key(CHECKPOINT_TYPE), bytes.fromhex(first))}
    found |= {offset: Record(control_key(DELTA_TYPE), bytes.fromhex(value)) for offset, value in DELTAS.items()}
    if last is not None:
        found[137] = Record(control_key(CHECKPOINT_TYPE), bytes.fromhex(last))
    return found


def state(folded: FoldedControlLog, group: str = G) -> tuple[int, int, list[tuple[int, ...]]]:
    """(start, end, ranges) of one group."""
    (row,) = [row for row in folded.states.to_pylist() if row["group_id"] == group]
    assert row["start_offset"] == row["effective_start_offset"]
    return row["start_offset"], row["end_offset"], [tuple(batch.values()) for batch in row["state_batches"]]


def findings(folded: FoldedControlLog) -> dict[str, list[dict[str, Any]]]:
    """The findings by rule."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in judge(folded).to_pylist():
        found.setdefault(row["rule"], []).append(row | {"evidence": dict(row["evidence"])})
    return found


def folded(folder: Path, found: dict[int, Record], chunk: int = CHUNK_SIZE, **options: Any) -> FoldedControlLog:
    """The records folded, one control batch each."""
    return fold_control_log(log_of(folder, at(found)), options=control_options(**options), chunk=chunk)


@pytest.mark.parametrize("first", [LITERAL, CORRECTED], ids=["literal", "corrected"])
@pytest.mark.parametrize("last", [None, SECOND_CHECKPOINT], ids=["delta", "checkpoint"])
@pytest.mark.parametrize("mode", ["strict", "best-effort"])
def test_the_state_after_every_record_is_that_of_the_document(tmp_path: Path, first: str, last: str | None, mode: str):
    log = log_of(tmp_path, at(records(first, last)))
    for offset, expected in {130: STARTS[first], **AFTER}.items():
        assert state(fold_control_log(log, Window(until_offset=offset + 1), control_options(mode=mode))) == expected


def test_our_writer_of_test_logs_writes_the_documents_bytes():
    assert checkpoint(G, 1, 100, 100).value == bytes.fromhex(CORRECTED)
    assert delta(G, 1, 132, [(111, 118, 0, 0), (119, 119, 2, 1)]).value == bytes.fromhex(DELTAS[133])


def test_the_literal_start_ignores_the_ten_offsets_below_it(tmp_path: Path):
    (finding,) = findings(folded(tmp_path, records(LITERAL))).pop("BELOW_START")
    assert (finding["offset"], finding["severity"], finding["evidence"]) == (131, "info", {"offsets": "10"})


@pytest.mark.parametrize(("first", "codes"), [(LITERAL, {"BELOW_START"}), (CORRECTED, set())])
@pytest.mark.parametrize("last", [None, SECOND_CHECKPOINT], ids=["delta", "checkpoint"])
def test_nothing_else_is_found_in_the_example(tmp_path: Path, first: str, last: str | None, codes: set[str]):
    # The second checkpoint supersedes what lies below it, so its ending rests on nothing that was ignored.
    assert set(findings(folded(tmp_path, records(first, last)))) == (set() if last else codes)


def test_every_column_of_the_state_and_the_in_flight_ranges(tmp_path: Path):
    found = folded(tmp_path, {offset: record for offset, record in records(CORRECTED).items() if offset < 134})
    (row,) = found.states.to_pylist()
    row.pop("state_batches")
    assert row == {
        "dialect": "control_records", "group_id": "G1", "topic_id": None, "topic": "T", "partition": 0,
        "state_partition": None, "start_offset": 110, "effective_start_offset": 110, "end_offset": 120,
        "snapshot_epoch": 1, "state_epoch": None, "leader_epoch": None, "delivery_complete_count": -1,
        "create_time": None, "write_time": None, "max_leader_epoch": None, "max_state_epoch": None,
        "updates_since_snapshot": 3, "snapshot_offset": 130, "last_offset": 133, "suspect": False,
        "topic_end_offset": 134, "redundant_retained": 0, "unfinished_offsets": 9,
        "deltas_per_1000_offsets": 250.0,
    }  # fmt: skip
    flights = [
        (row["first_offset"], row["last_offset"], row["record_count"], row["state"], row["delivery_count"],
         row["terminal"], row["gap"])
        for row in found.in_flight.to_pylist()
    ]  # fmt: skip
    assert flights == [
        (110, 110, 1, "AVAILABLE", 1, False, False),
        (111, 118, 8, "AVAILABLE", 0, False, False),
        (119, 119, 1, "ACKNOWLEDGED", 1, True, False),
    ]


def test_a_lost_delta_stops_the_strict_fold_before_the_next_one(tmp_path: Path):
    without = {offset: record for offset, record in records(CORRECTED).items() if offset != 134}
    found = folded(tmp_path, without)
    assert state(found) == AFTER[133]
    assert found.states["suspect"].to_pylist() == [True]
    (finding,) = findings(found)["BROKEN_CHAIN"]
    assert (finding["offset"], finding["severity"]) == (135, "error")
    assert finding["evidence"] == {"back_offset": "134", "expected": "133", "reason": "missing"}
    best = folded(tmp_path, without, mode="best-effort")
    assert state(best) == AFTER[137]
    assert best.states["suspect"].to_pylist() == [True]
    assert len(findings(best)["BROKEN_CHAIN"]) == 1


def test_a_record_that_is_found_twice_counts_once(tmp_path: Path):
    batches = at(records(CORRECTED))
    twice = sorted([*batches, control(133, records(CORRECTED)[133])], key=lambda batch: batch.base_offset)
    found = fold_control_log(log_of(tmp_path, twice))
    assert state(found) == AFTER[137]
    assert findings(found) == {}
    assert found.observations.repeated_batches == 1


def test_both_endings_at_once_are_a_conflict(tmp_path: Path):
    both = [*at(records(CORRECTED)), control(137, Record(control_key(5), bytes.fromhex(SECOND_CHECKPOINT)))]
    found = fold_control_log(log_of(tmp_path, both))
    assert [row["offset"] for row in findings(found)["DUPLICATE_OFFSET_CONFLICT"]] == [137]
    assert state(found) == AFTER[137]
    assert found.states["suspect"].to_pylist() == [True]


def test_a_delta_that_jumps_without_cover_leaves_the_same_state(tmp_path: Path):
    jumping = records(CORRECTED) | {133: delta(G, 1, 132, [(119, 119, 2, 1)])}
    found = folded(tmp_path, jumping)
    assert state(found) == AFTER[137]
    (finding,) = findings(found)["UNCOVERED_GAP"]
    assert finding["offset"] == 133
    assert finding["evidence"] == {"first_missing": "111", "last_missing": "118", "offsets": "8"}
    first_half = {offset: record for offset, record in jumping.items() if offset <= 133}
    assert state(folded(tmp_path, first_half)) == AFTER[133]


def chain(*deltas: list[tuple[int, int, int, int]], start: int = 0, offset: int = 1000) -> dict[int, Record]:
    """A checkpoint with nothing in flight and deltas behind it."""
    found = {offset: checkpoint(G, 1, start, start)}
    for number, states in enumerate(deltas, offset + 1):
        found[number] = delta(G, 1, number - 1, states)
    return found


VECTORS = {
    "V-2": (
        chain([(0, 1, 0, 1)], [(0, 1, 4, 2)], [(2, 3, 0, 1)], [(2, 3, 4, 2)]),
        {1001: (0, 2, [(0, 1, 0, 1)]), 1002: (2, 2, []), 1003: (2, 4, [(2, 3, 0, 1)]), 1004: (4, 4, [])},
    ),
    "V-3": (
        chain([(0, 2, 0, 1)], [(0, 0, 2, 2), (2, 2, 0, 2)], [(1, 1, 2, 2)], [(2, 2, 4, 3)]),
        {1002: (1, 3, [(1, 1, 0, 1), (2, 2, 0, 2)]), 1003: (2, 3, [(2, 2, 0, 2)]), 1004: (3, 3, [])},
    ),
    "V-5": (chain([(0, 2, 2, 2)]), {1001: (3, 3, [])}),
    "V-6": (
        chain([(0, 10, 0, 1)], [(11, 19, 0, 0), (20, 30, 0, 1)], [(0, 10, 2, 2)], [(11, 19, 2, 1)]),
        {
            1002: (0, 31, [(0, 10, 0, 1), (11, 19, 0, 0), (20, 30, 0, 1)]),
            1003: (11, 31, [(11, 19, 0, 0), (20, 30, 0, 1)]),
            1004: (20, 31, [(20, 30, 0, 1)]),
        },
    ),
    "V-7": (
        chain(*[[(offset, offset, 2, 1)] for offset in range(7)]),
        {1001 + offset: (offset + 1, offset + 1, []) for offset in range(7)},
    ),
    "V-8": (
        chain([(0, 0, 2, 1), (1, 1, 4, 1), (2, 2, 2, 1), (3, 3, 0, 1)], [(3, 3, 0, 2)]),
        {1001: (3, 4, [(3, 3, 0, 1)]), 1002: (3, 4, [(3, 3, 0, 2)])},
    ),
    "V-9": (
        chain([(0, 4, 0, 1)], [(5, 6, 0, 0), (7, 9, 2, 1)]),
        {1002: (0, 10, [(0, 4, 0, 1), (5, 6, 0, 0), (7, 9, 2, 1)])},
    ),
    "V-11": (chain([(10, 14, 2, 1)], start=10), {1001: (15, 15, [])}),
    "V-15": (
        chain([(10, 19, 0, 0), (20, 22, 0, 1)], [(10, 12, 2, 1)], start=10),
        {1001: (10, 23, [(10, 19, 0, 0), (20, 22, 0, 1)]), 1002: (13, 23, [(13, 19, 0, 0), (20, 22, 0, 1)])},
    ),
}


@pytest.mark.parametrize("name", VECTORS)
def test_the_draft_side_of_every_vector(tmp_path: Path, name: str):
    found, after = VECTORS[name]
    log = log_of(tmp_path, at(found))
    for offset, expected in after.items():
        assert state(fold_control_log(log, Window(until_offset=offset + 1))) == expected
    assert findings(fold_control_log(log)) == {}


def test_two_interleaved_groups_keep_to_themselves(tmp_path: Path):
    """V-4."""
    found = {
        500: checkpoint("G1", 1, 0, 0),
        501: checkpoint("G2", 65535, 0, 0),
        502: delta("G1", 1, 500, [(0, 4, 2, 1)]),
        503: delta("G2", 65535, 501, [(0, 1, 2, 1)]),
        504: checkpoint("G2", 0, 2, 2),
        505: delta("G2", 0, 504, [(2, 4, 4, 1)]),
        506: checkpoint("G1", 2, 5, 5),
    }
    result = folded(tmp_path, found)
    assert (state(result, "G1"), state(result, "G2")) == ((5, 5, []), (5, 5, []))
    assert result.states.select(["group_id", "snapshot_offset"]).to_pylist() == [
        {"group_id": "G1", "snapshot_offset": 506},
        {"group_id": "G2", "snapshot_offset": 504},
    ]
    assert (result.earliest.offset, result.redundant_records) == (504, 4)
    assert findings(result) == {}
    before = fold_control_log(result.log, Window(until_offset=502))
    assert before.states.select(["group_id", "snapshot_offset"]).to_pylist() == [
        {"group_id": "G1", "snapshot_offset": 500},
        {"group_id": "G2", "snapshot_offset": 501},
    ]


def test_a_noted_log_start_moves_the_effective_start_only(tmp_path: Path):
    """V-9: a leader that finds the log to begin at 7 goes on from 10."""
    found, _ = VECTORS["V-9"]
    result = fold_control_log(log_of(tmp_path, [user_data(0, 10), *at(found)], start=7))
    (row,) = result.states.to_pylist()
    assert (row["start_offset"], row["effective_start_offset"], row["end_offset"]) == (0, 10, 10)
    (finding,) = findings(result)["SPSO_BELOW_LOG_START"]
    assert finding["evidence"] == {"start_offset": "0", "effective_start_offset": "10"}


@pytest.mark.parametrize("base", [129, 130])
def test_the_first_segment_moves_the_effective_start_as_a_noted_log_start_does(tmp_path: Path, base: int):
    """Brokers note a log start only where it lies after the base of the first segment."""
    found = {130: checkpoint(G, 1, 120, 129, [(120, 128, 0, 1)]), 131: checkpoint("H", 1, 0, 130)}
    result = fold_control_log(log_of(tmp_path, at(found), base=base))
    rows = result.states.select(["group_id", "start_offset", "effective_start_offset", "end_offset"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [(G, 120, base, 129), ("H", 0, base, 130)]
    assert [row["group_id"] for row in findings(result)["SPSO_BELOW_LOG_START"]] == [G, "H"]
