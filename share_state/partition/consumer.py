"""A member as its application sees it: what it holds, what it says of it, when it asks for more."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from share_state.errors import ShareStateError
from share_state.partition.acknowledgements import AckBatch, AckType
from share_state.partition.acquisition import AcquiredRecords
from share_state.partition.error_codes import ErrorCode


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
