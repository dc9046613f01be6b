"""Where the logs of groups are found, and what is said where there are none."""

import shutil
from pathlib import Path

import pytest
import yaml

from tests.cli.commands import Command
from tests.profiles import nightly, some_of
from tests.truth import DATA

CHAOS = DATA / "4.3.1/chaos"
SHIPPED = (DATA.parents[1] / "conf/audit.yaml", DATA.parents[1] / "deploy/kubernetes/share-state-audit.yaml")
NOTE = "groups are not checked: no logs of __consumer_offsets are in the input or beside its logs"


@pytest.fixture
def broker(tmp_path: Path) -> Path:
    """The data folder of a broker, with its groups."""
    for log in (*CHAOS.glob("__share_group_state-*"), *CHAOS.glob("__consumer_offsets-*")):
        shutil.copytree(log, tmp_path / "broker-1" / log.name)
    return tmp_path / "broker-1"


def _groups(said: Command, warehouse: Path) -> list[str]:
    found = said("groups", warehouse, "--json").json
    return sorted(group["group_id"] for group in found["groups"] if found["read"] and group["state"] is not None)


@pytest.mark.parametrize("form", ["glob", "paths", "folder"])
@pytest.mark.parametrize("command", some_of(["reconstruct", "audit"], 1))
def test_the_groups_beside_all_state_logs_are_read(command: str, form: str, broker: Path, cli: Command, tmp_path: Path):
    logs = sorted(broker.glob("__share_group_state-*"))
    inputs = {"glob": [f"{broker}/__share_group_state-*"], "paths": logs, "folder": [broker]}[form]
    said = cli(command, *inputs, "--out", tmp_path / "w", "--fail-on", "off")
    assert said.code == 0
    assert "__consumer_offsets" not in said.err.replace("__consumer_offsets: found", "")
    assert len(_groups(cli, tmp_path / "w")) > 3


@nightly("a run over three folders")
def test_globs_over_several_brokers_find_the_groups_of_each(broker: Path, cli: Command, tmp_path: Path):
    for log in (*broker.glob("*-1"), *broker.glob("*-2")):
        (tmp_path / "broker-2").mkdir(exist_ok=True)
        shutil.move(log, tmp_path / "broker-2" / log.name)
    cli("reconstruct", f"{tmp_path}/broker-*/__share_group_state-*", "--out", tmp_path / "w", "--fail-on", "off")
    cli("reconstruct", CHAOS, "--out", tmp_path / "whole", "--fail-on", "off")
    assert _groups(cli, tmp_path / "w") == _groups(cli, tmp_path / "whole")


def test_explain_names_members_for_a_glob(broker: Path, cli: Command):
    one = ("--group", "g4", "--topic", "t2", "--partition", 3, "--offset", 10, "--json")
    assert cli("explain", f"{broker}/__share_group_state-*", *one).json == cli("explain", broker, *one).json


def test_one_log_of_several_is_read_alone(broker: Path, cli: Command, tmp_path: Path):
    said = cli("reconstruct", broker / "__share_group_state-1", "--out", tmp_path / "w", "--fail-on", "off")
    assert NOTE in said.err
    assert _groups(cli, tmp_path / "w") == []


@pytest.mark.parametrize("command", some_of(["reconstruct", "audit"], 1))
def test_an_input_without_groups_is_noted(command: str, broker: Path, cli: Command, tmp_path: Path):
    for log in broker.glob("__consumer_offsets-*"):
        shutil.rmtree(log)
    said = cli(command, broker, "--out", tmp_path / "w", "--fail-on", "off", "--json")
    run = said.json["run"]
    assert [note for note in run["notes"] if note.startswith(NOTE)]
    assert not cli("cutoff", broker).err.count(NOTE)
    again = cli(command, broker, "--out", tmp_path / "w", "--fail-on", "off", "--json").json["run"]
    assert sum(note.startswith(NOTE) for note in again["notes"]) == 1


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.name)
def test_the_shipped_configurations_read_the_groups(file: Path, broker: Path, cli: Command, tmp_path: Path):
    documents = [one for one in yaml.safe_load_all(file.read_text()) if one]
    config = documents[0]
    if config.get("kind"):
        texts = [text for one in documents for text in (one.get("data") or {}).values()]
        config = next(found for text in texts if isinstance(found := yaml.safe_load(text), dict) and "sources" in found)
    paths = [one["path"] for one in config["sources"] if "broker-1" in one["path"]]
    shipped = {"sources": [{"path": path.replace("/exports/broker-1", str(broker))} for path in paths],
               "warehouse": str(tmp_path / "w"), "fail_on": "off"}  # fmt: skip
    (tmp_path / "audit.yaml").write_text(yaml.safe_dump(shipped))
    assert cli("audit", "--config", tmp_path / "audit.yaml").code == 0
    assert len(_groups(cli, tmp_path / "w")) > 3
