"""`share-state audit` as a scheduler runs it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from share_state.cli.main import run
from share_state.delta.warehouse_place import warehouse_lock
from share_state.sources.discovery import find_group_logs
from tests.cli.commands import Command, contents
from tests.fold.groups.group_tables import rows_of
from tests.kafka.batches import Batch, Record
from tests.log_writer import snapshot, update, write_log_folder
from tests.profiles import by_profile, nightly, some_of
from tests.sources.formats.tables import write
from tests.truth import DATA, without_topics
from tests.warehouses import WrittenTables

CHAOS = DATA / "4.3.1/chaos"
EXPORTS = TemporaryDirectory(prefix="share-state-")
FUZZ = without_topics(DATA / "4.3.1/fuzz", Path(EXPORTS.name) / "fuzz")
"""Without the topics file: its topics are empty, since random requests wrote the state."""


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the warehouse and the reports of an audit of 4.3.1/fuzz; not to be written to."""
    from share_state.cli.main import run  # noqa: PLC0415

    folder = tmp_path_factory.mktemp("audited")
    config = folder / "audit.yaml"
    config.write_text(
        f"cluster: test\nsources: [{{path: {FUZZ}}}]\nwarehouse: {folder / 'lake'}\nfail_on: warning\n"
        f"rules: {{TERMINAL_STATE_LEFT: off}}\n"
        f"report: {{html: {folder / 'page.html'}, prometheus: {folder / 'a.prom'}}}\n"
    )
    assert run(["audit", "--config", str(config)]) == 1
    return folder


def test_an_audit_writes_tables_page_and_metrics(audited: Path):
    assert WrittenTables(audited / "lake").run["command"] == "audit"
    assert "START_OFFSET_REGRESSION" in (audited / "page.html").read_text()
    assert "share_state_last_success_timestamp_seconds" in (audited / "a.prom").read_text()
    assert "TERMINAL_STATE_LEFT" not in (audited / "page.html").read_text()


def test_nothing_new_is_said_and_is_no_failure(cli: Command, audited: Path, tmp_path: Path):
    shutil.copytree(audited, tmp_path / "copy")
    config = tmp_path / "copy/audit.yaml"
    config.write_text(config.read_text().replace(str(audited), str(tmp_path / "copy")))
    # The warehouse and the reports moved, which says nothing about the log.
    done = cli("audit", "--config", config, "--set", "report.prometheus_share_partitions=7")
    assert done.code == 0
    assert "nothing new since the last audit" in done.out
    assert "a.prom (series of the worst 7 of 38 share-partitions; groups are complete)" in done.out
    assert len(WrittenTables(tmp_path / "copy/lake").runs) == 2


def test_json_says_it_to_programs(cli: Command, tmp_path: Path):
    done = cli("audit", CHAOS, "--out", tmp_path / "lake", "--topics", CHAOS / "topics.json", "--json", "--quiet")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)
    shown = cli("show", tmp_path / "lake", "--group", "g3")
    assert shown.code == 0


def test_groups_are_named_in_a_table_whose_columns_are_called_otherwise(cli: Command, tmp_path: Path):
    rows = rows_of(find_group_logs([str(CHAOS)]))
    named = write(rows.rename_columns(["k", *rows.column_names[1:]]), tmp_path / "groups.parquet")
    arguments = ("audit", CHAOS / "__share_group_state-*", "--groups", named, "--out", tmp_path / "lake")
    assert "no column key" in cli(*arguments).err
    done = cli(*arguments, "--column", "key=k")
    assert done.code == 0
    assert "__consumer_offsets: found partition 0, 1, 2, but not how many there are" in done.err
    assert "give groups.partitions" in done.err
    assert len(WrittenTables(tmp_path / "lake").read("share_groups")) == 6


def test_stages_are_told_on_stderr(share_state: Command, tmp_path: Path):
    done = share_state("audit", CHAOS, "--out", tmp_path / "lake")
    assert "found 3 log partitions" in done.err
    assert "committed run" in done.err
    assert len(done.out.splitlines()) <= 30


def test_one_log_without_bytes_is_told_in_the_singular(cli: Command, tmp_path: Path):
    (tmp_path / "__share_group_state-0").mkdir()
    (tmp_path / f"__share_group_state-0/{0:020}.log").touch()
    said = cli("audit", tmp_path / "__share_group_state-0", "--out", tmp_path / "lake").err
    assert "found 1 log partition\n" in said
    assert "read 0 new records of 1 log partition\n" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give --config FILE, or INPUT... and --out WAREHOUSE"),
        (["somewhere"], "give INPUT... and --out WAREHOUSE, or --config FILE"),
        (["night.yaml", "--out", "lake"], "give a configuration as --config night.yaml"),
        (["--config", "nowhere.yaml"], "nowhere.yaml: no such file"),
        (["--config", "a.yaml", "--format", "table"], "--format applies to INPUT; give --set sources.N.format=table"),
        (["--config", "a.yaml", "--column", "key=k"], "--column applies to INPUT; give --set sources.N.columns.key=k"),
        (["--config", "a.yaml", "--column", "key=auto"], "--column applies to INPUT; give --set sources.N.columns.key"),
        (
            ["--out", "lake", "--kafka-properties", "p"],
            "--kafka-properties applies to INPUT; give --set sources.N.kaf",
        ),
        ([str(CHAOS), "--out", "lake", "--set", "limits.delivery_cuont=3"], "did you mean limits.delivery_count?"),
        ([str(CHAOS), "--out", "lake", "--rule", "FOO=off"], "--rule FOO=off: no such rule"),
        ([str(CHAOS), "--out", "lake", "--fail-on", "never"], "--fail-on never: give one of error, warning, info, off"),
        (
            [str(CHAOS), "--out", "lake", "--format", "avro"],
            "--format avro: give one of auto, console-json",
        ),
        ([str(CHAOS), "--out", "lake", "--dialect", "draft"], "--dialect draft: give one of auto, share_group_state"),
    ],
)
def test_an_unusable_call_is_one_line_and_leaves_nothing(
    cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
):
    monkeypatch.chdir(tmp_path)
    done = cli("audit", *arguments)
    assert done.code == 2
    assert said in done.err
    assert len(done.err.splitlines()) == 1
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("command", some_of(["audit", "reconstruct"], 1))
def test_two_runs_at_once_the_second_is_told_who_holds_the_warehouse(cli: Command, tmp_path: Path, command: str):
    with warehouse_lock(str(tmp_path / "lake"), "audit"):
        holder = subprocess.run(
            [sys.executable, "-m", "share_state", command, str(CHAOS), "--out", str(tmp_path / "lake")],
            capture_output=True,
            text=True,
            check=False,
        )
    assert holder.returncode == 2
    assert f"locked by `share-state audit`, process {os.getpid()} on" in holder.stderr.splitlines()[-1]


@nightly("three processes; test_real_command interrupts one")
def test_a_killed_audit_bars_nobody_and_leaves_nothing_to_believe(share_state: Command, tmp_path: Path):
    command = [sys.executable, "-m", "share_state", "audit", str(CHAOS), "--out", str(tmp_path / "lake")]
    victim = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    # As soon as the first rows are staged.
    until = time.monotonic() + 120
    while not list((tmp_path / "lake").glob("*/*.arrows")) and victim.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    os.killpg(victim.pid, signal.SIGKILL)
    victim.wait()
    if not (tmp_path / "lake/runs/_delta_log").exists():
        assert "no warehouse here" in share_state("show", tmp_path / "lake").err
    done = share_state("audit", CHAOS, "--out", tmp_path / "lake")
    assert done.code == 0
    assert not [*(tmp_path / "lake").rglob("*.arrows")]
    undisturbed = share_state("audit", CHAOS, "--out", tmp_path / "undisturbed")
    assert undisturbed.code == 0
    for table in ("share_partition_state", "in_flight", "findings", "cutoff", "share_partition_history"):
        found, expected = (WrittenTables(tmp_path / name).read(table) for name in ("lake", "undisturbed"))
        assert sorted(found.to_pylist(), key=repr) == sorted(expected.to_pylist(), key=repr)


@nightly("kills at each write; test_killed_audits kills anywhere")
def test_an_audit_stopped_between_commit_and_report_is_reported_once_by_the_next(
    cli: Command, damaged: Path, tmp_path: Path
):
    stopped = {
        stop: tmp_path / stop.name
        for stop in by_profile((signal.SIGKILL, signal.SIGTERM), (signal.SIGKILL, signal.SIGINT, signal.SIGTERM))
    }
    audit = ["audit", str(damaged), "--quiet", "--out"]
    # Who starts tests in the background may let them ignore interrupts, and so whatever they start.
    ignored = signal.signal(signal.SIGINT, signal.default_int_handler)
    victims = [_waiting_audit([*audit, str(lake)], tmp_path / f"{lake.name}.pipe") for lake in stopped.values()]
    signal.signal(signal.SIGINT, ignored)
    # Each waits for a reader of its pipe, after its commit.
    until = time.monotonic() + 120
    while not all([*lake.glob("runs/_delta_log/*.json")] for lake in stopped.values()) and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(1)
    for (stop, lake), victim in zip(stopped.items(), victims, strict=True):
        victim.send_signal(stop)
        _, said = victim.communicate()
        if stop != signal.SIGKILL:
            run_id = WrittenTables(lake).run["run_id"]
            assert said == f"share-state: stopped; run {run_id} is committed, and the next audit reports it\n"
        assert WrittenTables(lake).run["status"] == "committed"
        first = cli(*audit, lake, "--json")
        errors = [
            (one["rule"], one["new"], one["failing"]) for one in first.json["findings"] if one["severity"] == "error"
        ]
        assert (first.code, errors) == (1, [("CRC_MISMATCH", 1, 1)])
        assert WrittenTables(lake).runs["status"].to_pylist() == ["reported", "reported"]
        assert cli(*audit, lake).code == 0


def _leave_no_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make stdout a pipe without a reader, as in `share-state ... | true`."""
    reader, writer = os.pipe()
    os.close(reader)
    monkeypatch.setattr(sys, "stdout", os.fdopen(writer, "w"))


@nightly("a process that waits")
def test_an_alert_reaches_a_scheduler_whose_pipe_is_not_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    audit = ["audit", str(FUZZ), "--out", str(tmp_path / "w"), "--quiet"]
    with monkeypatch.context() as closed:
        _leave_no_reader(closed)
        assert run(audit) == 1
    assert WrittenTables(tmp_path / "w").run["status"] == "reported"
    assert run(audit) == 0


@nightly("two audits")
def test_an_audit_that_could_not_print_is_reported_by_the_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cli: Command
):
    audit = ("audit", FUZZ, "--out", tmp_path / "w", "--quiet")
    with monkeypatch.context() as full, Path("/dev/full").open("w", encoding="utf-8") as stream:
        full.setattr(sys, "stdout", stream)
        said = cli(*audit)
    assert said.code == 2
    assert said.err.startswith("share-state: stdout: cannot be written (No space left on device)")
    assert WrittenTables(tmp_path / "w").run["status"] == "committed"
    again = cli(*audit, "--json")
    assert (again.code, again.json["run"]["status"]) == (1, "reported")


def _waiting_audit(audit: list[str], pipe: Path) -> subprocess.Popen[str]:
    os.mkfifo(pipe)
    command = [sys.executable, "-m", "share_state", *audit, "--prometheus", str(pipe)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


@nightly("two audits; test_audit_verdicts has another")
def test_a_verdict_can_fail_the_job(cli: Command, tmp_path: Path):
    """Kafka's own default is 30 minutes; this log ends seconds after its last records."""
    audit = ("audit", DATA / "4.4.0/dlq", "--out", tmp_path / "w", "--quiet", "--fail-on", "off", "--json")
    stalled = cli(*audit, "--set", "limits.stall_minutes=0.01")
    assert (stalled.code, stalled.json["failing_verdicts"]) == (0, 0)
    assert stalled.json["verdicts"]["STALL"] + stalled.json["verdicts"]["STOP"] > 0
    for verdict in ("STALL", "STOP", "REWIND"):
        said = cli(*audit, "--set", "limits.stall_minutes=0.01", "--set", f"fail_on_verdict={verdict}")
        counted = ("STALL", "STOP", "REWIND")[("STALL", "STOP", "REWIND").index(verdict) :]
        assert said.json["failing_verdicts"] == sum(stalled.json["verdicts"][one] for one in counted)
        assert said.code == (1 if said.json["failing_verdicts"] else 0)
    refused = cli(*audit, "--set", "fail_on_verdict=SLOW")
    assert (refused.code, "fail_on_verdict" in refused.err) == (2, True)


@nightly("four audits")
def test_suspect_state_fails_every_night_if_its_rule_is_an_error(cli: Command, damaged: Path, tmp_path: Path):
    """A damaged batch fails one night; the state after it is no better in the next, even if nothing is new."""
    for options, second in (((), 0), (("--rule", "STATE_SUSPECT=error"), 1), (("--fail-on", "warning"), 1)):
        audit = ("audit", damaged, "--out", tmp_path / f"w{len(options)}{second}{options[-1:]}", "--quiet", *options)
        assert [cli(*audit).code, cli(*audit).code] == [1, second]


@nightly("three audits; tests/report acknowledge")
def test_what_is_acknowledged_does_not_fail_the_job(cli: Command, tmp_path: Path):
    audit = ("audit", FUZZ, "--quiet", "--json", "--out")
    assert cli(*audit, tmp_path / "a").code == 1
    rules = ("TERMINAL_STATE_LEFT", "START_OFFSET_REGRESSION")
    options = [f"acknowledged.{number}.rule={rule}" for number, rule in enumerate(rules)]
    said = cli(*audit, tmp_path / "b", *(word for option in options for word in ("--set", option)))
    counted = {one["rule"]: (one["count"] > 0, one["open"]) for one in said.json["findings"]}
    assert (said.code, [counted[rule] for rule in rules]) == (0, [(True, 0)] * 2)
    assert said.json["findings_by_severity"]["error"] == 0


@nightly("two audits")
def test_a_warehouse_is_of_one_cluster(cli: Command, tmp_path: Path):
    audit = ("audit", DATA / "4.3.1/happy", "--out", tmp_path / "w", "--quiet")
    for options, code in (((), 0), (("--set", "cluster=blue"), 0), (("--set", "cluster=green"), 2), ((), 0)):
        said = cli(*audit, *options)
        assert said.code == code, said.err
        if code:
            assert said.err.endswith(": holds cluster blue, not green; give each cluster its own warehouse\n")
    assert WrittenTables(tmp_path / "w").runs["cluster"].to_pylist() == ["blue", "blue", None]


@nightly("an audit and a run")
def test_reconstruct_into_the_warehouse_of_an_audit_says_so_first(cli: Command, tmp_path: Path):
    made = ("reconstruct", DATA / "4.3.1/happy", "--out", tmp_path / "w")
    assert cli(*made).err == cli(*made).err == ""
    assert cli("audit", DATA / "4.3.1/happy", "--out", tmp_path / "w", "--quiet", "--set", "cluster=blue").code == 0
    said = cli(*made)
    note = f"{tmp_path}/w: an audit of blue keeps its tables here; until the next one, `show` shows this run"
    assert (said.code, said.err) == (0, f"share-state: {note}\n")


def test_group_ids_that_java_reads_as_one_are_one_share_partition(cli: Command, tmp_path: Path):
    """Night by night, as the coordinator folds them: the log holds three spellings of one id, and another group."""
    topic, export = "AAAAAAAAAAEAAAAAAAAAAg", tmp_path / "export"

    def spelled(group: bytes, record: Record) -> Record:
        assert record.key is not None
        return Record(record.key.replace(b"\x00\x03g??", len(group).to_bytes(2, "big") + group), record.value)

    first = [
        spelled(b"g\xff", snapshot(("g??", topic, 0), [(0, 4, 0, 1)])),
        spelled(b"g\xfe", update(("g??", topic, 0), [(0, 1, 2, 1)])),
        snapshot(("good", topic, 0)),
    ]
    merged = "g\N{REPLACEMENT CHARACTER}"
    then = [update((merged, topic, 0), [(2, 2, 2, 1)]), spelled(b"g\xff", update(("g??", topic, 0), [(4, 4, 2, 1)]))]
    audit = ("audit", export, "--out", tmp_path / "w", "--quiet", "--prometheus", tmp_path / "metrics.prom")
    write_log_folder(export, 0, [Batch(first)])
    assert cli(*audit).code == 0
    shutil.rmtree(export)
    write_log_folder(export, 0, [Batch(first), Batch(then)])
    assert cli(*audit).code == 0
    rows = WrittenTables(tmp_path / "w").read("share_partition_state").to_pylist()
    batches = {row["group_id"]: [tuple(one.values()) for one in row["state_batches"]] for row in rows}
    assert batches == {merged: [(0, 2, 2, 1), (3, 3, 0, 1), (4, 4, 2, 1)], "good": []}
    series = [line.rpartition(" ")[0] for line in (tmp_path / "metrics.prom").read_text("utf-8").splitlines()]
    series = [line for line in series if not line.startswith("#")]
    assert len(series) == len(set(series))
