"""What a broker answers beside what its log folds to, and what a difference is called."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from share_state.cli.warehouse_or_input import open_tables
from share_state.delta.committed import CommittedTables
from share_state.errors import InputError
from share_state.fold.fold_options import FoldOptions
from share_state.pipeline.executor import Executor
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.reconstruct import run_reconstruct
from share_state.report.compare import DIFFERS, MOVED_ON, SAME, compare, list_groups, print_comparison
from share_state.sources.as_of import Window
from share_state.sources.discovery import find_logs
from share_state.sources.kafka_admin import (
    BrokerOffsets,
    ShareGroupOffset,
    fetch_broker_offsets,
    list_share_group_offsets,
)
from share_state.sources.kafka_client import read_client_properties
from share_state.sources.kafka_cluster import ClusterOffsets, PartitionOffsets
from share_state.sources.kafka_source import read_cluster
from share_state.sources.partition_count import PartitionCount
from share_state.sources.topics import Topics, read_topics
from tests.profiles import driver_alone, nightly
from tests.sources.kafka_cluster.broker import PASSWORDS, properties_of, source_of
from tests.sources.kafka_cluster.workload import Workload
from tests.truth import DATA


@pytest.fixture(scope="session")
def told(worked: Workload, tmp_path_factory: pytest.TempPathFactory) -> BrokerOffsets:
    """What the broker says, asked as its auditor."""
    properties = properties_of(worked.broker, "auditor", tmp_path_factory.mktemp("auditor"))
    return fetch_broker_offsets(f"kafka://{worked.broker.secured}", properties, worked.groups)


def _compared(warehouse: str, told: BrokerOffsets) -> dict[str, Any]:
    return compare(CommittedTables(warehouse), told)


@pytest.mark.broker
def test_a_broker_says_what_its_log_folds_to(worked: Workload, warehouse: str, told: BrokerOffsets) -> None:
    found = _compared(warehouse, told)
    assert found["verdicts"] == {SAME: len(found["share_partitions"]), MOVED_ON: 0, DIFFERS: 0}
    assert not found["findings"]
    assert list_groups(CommittedTables(warehouse)) == set(worked.groups)
    assert {row["log_lag"] for row in found["share_partitions"]} > {0}


@pytest.mark.broker
@pytest.mark.parametrize(("field", "rule"), [("start_offset", "BROKER_STATE_DIFFERS"), ("lag", "BROKER_STATE_DIFFERS"),
                                             ("leader_epoch", "BROKER_STATE_DIFFERS")])  # fmt: skip
def test_another_number_while_the_log_rests_is_an_error(
    warehouse: str, told: BrokerOffsets, field: str, rule: str
) -> None:
    first, *others = told.share_partitions
    other = replace(first, **{field: getattr(first, field) + 1})
    (finding,) = _compared(warehouse, replace(told, share_partitions=[other, *others]))["findings"]
    assert (finding["rule"], finding["severity"], finding["group_id"]) == (rule, "error", first.group_id)
    assert f"{field} {getattr(first, field)} in the log, {getattr(other, field)} at the broker" in finding["message"]


@pytest.mark.broker
def test_what_one_side_lacks_is_an_error(warehouse: str, told: BrokerOffsets) -> None:
    first, *others = told.share_partitions
    (missing,) = _compared(warehouse, replace(told, share_partitions=others))["findings"]
    assert (missing["rule"], missing["severity"], missing["partition"]) == (
        "BROKER_STATE_MISSING",
        "error",
        first.partition,
    )
    stray = replace(first, group_id="another")
    (unknown,) = compare(
        CommittedTables(str(warehouse)), replace(told, share_partitions=[*told.share_partitions, stray])
    )["findings"]
    assert (unknown["rule"], unknown["severity"], unknown["group_id"]) == ("LOG_STATE_MISSING", "error", "another")
    assert unknown["state_partition"] in range(3)


@pytest.mark.broker
def test_a_topic_that_is_gone_is_told(warehouse: str, told: BrokerOffsets) -> None:
    kept = [one for one in told.share_partitions if one.topic != "orders"]
    topics = told.after.topics
    names = topics.names.filter(pa.array([name != "orders" for name in topics.names["topic"].to_pylist()]))
    known = set(names["topic_id"].to_pylist())
    ends = topics.ends.filter(pa.array([one in known for one in topics.ends["topic_id"].to_pylist()]))
    after = replace(told.after, topics=Topics(names, ends))
    found = _compared(warehouse, replace(told, share_partitions=kept, after=after))
    assert {finding["rule"] for finding in found["findings"]} == {"TOPIC_GONE"}


@pytest.mark.broker
def test_a_topic_of_the_same_name_is_another(warehouse: str, told: BrokerOffsets) -> None:
    """As after a topic was deleted and made again: old state in the log, and nothing of the new one yet."""
    topics, new = told.after.topics, "AAAAAAAAAAEAAAAAAAAAAg"
    ids = dict(zip(topics.names["topic"].to_pylist(), topics.names["topic_id"].to_pylist(), strict=True))
    renamed = [
        {**row, "topic_id": new} if row["topic_id"] == ids["orders"] else row for row in topics.names.to_pylist()
    ]
    look = replace(
        told.after, topics=Topics(pa.Table.from_pylist(renamed, topics.names.schema), topics.ends.slice(0, 0))
    )
    found = _compared(warehouse, BrokerOffsets(told.share_partitions, look, look))
    old = [one for one in found["findings"] if one["rule"] == "TOPIC_GONE"]
    assert {(one["topic"], one["topic_id"]) for one in old} == {(ids["orders"], ids["orders"])}
    assert {one["topic"] for one in found["findings"] if one["rule"] == "LOG_STATE_MISSING"} == {"orders"}
    assert found["verdicts"][SAME] > 0


@pytest.mark.broker
def test_a_lag_that_no_broker_tells_is_not_missed(warehouse: str, told: BrokerOffsets) -> None:
    silent = [replace(answer, lag=None) for answer in told.share_partitions]
    assert _compared(warehouse, replace(told, share_partitions=silent))["verdicts"][DIFFERS] == 0
    (first, *_), (_, *others) = silent, told.share_partitions
    assert _compared(warehouse, replace(told, share_partitions=[first, *others]))["verdicts"][DIFFERS] == 1


@nightly("two start-ups of Java")
@driver_alone
@pytest.mark.broker
def test_a_broker_that_went_on_is_not_at_fault(
    tasks: Executor, worked: Workload, told: BrokerOffsets, tmp_path: Path
) -> None:
    live = read_cluster(f"kafka://{worked.broker.address}")
    windows = {log.name: Window(until_offset=source_of(log).end_offset // 2) for log in live.logs}
    work = FoldPlan(
        live.logs,
        windows,
        options=FoldOptions(topics=live.topics or Topics(), partition_count=PartitionCount(live.state_partitions)),
    )
    run_reconstruct(tasks, work, str(tmp_path / "earlier"))
    found = _compared(str(tmp_path / "earlier"), told)
    assert found["verdicts"][DIFFERS] == 0 < found["verdicts"][MOVED_ON]
    assert {finding["severity"] for finding in found["findings"]} == {"info"}
    back = [replace(one, start_offset=0) for one in told.share_partitions]
    findings = _compared(str(tmp_path / "earlier"), replace(told, share_partitions=back))["findings"]
    codes = {one["rule"] for one in findings}
    page = (Path(__file__).parents[3] / "docs/inputs.md").read_text()
    assert "BROKER_START_BEHIND" in codes
    assert all(f"| {code} |" in page for code in codes)


@nightly("two start-ups of Java")
@pytest.mark.broker
def test_a_question_that_is_refused_shows_no_secret(worked: Workload, tmp_path: Path) -> None:
    asked = properties_of(worked.broker, "stranger", tmp_path)
    wrong = tmp_path / "wrong.properties"
    wrong.write_text("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.jaas.config=pass w0rd\n")
    for file in (asked, str(wrong)):
        with pytest.raises(InputError) as error:
            list_share_group_offsets(
                f"kafka://{worked.broker.secured}",
                read_client_properties(file),
                ["acceptors"],
            )
        said = str(error.value)
        assert not any(secret in said for secret in (*PASSWORDS.values(), "w0rd"))
    assert "wrong.properties" in said


@driver_alone
def test_the_answers_of_brokers_agree_with_their_logs(
    tasks: Executor, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = DATA / "4.3.1/chaos"
    topics, logs = read_topics(str(scenario / "topics.json")), find_logs([str(scenario)])
    run_reconstruct(
        tasks,
        FoldPlan(logs, options=FoldOptions(topics=topics, partition_count=PartitionCount(3))),
        str(tmp_path / "lake"),
    )
    ends = {one["statePartition"]: one["nextOffset"] for one in json.loads((scenario / "redundant.json").read_text())}
    described = json.loads((scenario / "describe.json").read_text())["shareGroups"]
    answers = [
        ShareGroupOffset(
            group["group"], one["topic"], one["partition"], one["startOffset"], one["leaderEpoch"], one["lag"]
        )
        for group in described
        for one in group["offsets"]
        if one["startOffset"] is not None
    ]
    look = ClusterOffsets("", tuple(PartitionOffsets(number, 0, end) for number, end in ends.items()), 3, topics)
    found = _compared(str(tmp_path / "lake"), BrokerOffsets(answers, look, look))
    print_comparison(found)
    assert len(answers) == 49
    assert found["verdicts"] == {SAME: len(found["share_partitions"]), MOVED_ON: 0, DIFFERS: 0}, found["findings"]
    assert capsys.readouterr().out.startswith(f"{len(found['share_partitions'])} share-partitions (run ")
    with open_tables(str(scenario)) as tables:
        assert compare(tables, BrokerOffsets(answers, look, look))["verdicts"] == found["verdicts"]
    one, *others = look.logs
    short = replace(look, logs=(replace(one, end_offset=one.end_offset - 1), *others))
    moved = [replace(answer, start_offset=answer.start_offset + 1) for answer in answers]
    found = _compared(str(tmp_path / "lake"), BrokerOffsets(moved, short, short))
    (shorter,) = (finding for finding in found["findings"] if finding["rule"] == "BROKER_LOG_SHORTER")
    assert (shorter["severity"], shorter["state_partition"]) == ("error", one.partition)
    assert f"ended at {one.end_offset} in the run, ends at {one.end_offset - 1} at the broker" in shorter["message"]
    assert found["verdicts"][MOVED_ON] == 0
    assert "| BROKER_LOG_SHORTER |" in (Path(__file__).parents[3] / "docs/inputs.md").read_text()


def test_a_finding_is_one_printable_line(capsys: pytest.CaptureFixture[str]) -> None:
    finding = {"severity": "error", "rule": "BROKER_STATE_MISSING", "message": "new\nline\u202e orders-0: gone"}
    none = dict.fromkeys((SAME, MOVED_ON, DIFFERS), 0)
    print_comparison({"verdicts": none, "share_partitions": [], "run": {"run_id": "r"}, "findings": [finding]})
    assert capsys.readouterr().out.splitlines()[1:] == ["error: BROKER_STATE_MISSING: new\\nline\\u202e orders-0: gone"]
