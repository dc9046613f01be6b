"""The groups of a running cluster: read as from its segments, judged beside the state, shown with their lag."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AclOperation

import share_state
from share_state.config.input_spec import OPTIONS, input_spec
from share_state.delta.committed import CommittedTables
from share_state.delta.warehouse_place import GROUP_TABLES
from share_state.fold.groups.group_tables import fold_groups
from share_state.pipeline.executor import Executor
from share_state.pipeline.planning import build_plan
from share_state.pipeline.reconstruct import run_reconstruct
from share_state.report.show import describe_groups
from share_state.sources import kafka_admin
from share_state.sources.discovery import find_group_logs
from share_state.sources.kafka_admin import fetch_broker_offsets
from share_state.sources.kafka_client import read_client_properties
from share_state.sources.kafka_source import read_cluster
from share_state.sources.log_partition import GROUP_TOPIC, STATE_TOPIC
from tests.profiles import driver_alone, nightly
from tests.sources.kafka_cluster.broker import Broker, allowed, properties_of
from tests.sources.kafka_cluster.workload import TOPICS, Workload
from tests.warehouses import arrow

pytestmark = pytest.mark.broker

LIMITS_OF_BROKER = {"delivery_count": 5, "record_locks": 1500, "updates_per_snapshot": 5}


@pytest.fixture(scope="module")
def lake(tasks: Executor, worked: Workload, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tables of the broker, as the command makes them."""
    folder = str(tmp_path_factory.mktemp("lake") / "live")
    spec = input_spec(OPTIONS, sources=[{"path": f"kafka://{worked.broker.address}"}], groups={})
    run_reconstruct(tasks, build_plan(spec, OPTIONS), folder)
    return folder


@pytest.fixture
def reader_of_state(broker: Broker) -> Iterator[str]:
    """A user who may read the state topic alone."""
    with allowed(broker, "stranger", AclOperation.READ, STATE_TOPIC):
        yield "stranger"


def test_the_groups_of_a_cluster_are_those_of_its_segments(worked: Workload) -> None:
    live = read_cluster(f"kafka://{worked.broker.address}")
    assert live.group_partitions == len(live.groups) == 1
    ours = fold_groups(live.groups, partition_count=live.group_partitions)
    theirs = fold_groups(find_group_logs([str(worked.broker.logs)]), partition_count=1)
    assert sorted(ours.live) == sorted(worked.groups)
    for name in GROUP_TABLES:
        assert getattr(ours, name).equals(getattr(theirs, name)), name
    assert ours.share_group_members["group_id"].to_pylist() == ["holders"]
    assert ours.faults == []


@driver_alone
def test_groups_of_a_cluster_are_shown_with_the_lag_that_the_broker_tells(lake: str, worked: Workload) -> None:
    """The broker tells nothing of a share-partition that has no start yet: its lag is not known, nor the group's."""
    answers = fetch_broker_offsets(f"kafka://{worked.broker.address}", None).share_partitions
    told = {(one.group_id, one.topic, one.partition): one.lag for one in answers}
    assert None not in told.values()
    found = describe_groups(CommittedTables(lake))
    assert found["read"]
    assert {row["group_id"]: row["members"] for row in found["groups"]} == {
        name: int(name == "holders") for name in worked.groups
    }
    for group in found["groups"]:
        whole = describe_groups(CommittedTables(lake), group["group_id"])["share_partitions"]
        lags = {(group["group_id"], row["topic"], row["partition"]): row["lag"] for row in whole}
        assert {place: lag for place, lag in lags.items() if lag is not None} == {
            place: lag for place, lag in told.items() if place[0] == group["group_id"]
        }
        assert group["lag"] == (None if None in lags.values() else sum(lags.values()))
        assert {row["status"] for row in whole} == {"initialized"}
    assert {group["group_id"]: group["lag"] for group in found["groups"]}["acceptors"] == 0
    assert len(describe_groups(CommittedTables(lake), "pickërs")["share_partitions"]) == sum(TOPICS.values())


@nightly("a group and two start-ups of Java")
def test_a_cluster_is_read_in_python_without_a_session(worked: Workload, tmp_path: Path) -> None:
    address, properties = f"kafka://{worked.broker.secured}", properties_of(worked.broker, "auditor", tmp_path)
    tables = share_state.reconstruct(address, kafka_properties=properties)
    folded = fold_groups(find_group_logs([str(worked.broker.logs)]), partition_count=1)
    for name in GROUP_TABLES:
        # A fold of the logs alone knows no configs.
        known = [column for column in getattr(folded, name).column_names if column != "configs"]
        assert getattr(tables, name).select(known).equals(getattr(folded, name).select(known)), name
    assert set(tables.share_partition_state["topic"].to_pylist()) == set(TOPICS)
    assert len(arrow(share_state.cutoff(address, kafka_properties=properties))) == 3


@driver_alone
def test_a_healthy_cluster_breaks_no_rule_over_groups(lake: str) -> None:
    rules = set(CommittedTables(lake).read("findings")["rule"].to_pylist())
    assert not rules & {"ORPHAN_SHARE_STATE", "MISSING_SHARE_STATE", "UNINITIALIZED_PARTITION", "MISPLACED_GROUP"}


def test_who_may_not_read_the_groups_gets_the_state_alone(
    worked: Workload, reader_of_state: str, tmp_path: Path
) -> None:
    live = read_cluster(f"kafka://{worked.broker.secured}", properties_of(worked.broker, reader_of_state, tmp_path))
    assert (live.groups, live.group_partitions) == ((), None)
    assert live.state_partitions == len(live.logs) == 3
    assert {log.topic for log in live.logs} == {STATE_TOPIC} != {GROUP_TOPIC}


@nightly("a plan in Spark too")
def test_every_plan_has_the_limits_that_a_group_sets_for_itself(worked: Workload, tmp_path: Path) -> None:
    group = sorted(worked.groups)[0]
    with kafka_admin._connected(f"kafka://{worked.broker.address}", read_client_properties(None)) as (jvm, admin):
        kafka = jvm.org.apache.kafka
        config, operation = kafka.common.config.ConfigResource, kafka.clients.admin.AlterConfigOp

        def change(how: str) -> None:
            entry = kafka.clients.admin.ConfigEntry("share.delivery.count.limit", "4")
            changes = {config(config.Type.GROUP, group): [operation(entry, getattr(operation.OpType, how))]}
            admin.incrementalAlterConfigs(changes).all().get()

        change("SET")
        try:
            address, properties = f"kafka://{worked.broker.secured}", properties_of(worked.broker, "auditor", tmp_path)
            source = {"path": address, "kafka_properties": properties}
            asked = kafka_admin.fetch_limits(address, properties)
            assert (asked.of_groups, asked.conflicts) == ({group: {"delivery_count": 4}}, ())
            plan = build_plan(input_spec(OPTIONS, sources=[source]), OPTIONS)
            assert [plan.options.limits.of_group(name, group) for name in ("delivery_count", "record_locks")] == [
                4,
                1500,
            ]
            rows = share_state.reconstruct(address, kafka_properties=properties).share_partition_state.to_pylist()
            row = next(row for row in rows if row["group_id"] == group)
            place = [row[name] for name in ("topic", "partition", "start_offset")]
            facts = share_state.explain(address, group, *place, kafka_properties=properties).facts
            assert (facts["delivery_limit"], facts["delivery_limit_assumed"]) == (4, False)
            limits = {"groups": {group: {"delivery_count": 9}}, "record_locks": 100}
            configured = build_plan(input_spec(OPTIONS, sources=[source], limits=limits), OPTIONS)
            assert configured.options.limits.of_group("delivery_count", group) == 9
            assert asked.of_brokers == LIMITS_OF_BROKER
            assert plan.options.limits.delivery_count == LIMITS_OF_BROKER["delivery_count"]
            assert "delivery_count" in plan.known_limits
            (conflict,) = configured.fact_conflicts
            assert conflict.message.startswith(
                "limits.record_locks is 100 in the call or its configuration, but 1500 on"
            )
            other = next(row for row in rows if row["group_id"] != group)
            place = [other[name] for name in ("group_id", "topic", "partition", "start_offset")]
            facts = share_state.explain(address, *place, kafka_properties=properties).facts
            assert (facts["delivery_limit"], facts["delivery_limit_assumed"]) == (
                asked.of_brokers["delivery_count"],
                False,
            )
            unasked = build_plan(input_spec(OPTIONS, sources=[source], judge="none"), OPTIONS)
            assert not unasked.options.limits.groups
        finally:
            change("DELETE")
