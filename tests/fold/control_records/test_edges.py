"""The edges that the draft leaves open: each decision of docs/draft-dialect.md as a vector."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from share_state.fold.dialect import verify_cutoff
from share_state.fold.draft.control_log import FoldedControlLog, fold_control_log
from share_state.fold.fold_options import FoldOptions, SharePartitionFilter
from share_state.fold.limits import Limits
from share_state.fold.offset_history import explain
from share_state.report.explain import DeliveryLimit, summary_sentence
from share_state.sources.as_of import Window
from share_state.sources.share_snapshots import ShareSnapshotEntry, read_share_snapshot_file, write_share_snapshots
from tests.fold.control_records.logs import (
    at,
    checkpoint,
    control,
    control_key,
    control_options,
    delta,
    log_of,
    marker,
    user_data,
)
from tests.fold.control_records.test_worked_example import findings, folded, state
from tests.kafka.batches import NOW, Batch, Record

MINUTE = 60_000
UNSUBSCRIBED = {"T": ["G"]}


def stamped(batch: Batch, minute: float) -> Batch:
    """The batch, written that many minutes after the first."""
    time = NOW + int(minute * MINUTE)
    return replace(batch, base_timestamp=time, max_timestamp=time)


def cutoff(result: FoldedControlLog) -> dict[str, Any]:
    """The row of `cutoff`."""
    (row,) = result.cutoff.to_pylist()
    return row


# Forks.

FORK = {
    100: checkpoint("G", 1, 0, 0),
    101: delta("G", 1, 100, [(0, 1, 2, 1), (2, 4, 2, 1)]),
    102: delta("G", 1, 100, [(0, 1, 2, 1)]),
    103: delta("G", 1, 102, [(2, 4, 0, 1)]),
}


def test_best_effort_walks_back_from_the_newest_delta_and_strict_stops_at_the_fork(tmp_path: Path):
    strict, best = (folded(tmp_path / mode, FORK, mode=mode) for mode in ("strict", "best-effort"))
    assert state(strict, "G") == (5, 5, [])
    assert state(best, "G") == (2, 5, [(2, 4, 0, 1)])
    for result in (strict, best):
        assert result.states["suspect"].to_pylist() == [True]
        (finding,) = findings(result)["FORK"]
        assert (finding["offset"], finding["evidence"]["differing"]) == (102, "offsets 2-4")
        assert "differ in offsets 2-4" in finding["message"]


def test_a_fork_below_a_missing_delta_is_followed_from_the_record_before_the_hole(tmp_path: Path):
    records = FORK | {105: delta("G", 1, 104, [(5, 5, 0, 2)])}
    best = folded(tmp_path, records, mode="best-effort")
    assert state(best, "G") == (2, 6, [(2, 4, 0, 1), (5, 5, 0, 2)])
    assert best.states["updates_since_snapshot"].to_pylist() == [3]


def test_branches_that_end_alike_differ_in_no_offset(tmp_path: Path):
    records = {100: FORK[100], 101: delta("G", 1, 100, [(0, 1, 2, 1)]), 102: delta("G", 1, 100, [(0, 1, 2, 1)])}
    (finding,) = findings(folded(tmp_path, records))["FORK"]
    assert finding["evidence"]["differing"] == "no offset"


# The log start.


def test_a_group_whose_window_lies_wholly_before_the_first_segment_starts_there(tmp_path: Path):
    result = fold_control_log(log_of(tmp_path, at({30: checkpoint("G", 1, 20, 29, [(20, 28, 0, 1)])}), base=30))
    assert result.states["effective_start_offset"].to_pylist() == [30]
    (finding,) = findings(result)["SPSO_BELOW_LOG_START"]
    assert finding["evidence"] == {"start_offset": "20", "effective_start_offset": "30"}


@pytest.mark.parametrize(("offset", "waits"), [(28, False), (29, False), (31, True)])
def test_explain_says_that_retention_removed_an_offset(tmp_path: Path, offset: int, waits: bool):
    found = {40: checkpoint("G", 1, 20, 35, [(20, 34, 0, 1)])}
    log = log_of(tmp_path, at(found), base=30)
    (told,) = explain(log, Window(), SharePartitionFilter("G"), offset)
    sentence = summary_sentence(told, DeliveryLimit(5, is_assumed=False))
    assert ("waiting for delivery" in sentence) == waits
    assert ("not delivered any more: the log starts after it, a leader starts at 30" in sentence) != waits


# The share snapshot file.

LOG = {10: checkpoint("G", 1, 0, 0), 12: delta("G", 1, 10, [(0, 0, 0, 1)]), 20: checkpoint("H", 3, 0, 0)}
TRUE = [ShareSnapshotEntry("G", 10, 1, 12), ShareSnapshotEntry("H", 20, 3, 20)]


@pytest.mark.parametrize(
    ("entry", "severity", "stays"),
    [
        (ShareSnapshotEntry("G", 10, 1, 12), None, False),
        (ShareSnapshotEntry("G", 10, 1, 11), None, False),
        (ShareSnapshotEntry("G", 5, 0, 6), None, False),
        (ShareSnapshotEntry("G", 10, 1, 99), "warning", True),
        (ShareSnapshotEntry("G", 10, 2, 12), "warning", True),
        (ShareSnapshotEntry("G", 12, 1, 12), "warning", True),
        (ShareSnapshotEntry("G", 90, 2, 90), "warning", True),
        (ShareSnapshotEntry("gone", 8, 1, 8), "warning", True),
    ],
    ids=["true", "last offset", "older", "beyond the end", "epoch", "a delta", "checkpoint beyond the end", "gone"],
)
def test_an_entry_that_the_log_contradicts_stays_until_it_is_accepted(
    tmp_path: Path, entry: ShareSnapshotEntry, severity: str | None, stays: bool
):
    index = [entry, *(one for one in TRUE if one.group != entry.group)]
    result = folded(tmp_path, LOG, index=index)
    found = findings(result).get("STALE_INDEX", [])
    assert [(row["group_id"], row["severity"]) for row in found] == ([(entry.group, severity)] if severity else [])
    assert ["--accept" in row["message"] for row in found] == ([stays] if severity else [])
    kept = sorted([entry, *(one for one in TRUE if one.group != entry.group)] if stays else TRUE, key=repr)
    for accept, expected in ((False, kept), (True, TRUE)):
        write_share_snapshots(str(tmp_path / "index"), {"T-0": result.index_entries}, {}, accept=accept)
        written = read_share_snapshot_file(tmp_path / "index" / "T-0.share-snapshot")
        assert sorted(written, key=repr) == expected


def test_entries_that_contradict_each_other_are_found(tmp_path: Path):
    result = folded(tmp_path, LOG, index=[*TRUE, ShareSnapshotEntry("H", 15, 2, 15)])
    assert [row["message"][:30] for row in findings(result)["STALE_INDEX"]] == ["the index has checkpoint 15 of"]
    assert findings(folded(tmp_path, LOG, index=[*TRUE, *TRUE])) == {}


# Records that cannot be read.

BEFORE = {10: checkpoint("G", 1, 0, 0), 50: checkpoint("G", 2, 0, 0), 51: delta("G", 2, 50, [(0, 0, 2, 1)])}
UNREADABLE = [Record(control_key(5), b"\x7f\xff"), Record(b"\0\0\0", b"")]


@pytest.mark.parametrize("record", UNREADABLE, ids=["type 5", "key"])
def test_cleaning_is_not_safe_behind_an_unreadable_control_record(tmp_path: Path, record: Record):
    row = cutoff(folded(tmp_path, BEFORE | {30: record}))
    assert (row["cutoff_offset"], row["safe"]) == (50, False)
    assert "from offset 30 on are missing or unreadable" in row["reason"]


@pytest.mark.parametrize("record", UNREADABLE, ids=["type 5", "key"])
def test_an_unreadable_record_at_the_end_may_be_the_newest_of_any_group(tmp_path: Path, record: Record):
    result = folded(tmp_path, BEFORE | {60: record})
    assert (result.states["suspect"].to_pylist(), cutoff(result)["safe"]) == ([True], False)
    after = folded(tmp_path / "after", BEFORE | {60: record, 61: delta("G", 2, 51, [(1, 1, 2, 1)])})
    # A delta names its predecessor, so no record of this group is lost; one of another group may be.
    assert (after.states["suspect"].to_pylist(), cutoff(after)["safe"]) == ([False], False)


# Which groups count.


def test_groups_without_a_subscription_are_listed_with_what_they_lose(tmp_path: Path):
    found = {
        5: checkpoint("old", 1, 0, 0),
        6: delta("old", 1, 5, [(0, 0, 2, 1)]),
        10: checkpoint("G", 1, 0, 0),
        11: checkpoint("late", 1, 0, 0),
        12: delta("orphan", 1, 3, [(0, 0, 2, 1)]),
    }
    result = folded(tmp_path, found, subscriptions=UNSUBSCRIBED)
    row = cutoff(result)
    assert [one["severity"] for one in findings(result)["ORPHAN_DELTA"]] == ["info"]
    assert (row["cutoff_offset"], row["safe"], row["reason"]) == (10, True, None)
    lost = {one["group_id"]: one["lost_records"] for one in row["ignored"]}
    assert lost == {"late": 0, "old": 2, "orphan": 0}


def test_the_group_that_blocks_longest_is_named_with_its_age(tmp_path: Path):
    batches = [
        stamped(user_data(0), 0),
        stamped(control(4, delta("b", 1, 1, [(0, 0, 2, 1)])), 10),
        stamped(control(5, delta("a", 1, 2, [(0, 0, 2, 1)])), 20),
        stamped(control(6, checkpoint("G", 1, 0, 0)), 30),
        stamped(user_data(7), 100),
    ]
    result = fold_control_log(log_of(tmp_path, batches))
    row = cutoff(result)
    assert (row["limited_by_group"], row["limited_since"].timestamp() * 1000) == ("b", NOW + 10 * MINUTE)
    (finding,) = findings(result)["CUTOFF_PINNED"]
    assert (finding["group_id"], finding["offset"]) == ("b", 4)
    assert "1 h 30 min before the newest record" in finding["message"]


def test_an_old_checkpoint_that_alone_keeps_many_records_is_an_info(tmp_path: Path):
    deltas = {number: delta("G", 1, number - 1, [(0, 0, 0, 1)]) for number in range(12, 20)}
    found = {10: checkpoint("idle", 1, 0, 0), 11: checkpoint("G", 1, 0, 0)} | deltas
    found |= {20: checkpoint("G", 2, 0, 1)}
    assert "CUTOFF_PINNED" not in findings(folded(tmp_path, found))
    result = folded(tmp_path, found, limits=Limits(pinned_records=10))
    (finding,) = findings(result)["CUTOFF_PINNED"]
    assert (finding["group_id"], finding["severity"], finding["evidence"]["pinned_records"]) == ("idle", "info", "10")
    assert (cutoff(result)["next_cutoff_offset"], cutoff(result)["pinned_records"]) == (20, 10)


def test_a_topic_that_nobody_subscribes_to_says_why_it_has_no_cutoff(tmp_path: Path):
    row = cutoff(folded(tmp_path, LOG, subscriptions={"other": ["G"]}))
    assert (row["cutoff_offset"], row["safe"]) == (None, True)
    assert row["reason"] == "no group subscribes to the topic, so there is no earliest share offset"
    without_groups = fold_control_log(log_of(tmp_path / "u", [user_data(0)]), options=control_options(subscriptions={}))
    assert cutoff(without_groups)["reason"] is None


# Checkpoints.


@pytest.mark.parametrize(
    ("new", "forgotten"),
    [
        (checkpoint("G", 2, 5, 9, [(5, 8, 0, 0)]), None),
        (checkpoint("G", 2, 8, 9), None),
        (checkpoint("G", 2, 2, 5), ("4", "2")),
        (checkpoint("G", 2, 2, 9, [(2, 3, 2, 1), (4, 6, 0, 1), (7, 7, 2, 1)]), ("1", "4")),
        (checkpoint("G", 2, 5, 8, [(5, 7, 0, 1)]), ("1", "7")),
        (checkpoint("G", 2, 5, 8, [(7, 7, 4, 1)]), None),
    ],
    ids=["trimmed", "later start", "start goes back", "both", "forgets 7", "archived instead"],
)
def test_a_checkpoint_does_not_forget_what_the_chain_before_it_finished(
    tmp_path: Path, new: Record, forgotten: tuple[str, str] | None
):
    """The chain ends with start 5, and offset 7 acknowledged."""
    is_trimmed = new.value == checkpoint("G", 2, 5, 9, [(5, 8, 0, 0)]).value
    chain = {10: checkpoint("G", 1, 0, 0), 11: delta("G", 1, 10, [(0, 4, 2, 1), (5, 6, 0, 1)])}
    chain |= {} if is_trimmed else {12: delta("G", 1, 11, [(7, 7, 2, 1)])}
    for chunk in (64, 1 << 20):
        found = findings(folded(tmp_path, chain | {20: new}, chunk=chunk)).get("CHECKPOINT_MISMATCH", [])
        assert [(row["offset"], row["severity"]) for row in found] == ([(20, "warning")] if forgotten else [])
        assert [(row["evidence"]["offsets"], row["evidence"]["first_offset"]) for row in found] == (
            [forgotten] if forgotten else []
        )


def test_a_checkpoint_after_a_broken_chain_is_not_judged(tmp_path: Path):
    records = {10: checkpoint("G", 1, 0, 0), 12: delta("G", 1, 11, [(0, 4, 2, 1)]), 20: checkpoint("G", 2, 0, 0)}
    assert "CHECKPOINT_MISMATCH" not in findings(folded(tmp_path, records))


def lost(result: FoldedControlLog) -> list[tuple[str, str]]:
    """Group and severity of each BASE_LOST."""
    return [(row["group_id"], row["severity"]) for row in findings(result).get("BASE_LOST", [])]


def test_an_idle_group_whose_checkpoint_was_deleted_is_reported_if_it_is_known(tmp_path: Path):
    log = log_of(tmp_path, at({40: checkpoint("G", 1, 40, 40)}), base=30)
    assert lost(fold_control_log(log)) == []
    index = [ShareSnapshotEntry("G", 40, 1, 40), ShareSnapshotEntry("idle", 20, 1, 20)]
    assert lost(fold_control_log(log, options=control_options(index=index))) == [("idle", "error")]
    last = pa.table({"group_id": ["idle", "G"], "start_offset": [3, 40], "snapshot_offset": [20, 40]})
    assert lost(fold_control_log(log, options=control_options(last_audit=last))) == [("idle", "error")]
    assert lost(fold_control_log(log, options=control_options(index=index, subscriptions=UNSUBSCRIBED))) == [
        ("idle", "info")
    ]
    assert lost(fold_control_log(log, options=control_options(subscriptions={"T": ["G", "idle"]}))) == [
        ("idle", "warning")
    ]
    whole = log_of(tmp_path / "whole", [user_data(0), *at({40: checkpoint("G", 1, 40, 40)})])
    assert lost(fold_control_log(whole, options=control_options(subscriptions={"T": ["G", "idle"]}))) == []


# What the other dialect judges, too.


def slow(offsets: int, count: int) -> Mapping[int, Record]:
    """A group with acknowledged offsets behind offsets that were delivered `count` times."""
    return {10: checkpoint("G", 1, 0, 0), 11: delta("G", 1, 10, [(0, offsets - 1, 0, count), (offsets, offsets, 2, 1)])}


def test_offsets_near_the_delivery_limit_are_poison(tmp_path: Path):
    (finding,) = findings(folded(tmp_path, dict(slow(3, 4))))["POISON_RECORDS"]
    assert (finding["group_id"], finding["evidence"]["offsets"]) == ("G", "3")
    assert "POISON_RECORDS" not in findings(folded(tmp_path, dict(slow(3, 3))))
    assert "POISON_RECORDS" not in findings(folded(tmp_path, dict(slow(3, 4)), limits=Limits(delivery_count=10)))


@pytest.mark.parametrize(("count", "found"), [(5, False), (6, True)])
def test_a_delivery_count_over_the_limit_is_found(tmp_path: Path, count: int, found: bool):
    result = findings(folded(tmp_path, dict(slow(3, count))))
    assert [row["offset"] for row in result.get("DELIVERY_COUNT_OVER_LIMIT", [])] == ([11] if found else [])


@pytest.mark.parametrize("superseded", [False, True])
def test_the_log_shows_a_higher_delivery_limit_than_is_given(tmp_path: Path, superseded: bool):
    """Nine deliveries prove a limit of nine, so four of the limit of five that is given are no reason to worry."""
    nine = {10: checkpoint("G", 1, 0, 0), 11: delta("G", 1, 10, [(0, 2, 0, 9), (3, 3, 2, 1)])}
    four = {12: checkpoint("G", 2, 3, 4), 13: delta("G", 2, 12, [(4, 6, 0, 4)])} if superseded else {}
    result = findings(folded(tmp_path, nine | four))
    assert len(result.get("DELIVERY_COUNT_OVER_LIMIT", [])) == (not superseded)
    assert ("POISON_RECORDS" in result) != superseded
    alone = findings(folded(tmp_path / "alone", dict(slow(3, 4))))
    assert "POISON_RECORDS" in alone


@pytest.mark.parametrize(("group", "found"), [("G", False), ("H", True)])
def test_a_group_s_own_limits_count_for_it_alone(tmp_path: Path, group: str, found: bool):
    limits = Limits(record_locks=4, groups={group: {"delivery_count": 9, "record_locks": 40}})
    result = findings(folded(tmp_path, dict(slow(4, 6)), limits=limits))
    for code in ("DELIVERY_COUNT_OVER_LIMIT", "POISON_RECORDS", "IN_FLIGHT_LIMIT"):
        assert (code in result) == found, code


@pytest.mark.parametrize(("offsets", "found"), [(98, False), (99, True)])
def test_a_window_at_the_lock_limit_is_full(tmp_path: Path, offsets: int, found: bool):
    result = findings(folded(tmp_path, dict(slow(offsets, 1)), limits=Limits(record_locks=100)))
    assert ("IN_FLIGHT_LIMIT" in result) == found


@pytest.mark.parametrize(("minutes", "found"), [(29, False), (31, True)])
@pytest.mark.parametrize("checkpoints", [False, True])
def test_a_start_that_stays_while_later_offsets_finish_has_stalled(
    tmp_path: Path, minutes: int, found: bool, checkpoints: bool
):
    """Checkpoints in between do not hide it: their start is the same."""
    batches = [
        stamped(control(10, checkpoint("G", 1, 0, 0)), 0),
        stamped(control(11, delta("G", 1, 10, [(0, 2, 0, 1), (3, 3, 2, 1)])), 1),
        stamped(control(20, checkpoint("G", 2, 0, 4, [(0, 2, 0, 1), (3, 3, 2, 1)])), 20) if checkpoints else None,
        stamped(control(21, delta("G", 1 + checkpoints, 20 if checkpoints else 11, [(4, 4, 2, 1)])), 1 + minutes),
    ]
    result = fold_control_log(log_of(tmp_path, [batch for batch in batches if batch]))
    assert ("SPSO_STALL" in findings(result)) == found


def test_deltas_are_counted_per_thousand_offsets_that_they_deliver(tmp_path: Path):
    """D-32."""
    records = {10: checkpoint("G", 1, 0, 0), 11: delta("G", 1, 10, [(0, 9, 2, 1)])}
    assert folded(tmp_path, records).states["deltas_per_1000_offsets"].to_pylist() == [100.0]
    assert folded(tmp_path, {10: records[10]}).states["deltas_per_1000_offsets"].to_pylist() == [None]


def test_what_is_skipped_is_counted(tmp_path: Path):
    """D-03, D-04: transaction markers, and a delta that somebody wrote without the control flag."""
    stray = Batch([Record(control_key(6), b"x"), Record(control_key(6), b"y")], base_offset=12)
    plain = Batch([Record(b"\0\0\0\x07", b"x")], base_offset=14)
    batches = [control(0, checkpoint("G", 1, 0, 0)), marker(10), marker(11), stray, plain]
    row = cutoff(fold_control_log(log_of(tmp_path, batches)))
    assert (row["skipped_records"], row["unflagged_records"]) == (2, 2)


def test_the_proof_holds_with_everything_that_a_run_knows(tmp_path: Path):
    last = pa.table({"group_id": ["G"], "start_offset": [0], "snapshot_offset": [10]})
    result = folded(tmp_path, BEFORE, index=TRUE, last_audit=last)
    proof = verify_cutoff(result, Window(), FoldOptions(control=result.options))
    assert proof is not None
    assert (proof.compared, proof.differing) == (1, ())
