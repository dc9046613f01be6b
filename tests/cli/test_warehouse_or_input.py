"""Commands over logs take a warehouse, whose last run names its logs; commands over tables take an export."""

import shutil
from pathlib import Path

import pytest

from share_state.cli.main import run
from tests.cli.commands import Command
from tests.profiles import nightly
from tests.truth import DATA

HAPPY = DATA / "4.3.1/happy"
KEY = ("--group", "g0", "--topic", "t0", "--partition", "0")


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("given") / "export"
    shutil.copytree(HAPPY, folder, ignore=shutil.ignore_patterns("*.txt", "*.jsonl", "*.index", "*.timeindex"))
    return folder


@pytest.fixture(scope="module")
def lake(export: Path) -> Path:
    """A warehouse of two audits, the first of them up to an earlier state of the log."""
    folder = export.parent / "lake"
    assert run(["audit", str(export), "--out", str(folder), "--limit", "delivery_count=7", "--quiet"]) in (0, 1)
    return folder


def _key(cli: Command, export: Path) -> tuple[str, ...]:
    row = cli("show", export, "--json").json["share_partitions"][0]
    return ("--group", row["group_id"], "--topic", row["topic_id"], "--partition", str(row["partition"]))


@nightly("four commands over two warehouses")
def test_commands_over_logs_find_those_of_a_warehouse(cli: Command, export: Path, lake: Path, tmp_path: Path):
    key = _key(cli, export)
    limit = ("--limit", "delivery_count=7")
    for name, *more in (
        ("explain", *key, "--offset", "3", "--json"),
        ("cutoff", "--json"),
        ("decode",),
    ):
        of_logs, of_tables = cli(name, export, *more, *limit, "--quiet"), cli(name, lake, *more, "--quiet")
        assert of_tables.code == of_logs.code == 0, of_tables.err
        assert of_tables.out == of_logs.out
    assert cli("plot", "window", lake, *key, "--out", tmp_path / "w.svg", "--quiet").code == 0


def test_commands_over_tables_read_an_export(cli: Command, export: Path, lake: Path):
    for name in ("show", "groups"):
        assert cli(name, export, "--quiet").out == cli(name, lake, "--quiet").out
    assert cli("diff", export, lake, "--quiet").out.startswith("no difference in ")


@nightly("two audits")
def test_one_warehouse_is_compared_with_its_run_before(cli: Command, export: Path, lake: Path):
    said = cli("diff", lake)
    assert (said.code, said.err) == (2, f"share-state: diff: {lake}: has one run of audit; give another warehouse\n")
    assert cli("audit", export, "--out", lake, "--limit", "delivery_count=6", "--quiet").code in (0, 1)
    assert cli("diff", lake).out.startswith("no difference in ")


def test_logs_that_are_gone_are_named(cli: Command, export: Path, tmp_path: Path):
    moved, folder = tmp_path / "moved", tmp_path / "lake"
    shutil.copytree(export, moved)
    assert run(["audit", str(moved), "--out", str(folder), "--quiet"]) in (0, 1)
    shutil.rmtree(moved)
    said = cli("cutoff", folder)
    assert said.code == 2
    assert said.err == (
        f"share-state: {folder}: the logs of its last run are gone ({moved}); give logs in place of the warehouse\n"
    )
    group = cli("show", folder, "--json").json["share_partitions"][0]["group_id"]
    lines = cli("why", group, folder, "--quiet").lines
    assert any("not known  its history and the last hour" in line for line in lines)


def test_a_warehouse_refuses_the_options_that_its_run_has(cli: Command, lake: Path):
    said = cli("explain", lake, *KEY, "--offset", "3", "--topics", HAPPY / "topics.json")
    assert (said.code, said.out) == (2, "")
    assert "is a warehouse, which keeps the options of its run; leave out others" in said.err


@pytest.mark.parametrize("command", ["show", "groups"])
def test_a_cluster_that_does_not_answer_is_named(cli: Command, command: str):
    said = cli(command, "kafka://127.0.0.1:1")
    assert said.code == 2
    assert said.err.startswith("share-state: kafka://127.0.0.1:1: no broker answers (")
