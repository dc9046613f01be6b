"""A cluster audited night after night: read whole each time, nothing told twice, and as its segments tell it."""

import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient, NewTopic

from share_state.config.input_spec import KEYS
from share_state.config.loading import settings_for
from share_state.config.model import config_fingerprint
from share_state.delta.committed import CommittedTables
from share_state.delta.warehouse_place import GROUP_TABLES
from share_state.pipeline.audit import run_audit
from share_state.pipeline.executor import Executor
from share_state.pipeline.planning import build_plan
from share_state.pipeline.result import RunResult
from share_state.sources.kafka_client import read_client_properties
from share_state.sources.live_record_times import LiveRecordTimes
from tests.cli.commands import run_cli
from tests.profiles import driver_alone, nightly
from tests.sources.kafka_cluster.broker import PASSWORDS, allowed, properties_of
from tests.sources.kafka_cluster.workload import Workload
from tests.sources.test_record_times import expected

pytestmark = pytest.mark.broker


@driver_alone
def test_a_cluster_is_audited_twice(tasks: Executor, worked: Workload, tmp_path: Path) -> None:
    properties = properties_of(worked.broker, "auditor", tmp_path)

    def run(source: str, lake: str, *overrides: str) -> RunResult:
        settings = settings_for([source], str(tmp_path / lake), ["state_partitions=3", *overrides])
        plan = build_plan(settings.input_spec(), KEYS)
        return run_audit(
            lambda _: nullcontext(tasks),
            plan,
            settings.warehouse,
            inputs=(source,),
            options=config_fingerprint(settings),
        )

    of_cluster = (f"kafka://{worked.broker.secured}", "live", f"sources.0.kafka_properties={properties}")
    first, second = run(*of_cluster), run(*of_cluster)
    assert second.records >= first.records > 0
    run(str(worked.broker.logs), "segments", "groups.partitions=50")
    live, segments = (CommittedTables(str(tmp_path / lake)) for lake in ("live", "segments"))
    assert _contents(live) == _contents(segments)
    for name in GROUP_TABLES:
        assert _without_configs(live.read(name)) == _without_configs(segments.read(name)), name
    assert len(live.read("share_groups")) == len(worked.groups)
    assert PASSWORDS["auditor"] not in str(live.runs.to_pylist())


def _without_configs(groups: pa.Table) -> list[dict[str, Any]]:
    """The rows without the configs of groups, of which the segments show only what is set in the cluster's metadata."""
    return groups.select([name for name in groups.column_names if name != "configs"]).to_pylist()


def _contents(tables: CommittedTables) -> list[list[str]]:
    """State and findings about it as text, without the names of topics, which only the cluster tells."""
    hidden = ("topic", "topic_end_offset", "run_id")
    rows = {name: tables.read(name).to_pylist() for name in ("share_partition_state", "in_flight", "findings")}
    rows["findings"] = [row for row in rows["findings"] if row["state_partition"] is not None]
    plain = ([{name: row[name] for name in row if name not in hidden} for row in table] for table in rows.values())
    return [sorted(map(repr, table)) for table in plain]


@nightly("a group and its consumers")
def test_the_oldest_unfinished_records_are_read_from_the_topics(worked: Workload, tmp_path: Path, capfd) -> None:
    """What the records of the topics say, read from the segments of the broker."""
    source = f"kafka://{worked.broker.address}"
    said = run_cli(capfd, "audit", source, "--out", tmp_path / "lake", "--quiet", "--limit", "retention_ratio=1e-9")
    assert said.code in (0, 1), said
    tables = CommittedTables(str(tmp_path / "lake"))
    rows = tables.read("share_partition_history").to_pylist()
    unfinished = [row for row in rows if row["lag"] and row["effective_start_offset"] >= 0]
    assert unfinished
    for row in unfinished:
        start = row["effective_start_offset"]
        _, time_ms = expected(worked.broker.logs / f"{row['topic']}-{row['partition']}", [start])[start]
        assert row["oldest_unfinished_from"] == "record"
        assert round(row["oldest_unfinished_time"].timestamp() * 1000) == time_ms
    found = tables.read("findings", pc.field("rule") == "RETENTION_AHEAD").to_pylist()
    assert len(found) == len(unfinished)
    assert all("retention.ms of the topic is 7 d" in row["message"] for row in found)


@nightly("a group and its consumers")
def test_topics_that_may_not_be_read_have_no_times(worked: Workload, tmp_path: Path) -> None:
    properties = read_client_properties(str(properties_of(worked.broker, "stranger", tmp_path)))
    times = LiveRecordTimes(f"kafka://{worked.broker.secured}", properties)
    begun = time.monotonic()
    with allowed(worked.broker, "stranger", AclOperation.DESCRIBE, "orders"):
        assert times.read([("orders", 0, 0), ("orders", 1, 5), ("nowhere", 0, 0)]) == {}
        assert times.retention(["orders", "nowhere"]) == {}
    # An answer of the broker, and no wait for records that do not come.
    assert time.monotonic() - begun < 20


def test_places_of_one_partition_and_places_without_records_are_asked_for_together(worked: Workload) -> None:
    times = LiveRecordTimes(f"kafka://{worked.broker.address}", read_client_properties(None))
    wanted = [("orders", 0, offset) for offset in (0, 17, 59, 60, 10_000)] + [("payments.eu", 2, 3)]
    truth = {
        (topic, partition, place): record
        for topic, partition, offset in wanted
        for place, record in expected(worked.broker.logs / f"{topic}-{partition}", [offset]).items()
    }
    assert times.read(wanted) == truth
    assert len(truth) == 4


def test_the_first_record_that_is_left_counts_where_records_are_deleted(worked: Workload) -> None:
    kafka = {"bootstrap.servers": worked.broker.address, "log_level": 0}
    admin, producer = AdminClient(kafka), Producer(kafka)
    for future in admin.create_topics([NewTopic("cut", 1, 1)]).values():
        future.result(30)
    for number in range(10):
        producer.produce("cut", f"{number}", timestamp=1_700_000_000_000 + number)
    assert producer.flush(30) == 0
    for future in admin.delete_records([TopicPartition("cut", 0, 6)]).values():
        future.result(30)
    times = LiveRecordTimes(f"kafka://{worked.broker.address}", read_client_properties(None))
    places = [("cut", 0, 2), ("cut", 0, 8), ("cut", 0, 11)]
    assert times.read(places) == {places[0]: (6, 1_700_000_000_006), places[1]: (8, 1_700_000_000_008)}
    for future in admin.delete_topics(["cut"]).values():
        future.result(30)
