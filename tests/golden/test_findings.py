"""The audit of brokers' logs: quiet over ordinary workloads, and the same findings as ever over random requests."""

from collections import Counter
from pathlib import Path

import pytest
import yaml

from share_state.fold.limits import Limits
from tests.golden.counted_findings import counted, file_of, findings_of, random_scenarios
from tests.profiles import some_of
from tests.truth import DATA, Case, cases, expected_states

OF_4_4 = {"START_NOT_CARRIED", "COUNT_REGRESSION", "ARCHIVING_PASSED", "BATCHES_NOT_JOINED"}
WHOLE = [case for case in cases() if not case.is_as_of]
ORDINARY = [case for case in WHOLE if case.scenario.name in ("happy", "happy-sharev1", "chaos", "prune", "dlq")]
DLQ = [case for case in WHOLE if case.scenario.name == "dlq"]
LIVE_COPIES = sorted(DATA.glob("*/prune/live-copy-mid"))


def _release(folder: Path) -> str:
    """4.3 for any folder under 4.3.1."""
    return folder.relative_to(DATA).parts[0].rsplit(".", 1)[0]


def _named(case: Case) -> str:
    return case.name


@pytest.mark.parametrize("named", [True, False], ids=["writer named", "writer unknown"])
@pytest.mark.parametrize(
    "folder", [*(case.folder for case in ORDINARY), *LIVE_COPIES], ids=lambda folder: str(folder.relative_to(DATA))
)
def test_an_ordinary_workload_breaks_no_rule_but_that_dead_letters_wait(folder: Path, named: bool):
    version = _release(folder) if named else None
    found = findings_of(folder, Limits(writer_version=version, archiving_seconds=0))
    graver = {row["rule"] for row in found if row["severity"] != "info"}
    assert graver == ({"ARCHIVING_STUCK"} if "dlq" in folder.parts else set())
    # The count of complete offsets is ahead of the log for as long as a write is under way.
    assert {row["rule"] for row in found} - graver <= {"DELIVERY_COMPLETE_COUNT_MISMATCH"}
    assert len(found) < 50


@pytest.mark.parametrize("case", some_of(WHOLE, 3), ids=_named)
def test_what_a_release_guarantees_holds_in_all_its_logs(case: Case):
    found = {row["rule"] for row in findings_of(case.folder, Limits(writer_version=_release(case.folder)))}
    assert not found & OF_4_4
    if _release(case.folder) == "4.4":
        assert "START_OFFSET_REGRESSION" not in found
    assert not found & {"SNAPSHOT_MISMATCH", "COLD_SNAPSHOT_MISMATCH", "SNAPSHOT_EPOCH_GAP", "UPDATE_EPOCH_MISMATCH"}
    assert not found & {"BATCHES_OVERLAP", "UNKNOWN_DELIVERY_STATE", "TOMBSTONE_WITHOUT_STATE", "STATE_AFTER_DELETE"}


@pytest.mark.parametrize("scenario", some_of(random_scenarios(), 3))
def test_random_requests_break_the_same_rules_as_ever(scenario: str):
    assert counted(findings_of(DATA / scenario)) == yaml.safe_load(file_of(scenario).read_text())


@pytest.mark.parametrize("case", DLQ, ids=_named)
def test_the_offsets_that_wait_for_a_dead_letter_are_those_of_the_truth(case: Case):
    waiting: Counter = Counter()
    for key, row in expected_states(case.states).items():
        for batch in row["state_batches"]:
            if batch["delivery_state"] == 3:
                waiting[key] += batch["last_offset"] - batch["first_offset"] + 1
    of_any_age = findings_of(case.folder, Limits(archiving_seconds=0))
    found = [row for row in of_any_age if row["rule"] == "ARCHIVING_STUCK"]
    assert waiting
    assert {
        (row["group_id"], row["topic_id"], row["partition"]): int(dict(row["evidence"])["offsets"]) for row in found
    } == waiting
