"""Ten incidents in simulated logs and three in logs of brokers: `why` names the cause first, and what mends it."""

import json
import os
import re
import shutil
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from share_state.cli.main import run
from share_state.delta.committed import CommittedTables
from share_state.fold.fold_options import SharePartitionFilter
from share_state.incidents.incident import find_incident
from share_state.repairs.commands import KafkaTools
from share_state.repairs.opened_input import OpenedInput
from share_state.repairs.rehearsal import Rehearsal
from share_state.repairs.status import limits_of_run, survey
from share_state.report.audit_data import read_report
from share_state.simulator.settings import PartitionSettings
from share_state.simulator.types import find_release
from tests.cli.commands import Command, run_cli
from tests.incidents.stories import BROKER_LOGS, INCIDENTS, LIMITS, MINUTES, BrokerLog, Night, damage
from tests.profiles import nightly, some_of
from tests.truth import DATA

SCREENS = os.environ.get("SHARE_STATE_TEST_SCREENS")
"""A folder for the screens of all incidents, for a person to look at."""
NAMES = [name for name, one in INCIDENTS.items() if one.action]


@dataclass(frozen=True)
class Audited:
    """The logs of the night, and what two audits made of them, the first of them before the reset."""

    logs: Path
    lake: Path
    page: str
    metrics: str
    printed: str


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Audited:
    place = tmp_path_factory.mktemp("incidents")
    logs, lake, page, metrics = (place / name for name in ("night", "lake", "page.html", "audit.prom"))
    growing = Night(logs)
    audit = ["audit", str(logs), "--out", str(lake), *LIMITS, "--quiet"]
    growing.run(MINUTES - 30)
    assert run(audit) == 0
    growing.run(MINUTES)
    growing.close()
    with redirect_stdout(StringIO()) as printed:
        assert run([*audit, "--html", str(page), "--prometheus", str(metrics)]) == 0
    if SCREENS is not None:
        Path(SCREENS).mkdir(parents=True, exist_ok=True)
        shutil.copy(page, Path(SCREENS) / "audit.html")
        (Path(SCREENS) / "audit.txt").write_text(printed.getvalue())
        for suffix in ("svg", "html"):
            picture = Path(SCREENS) / f"window-stuck-dead-letters.{suffix}"
            assert run(["plot", "window", str(logs), "--group", "stuck-dead-letters", "--out", str(picture)]) == 0
    return Audited(logs, lake, page.read_text(), metrics.read_text(), printed.getvalue())


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Command:
    return partial(run_cli, capfd)


def _screen(cli: Command, group: str, *arguments: object, name: str | None = None) -> list[str]:
    """The lines of the screen, which are kept under a name."""
    said = cli("why", group, *arguments, "--quiet", "--picture")
    assert said.code == 0, said.err
    if SCREENS is not None:
        Path(SCREENS).mkdir(parents=True, exist_ok=True)
        (Path(SCREENS) / f"why-{name or group}.txt").write_text(said.out)
    return said.lines


def _check_screen(lines: list[str], trouble: str, causes: tuple[str, ...]) -> None:
    first = " ".join(line.strip() for line in lines[:2])
    assert first.startswith(f"{trouble}: "), first
    for words in causes:
        assert words in first
    # Commands are whole, so that they can be pasted; anything else fits the screen.
    assert max(len(line) for line in lines[: lines.index("go on with")]) <= 80
    assert len(lines) <= 40


@pytest.mark.parametrize("name", some_of(NAMES, 2))
def test_the_first_two_lines_name_the_cause_and_the_first_option_mends_it(cli: Command, night: Audited, name: str):
    incident = INCIDENTS[name]
    lines = _screen(cli, name, night.logs, *LIMITS)
    _check_screen(lines, incident.trouble, incident.cause)
    option = next(line for line in lines if line.startswith("repair "))
    assert option.removeprefix("repair").lstrip().startswith(f"{incident.action} (")
    has_command = any(line.startswith("  kafka-") for line in lines[lines.index("go on with") :])
    # The name of a deleted topic is not known, and after a reset consumers go on by themselves.
    assert has_command == (name not in ("deleted-topic", "reset"))


def test_a_group_without_trouble_is_shown_with_its_numbers(cli: Command, night: Audited):
    lines = _screen(cli, "steady", night.logs)
    assert lines[0].startswith("OK: steady steady-topic-0: no trouble: lag 0,")
    assert "last hour  900 acknowledged" in lines
    assert not any(line.startswith("repair ") for line in lines)


@pytest.mark.parametrize("name", NAMES)
def test_the_audit_prints_the_trouble_that_why_names(night: Audited, name: str):
    trouble = INCIDENTS[name].trouble
    rows = [line for line in night.printed.splitlines() if f" {name} " in line and f" {name}-topic " in line]
    row = next((line for line in rows if not line.startswith(("next:", " "))), "")
    if row:
        assert row.startswith(f"{trouble} ") or f" {trouble}: " in row
    assert re.search(rf"\b{trouble}\b", night.printed)


@pytest.mark.parametrize("name", some_of(NAMES, 3))
def test_audit_page_metrics_and_repair_name_the_same_trouble(cli: Command, night: Audited, name: str):
    incident = INCIDENTS[name]
    why = cli("why", name, night.lake, "--json", "--quiet").json
    # The log adds to what the audit says of the cause.
    (said,) = [one.why for one in read_report(str(night.lake)).flagged if one.now["group_id"] == name]
    assert why["cause"].startswith(said.removeprefix(f"{incident.trouble}: "))
    (repair,) = cli("repair", night.lake, "--group", name, "--json", "--quiet").json["share_partitions"]
    assert why["trouble"] == repair["trouble"] == incident.trouble
    assert why["option"]["action"] == repair["options"][0]["action"] == incident.action.split(",")[0]
    assert f'share_state_group_troubled_share_partitions{{group_id="{name}",trouble="{incident.trouble}"}} 1.0' in (
        night.metrics
    )
    section = night.page.partition('id="to-do"')[2].partition("</section>")[0]
    assert re.search(rf"with {incident.trouble}: ", section)
    assert f"share-state repair {night.lake} --group " in section


@nightly("audits and plans; the test above has one with an audit")
@pytest.mark.parametrize("name", [*some_of([one for one in NAMES if one != "reset"], 1), "reset"])
def test_repair_of_an_export_without_an_earlier_audit_names_the_same_trouble(cli: Command, night: Audited, name: str):
    why = cli("why", name, night.logs, *LIMITS, "--json", "--quiet").json
    (repair,) = cli("repair", night.logs, *LIMITS, "--group", name, "--json", "--quiet").json["share_partitions"]
    assert why["trouble"] == repair["trouble"] == INCIDENTS[name].trouble
    assert why["option"]["action"] == repair["options"][0]["action"]
    assert why["cause"].startswith(repair["sentence"].partition(";")[0]) or name != "reset"


@pytest.mark.parametrize("name", some_of(NAMES, 4))
def test_the_first_option_mends_what_the_simulator_rehearses(cli: Command, night: Audited, name: str):
    why = cli("why", name, night.lake, "--json", "--quiet").json
    effect, action = why["option"]["effect"], why["option"]["action"]
    if action in ("WAIT", "START_CONSUMERS", "FIX_DLQ"):
        # Nothing waits any more.
        assert effect["start_offset"] > why["effective_start_offset"]
        assert effect["lag"] == 0
        assert effect["skipped"] == []
    elif action == "RAISE_PARTITION_MAX_RECORD_LOCKS":
        assert effect["end_offset"] > why["end_offset"]
    elif action == "DELETE_OFFSETS":
        assert effect["start_offset"] is None
    elif action in ("FORBID_RENEWALS", "RAISE_DELIVERY_COUNT_LIMIT"):
        assert effect["skipped"] == []
        _check_next_delivery(night, name)
    else:
        assert action == "STOP_CONSUMERS"


def _check_next_delivery(night: Audited, name: str) -> None:
    """Once its locks have expired, what SPSO waits for is delivered again, and SPSO passes it."""
    found = survey(CommittedTables(str(night.lake)), (), selection=SharePartitionFilter(name))
    (status,) = found.found
    waits = status.waits_for
    assert waits is not None
    settings = PartitionSettings(delivery_count_limit=10)
    rehearsal = Rehearsal(status, find_release(found.releases[-1]), settings, 500)
    assert rehearsal.fail_delivery(waits.first, waits.last)
    rehearsal.accept_everything()
    effect = rehearsal.effect()
    assert effect.start_offset is not None
    assert effect.start_offset > waits.last
    assert effect.in_flight.keys() <= {"ACKNOWLEDGED"}


def test_a_damaged_log_is_not_acted_upon(cli: Command, night: Audited, tmp_path: Path):
    logs = damage(night.logs, tmp_path / "damaged")
    groups = {row["group_id"] for row in _suspects(cli, logs)}
    lines = _screen(cli, min(groups), logs, *LIMITS, name="damaged-log")
    _check_screen(lines, "STATE_SUSPECT", ("records from offset 1151 on are missing or unreadable",))
    assert any(line.startswith("repair     EXPORT_AGAIN (no harm)") for line in lines)


def _suspects(cli: Command, logs: Path) -> list[dict[str, Any]]:
    return [row for row in cli("show", logs, "--json", "--quiet").json["share_partitions"] if row["suspect"]]


@pytest.mark.parametrize("one", some_of(BROKER_LOGS, 1), ids=lambda one: one.name)
def test_logs_of_brokers_are_explained_too(cli: Command, one: BrokerLog):
    lines = _screen(cli, *one.why, name=one.name)
    _check_screen(lines, one.trouble, one.cause)
    plans = cli("repair", one.logs, *one.limits, "--json", "--quiet").json["share_partitions"]
    row = next(plan for plan in plans if plan["trouble"] == one.trouble and plan["group_id"] == one.group)
    option = next(line for line in lines if line.startswith("repair "))
    assert option.split()[1].rstrip(",") == row["options"][0]["action"]


def _check_one_voice(lake: Path) -> set[str]:
    """What an audit says of a share-partition, `why` says in its first line; the codes of what is said."""
    tables = CommittedTables(str(lake))
    limits = limits_of_run(dict(tables.run["options"]))
    opened = OpenedInput(tables, None, "the logs are not read", None, KafkaTools(), (str(lake),))
    codes = set()
    for one in some_of(read_report(str(lake), limits=limits, most=200).flagged, 12):
        now = one.now
        place = SharePartitionFilter(now["group_id"], now["topic_id"] or now["topic"], now["partition"])
        incident = find_incident(opened, place)
        assert incident.trouble is not None
        said = one.why.removeprefix(f"{incident.trouble}: ")
        assert incident.cause.startswith(said), (said, incident.cause)
        assert one.trouble in (incident.trouble, "NO_MEMBERS", None)
        codes.add(incident.trouble)
    return codes


@nightly("an audit of drawn histories; the incidents above agree")
def test_audit_and_why_tell_the_same_cause(cli: Command, night: Audited, tmp_path: Path):
    told = _check_one_voice(night.lake)
    assert told == {one.trouble for name, one in INCIDENTS.items() if one.action}
    for one in BROKER_LOGS:
        lake = tmp_path / one.name
        assert cli("audit", one.logs, "--out", lake, "--quiet", "--fail-on", "off", *one.limits).code == 0
        assert one.trouble in _check_one_voice(lake)


def test_the_page_of_an_incident_says_what_the_screen_says(cli: Command, night: Audited, tmp_path: Path):
    page = tmp_path / "why.html"
    lines = cli("why", "gap", night.logs, "--html", page, "--quiet").lines
    text = page.read_text()
    if SCREENS is not None:
        shutil.copy(page, Path(SCREENS) / "why-gap.html")
    assert lines[-1] == f"written: {page}"
    assert "STALL: SPSO does not move: it waits at a gap, records 1,000 to 1,004" in text
    assert "share-state repair" in text
    assert "<svg" in text
    assert "kafka-configs.sh" in text


def test_a_reset_is_read_aloud_with_its_record(cli: Command, night: Audited):
    found = cli("why", "reset", night.logs, "--json", "--quiet").json
    reset = found["reset"]
    assert (reset["before"], reset["after"]) == (1950, 1709)
    rows = [json.loads(line) for line in cli("decode", night.logs, "--quiet").lines]
    (record,) = [row for row in rows if row["group_id"] == "reset" and row["offset"] == reset["record"]]
    assert record["start_offset"] == 1709
    assert found["history"][0].startswith(f"SPSO was reset from 1,950 to 1,709 at record {reset['record']:,} (2026-")


def test_a_record_that_a_consumer_keeps_is_held_since_its_last_delivery(cli: Command, night: Audited):
    found = cli("why", "renewed-forever", night.logs, "--json", "--quiet").json
    assert found["waits_for"]["first"] == 450
    assert found["history"][1].startswith("then held for 1 h 59 min, while consumers finished later records")


def test_a_group_that_is_unknown_is_named_with_the_nearest(cli: Command, night: Audited):
    said = cli("why", "dead-consumer", night.logs, "--quiet")
    assert (said.code, said.out) == (2, "")
    assert "group dead-consumer: not found" in said.err
    assert "dead-consumers" in said.err


def test_a_lone_warning_is_not_nothing_to_do(cli: Command, night: Audited):
    said = cli("repair", night.logs, "--group", "steady", "--limit", "updates_per_snapshot=3", "--quiet")
    assert "No share-partition is in trouble, but there are errors or warnings: LONG_CHAIN (1)." in said.out
    assert "`share-state rules LONG_CHAIN` says what to do" in said.out
    described = cli("rules", "long_chain").lines
    assert described[0] == "LONG_CHAIN (warning)"
    assert any(line.startswith("do         set `limits.updates_per_snapshot`") for line in described)
    assert cli("rules", "LONG_CHAINS").err.startswith("share-state: LONG_CHAINS: no such rule; did you mean LONG_CHAIN")


@nightly("a run of all incidents")
def test_a_reconstruct_shows_no_trouble_but_judges_nothing(cli: Command, tmp_path: Path):
    chaos = DATA / "4.3.1/chaos"
    assert cli("reconstruct", chaos, "--out", tmp_path / "lake", "--quiet").code == 0
    lines = _screen(cli, "g3", tmp_path / "lake")
    assert lines[0].startswith("NO TROUBLE SHOWN: g3 ")
    assert "not known  whether consumers work: a reconstruct gives no verdicts; run" in lines
    assert _screen(cli, "g3", chaos)[0].startswith("REWIND: g3 ")


@pytest.mark.parametrize(
    ("log", "trouble", "cause", "sentence"),
    [
        (
            "reset-back",
            "REWIND",
            "15 offsets back: SPSO went from 20 to 5; its offsets were reset",
            "SPSO was reset from 20 to 5 at record 4",
        ),
        (
            "k19859",
            "START_OFFSET_REGRESSION",
            "the start offset decreases from 50 to 11",
            "SPSO went back from 50 to 11 at record 4",
        ),
    ],
)
def test_only_a_reset_is_called_one(cli: Command, log: str, trouble: str, cause: str, sentence: str):
    lines = _screen(cli, "gs1", DATA / "cases/explain-after-reset" / log, "--as-of-offset", "0=5", name=log)
    said = " ".join(line.strip() for line in lines)
    assert said.startswith(f"{trouble}: gs1 ")
    assert cause in said
    assert sentence in said


@nightly("simulates and audits the draft")
def test_control_records_of_the_draft_are_judged_but_have_no_plan(cli: Command, tmp_path: Path):
    made = ("simulate", "--dialect", "control_records", "--minutes", 2, "--groups", 2, "--out", tmp_path / "log")
    assert cli(*made, "--fault", "broken-chain").code == 0
    (fault,) = [json.loads(line) for line in (tmp_path / "log/faults.jsonl").read_text().splitlines()]
    broken = cli("why", fault["group"], tmp_path / "log", "--json").json
    assert broken["trouble"] == "STATE_SUSPECT"
    assert f"from offset {fault['offset']} on" in broken["cause"]
    assert broken["option"] is None
    assert "what mends it: `repair` has no plan for control records of the draft" in broken["unknown"]
    assert not any(" repair " in command for command in broken["commands"])
    other = next(name for name in ("slow-1", "steady-0") if name != fault["group"])
    well = cli("why", other, tmp_path / "log", "--json").json
    assert (well["trouble"], well["verdict"]) == (None, "OK")
    shown = cli("show", tmp_path / "log", "--group", other, "--json").json["share_partitions"]
    assert well["start_offset"] in [row["start_offset"] for row in shown]


@nightly("two audits")
def test_the_last_hour_is_the_same_from_logs_and_from_a_warehouse(cli: Command, night: Audited):
    """The counts of a fresh audit, of the logs of the group alone, are those of two folds of all logs."""
    for name in ("steady", "poison"):
        of_logs = cli("why", name, night.logs, *LIMITS, "--json").json["last_hour"]
        of_lake = cli("why", name, night.lake, "--json").json["last_hour"]
        assert of_logs == of_lake
