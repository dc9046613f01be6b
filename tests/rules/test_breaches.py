"""Every rule about records and states is broken by a history that breaks just it."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from share_state.fold.fold_options import FoldOptions
from share_state.fold.state_log import fold_log
from share_state.rules.breaches import OFF, SEVERITIES
from share_state.rules.findings import RecordRules, judge
from share_state.rules.registry import Scope, registered
from share_state.schema.declarations import table_schema
from share_state.sources.log_partition import LogPartition
from tests.fold.nights import Auditor, grown, only_log
from tests.kafka.batches import Batch, Record, consecutive, in_bytes, log_of
from tests.kafka.judged import Judged
from tests.rules.histories import BREACHES, audited, found, log_with, snapshot, tombstone, update

FINISHED = [(0, 4, 2, 1)]


def _breached(folder: Path, code: str) -> Judged:
    return audited(log_with(folder, *BREACHES[code].records), BREACHES[code].limits)


def test_a_sound_history_breaks_no_rule(tmp_path: Path):
    history = (
        snapshot(start=-1, count=None, leader_epoch=0),
        update(start=-1, count=None),
        update(FINISHED, count=5),
        update([(7, 9, 0, 1)], start=5),
        snapshot([(7, 7, 2, 2), (8, 9, 0, 1)], start=5, epoch=1, count=1),
        snapshot([(7, 7, 2, 2), (8, 9, 0, 1)], start=5, epoch=2, count=1, written=1_800_000_000_000),
        update([(8, 8, 4, 2)], start=5, epoch=2, count=2),
        tombstone(),
        snapshot(start=3, leader_epoch=0),
        snapshot(start=1, leader_epoch=0, epoch=1),
    )
    assert found(tmp_path, *history).codes == {}


@pytest.mark.parametrize("code", BREACHES)
def test_a_history_breaks_just_one_rule(tmp_path: Path, code: str):
    judged, breach = _breached(tmp_path, code), BREACHES[code]
    assert judged.table.schema == table_schema("findings")
    assert judged.codes.keys() == {code} | breach.follows
    rows = judged.of(code)
    assert {row["severity"] for row in rows} == {breach.severity} == {registered()[code].severity}
    assert {(row["group_id"], row["partition"]) for row in rows} == {("g", 0)}
    assert rows[0]["offset"] == breach.offset
    assert rows[0]["message"].startswith(breach.message)
    assert {row["settled"] for row in rows} == {
        bool({Scope.RECORD, Scope.STATE_BATCH} & registered()[code].checks.keys())
    }


@pytest.mark.parametrize("code", BREACHES)
def test_a_rule_that_is_off_finds_nothing(tmp_path: Path, code: str):
    folded = _breached(tmp_path, code).folded
    quiet = judge(folded, {code: OFF}, records=[row for row in folded.record_breaches if row[0] != code]).to_pylist()
    assert {row["rule"] for row in quiet} == BREACHES[code].follows


@pytest.mark.parametrize("code", BREACHES)
def test_a_severity_that_is_chosen_takes_the_place_of_a_record_rule_s_own(tmp_path: Path, code: str):
    folded = _breached(tmp_path, code).folded
    for severity in SEVERITIES:
        table = judge(folded, {code: severity}, records=folded.record_breaches)
        assert {row["severity"] for row in table.to_pylist() if row["rule"] == code} == {severity}


@pytest.mark.parametrize("code", BREACHES)
def test_what_is_found_does_not_depend_on_the_chunks(tmp_path: Path, code: str):
    log = log_with(tmp_path, *BREACHES[code].records)
    assert audited(log, BREACHES[code].limits, chunk=1).findings == audited(log, BREACHES[code].limits).findings


@pytest.mark.parametrize("code", [code for code, breach in BREACHES.items() if breach.limits == type(breach.limits)()])
def test_what_is_found_does_not_depend_on_where_the_last_audit_ended(tmp_path: Path, code: str):
    source = log_with(tmp_path, *BREACHES[code].records)
    nightly, once = Auditor(), Auditor()
    for log in grown(source, tmp_path / "nights", range(80, source.size, 100)):
        nightly.audit(log)
    once.audit(only_log(tmp_path / "nights"))
    assert nightly.findings == once.findings
    assert code in str(once.findings)


def test_a_rule_over_records_that_is_off_reports_nothing(tmp_path: Path):
    log = log_with(tmp_path, snapshot(), update(count=4), update(epoch=3))
    both = fold_log(log, options=FoldOptions(judge=RecordRules())).record_breaches
    # The count goes back to 0, which counts only if 4.4 or later wrote the log.
    codes = {"DELIVERY_COMPLETE_COUNT_MISMATCH", "COUNT_REGRESSION"}
    assert {code for code, _ in both} == {*codes, "UPDATE_EPOCH_MISMATCH"}
    one = fold_log(log, options=FoldOptions(judge=RecordRules({"UPDATE_EPOCH_MISMATCH": OFF}))).record_breaches
    assert {code for code, _ in one} == codes


OF_A_CHAIN = (
    "SNAPSHOT_EPOCH_GAP", "UPDATE_EPOCH_MISMATCH", "STATE_EPOCH_REGRESSION", "LEADER_EPOCH_REGRESSION",
    "START_OFFSET_REGRESSION", "COLD_SNAPSHOT_MISMATCH", "SNAPSHOT_MISMATCH", "TERMINAL_STATE_LEFT",
    "DELIVERY_COMPLETE_COUNT_MISMATCH", "STATE_AFTER_DELETE", "START_NOT_CARRIED", "COUNT_REGRESSION",
    "ARCHIVING_PASSED", "LONG_CHAIN",
)  # fmt: skip


def with_hole(folder: Path, before: Sequence[Record], *after: Record) -> LogPartition:
    """A log without the record between two parts."""
    first = [Batch([record]) for record in before]
    last = [Batch([record]) for record in after]
    return log_of(folder, in_bytes([*consecutive(first), *consecutive(last, len(first) + 1)]))


@pytest.mark.parametrize("code", OF_A_CHAIN)
def test_a_chain_is_not_judged_across_a_hole(tmp_path: Path, code: str):
    breach = BREACHES[code]
    judged = audited(with_hole(tmp_path, breach.records[:-1], breach.records[-1]), breach.limits)
    assert judged.codes.keys() <= {"OFFSET_GAP", "STATE_SUSPECT"}
    assert judged.codes["OFFSET_GAP"] == 1


def test_a_chain_is_judged_again_from_its_next_snapshot_on(tmp_path: Path):
    rest = (snapshot(epoch=7), update(epoch=7, leader_epoch=1), update(partition=1, leader_epoch=1))
    judged = audited(with_hole(tmp_path, [snapshot(), snapshot(partition=1)], *rest))
    assert judged.codes == {"OFFSET_GAP": 1, "LEADER_EPOCH_REGRESSION": 1, "STATE_SUSPECT": 1}
    assert judged.of("LEADER_EPOCH_REGRESSION")[0]["partition"] == 0
    assert judged.of("STATE_SUSPECT")[0]["partition"] == 1


def test_an_update_behind_a_hole_is_no_orphan(tmp_path: Path):
    judged = audited(with_hole(tmp_path, [update(), snapshot(partition=1)], update(partition=2)))
    assert [row["partition"] for row in judged.of("ORPHAN_UPDATE")] == [0]
