"""A rule of any scope is one registered function, and is found, listed and given severities like all others."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from share_state.errors import DeclarationError
from share_state.fold.draft.control_log import FoldedControlLog
from share_state.fold.fold_options import FoldOptions
from share_state.fold.groups.sticky import FoldedSticky, fold_sticky
from share_state.fold.record_context import ContextChunk
from share_state.fold.state_log import FoldedLog, fold_log
from share_state.kafka.classic_groups import read_generations
from share_state.rules.breaches import ERROR, INFO, NOTHING, OFF, WARNING, Breaches, GroupBreach, Message, message
from share_state.rules.findings import RecordRules, judge, judge_records
from share_state.rules.group_context import AuditedGroups
from share_state.rules.registry import Scope, record_rule, registered, rule, state_batch_rule, unregister
from share_state.rules.share_groups import judge_groups, judge_sticky
from tests.fold.control_records.logs import checkpoint
from tests.fold.control_records.test_control_chain_rules import folded as folded_control
from tests.fold.groups.group_writer import QUIET
from tests.fold.groups.group_writer import folded as folded_groups
from tests.profiles import nightly
from tests.rules.histories import ACKNOWLEDGED, log_with, snapshot, update

RECORDS = (snapshot(), update([(0, 1, ACKNOWLEDGED, 1), (3, 4, ACKNOWLEDGED, 2)], count=4), update(count=4))
TOY = {"severity": INFO, "source": "KIP-932"}


@pytest.fixture
def toys() -> Iterator[None]:
    """Rules that are gone after the test."""
    before = registered().keys()
    yield
    for code in registered().keys() - before:
        unregister(code)


def _findings(folder: Path, severities: dict[str, str] | None = None) -> list[dict[str, Any]]:
    log = log_with(folder, *RECORDS)
    folded = fold_log(log, options=FoldOptions(judge=RecordRules(severities)))
    return [
        row
        for row in judge(folded, severities, records=folded.record_breaches).to_pylist()
        if row["rule"].startswith("TOY")
    ]


def _register_over_records() -> None:
    @record_rule("TOY_RECORD", **TOY)
    def toy_record(record, context, limits):
        """Nothing is a toy."""
        return record.offset == 2 and context.exists_before and limits.delivery_count == 5

    @toy_record.message
    def _(records: np.ndarray, contexts: np.ndarray, _: ContextChunk) -> Message:
        return message("epoch ", contexts["snapshot_epoch_before"], " at ", records["offset"], epoch=records["offset"])

    @state_batch_rule("TOY_BATCH", **TOY)
    def toy_batch(batch, previous):
        """Nothing is a toy."""
        return batch.first > previous.last + 1

    @toy_batch.message
    def _(_: np.ndarray, batches: np.ndarray, _chunk: ContextChunk) -> Message:
        return message("a hole before ", batches["first"])


def test_rules_over_records_and_state_batches_fire(toys: None, tmp_path: Path):
    _register_over_records()
    batch, record = sorted(_findings(tmp_path), key=lambda row: row["rule"])
    assert (batch["rule"], batch["message"], batch["offset"]) == ("TOY_BATCH", "a hole before 3", 1)
    assert dict(batch["evidence"]) == {"batches": "1"}
    assert (record["rule"], record["message"], record["offset"]) == ("TOY_RECORD", "epoch 0 at 2", 2)
    assert {(row["severity"], row["settled"], row["group_id"]) for row in (batch, record)} == {(INFO, True, "g")}


@nightly("compiles the rules once more")
def test_a_toy_rule_has_the_severity_that_is_chosen(toys: None, tmp_path: Path):
    _register_over_records()
    (row,) = _findings(tmp_path, {"TOY_RECORD": ERROR, "TOY_BATCH": OFF})
    assert (row["rule"], row["severity"]) == ("TOY_RECORD", ERROR)


@nightly("compiles the rules once more")
def test_an_unregistered_rule_is_not_evaluated(toys: None, tmp_path: Path):
    _register_over_records()
    unregister("TOY_BATCH")
    assert [row["rule"] for row in _findings(tmp_path)] == ["TOY_RECORD"]


def _at_offset_1(_: FoldedLog | FoldedControlLog) -> Breaches:
    """Nothing is a toy."""
    return Breaches(np.array([1]), ("a toy",))


@pytest.mark.parametrize("scope", [Scope.STATE_LOG, Scope.RECORD_BATCHES])
def test_a_rule_over_a_state_log_fires(toys: None, tmp_path: Path, scope: Scope):
    rule("TOY_LOG", scope, **TOY)(_at_offset_1)
    (row,) = _findings(tmp_path)
    assert (row["message"], row["offset"], row["dialect"]) == ("a toy", 1, "share_group_state")


@pytest.mark.parametrize("scope", [Scope.CONTROL_LOG, Scope.RECORD_BATCHES])
def test_a_rule_over_a_log_of_control_records_fires(toys: None, tmp_path: Path, scope: Scope):
    rule("TOY_LOG", scope, **TOY)(_at_offset_1)
    (row,) = judge(folded_control(tmp_path, {10: checkpoint("G", 1, 0, 0)})).to_pylist()
    assert (row["rule"], row["message"], row["dialect"]) == ("TOY_LOG", "a toy", "control_records")


def _one_group(_: AuditedGroups | FoldedSticky | list) -> list[GroupBreach]:
    """Nothing is a toy."""
    return [GroupBreach("a toy", "G1", evidence={"n": 1})]


@pytest.mark.parametrize("scope", [Scope.GROUPS, Scope.CLAIMS, Scope.GROUP_RECORDS])
def test_a_rule_over_groups_fires(toys: None, tmp_path: Path, scope: Scope):
    rule("TOY_GROUP", scope, **TOY)(_one_group)
    groups = folded_groups(tmp_path, QUIET)
    states = fold_log(log_with(tmp_path / "state", snapshot())).states.slice(0, 0)
    sticky = fold_sticky(*read_generations(groups.classic))
    rows = [*judge_groups(AuditedGroups(groups, states)).to_pylist(), *judge_sticky(sticky).to_pylist()]
    toys_found = [row for row in rows if row["rule"] == "TOY_GROUP"]
    assert len(toys_found) == (2 if scope == Scope.GROUP_RECORDS else 1)
    assert {(row["message"], row["group_id"], row["severity"]) for row in toys_found} == {("a toy", "G1", INFO)}


def _never(record):
    """Nothing is a toy."""
    return False


def test_the_first_paragraph_of_the_docstring_is_the_statement(toys: None):
    @rule("TOY", Scope.STATE_LOG, **TOY)
    def toy(_: FoldedLog) -> Breaches:
        """Nothing is a toy.

        Of wood, for example.
        """
        return Breaches(np.array([1]), ("a toy",))

    assert registered()["TOY"].statement == "Nothing is a toy."
    with pytest.raises(DeclarationError, match="TOY_LAMBDA has no statement"):
        rule("TOY_LAMBDA", Scope.STATE_LOG, **TOY)(lambda _: NOTHING)


@pytest.mark.parametrize("register", [record_rule, state_batch_rule])
def test_a_toy_rule_has_one_severity(toys: None, register: Callable[..., Any]):
    register("TOY", **TOY)(_never)
    with pytest.raises(DeclarationError, match="TOY is info and warning"):
        rule("TOY", Scope.STATE_LOG, severity=WARNING, source="x")(_at_offset_1)


def test_no_more_rules_over_records_than_bits(toys: None):
    for number in range(64):
        record_rule(f"TOY_{number}", **TOY)(_never)
    with pytest.raises(DeclarationError, match="at most 63"):
        _ = judge_records.broken_rules
