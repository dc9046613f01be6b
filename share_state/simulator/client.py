"""A share consumer as its application sees it: what it may acknowledge, what a poll sends, and what it returns.

The player (`simulator.player`) asks it what to send to the leader, and tells it the outcome. Source: Kafka
KafkaShareConsumer, ShareConsumeRequestManager, ShareInFlightBatch; KIP-932, KIP-1222.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from share_state.simulator.acquisition import AcquiredRecords
from share_state.simulator.settings import AckBatch, AckType
from share_state.simulator.types import ErrorCode

IMPLICIT = "implicit"
EXPLICIT = "explicit"
"""Values of share.acknowledgement.mode."""

MAX_POLL_INTERVAL_MS = 300_000


class IllegalStateError(Exception):
    """Raised where the Java client throws an IllegalStateException; the message says why."""


class Committed(NamedTuple):
    """The outcome of adjacent acknowledgements, as the acknowledgement commit callback gets it."""

    first_offset: int
    last_offset: int
    error: ErrorCode


@dataclass(slots=True)
class ShareClient:
    """One member's consumer of a share-partition.

    Args:
        member: its member id.
        mode: IMPLICIT or EXPLICIT.
        max_poll_interval_ms: after this time without a poll, it leaves the group.
        session_timeout_ms: after this time without a heartbeat, the group coordinator removes it.
        has_background_heartbeats: whether its background thread runs; if not, only `heartbeat` events count.
        renew_every_ms: how often its application renews locks; 0 for never.
        version: of ShareFetch and ShareAcknowledge that it and the broker have; renewals need 2.
        last_poll_ms, last_heartbeat_ms: when it last polled, and when its last heartbeat arrived.
        lock_timeout_ms: ShareConsumer.acquisitionLockTimeoutMs: None before its first ShareFetch.
        in_flight: offset -> delivery count of records that the application has, until their acknowledgement
            is sent.
        acknowledged: offset -> type of acknowledgements that are not sent yet.
        renewing: offset -> delivery count of records whose RENEW was sent, without an outcome.
        renewed: offset -> delivery count of records whose lock was renewed, which the next poll returns
            again.
        committed: outcomes for the callback of the next poll.
    """

    member: str
    mode: str = IMPLICIT
    max_poll_interval_ms: int = MAX_POLL_INTERVAL_MS
    session_timeout_ms: int = 45_000
    has_background_heartbeats: bool = True
    renew_every_ms: int = 0
    version: int = 2
    last_poll_ms: int = 0
    last_heartbeat_ms: int = 0
    lock_timeout_ms: int | None = None
    in_flight: dict[int, int] = field(default_factory=dict)
    acknowledged: dict[int, AckType] = field(default_factory=dict)
    renewing: dict[int, int] = field(default_factory=dict)
    renewed: dict[int, int] = field(default_factory=dict)
    committed: list[Committed] = field(default_factory=list)

    @property
    def deadline_ms(self) -> int:
        """The last ms at which it is a member, unless it polls or sends a heartbeat."""
        of_poll = self.last_poll_ms + self.max_poll_interval_ms
        if self.has_background_heartbeats:
            return of_poll
        return min(of_poll, self.last_heartbeat_ms + self.session_timeout_ms)

    @property
    def reason_to_leave(self) -> str:
        """Why its membership ends at `deadline_ms`."""
        of_poll = self.last_poll_ms + self.max_poll_interval_ms
        return "max.poll.interval.ms has passed" if self.deadline_ms == of_poll else "its session has expired"

    @property
    def renews_too_late(self) -> bool:
        """Whether its application renews locks that have expired. KIP-1222 leaves the interval to it."""
        return self.lock_timeout_ms is not None and self.renew_every_ms >= self.lock_timeout_ms

    @property
    def has_renewals(self) -> bool:
        """Whether the lock of a record is to be renewed, or was, and the application has not got it again."""
        return bool(self.renewing or self.renewed) or AckType.RENEW in self.acknowledged.values()

    def acknowledge(self, offset: int, ack_type: AckType) -> None:
        """The application acknowledges a record; until that is sent, the last type counts.

        Raises:
            IllegalStateError: in implicit mode, or if the application does not have the record.
        """
        if self.mode == IMPLICIT:
            raise IllegalStateError("records are acknowledged implicitly by the next poll")
        if offset not in self.in_flight:
            raise IllegalStateError(f"offset {offset} is not in flight, or its acknowledgement has been sent")
        self.acknowledged[offset] = ack_type

    def take_committed(self) -> tuple[Committed, ...]:
        """The outcomes since the last poll, for the callback."""
        committed, self.committed = tuple(self.committed), []
        return committed

    def acknowledge_last_poll(self) -> None:
        """Acknowledge what the last poll returned, if that is implicit.

        Raises:
            IllegalStateError: if the mode is explicit, and records of the last poll are not acknowledged.
        """
        if self.mode == IMPLICIT:
            self.accept_all()
        elif missing := self.in_flight.keys() - self.acknowledged.keys():
            text = ", ".join(map(str, sorted(missing)))
            raise IllegalStateError(f"all records must be acknowledged before the next poll; not yet: {text}")

    def accept_all(self) -> None:
        """Acknowledge everything that the application has with ACCEPT."""
        self.acknowledged = dict.fromkeys(self.in_flight, AckType.ACCEPT) | self.acknowledged

    def take_acknowledgements(self) -> tuple[AckBatch, ...]:
        """The acknowledgements to send, ascending; each run of offsets is a batch."""
        types, self.acknowledged = self.acknowledged, {}
        for offset, ack_type in types.items():
            count = self.in_flight.pop(offset, None)
            if ack_type is AckType.RENEW and count is not None:
                self.renewing[offset] = count
        return tuple(
            AckBatch(first, last, _shortened([types[offset] for offset in range(first, last + 1)]))
            for first, last in _runs(types)
        )

    def end(self, offsets: Iterable[int], error: ErrorCode) -> None:
        """Note the outcome of acknowledgements that were taken; renewals succeed or are dropped."""
        ended = sorted(offsets)
        for offset in ended:
            count = self.renewing.pop(offset, None)
            if count is not None and error is ErrorCode.NONE:
                self.renewed[offset] = count
        self.committed += [Committed(first, last, error) for first, last in _runs(ended)]

    def take_renewals(self) -> tuple[AcquiredRecords, ...]:
        """The records whose locks were renewed, which the application gets again, with their delivery count."""
        renewed, self.renewed = self.renewed, {}
        self.in_flight |= renewed
        return _joined(renewed)

    def deliver(
        self, acquired: Sequence[AcquiredRecords], gaps: Sequence[int]
    ) -> tuple[AcquiredRecords, ...]:
        """Take acquired records; returns those that the application gets.

        Args:
            acquired: what the leader acquired for the member.
            gaps: offsets among them that hold no record for it: the client acknowledges them as gaps.
        """
        records = {offset: count for first, last, count in acquired for offset in range(first, last + 1)}
        for offset in gaps:
            if records.pop(offset, None) is not None:
                self.acknowledged[offset] = AckType.GAP
        # A record that is delivered again is another delivery.
        for offset in records:
            self.renewed.pop(offset, None)
        self.in_flight |= records
        return _joined(records)


def _runs(offsets: Iterable[int]) -> list[tuple[int, int]]:
    runs = list[tuple[int, int]]()
    for offset in sorted(offsets):
        if runs and runs[-1][1] + 1 == offset:
            runs[-1] = runs[-1][0], offset
        else:
            runs.append((offset, offset))
    return runs


def _shortened(types: list[AckType]) -> tuple[int, ...]:
    return (types[0],) if len(set(types)) == 1 else tuple(types)


def _joined(counts: dict[int, int]) -> tuple[AcquiredRecords, ...]:
    """Runs of offsets with equal delivery counts."""
    joined = list[AcquiredRecords]()
    for offset, count in sorted(counts.items()):
        if joined and joined[-1].last_offset + 1 == offset and joined[-1].delivery_count == count:
            joined[-1] = joined[-1]._replace(last_offset=offset)
        else:
            joined.append(AcquiredRecords(offset, offset, count))
    return tuple(joined)
