"""What a share consumer may acknowledge, what its polls send and return, and when its membership ends.

The rules are those of KIP-932 and KIP-1222 for the client; each test names its requirement.
"""

import json
from typing import Any

import pytest

from share_state.simulator import events as ev
from share_state.simulator.acquisition import LogBatch
from share_state.simulator.client import Committed
from share_state.simulator.events import EventResult
from share_state.simulator.settings import BrokerConfigs, ConfigError, DraftConfigs
from share_state.simulator.simulation import simulate
from share_state.simulator.types import ErrorCode
from tests.simulator.history import ACCEPT, REJECT, RELEASE, RENEW, History, offsets, short

NONE = ErrorCode.NONE
MEMBER = "M1"


class Consumer:
    """A consumer on a share-partition, told in short."""

    def __init__(self, release: str = "4.4", **join: Any) -> None:
        self.history = History(release=release)
        self.apply(ev.Join, **join)

    def apply(self, kind: type, **fields: Any) -> EventResult:
        return self.history.apply(kind, member=MEMBER, **fields)

    def poll(self, *log: str) -> EventResult:
        return self.apply(ev.Poll, log_batches=tuple(LogBatch(*offsets(one)) for one in log))

    def acknowledge(self, types: dict[int, Any]) -> list[EventResult]:
        return [self.apply(ev.Acknowledge, offset=offset, type=kind) for offset, kind in types.items()]

    @property
    def memory(self) -> str:
        return short(self.history.partition.in_flight_batches())


def test_a_poll_in_implicit_mode_accepts_the_last_one_before_it_fetches():
    """K-02, K-03: callbacks, acknowledgements, fetch."""
    consumer = Consumer()
    first = consumer.poll("0-9")
    assert (first.returned, first.writes, first.committed) == (((0, 9, 1),), [], ())
    second = consumer.poll("10-19")
    assert [short(write.batches) for write in second.writes] == ["0-9:2/1"]
    assert (second.acquired, second.returned, second.committed) == (((10, 19, 1),), ((10, 19, 1),), ())
    # The window that the write recorded lacks what was acquired after it.
    assert second.writes[0].start_offset == 0
    assert (second.start_offset, second.end_offset) == (10, 20)
    third = consumer.poll()
    assert third.committed == (Committed(0, 9, NONE),)


def test_acknowledge_is_illegal_in_implicit_mode():
    """R-03: the record stays ACQUIRED."""
    consumer = Consumer()
    consumer.poll("0-9")
    (result,) = consumer.acknowledge({5: RELEASE})
    assert (result.exception, result.error, result.writes) == ("IllegalStateException", NONE, [])
    assert consumer.memory == "0-9:1/1"


def test_every_record_of_a_poll_is_acknowledged_before_the_next_in_explicit_mode():
    """K-02."""
    consumer = Consumer(mode="explicit")
    consumer.poll("0-2")
    consumer.acknowledge({0: REJECT})
    # Until it is sent, an acknowledgement can be changed.
    consumer.acknowledge({0: ACCEPT})
    refused = consumer.poll("3-9")
    assert (refused.exception, refused.returned, refused.writes) == ("IllegalStateException", (), [])
    assert refused.message.endswith("not yet: 1, 2")
    consumer.acknowledge({1: REJECT, 2: RELEASE})
    done = consumer.poll("2", "3-9")
    assert [short(write.batches) for write in done.writes] == ["0:2/1, 1:4/1, 2:0/1"]
    assert done.returned == ((2, 2, 2), (3, 9, 1))
    (twice,) = consumer.acknowledge({0: ACCEPT})
    assert twice.message == "offset 0 is not in flight, or its acknowledgement has been sent"


def test_the_lock_timeout_is_unknown_before_the_first_fetch():
    """R-14."""
    consumer = Consumer()
    assert consumer.apply(ev.Heartbeat).lock_timeout_ms is None
    assert consumer.poll("0-2").lock_timeout_ms == 30_000
    consumer.history.apply(ev.Config, name="share.record.lock.duration.ms", value=20_000)
    assert consumer.poll().lock_timeout_ms == 20_000


def test_renewed_records_are_returned_again_and_nothing_new_is_fetched():
    """R-17, K-74, K-77."""
    consumer = Consumer(mode="explicit")
    consumer.poll("0-2")
    consumer.acknowledge({0: ACCEPT, 1: RENEW, 2: RELEASE})
    consumer.history.advance(20_000)
    again = consumer.poll("2", "3-9")
    assert (again.acquired, again.returned) == ((), ((1, 1, 1),))
    assert [short(write.batches) for write in again.writes] == ["0:2/1, 2:0/1"]
    consumer.history.advance(40_000)
    # Its lock, renewed at 20 s, lasts until 50 s.
    assert consumer.memory == "0:2/1, 1:1/1, 2:0/1"
    consumer.acknowledge({1: ACCEPT})
    after = consumer.poll("2", "3-9")
    assert after.committed == (Committed(0, 2, NONE),)
    assert after.acquired == ((2, 2, 2), (3, 9, 1))


def test_a_record_whose_renewal_fails_is_not_returned_again():
    """R-17, R-18: its lock had expired."""
    consumer = Consumer(mode="explicit")
    consumer.poll("0-2")
    consumer.acknowledge({0: RENEW, 1: RENEW, 2: RENEW})
    consumer.history.advance(30_001)
    failed = consumer.poll("0-2")
    assert (failed.error, failed.returned) == (ErrorCode.INVALID_RECORD_STATE, ())
    again = consumer.poll("0-2")
    assert again.committed == (Committed(0, 2, ErrorCode.INVALID_RECORD_STATE),)
    assert again.returned == ((0, 2, 2),)


@pytest.mark.parametrize(("release", "version"), [("4.4", 1), ("4.1", 2)])
def test_a_renewal_that_the_broker_does_not_know_is_not_sent(release: str, version: int):
    """R-16: nor is the rest of its request, and the deadlines stay."""
    consumer = Consumer(release, mode="explicit", version=version)
    consumer.poll("0-2")
    consumer.acknowledge({0: RENEW, 1: ACCEPT, 2: ACCEPT})
    assert consumer.poll().writes == []
    assert consumer.poll().committed == (Committed(0, 2, ErrorCode.UNSUPPORTED_VERSION),)
    consumer.history.advance(30_000)
    assert consumer.memory == "0-2:1/1"
    consumer.history.advance(30_001)
    assert consumer.memory == "0-2:0/1"
    assert consumer.history.player.acknowledgements[RENEW] == 0


@pytest.mark.parametrize(("every", "is_late"), [(29_999, False), (30_000, True)])
def test_an_application_that_renews_too_late_is_warned(every: int, is_late: bool):
    """R-22."""
    result = Consumer(mode="explicit", renew_every_ms=every).poll("0-2")
    assert result.message.startswith("RENEW_TOO_LATE") == is_late


def test_records_are_counted_by_acknowledgement_type():
    """R-15: records, not requests; gaps are not counted."""
    consumer = Consumer(mode="explicit")
    consumer.poll("0-2", "3-9")
    consumer.acknowledge({0: ACCEPT, 1: RENEW, 2: RELEASE} | dict.fromkeys(range(3, 10), REJECT))
    consumer.apply(ev.Commit)
    consumer.history.apply(ev.Ack, member="M2", batches=((20, 20, (0,)),))
    counted = consumer.history.player.acknowledgements
    assert counted == {ACCEPT: 1, RENEW: 1, RELEASE: 1, REJECT: 7}


def test_a_commit_sends_what_is_acknowledged_and_the_next_poll_does_not_again():
    consumer = Consumer()
    consumer.poll("0-2")
    assert [short(write.batches) for write in consumer.apply(ev.Commit).writes] == ["0-2:2/1"]
    after = consumer.poll("3-4")
    assert (after.writes, after.returned) == ([], ((3, 4, 1),))


def test_a_consumer_that_does_not_poll_leaves_and_releases_its_records():
    """K-06: its locks were renewed meanwhile, so only the leave releases them."""
    consumer = Consumer(mode="explicit")
    consumer.history.apply(ev.Config, name="share.record.lock.duration.ms", value=60_000)
    consumer.poll("0-2")
    for number in range(1, 10):
        consumer.history.advance(number * 30_000)
        renewal = ((0, 2, (RENEW,)),)
        assert consumer.history.apply(ev.Ack, member=MEMBER, batches=renewal, is_renew_ack=True).error is NONE
    consumer.history.advance(300_000)
    assert consumer.memory == "0-2:1/1"
    consumer.history.advance(300_001)
    (left,) = [one for one in consumer.history.results if one.cause == "member_leave"]
    assert left.message == "max.poll.interval.ms has passed"
    assert consumer.memory == "0-2:0/1"
    late = consumer.poll("0-2")
    assert (late.exception, late.message) == (
        "IllegalStateException", "M1 is no member: it did not join, or has left",
    )  # fmt: skip


@pytest.mark.parametrize("heartbeats", [0, 3])
def test_a_session_expires_without_heartbeats(heartbeats: int):
    """K-14, D-55: 45 s after the last one, the group coordinator removes the member."""
    consumer = Consumer(has_background_heartbeats=False)
    for number in range(1, heartbeats + 1):
        consumer.history.advance(number * 20_000)
        consumer.apply(ev.Heartbeat)
    consumer.history.advance(heartbeats * 20_000 + 45_000)
    assert consumer.apply(ev.Acknowledge, offset=0, type=ACCEPT).message.startswith("records are acknowledged")
    consumer.history.advance(heartbeats * 20_000 + 45_001)
    (left,) = [one for one in consumer.history.results if one.cause == "member_leave"]
    assert (left.ts_ms, left.message) == (heartbeats * 20_000 + 45_001, "its session has expired")


@pytest.mark.parametrize("profile", [DraftConfigs, BrokerConfigs])
@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("session.timeout.ms", 44_999, "must be from 45000 to 60000"),
        ("session.timeout.ms", 60_001, "must be from 45000 to 60000"),
        ("min.session.timeout.ms", 45_001, "must be from 45001 to 60000"),
        ("max.session.timeout.ms", 44_999, "must be from 45000 to 44999"),
        ("heartbeat.interval.ms", 15_001, "must be from 5000 to 15000"),
        ("max.size", 1_001, "less than or equal to 1000"),
    ],
)
def test_timeouts_outside_of_their_bounds_are_refused(profile: type, key: str, value: int, reason: str):
    """D-55 to D-60, D-62."""
    with pytest.raises(ConfigError, match=reason):
        profile.of({f"group.share.{key}": value})
    assert profile.of({"group.share.session.timeout.ms": 60_000}).session_timeout_ms == 60_000


def test_a_simulation_plays_clients_from_a_file_and_counts_their_acknowledgements(tmp_path):
    common = {"group": "g", "topic": "t", "member": "m"}
    told = [
        {"event": "init", "state_epoch": 1, "start_offset": 0},
        {"event": "open", "leader_epoch": 0},
        {"event": "join", "mode": "explicit"},
        {"event": "poll", "log_batches": [[0, 2]]},
        *({"event": "acknowledge", "offset": offset, "type": kind} for offset, kind in ((0, 1), (1, 4), (2, 2))),
        {"event": "poll", "log_batches": [[3, 9]]},
        {"event": "poll"},
    ]
    lines = [json.dumps({"seq": seq, "ts_ms": seq, **common, **one}) for seq, one in enumerate(told)]
    for line in (0, 1):
        lines[line] = lines[line].replace(', "member": "m"', "")
    (tmp_path / "events.jsonl").write_text("\n".join(lines))
    done = simulate(tmp_path / "out", events=tmp_path / "events.jsonl", traces=True)
    assert done.acknowledgements == {"ACCEPT": 1, "RELEASE": 1, "REJECT": 0, "RENEW": 1}
    results = [json.loads(line) for line in (tmp_path / "out/results.jsonl").read_text().splitlines()]
    assert [one["returned"] for one in results if "returned" in one] == [[[0, 2, 1]], [[1, 1, 1]]]
    assert results[-1]["exception"] == "IllegalStateException"
    again = simulate(tmp_path / "again", events=tmp_path / "out/events.jsonl")
    logs = [sorted((tmp_path / name).glob("*/*.log")) for name in ("out", "again")]
    assert [file.read_bytes() for file in logs[0]] == [file.read_bytes() for file in logs[1]]
    assert again.acknowledgements == done.acknowledgements
