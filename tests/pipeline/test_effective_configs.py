"""`share_groups` has the configs of each group as brokers use them, and where each value comes from."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import share_state
from share_state.api.arguments import plan_of
from share_state.cli.main import run
from share_state.delta.committed import CommittedTables
from tests.fold.groups.group_writer import T, group_metadata, state_partitions, write_group_log
from tests.sources.cluster_facts.metadata_writer import config, topic, write_metadata_log
from tests.truth import DATA

COUNT, LOCKS, DURATION = (
    "share.delivery.count.limit",
    "share.partition.max.record.locks",
    "share.record.lock.duration.ms",
)
RESET, ISOLATION = "share.auto.offset.reset", "share.isolation.level"


@pytest.fixture
def broker(tmp_path: Path) -> Path:
    """A data folder with the groups `own` and `plain`, of which the first has configs of its own."""
    shutil.copytree(DATA / "4.4.0/happy/__share_group_state-0", tmp_path / "broker/__share_group_state-0")
    groups = [one for name in ("own", "plain") for one in (group_metadata(name, 3), state_partitions(name, {T: [0]}))]
    write_group_log(tmp_path / "broker", groups)
    configs = [
        config(32, "own", COUNT, "7"),
        config(32, "own", LOCKS, "9000"),
        config(32, "own", RESET, "earliest"),
        config(32, "own", ISOLATION, "read_committed"),
        config(32, "own", ISOLATION, None),
        config(4, "", f"group.{DURATION}", "20000"),
    ]
    write_metadata_log(tmp_path / "broker", [[topic(1, "orders")], configs])
    (tmp_path / "broker/server.properties").write_text(f"group.{COUNT}=4\ngroup.{DURATION}=9\nssl.key.password=x\n")
    return tmp_path / "broker"


def configs_of(broker: Path, group: str, **options: Any) -> dict[str, tuple[str, str]]:
    rows = share_state.reconstruct(str(broker), **options).share_groups.to_pylist()
    (row,) = [row for row in rows if row["group_id"] == group]
    return {one["name"]: (one["value"], one["source"]) for one in row["configs"]}


def test_a_config_is_the_group_s_own_then_the_brokers_then_kafka_s(broker: Path):
    log, properties = f"{broker}/__cluster_metadata-0", f"{broker}/server.properties"
    own, plain = configs_of(broker, "own"), configs_of(broker, "plain")
    assert own[COUNT] == ("7", f"config of the group in {log}")
    assert own[LOCKS] == ("4000", f"config of the group in {log}: 9000, which brokers bound")
    assert own[RESET] == ("earliest", f"config of the group in {log}")
    assert own[ISOLATION] == ("read_uncommitted", "Kafka's default")
    assert plain[COUNT] == ("4", f"group.{COUNT} in {properties}")
    assert plain[LOCKS] == ("2000", "Kafka's default")
    assert own[DURATION] == plain[DURATION] == ("20000", f"group.{DURATION} in {log}, all brokers")
    assert plain[RESET] == ("latest", "Kafka's default")


def test_what_the_call_sets_precedes_them(broker: Path):
    limits = {"delivery_count": 6, "groups": {"own": {"delivery_count": 8}}}
    assert configs_of(broker, "own", limits=limits)[COUNT] == (
        "8",
        "limits of the group, in the call or its configuration",
    )
    assert configs_of(broker, "plain", limits=limits)[COUNT] == ("6", "limits, in the call or its configuration")


def test_the_limits_that_rules_use_are_those_of_the_table(broker: Path):
    for limits in ({}, {"delivery_count": 6}, {"groups": {"own": {"record_locks": 30}}}):
        plan_limits = plan_of(str(broker), {"limits": limits}).options.limits
        for group in ("own", "plain"):
            found = configs_of(broker, group, limits=limits)
            assert found[COUNT][0] == str(plan_limits.of_group("delivery_count", group))
            assert found[LOCKS][0] == str(plan_limits.of_group("record_locks", group))


def test_groups_prints_the_configs_that_somebody_set(broker: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    lake = str(tmp_path / "w")
    share_state.reconstruct(str(broker), warehouse=lake)
    assert run(["groups", lake, "--group", "own"]) == 0
    printed = capfd.readouterr().out
    assert [line.split()[:2] for line in printed.splitlines() if "share." in line] == [
        [COUNT, "7"], [LOCKS, "4000"], [DURATION, "20000"], [RESET, "earliest"],
    ]  # fmt: skip
    assert run(["groups", lake, "--group", "own", "--json"]) == 0
    (group,) = json.loads(capfd.readouterr().out)["groups"]
    assert len(group["configs"]) == 8


def test_a_warehouse_has_them_and_as_of_a_time_those_of_that_time(broker: Path, tmp_path: Path):
    changes = [[config(32, "own", COUNT, value)] for value in ("7", "9")]
    write_metadata_log(broker, [[topic(1, "orders")], *changes], timestamps=[1000, 2000, 4_000_000_000_000])
    share_state.reconstruct(str(broker), warehouse=str(tmp_path / "w"))
    rows = CommittedTables(str(tmp_path / "w")).read("share_groups").to_pylist()
    assert {one["value"] for row in rows if row["group_id"] == "own" for one in row["configs"][:1]} == {"9"}
    assert configs_of(broker, "own", as_of="2027-01-01")[COUNT][0] == "7"
