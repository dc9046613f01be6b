"""A member as its application sees it: what it holds, what it says of it, when it asks for more.

Members of simulated share groups: they fetch, work, acknowledge, and sometimes fail to.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from share_state.errors import ShareStateError
from share_state.simulator.acquisition import AcquiredRecords
from share_state.simulator.events import Ack, MemberLeave
from share_state.simulator.recorded_state import SharePartitionKey
from share_state.simulator.settings import AckBatch, AckType
from share_state.simulator.types import ErrorCode
from share_state.simulator.world import Agent, Behaviour, World


class IllegalStateError(ShareStateError):
    """Raised when the application may not do this now."""


class AckMode(StrEnum):
    """Whether a poll accepts what the previous one returned. Source: KIP-932, share.acknowledgement.mode."""

    IMPLICIT = "implicit"
    EXPLICIT = "explicit"


class Delivered(NamedTuple):
    """One record returned by a poll."""

    offset: int
    delivery_count: int


@dataclass(frozen=True, slots=True)
class Completed:
    """What the acknowledgement commit callback is told. Source: AcknowledgementCommitCallback.onComplete."""

    offsets: tuple[int, ...]
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class Poll:
    """What one poll does, in this order.

    Args:
        completed: callbacks that are called.
        acks: acknowledgements that are sent, by fetch if that is sent too, by themselves if not.
        is_renew_ack: whether renewals are among them.
        fetches: whether records are asked for.
        records: returned to the application.
    Source: Kafka ShareConsumerImpl.poll, collect.
    """

    completed: tuple[Completed, ...]
    acks: tuple[AckBatch, ...]
    is_renew_ack: bool
    fetches: bool
    records: tuple[Delivered, ...]


class ShareConsumer:
    """One member's side of one share-partition.

    Args:
        mode: how records are acknowledged.
        broker_renews: whether the broker knows renewals (ShareFetch and ShareAcknowledge version 2).
        max_poll_interval_ms: how long the application may stay away.
    Source: KIP-932, KIP-1222; Kafka ShareConsumerImpl, ShareInFlightBatch.
    """

    def __init__(
        self, mode: AckMode = AckMode.IMPLICIT, *, broker_renews: bool = True, max_poll_interval_ms: int = 300_000
    ):
        self._mode = mode
        self._broker_renews = broker_renews
        self._max_poll_interval_ms = max_poll_interval_ms
        self._polled_ms: int | None = None
        self._buffer: dict[int, int] = {}
        self._in_flight: dict[int, int] = {}
        self._said: dict[int, AckType] = {}
        self._renewing: dict[int, int] = {}
        self._renewed: dict[int, int] = {}
        self._completed: list[Completed] = []
        self.lock_timeout_ms: int | None = None
        """How long records are held, as the broker last said; None before the first fetch was answered."""

    def poll(self, now_ms: int) -> Poll:
        """Ask for records.

        Args:
            now_ms: the time.
        Returns:
            What happens.
        Raises:
            IllegalStateError: in explicit mode, records of the last poll were not acknowledged.
        """
        self._polled_ms = now_ms
        completed = tuple(self._completed)
        self._completed.clear()
        if self._mode is AckMode.IMPLICIT:
            self._said = dict.fromkeys(self._in_flight, AckType.ACCEPT)
        elif open_offsets := [offset for offset in self._in_flight if offset not in self._said]:
            raise IllegalStateError(
                f"poll: {len(open_offsets)} records of the last poll are not acknowledged, the first at offset "
                f"{open_offsets[0]}; acknowledge each in explicit mode"
            )
        acks, renews = self._send()
        returned = self._renewed or ({} if self._renewing else self._buffer)
        self._in_flight |= returned
        records = tuple(Delivered(offset, count) for offset, count in sorted(returned.items()))
        returned.clear()
        fetches = not records and not self._renewing
        return Poll(completed, acks, renews, fetches, records)

    def acknowledge(self, offset: int, ack: AckType) -> None:
        """Say what became of a record; it is sent with the next poll or commit.

        Args:
            offset: of a record that the last poll returned.
            ack: what became of it.
        Raises:
            IllegalStateError: in implicit mode, or the record is not held.
        """
        if self._mode is AckMode.IMPLICIT:
            raise IllegalStateError("acknowledge: not in implicit mode; set share.acknowledgement.mode to explicit")
        if offset not in self._in_flight:
            raise IllegalStateError(f"acknowledge: offset {offset} was not returned by the last poll")
        self._said[offset] = ack

    def commit(self) -> tuple[AckBatch, ...]:
        """Send what was said so far without asking for records. Source: ShareConsumer.commitAsync, commitSync."""
        return self._send()[0]

    def answered(self, acks: Sequence[AckBatch], error: ErrorCode, lock_timeout_ms: int | None = None) -> None:
        """Learn what the broker made of acknowledgements.

        Args:
            acks: as they were sent.
            error: the broker's answer.
            lock_timeout_ms: as the broker says now.
        """
        offsets = tuple(offset for first, last, _ in acks for offset in range(first, last + 1))
        self._completed.append(Completed(offsets, error))
        for offset in offsets:
            count = self._renewing.pop(offset, None)
            if count is not None and error is ErrorCode.NONE:
                self._renewed[offset] = count
        self.lock_timeout_ms = self.lock_timeout_ms if lock_timeout_ms is None else lock_timeout_ms

    def take(self, acquired: Iterable[AcquiredRecords], lock_timeout_ms: int) -> None:
        """Learn what a fetch acquired; a record that is delivered again is no renewed one any more.

        Args:
            acquired: from the broker.
            lock_timeout_ms: as the broker says now.
        """
        self.lock_timeout_ms = lock_timeout_ms
        for first, last, count in acquired:
            for offset in range(first, last + 1):
                self._renewing.pop(offset, None)
                self._renewed.pop(offset, None)
                self._buffer[offset] = count

    def has_stayed_away(self, now_ms: int) -> bool:
        """Whether the application polls too seldom, so that the member leaves. Source: max.poll.interval.ms."""
        return self._polled_ms is not None and now_ms - self._polled_ms > self._max_poll_interval_ms

    def renews_in_time(self, every_ms: int) -> bool:
        """Whether renewing this often keeps records. True while the lock duration is unknown."""
        return self.lock_timeout_ms is None or every_ms < self.lock_timeout_ms

    def _send(self) -> tuple[tuple[AckBatch, ...], bool]:
        if not self._broker_renews:
            # Detected here: the broker would refuse the whole request.
            refused = tuple(offset for offset, ack in self._said.items() if ack is AckType.RENEW)
            for offset in refused:
                del self._said[offset]
                self._in_flight.pop(offset)
            if refused:
                self._completed.append(Completed(refused, ErrorCode.UNSUPPORTED_VERSION))
        renews = AckType.RENEW in self._said.values()
        for offset, ack in self._said.items():
            count = self._in_flight.pop(offset)
            if ack is AckType.RENEW:
                self._renewing[offset] = count
        acks = _batched(sorted(self._said.items()))
        self._said = {}
        return acks, renews


def _batched(said: Sequence[tuple[int, AckType]]) -> tuple[AckBatch, ...]:
    """Neighbouring offsets in one batch: one type if they agree, one an offset if not."""
    runs: list[list[tuple[int, AckType]]] = []
    for offset, ack in said:
        if runs and runs[-1][-1][0] == offset - 1:
            runs[-1].append((offset, ack))
        else:
            runs.append([(offset, ack)])
    batches = []
    for run in runs:
        types = tuple(int(ack) for _, ack in run)
        batches.append(AckBatch(run[0][0], run[-1][0], types[:1] if len(set(types)) == 1 else types))
    return tuple(batches)


_RENEW_EVERY_MS = 20_000


class Member:
    """One member of a group, at work on one share-partition.

    Args:
        world: it lives in.
        key: the share-partition.
        number: among the members.
        behaviour: of its group.
    """

    def __init__(self, world: World, key: SharePartitionKey, number: int, behaviour: Behaviour) -> None:
        self.world, self.key, self.behaviour = world, key, behaviour
        self.name = f"member-{number}"
        self.rng = world.rng("member", *key, number)
        # One member of a group that stalls holds on to a record, the others work.
        self.holds_on = behaviour.renews_for_ms > 0 and number == 0
        self.next_drop = self._next_drop()

    def agent(self) -> Agent:
        """Its life."""
        yield self.rng.randint(*self.behaviour.poll_ms)
        while True:
            acquired = self.world.fetch(self.key, self.name, self.rng.randint(*self.behaviour.fetch_records))
            if acquired and self.next_drop and self.world.now_ms >= self.next_drop:
                yield self.rng.randint(*self.behaviour.work_ms)
                self.world.tell(MemberLeave, self.key, member=self.name)
                self.next_drop = self._next_drop()
            elif acquired and self.holds_on:
                yield from self._hold_on_to(acquired)
            elif acquired:
                yield self.rng.randint(*self.behaviour.work_ms)
                self._acknowledge([self._judged(*records[:2]) for records in acquired])
            yield self.rng.randint(*self.behaviour.poll_ms)

    def _next_drop(self) -> int:
        every = self.behaviour.drops_every_ms
        return self.world.now_ms + self.rng.randint(every // 2, every + every // 2) if every else 0

    def _hold_on_to(self, acquired: tuple[AcquiredRecords, ...]) -> Iterator[int]:
        """Accept all but the first record, renew that one's lock for a while, then accept it too."""
        first = acquired[0].first_offset
        rest = [(max(records.first_offset, first + 1), records.last_offset) for records in acquired]
        self._acknowledge([self._judged(low, high) for low, high in rest if low <= high])
        until = self.world.now_ms + self.behaviour.renews_for_ms
        while self.world.now_ms < until:
            yield min(_RENEW_EVERY_MS, until - self.world.now_ms)
            if self._acknowledge([AckBatch(first, first, (AckType.RENEW,))], renews=True) is not ErrorCode.NONE:
                return
        self._acknowledge([AckBatch(first, first, (AckType.ACCEPT,))])

    def _acknowledge(self, batches: list[AckBatch], *, renews: bool = False) -> ErrorCode:
        if not batches:
            return ErrorCode.NONE
        outcomes = self.world.tell(Ack, self.key, member=self.name, batches=tuple(batches), is_renew_ack=renews)
        return next(outcome.error for outcome in outcomes if outcome.cause == "ack")

    def _judged(self, first: int, last: int) -> AckBatch:
        """What becomes of each record: one type where all end alike."""
        types = [self._type(offset, self.rng) for offset in range(first, last + 1)]
        for offset in self.world.control_among(self.key, first, last):
            types[offset - first] = AckType.GAP
        return AckBatch(first, last, (types[0],) if len(set(types)) == 1 else tuple(types))

    def _type(self, offset: int, rng: random.Random) -> AckType:
        behaviour = self.behaviour
        if behaviour.poison_every and offset % behaviour.poison_every == behaviour.poison_every - 1:
            return AckType.RELEASE
        chance = rng.random()
        if chance < behaviour.released:
            return AckType.RELEASE
        return AckType.REJECT if chance < behaviour.released + behaviour.rejected else AckType.ACCEPT
