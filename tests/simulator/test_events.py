"""Events as JSON lines, and the order they are played in."""

import json
from typing import Any

import pytest

from share_state.simulator import events as ev
from share_state.simulator.acquisition import AcquireMode, LogBatch
from share_state.simulator.player import EventPlayer
from share_state.simulator.settings import AckBatch, PlayerSettings
from share_state.simulator.types import ErrorCode
from tests.simulator.history import ACCEPT, History

COMMON = {"seq": 1, "ts_ms": 5, "group": "g", "topic": "t"}
EVENTS: list[ev.SharePartitionEvent] = [
    ev.Init(**COMMON, state_epoch=1, start_offset=-1),
    ev.Open(**COMMON, partition=3, leader_epoch=2, reset_offset=7),
    ev.Acquire(
        **COMMON,
        member="m",
        log_batches=(LogBatch(0, 9), LogBatch(10, 19)),
        fetch_offset=0,
        max_records=5,
        batch_size=10,
        mode=AcquireMode.RECORD_LIMIT,
    ),
    ev.Ack(**COMMON, member="m", batches=(AckBatch(0, 2, (1, 4, 2)),), route="fetch", is_renew_ack=True),
    ev.Join(**COMMON, member="m", mode="explicit", renew_every_ms=5),
    ev.Poll(**COMMON, member="m", log_batches=(LogBatch(0, 9),), max_records=5),
    ev.Acknowledge(**COMMON, member="m", offset=3, type=ACCEPT),
    ev.Commit(**COMMON, member="m"),
    ev.Heartbeat(**COMMON, member="m"),
    ev.Advance(**COMMON),
    ev.MemberLeave(**COMMON, member="m"),
    ev.LsoMove(**COMMON, offset=4),
    ev.LogHole(**COMMON, first=1, last=2),
    ev.Aborted(**COMMON, first=1, last=2),
    ev.Checkpoint(**COMMON),
    ev.Crash(**COMMON),
    ev.Config(**COMMON, name="share.delivery.count.limit", value=3),
    ev.FailWrites(**COMMON, on=True),
    ev.HoldWrites(**COMMON, on=False),
    ev.HoldDeadLetters(**COMMON, on=True),
    ev.ColdSnapshot(**COMMON),
    ev.Delete(**COMMON),
    ev.Prune(**COMMON),
]


GROUP_EVENTS: list[ev.GroupEvent] = [
    ev.Subscribe(seq=1, ts_ms=5, group="g", member="m", topics=("t", "u")),
    ev.LeaveGroup(seq=1, ts_ms=5, group="g", member="m"),
    ev.CreatePartitions(seq=1, ts_ms=5, topic="t", partitions=3),
]


def played(events: list[ev.SharePartitionEvent], **settings: Any) -> list[ev.EventResult]:
    player = EventPlayer(PlayerSettings(**settings))
    return [result for event in events for result in player.apply(event)]


def test_every_event_reads_back_as_it_was_written():
    every = [*EVENTS, *GROUP_EVENTS]
    lines = [ev.write_event(event) for event in every]
    assert list(ev.read_events(lines)) == every
    assert len({event.event for event in every}) == len(every)
    assert all("\n" not in line for line in lines)


def test_a_line_may_be_written_by_hand():
    line = '{"event":"ack","seq":1,"ts_ms":0,"group":"g","topic":"t","member":"m","batches":[[0,9,[1]]]}'
    assert list(ev.read_events(["", line.encode(), "  "])) == [
        ev.Ack(seq=1, ts_ms=0, group="g", topic="t", member="m", batches=(AckBatch(0, 9, (1,)),))
    ]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "event line 2: the line: "),
        ('{"event":"dance"}', "event line 2: the line: "),
        ('{"event":"advance","seq":1,"ts_ms":0,"group":"","topic":"t"}', "event line 2: advance.group: "),
        ('{"event":"advance","seq":1,"ts_ms":0,"group":"g","topic":"t","x":1}', "event line 2: advance.x: "),
    ],
)
def test_a_line_that_is_no_event_is_refused_by_number_and_field(line: str, problem: str):
    with pytest.raises(ev.EventError) as raised:
        list(ev.read_events([ev.write_event(EVENTS[0]), line]))
    assert str(raised.value).startswith(problem)
    assert "\n" not in str(raised.value)


def test_events_are_played_in_order_of_time():
    late, early = EVENTS[4], EVENTS[4].model_copy(update={"ts_ms": 4, "seq": 2})
    with pytest.raises(ev.EventError, match="event 2: at 4 ms, but the time is already 5 ms"):
        played([late, early])


def test_nothing_happens_to_a_share_partition_that_nobody_leads():
    for event in EVENTS:
        if event.event in {"acquire", "ack", "member_leave", "lso_move", "log_hole", "aborted", "checkpoint", "crash"}:
            (result,) = played([event])
            assert result.error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_outcomes_are_json_lines():
    history = History()
    history.acquire("0-9")
    history.ack("0-4", ACCEPT)
    history.apply(ev.Checkpoint)
    init, _, acquired, ack, checkpoint = (json.loads(result.to_json()) for result in history.results)
    assert init["checkpoint"] == {"start_offset": 0, "end_offset": 0, "batches": []}
    assert acquired["acquired"] == [[0, 9, 1]]
    assert acquired["memory"] == [[0, 9, 1, 1]]
    assert ack["writes"] == [
        {
            "leader_epoch": 0,
            "state_epoch": 1,
            "start_offset": 0,
            "delivery_complete_count": 5,
            "batches": [[0, 4, 2, 1]],
        }
    ]
    assert ack["delta"] == [[0, 4, 2, 1]]
    assert (ack["start_offset"], ack["end_offset"], ack["error"]) == (5, 10, "NONE")
    assert checkpoint["checkpoint"] == {"start_offset": 5, "end_offset": 5, "batches": []}


def test_the_same_events_give_the_same_outcomes():
    events = [
        ev.Init(seq=1, ts_ms=0, group="g", topic="t", state_epoch=1, start_offset=0),
        ev.Open(seq=2, ts_ms=0, group="g", topic="t", leader_epoch=0),
        *(
            ev.Acquire(seq=3 + at, ts_ms=at, group="g", topic="t", member=f"m{at % 3}", log_batches=(LogBatch(at, at),))
            for at in range(20)
        ),
        ev.Advance(seq=90, ts_ms=99_999, group="g", topic="t"),
    ]
    first, second = ([result.to_json() for result in played(events, dialect="both")] for _ in range(2))
    assert first == second
    assert len(first) == len(events) + 20


def test_locks_of_all_share_partitions_run_out_in_order_of_time():
    events = []
    for number, topic in enumerate(("a", "b")):
        common = {"group": "g", "topic": topic, "ts_ms": number}
        events += [
            ev.Init(seq=1, **common, state_epoch=1, start_offset=0),
            ev.Open(seq=2, **common, leader_epoch=0),
            ev.Acquire(seq=3, **common, member="m", log_batches=(LogBatch(0, 4),)),
        ]
    events.append(ev.Advance(seq=4, ts_ms=50_000, group="g", topic="b"))
    history = [result for result in played(events) if result.cause == "lock_timeout"]
    assert [(result.key.topic, result.ts_ms) for result in history] == [("a", 30_001), ("b", 30_002)]


def test_checkpoints_of_the_draft_come_after_so_many_deltas():
    history = History(dialect="control_records")
    for offset in range(12):
        history.acquire(str(offset))
        history.ack(str(offset), ACCEPT)
    assert history.checkpoints == [(0, 0, ""), (10, 10, "")]
    assert len(history.deltas) == 12
