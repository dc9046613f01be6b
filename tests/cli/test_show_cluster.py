"""`show --cluster` prints what a run used of the cluster, and where each fact comes from."""

import json
from pathlib import Path

import pytest

from share_state.cli.main import run
from tests.truth import DATA, without_topics

BROKER = Path(__file__).parents[1] / "sources" / "cluster_facts" / "whole-broker"


def test_each_fact_has_its_value_and_source(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    lake = str(tmp_path / "lake")
    assert run(["reconstruct", str(BROKER), "--out", lake, "--limit", "record_locks=100", "--quiet"]) == 0
    capfd.readouterr()
    assert run(["show", lake, "--cluster", "--json"]) == 0
    facts = {fact["fact"]: (fact["value"], fact["source"]) for fact in json.loads(capfd.readouterr().out)["facts"]}
    assert facts["state_partitions"] == ("7", f"{BROKER}/__cluster_metadata-0")
    assert facts["delivery_count"] == ("4", f"group.share.delivery.count.limit in {BROKER}/server.properties")
    assert facts["topics"] == (None, f"{BROKER}/__cluster_metadata-0")
    assert facts["limits.record_locks"][0] == "100"
    assert run(["show", lake, "--cluster"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0].split() == ["FACT", "VALUE", "SOURCE"]
    assert len(lines) == len(facts) + 1


def test_a_run_without_facts_says_what_it_used_instead(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    lake = str(tmp_path / "lake")
    export = without_topics(DATA / "4.4.0" / "happy", tmp_path / "export")
    assert run(["reconstruct", str(export / "__share_group_state-0"), "--out", lake, "--quiet"]) == 0
    capfd.readouterr()
    assert run(["show", lake, "--cluster"]) == 0
    assert "the run read no fact about the cluster" in capfd.readouterr().out
