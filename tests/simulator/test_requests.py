"""The request log of a real 4.3.1 broker, replayed: the machine's outcomes and records against the broker's own.

`requests/` holds what one broker with a delivery count limit of 3 and locks of 2 s wrote while one share consumer
accepted, released, rejected and once acknowledged too late.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from share_state.kafka.releases import RELEASES
from share_state.simulator.cluster import ClusterSettings, SimulatedCluster
from share_state.simulator.coordinator import ShareCoordinator
from share_state.simulator.requests import RequestReplay, read_requests
from share_state.simulator.settings import WIDEST, PlayerSettings
from share_state.simulator.types import SharePartitionKey
from tests.cli.commands import CommandResult, run_cli

BROKER = Path(__file__).parent / "requests"
LOG = BROKER / "kafka-request.log"
TOPIC_ID = "6kHJzl-_SG668WNNmDjp4g"
AS_THE_BROKER = ("--release", "4.3", "--state-partitions", 3, "--updates-per-snapshot", 5)
LIMIT = ("--group-config", "share.delivery.count.limit=3")


def records(folder: Path) -> list[list[Any]]:
    """Every record of state partitions 0 and 1, without the times and the state epoch, which requests do not tell."""
    found = []
    for partition in (0, 1):
        coordinator = ShareCoordinator(lambda record, now_ms: 0, RELEASES["4.3"])
        for offset, record in coordinator.load(folder / f"__share_group_state-{partition}", 0):
            value = record.value
            assert value is not None
            terms = (value.snapshot_epoch, value.leader_epoch, value.start_offset, value.delivery_complete_count)
            found.append([partition, offset, record.key, record.kind, *terms, value.batches])
    return found


def test_the_replayed_log_leaves_the_records_that_the_broker_wrote(capfd, tmp_path):
    said = run_cli(capfd, "simulate", "--out", tmp_path / "out", "--requests", LOG, *AS_THE_BROKER, *LIMIT)
    assert said.code == 0, said
    assert "25 events produced 12 records of 2 share-partitions" in said.out
    written = records(tmp_path / "out")
    assert len(written) == 12
    assert written == records(BROKER)


def replayed(capfd: pytest.CaptureFixture[str], folder: Path, *more: object) -> CommandResult:
    """The log replayed with the default delivery count limit, which is not the broker's."""
    return run_cli(capfd, "simulate", "--out", folder / "out", "--requests", LOG, *AS_THE_BROKER, *more)


def test_an_outcome_that_differs_from_the_logged_one_is_a_mismatch(capfd, tmp_path):
    # With limit 5 the lock of the third delivery expires into AVAILABLE; the broker had archived the record and
    # ignored the late acknowledgement of what lies before its start offset.
    said = replayed(capfd, tmp_path, "--json")
    assert said.code == 1
    assert said.json["mismatches"] == [
        {
            "finding": "OUTCOME_MISMATCH",
            "line": 7,
            "request": "ShareAcknowledge",
            "group": "g",
            "topic_id": TOPIC_ID,
            "partition": 0,
            "logged": "NONE",
            "simulated": "INVALID_RECORD_STATE",
            "reason": "offsets 4-4 are AVAILABLE, not ACQUIRED",
        }
    ]


def test_mismatches_are_printed_with_their_line(capfd, tmp_path):
    said = replayed(capfd, tmp_path)
    assert said.code == 1
    assert "logged outcomes that the simulation contradicts (OUTCOME_MISMATCH): 1" in said.lines
    (row,) = [line for line in said.lines if line.lstrip().startswith("7 ")]
    assert row.split()[:7] == ["7", "ShareAcknowledge", "g", TOPIC_ID, "0", "NONE", "INVALID_RECORD_STATE"]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("Completed request", "Received request", "has no ShareFetch or ShareAcknowledge request that acquires or ack"),
        ('"groupId":"g"', '"groupId":7', "line 2: request.groupId: Input should be a valid string"),
        ("[2026-11-23 06:59:58,648]", "[now]", "line 2: 'now' is not a time such as 2026-11-23 06:59:58,648"),
        ('"memberId":"WIuzwcwjRLSvDQ/0NVfqcA"', '"memberId":""', "line 2: member: String should have at least 1 char"),
        ('TimeoutMs":2000', 'TimeoutMs":500', "share.record.lock.duration.ms: 500: must be between the brokers'"),
        (TOPIC_ID, "orders", "'orders' is not a uuid of 22 characters"),
        ('"lastOffset":11,"del', '"lastOffset":100000,"del', "100,001 offsets; one fetch returns at most 100,000"),
    ],
)
def test_an_unusable_request_log_is_refused_in_one_line(capfd, tmp_path, old, new, problem):
    (tmp_path / "log").write_text(LOG.read_text().replace(old, new))
    said = run_cli(capfd, "simulate", "--out", tmp_path / "out", "--requests", tmp_path / "log")
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert problem in said.err
    assert not (tmp_path / "out").exists() or not any((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--dialect", "control_records"), "--dialect control_records: its control records would use"),
        (("--events", LOG), "--events and --requests: give one of them"),
        (
            ("--group-config", "share.delivery.count.limit"),
            "--group-config share.delivery.count.limit: give NAME=VALUE",
        ),
        (("--group-config", "share.colour=1"), "share.colour: 1: Extra inputs are not permitted"),
    ],
)
def test_contradictory_options_are_refused(capfd, tmp_path, options, problem):
    said = replayed(capfd, tmp_path, *options)
    assert (said.code, said.out) == (2, "")
    assert problem in said.err


def logged(
    key: int, *, types: list[int] | None = None, answer: dict[str, Any] | None = None, error: int = 0, **fields: Any
) -> bytes:
    """One line about offsets 0-2 of one share-partition; `answer` is its part of the response, if there is one."""
    batches = [] if types is None else [{"firstOffset": 0, "lastOffset": 2, "acknowledgeTypes": types}]
    topics = [{"topicId": TOPIC_ID, "partitions": [{"partitionIndex": 0, "acknowledgementBatches": batches}]}]
    limits = {"maxWaitMs": 500, "minBytes": 1, "maxBytes": 9, "maxRecords": 20, "batchSize": 5} if key == 78 else {}
    part = {"partitionIndex": 0} | (answer or {})
    message = {
        "isForwarded": False,
        "requestHeader": {"requestApiKey": key, "requestApiVersion": 2},
        "request": {"groupId": "G1", "memberId": "M1", "shareSessionEpoch": 3, "topics": topics} | limits | fields,
        "response": {"errorCode": error, "responses": [{"topicId": TOPIC_ID, "partitions": [part]}]},
    }
    if answer is None:
        message["response"] = None
    return f"[2026-11-23 07:00:00,000] DEBUG Completed request:{json.dumps(message, separators=(',', ':'))}".encode()


GOT = {"acquiredRecords": [{"firstOffset": 0, "lastOffset": 2, "deliveryCount": 1}]}


@pytest.fixture
def replay(tmp_path):
    cluster = SimulatedCluster(tmp_path, ClusterSettings(PlayerSettings(configs=WIDEST), seed=None))
    yield RequestReplay(cluster)
    cluster.close()


def play(replay: RequestReplay, *lines: bytes) -> list[dict[str, Any]]:
    """Play lines; returns the events."""
    for number, time, request in read_requests(lines):
        replay.play(number, time, request)
    replay.cluster.close()
    text = (replay.cluster.folder / "events.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["event"] for event in events]


def test_a_fetch_acknowledges_before_it_acquires(replay):
    again = {"acquiredRecords": [{"firstOffset": 0, "lastOffset": 2, "deliveryCount": 2}]}
    events = play(replay, logged(78, answer=GOT), logged(78, types=[2], answer=again, shareAcquireMode=1))
    assert kinds(events) == ["init", "open", "acquire", "ack", "acquire"]
    ack, acquire = events[-2:]
    assert (ack["route"], ack["max_bytes"], ack["max_records"], ack["batches"]) == ("fetch", 9, 20, [[0, 2, [2]]])
    assert (acquire["mode"], acquire["max_records"], acquire["batch_size"]) == (1, 20, 5)
    assert replay.mismatches == []


def test_the_error_of_a_piggybacked_acknowledgement_is_compared(replay):
    play(replay, logged(78, answer=GOT), logged(78, types=[1], answer={"acknowledgeErrorCode": 121}))
    (one,) = replay.mismatches
    assert (one.line, one.request, one.logged, one.simulated) == (2, "ShareFetch", "INVALID_RECORD_STATE", "NONE")


def test_an_error_that_the_machine_does_not_know_is_named_by_its_code(replay):
    play(replay, logged(78, answer=GOT), logged(79, types=[1], answer={"errorCode": 29}))
    assert [(one.logged, one.simulated) for one in replay.mismatches] == [("error 29", "NONE")]


def test_a_fetch_that_acquired_other_delivery_counts_is_a_mismatch(replay):
    later = {"acquiredRecords": [{"firstOffset": 0, "lastOffset": 2, "deliveryCount": 2}]}
    play(replay, logged(78, answer=later))
    assert [(one.logged, one.simulated) for one in replay.mismatches] == [("acquired 0-2 (2)", "acquired 0-2 (1)")]


def test_a_request_that_the_broker_rejected_as_a_whole_changes_nothing(replay):
    events = play(replay, logged(78, answer=GOT), logged(79, types=[1], answer={}, error=123))
    assert kinds(events) == ["init", "open", "acquire"]


def test_without_a_response_a_fetch_reads_on_from_the_next_offset(replay):
    events = play(replay, logged(78), logged(79, types=[1]), logged(78, maxRecords=4))
    assert kinds(events) == ["init", "open", "acquire", "ack", "acquire"]
    assert [event["log_batches"] for event in events if event["event"] == "acquire"] == [[[0, 19]], [[20, 23]]]
    assert replay.mismatches == []


def test_without_a_response_a_fetch_without_a_limit_takes_what_one_fetch_may_return(replay):
    events = play(replay, logged(78), logged(79, types=[1]), logged(78, maxRecords=2**31 - 1))
    assert [event["log_batches"] for event in events if event["event"] == "acquire"][1] == [[20, 100_019]]


def test_a_fetch_that_renews_gets_no_records(replay):
    zero = {"maxWaitMs": 0, "minBytes": 0, "maxBytes": 0, "maxRecords": 0}
    events = play(replay, logged(78, answer=GOT), logged(78, types=[4], answer={}, isRenewAck=True, **zero))
    assert kinds(events) == ["init", "open", "acquire", "ack"]
    assert replay.mismatches == []


def test_a_request_of_4_0_replays(replay):
    old = [line.replace(b'"requestApiVersion":2', b'"requestApiVersion":0') for line in
           (logged(78, answer=GOT), logged(79, types=[1], answer={}))]  # fmt: skip
    assert [event.get("version", 2) for event in play(replay, *old)] == [2, 2, 2, 1]
    assert replay.mismatches == []


def test_the_last_request_of_a_session_releases_what_the_member_holds(replay):
    events = play(replay, logged(78, answer=GOT), logged(79, answer={}, shareSessionEpoch=-1, topics=[]))
    assert kinds(events)[-1] == "member_leave"
    leader = replay.cluster.player.leader(SharePartitionKey("G1", TOPIC_ID, 0))
    assert leader is not None
    assert leader.next_fetch_offset() == 0


def test_the_logged_lock_duration_holds(replay):
    later = logged(79, types=[1], answer={"errorCode": 121}).replace(b"07:00:00,000", b"07:00:02,001")
    first = logged(78, answer=GOT).replace(b'"response":{', b'"response":{"acquisitionLockTimeoutMs":2000,')
    events = play(replay, first, later)
    assert [event["value"] for event in events if event["event"] == "config"] == [2000]
    assert replay.mismatches == []
