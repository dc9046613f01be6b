"""Each rule about chains, broken in the words of its statement, with the numbers of its D row."""

from dataclasses import replace
from pathlib import Path

import pytest

from share_state.errors import DeclarationError, InputError
from share_state.fold.draft.control_log import FoldedControlLog, fold_control_log
from share_state.rules.breaches import ERROR, OFF
from share_state.rules.findings import judge
from share_state.rules.registry import Predicate, Scope, registered, rule
from share_state.sources.as_of import Window
from share_state.sources.discovery import find_topic_logs
from share_state.sources.log_partition import LogPartition
from tests.fold.control_records.logs import at, checkpoint, control, control_options, delta, log_of, user_data
from tests.fold.control_records.test_worked_example import findings, state
from tests.kafka.batches import Record, in_bytes
from tests.rules.histories import CONTROL_SCOPES, STATE_SCOPES

A = [(0, 0, 2, 1)]
B = [(1, 1, 2, 1)]
C = [(2, 2, 2, 1)]
BASE = checkpoint("G", 1, 0, 0)


def folded(folder: Path, found: dict[int, Record], **options) -> FoldedControlLog:
    """The records folded, behind user data from offset 0."""
    return fold_control_log(
        log_of(folder, [*([] if 0 in found else [user_data(0)]), *at(found)]),
        options=control_options(**options),
    )


def linked(backs: dict[int, int]) -> dict[int, Record]:
    """The base at 10, and behind it three deltas: offset -> the offset that it names."""
    return {10: BASE} | {
        offset: delta("G", 1, back, states) for (offset, back), states in zip(backs.items(), (A, B, C), strict=True)
    }


def test_a_delta_that_names_a_record_outside_the_log_breaks_its_chain(tmp_path: Path):
    records = linked({11: 10, 13: 12, 14: 13})
    result = folded(tmp_path, records)
    assert [(row["offset"], row["severity"]) for row in findings(result)["BROKEN_CHAIN"]] == [(13, "error")]
    assert (state(result, "G")[0], result.states["last_offset"].to_pylist()) == (1, [11])
    assert state(folded(tmp_path, records, mode="best-effort"), "G")[0] == 3


def test_a_delta_that_names_data_breaks_its_chain(tmp_path: Path):
    result = folded(tmp_path, {10: BASE, 11: delta("G", 1, 0, A)})
    assert [row["evidence"]["reason"] for row in findings(result)["BROKEN_CHAIN"]] == ["missing"]


def test_a_delta_that_passes_over_one_breaks_its_chain(tmp_path: Path):
    """11 was never followed: 12 names what is not there, and 13 goes on from 11."""
    found = findings(folded(tmp_path, linked({11: 10, 12: 5, 13: 11})))["BROKEN_CHAIN"]
    assert [(row["offset"], row["evidence"]["reason"]) for row in found] == [(12, "missing"), (13, "passed_over")]


def test_a_delta_that_names_the_same_epoch_before_its_base_breaks_its_chain(tmp_path: Path):
    """Epochs come round again after 65536 checkpoints."""
    result = folded(tmp_path, {10: BASE, 11: checkpoint("G", 1, 0, 0), 12: delta("G", 1, 10, A)})
    assert [row["evidence"]["reason"] for row in findings(result)["BROKEN_CHAIN"]] == ["before_base"]


@pytest.mark.parametrize("back", [11, 12, 99])
def test_a_delta_that_names_no_earlier_offset_is_found(tmp_path: Path, back: int):
    result = folded(tmp_path, {10: BASE, 11: delta("G", 1, back, A), 12: delta("G", 1, 11, B)})
    assert [(row["offset"], row["severity"]) for row in findings(result)["FORWARD_BACK_OFFSET"]] == [(11, "error")]
    assert state(result, "G")[0] == 0


def test_a_delta_that_names_another_groups_record_is_found(tmp_path: Path):
    records = {10: BASE, 11: checkpoint("H", 1, 0, 0), 12: delta("G", 1, 11, A)}
    result = folded(tmp_path, records)
    (finding,) = findings(result)["CROSS_GROUP"]
    assert (finding["offset"], finding["group_id"], finding["evidence"]["named_group"]) == (12, "G", "H")
    assert (state(result, "G")[0], state(result, "H")[0]) == (0, 0)
    assert [row["group_id"] for row in result.states.to_pylist() if row["suspect"]] == ["G"]


def test_a_delta_that_names_a_record_of_another_epoch_is_found(tmp_path: Path):
    records = {10: BASE, 11: checkpoint("G", 2, 0, 0), 12: delta("G", 2, 10, A)}
    (finding,) = findings(folded(tmp_path, records))["CROSS_EPOCH"]
    assert (finding["offset"], finding["evidence"]["named_epoch"]) == (12, "1")


def test_two_deltas_that_name_one_record_fork_the_chain(tmp_path: Path):
    """D-22: the strict fold stops where the second one comes."""
    result = folded(tmp_path, linked({11: 10, 12: 10, 13: 12}))
    assert [(row["offset"], row["severity"]) for row in findings(result)["FORK"]] == [(12, "error")]
    assert "BROKEN_CHAIN" not in findings(result)
    assert state(result, "G")[0] == 1


def test_a_delta_of_an_older_epoch_is_left_out(tmp_path: Path):
    """D-18: base e0 at 300, delta at 330 of e65535."""
    records = {
        200: checkpoint("G", 65535, 0, 0),
        300: checkpoint("G", 0, 0, 0),
        320: delta("G", 0, 300, A),
        330: delta("G", 65535, 200, B),
        340: delta("G", 0, 320, C),
    }
    for mode in ("strict", "best-effort"):
        result = folded(tmp_path, records, mode=mode)
        (finding,) = findings(result)["STALE_EPOCH"]
        assert (finding["offset"], finding["severity"]) == (330, "warning")
        assert finding["evidence"] == {"epoch": "65535", "checkpoint_epoch": "0"}
        assert state(result, "G") == (1, 3, [(1, 1, 0, 0), (2, 2, 2, 1)])
        assert result.states["suspect"].to_pylist() == [False]


@pytest.mark.parametrize(("base", "epoch", "code"), [
    (0, 32767, "FUTURE_EPOCH"), (0, 32768, "STALE_EPOCH"), (65535, 0, "FUTURE_EPOCH"), (1, 0, "STALE_EPOCH"),
])  # fmt: skip
def test_half_of_the_epochs_lie_ahead(tmp_path: Path, base: int, epoch: int, code: str):
    result = folded(tmp_path, {10: checkpoint("G", base, 0, 0), 11: delta("G", epoch, 10, A)})
    assert set(findings(result)) == {code, *(["STATE_SUSPECT"] if code == "FUTURE_EPOCH" else [])}


def test_a_missing_checkpoint_leaves_the_chain_incomplete(tmp_path: Path):
    records = {10: BASE, 11: delta("G", 1, 10, A), 21: delta("G", 2, 20, B)}
    result = folded(tmp_path, records)
    assert [(row["offset"], row["severity"]) for row in findings(result)["FUTURE_EPOCH"]] == [(21, "error")]
    assert (state(result, "G")[0], result.states["suspect"].to_pylist()) == (1, [True])
    assert state(folded(tmp_path, records, mode="best-effort"), "G")[0] == 2


def test_the_base_is_the_latest_checkpoint_by_offset(tmp_path: Path):
    """D-17."""
    records = {100: checkpoint("G", 65534, 1, 1), 200: checkpoint("G", 65535, 2, 2), 300: checkpoint("G", 0, 3, 3)}
    result = folded(tmp_path, records)
    assert (state(result, "G")[0], result.states["snapshot_offset"].to_pylist()) == (3, [300])
    assert findings(result) == {}


def test_a_checkpoint_replaces_everything(tmp_path: Path):
    """D-12."""
    before = checkpoint("G", 1, 110, 120, [(110, 112, 0, 1), (113, 119, 2, 1)])
    assert state(folded(tmp_path, {130: before, 137: checkpoint("G", 2, 120, 120)}), "G") == (120, 120, [])


@pytest.mark.parametrize(("epochs", "code", "missing"), [
    ((1, 3), "EPOCH_GAP", "1"), ((65534, 0), "EPOCH_GAP", "1"), ((5, 4), "EPOCH_GAP", "65534"),
    ((5, 5), "EPOCH_REPEAT", None),
])  # fmt: skip
def test_checkpoints_count_up_by_one(tmp_path: Path, epochs: tuple[int, int], code: str, missing: str | None):
    """D-19."""
    result = folded(tmp_path, {10: checkpoint("G", epochs[0], 0, 0), 11: checkpoint("H", 9, 0, 0),
                               12: checkpoint("G", epochs[1], 0, 0)})  # fmt: skip
    ((found, (finding,)),) = findings(result).items()
    assert (found, finding["offset"], finding["evidence"].get("missing")) == (code, 12, missing)


def test_the_epoch_after_65535_is_0(tmp_path: Path):
    assert findings(folded(tmp_path, {10: checkpoint("G", 65535, 0, 0), 11: checkpoint("G", 0, 0, 0)})) == {}


def test_an_older_broken_chain_is_no_matter(tmp_path: Path):
    """D-23."""
    records = {
        10: BASE,
        11: delta("G", 1, 3, A),
        12: delta("G", 9, 3, A),
        13: checkpoint("G", 2, 0, 0),
    }
    assert findings(folded(tmp_path, records)) == {}


def test_two_groups_of_one_topic_partition_are_two_share_partitions(tmp_path: Path):
    """D-01."""
    result = folded(tmp_path, {500: checkpoint("G1", 1, 3, 3), 501: checkpoint("G2", 1, 7, 7)})
    assert (state(result, "G1")[0], state(result, "G2")[0]) == (3, 7)


def test_damage_makes_only_those_suspect_that_may_have_lost_their_last_records(tmp_path: Path):
    """A delta names its predecessor: what still holds together behind the damage has lost nothing in it."""
    batches = [
        *at({0: checkpoint("idle", 1, 0, 0), 1: checkpoint("busy", 1, 0, 0)}),
        replace(user_data(2), crc=0),
        *at({3: delta("busy", 1, 1, A)}),
    ]
    result = fold_control_log(log_of(tmp_path, batches))
    assert {row["group_id"]: row["suspect"] for row in result.states.to_pylist()} == {"idle": True, "busy": False}
    assert [row["offset"] for row in findings(result)["CRC_MISMATCH"]] == [2]
    (row,) = result.cutoff.to_pylist()
    assert (row["cutoff_offset"], row["safe"]) == (0, False)


@pytest.mark.parametrize("chunk", [64, 1 << 20])
def test_damage_that_another_copy_of_the_log_has_whole_loses_nothing(tmp_path: Path, chunk: int):
    batches = at({0: BASE, 1: delta("G", 1, 0, A), 2: delta("G", 1, 1, B), 3: checkpoint("H", 1, 0, 0)})
    for broker, broken in (("broker-1", 2), ("broker-2", 0)):
        log_of(
            tmp_path / broker, [replace(batch, crc=0) if batch.base_offset == broken else batch for batch in batches]
        )
    (log,) = find_topic_logs([str(tmp_path)])
    result = fold_control_log(log, chunk=chunk)
    assert (state(result, "G")[0], result.states["suspect"].to_pylist()) == (2, [False, False])
    assert result.cutoff["safe"].to_pylist() == [True]


def test_damage_at_the_end_may_have_lost_the_last_records_of_any_group(tmp_path: Path):
    batches = [*at({0: BASE, 1: checkpoint("H", 1, 0, 0)}), replace(control(2, delta("G", 1, 0, A)), crc=0)]
    result = fold_control_log(log_of(tmp_path, batches))
    assert result.states["suspect"].to_pylist() == [True, True]


def test_a_torn_tail_loses_nothing(tmp_path: Path):
    log = log_of(tmp_path, at({0: checkpoint("G", 1, 0, 0)}))
    segment = log.segments[0].path
    Path(segment).write_bytes(Path(segment).read_bytes() + control(1, delta("G", 1, 0, A)).written()[:-5])
    (again,) = find_topic_logs([str(tmp_path)])
    result = fold_control_log(again)
    assert set(findings(result)) == {"TORN_TAIL"}
    assert result.states["suspect"].to_pylist() == [False]


def test_holes_in_a_user_topic_mean_nothing(tmp_path: Path):
    """D-02: compaction and transactions leave holes."""
    records = {10: BASE, 1000: delta("G", 1, 10, A)}
    assert findings(fold_control_log(log_of(tmp_path, at(records)))) == {}


def test_as_of_a_time_leaves_out_what_is_later(tmp_path: Path):
    early = replace(control(10, BASE), base_timestamp=1000, max_timestamp=1000)
    late = replace(control(11, delta("G", 1, 10, A)), base_timestamp=5000, max_timestamp=5000)
    log = log_of(tmp_path, [early, late])
    assert state(fold_control_log(log, Window(until_time_ms=4999)), "G")[0] == 0
    assert fold_control_log(log, Window(until_time_ms=5000)).states["start_offset"].to_pylist() == [1]


def test_severities_can_be_changed_and_rules_switched_off(tmp_path: Path):
    result = folded(tmp_path, {10: BASE, 12: checkpoint("G", 3, 0, 0)})
    assert judge(result, {"EPOCH_GAP": "error"})["severity"].to_pylist() == ["error"]
    assert judge(result, {"EPOCH_GAP": OFF}).num_rows == 0


def test_a_code_of_both_dialects_is_one_rule():
    both = {
        code
        for code, declared in registered().items()
        if declared.checks.keys() & STATE_SCOPES and declared.checks.keys() & CONTROL_SCOPES
    }
    assert {"TORN_TAIL", "CRC_MISMATCH", "KEY_MALFORMED", "VALUE_MALFORMED", "INVERTED_RANGE", "BASE_LOST"} <= both
    assert set(registered()["BROKEN_CHAIN"].checks) == {Scope.CONTROL_LOG}
    assert set(registered()["OFFSET_GAP"].checks) == {Scope.STATE_LOG, Scope.CONTROL_LOG}


def test_a_gap_between_two_segments_is_an_info_as_compaction_may_have_left_it(tmp_path: Path):
    log = log_of(tmp_path, at({0: BASE, 1: delta("G", 1, 0, A)}))
    rest = control(5, delta("G", 1, 1, B))
    (Path(log.segments[0].path).parent / f"{5:020}.log").write_bytes(in_bytes([rest]))
    (log,) = find_topic_logs([str(tmp_path)])
    found = fold_control_log(log)
    (gap,) = findings(found)["OFFSET_GAP"]
    assert (gap["severity"], gap["topic"], gap["partition"], gap["offset"]) == ("info", "T", 0, 2)
    assert gap["message"] == "offsets 2 to 4 are missing between two segments; copy all segments of the folder"
    assert not found.cutoff["safe"][0].as_py()
    # Inside a segment nothing but the cleaner leaves a gap.
    assert "OFFSET_GAP" not in findings(folded(tmp_path / "one", {10: BASE, 15: delta("G", 1, 10, A)}))


def test_a_rule_is_not_registered_twice():
    check = registered()["BROKEN_CHAIN"].checks[Scope.CONTROL_LOG]
    assert not isinstance(check, Predicate)
    with pytest.raises(DeclarationError, match="registered twice"):
        rule("BROKEN_CHAIN", Scope.CONTROL_LOG, severity=ERROR, source="")(check)
    with pytest.raises(DeclarationError, match="one default severity"):
        rule("BROKEN_CHAIN", Scope.STATE_LOG, severity="info", source="")(check)


def test_an_unknown_mode_and_kafkas_own_topics_are_refused(tmp_path: Path):
    with pytest.raises(InputError, match="best-effort"):
        folded(tmp_path, {10: checkpoint("G", 1, 0, 0)}, mode="lenient")
    with pytest.raises(InputError, match="__cluster_metadata"):
        fold_control_log(LogPartition("__cluster_metadata", 0, (), 0))
