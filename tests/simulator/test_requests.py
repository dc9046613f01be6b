"""Requests as brokers log them, turned into events."""

import json

import pytest

from share_state.simulator import events as ev
from share_state.simulator.acquisition import AcquireMode, LogBatch
from share_state.simulator.player import EventPlayer
from share_state.simulator.requests import RequestError, ShareFetchRequest, events_of, read_request
from share_state.simulator.settings import AckBatch

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAKg"


def logged(key: int, *, types: list[int] | None = None, **fields: object) -> str:
    batches = [] if types is None else [{"firstOffset": 0, "lastOffset": 2, "acknowledgeTypes": types}]
    message = {
        "key": key,
        "groupId": "G1",
        "memberId": "M1",
        "shareSessionEpoch": 3,
        "topics": [{"topicId": TOPIC_ID, "partitions": [{"partitionIndex": 0, "acknowledgementBatches": batches}]}],
    }
    return json.dumps(message | fields)


def events(line: str, fetched: str | None = "0-9") -> list[ev.Event]:
    log = {} if fetched is None else {("T", 0): (LogBatch(*map(int, fetched.split("-"))),)}
    return list(events_of(read_request(line), seq=7, ts_ms=9, topics={TOPIC_ID: "T"}, fetched=log))


def test_acknowledgements_come_before_the_fetch():
    ack, acquire = events(logged(78, types=[1, 3, 2], maxRecords=20, batchSize=5, shareAcquireMode=1))
    assert isinstance(ack, ev.Ack) and isinstance(acquire, ev.Acquire)
    assert ack.batches == (AckBatch(0, 2, (1, 3, 2)),)
    assert (ack.route, ack.max_bytes, ack.max_wait_ms, ack.min_bytes, ack.max_records) == (
        "fetch",
        52428800,
        500,
        1,
        20,
    )
    assert (acquire.max_records, acquire.batch_size, acquire.mode) == (20, 5, AcquireMode.RECORD_LIMIT)
    assert (ack.seq, acquire.seq, acquire.ts_ms) == (7, 8, 9)


def test_a_fetch_that_renews_gets_no_records():
    line = logged(78, types=[4], isRenewAck=True, maxWaitMs=0, minBytes=0, maxBytes=0, maxRecords=0)
    (ack,) = events(line)
    assert isinstance(ack, ev.Ack) and ack.is_renew_ack
    assert (ack.max_wait_ms, ack.min_bytes, ack.max_bytes, ack.max_records) == (0, 0, 0, 0)


def test_an_acknowledgement_alone_has_no_limits():
    (ack,) = events(logged(79, types=[4], isRenewAck=True))
    assert isinstance(ack, ev.Ack)
    assert (ack.route, ack.max_bytes, ack.is_renew_ack) == ("acknowledge", 0, True)


def test_the_last_request_of_a_session_ends_with_leaving():
    kinds = [event.event for event in events(logged(79, types=[1], shareSessionEpoch=-1))]
    assert kinds == ["ack", "member_leave"]


def test_a_fetch_that_found_nothing_only_acknowledges():
    assert [event.event for event in events(logged(78, types=[1]), fetched=None)] == ["ack"]
    assert events(logged(79)) == []


def test_released_records_are_fetched_again_by_the_very_request_that_releases_them():
    player = EventPlayer()
    for event in (
        ev.Init(seq=1, ts_ms=0, group="G1", topic="T", state_epoch=1, start_offset=0),
        ev.Open(seq=2, ts_ms=0, group="G1", topic="T", leader_epoch=0),
        *events(logged(78), "0-2"),
    ):
        list(player.apply(event))
    results = [result for event in events(logged(78, types=[2]), "0-2") for result in player.apply(event)]
    assert [tuple(records) for records in results[-1].acquired] == [(0, 2, 2)]


def test_version_1_knows_no_renewals():
    (ack,) = events(logged(79, types=[4], version=1))
    assert isinstance(ack, ev.Ack) and ack.version == 1


def test_defaults_of_a_fetch():
    request = read_request(logged(78))
    assert isinstance(request, ShareFetchRequest)
    assert (request.max_wait_ms, request.min_bytes, request.max_bytes) == (500, 1, 50 * 1024 * 1024)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("[", "logged request: the line: "),
        (logged(1), "logged request: the line: "),
        (logged(78, version=3), "logged request: 78.version: "),
        (logged(79, groupId=None), "logged request: 79.groupId: "),
    ],
)
def test_what_is_no_request_is_refused(line: str, problem: str):
    with pytest.raises(RequestError) as raised:
        read_request(line)
    assert str(raised.value).startswith(problem)


def test_a_topic_that_nobody_can_name_is_refused():
    with pytest.raises(RequestError, match=f"topic id {TOPIC_ID}: no name"):
        list(events_of(read_request(logged(79)), seq=1, ts_ms=0, topics={}))
