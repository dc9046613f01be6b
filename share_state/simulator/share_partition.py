"""A window told as batches: what deliveries see, and what would be recorded of it.

What a share-partition answers.

The state machine of one share-partition on the leader of its topic-partition.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from share_state.simulator.acknowledgement import Acknowledgement
from share_state.simulator.acquisition import AcquiredRecords, Acquisition, AcquisitionLocks, Fetch, Lapse
from share_state.simulator.durability import (
    Changed,
    Changes,
    DeadLetter,
    Operation,
    PendingWrite,
    Trigger,
    joined,
    loaded_window,
    unfinished,
)
from share_state.simulator.settings import RENEW_SINCE_VERSION, AckBatch, PartitionSettings, complaint
from share_state.simulator.types import (
    FENCED,
    NO_EPOCH,
    NO_START_OFFSET,
    RELEASES,
    DeliveryState,
    ErrorCode,
    Release,
    StateBatch,
    StateRead,
)
from share_state.simulator.window import Window


def in_memory(window: Window) -> tuple[StateBatch, ...]:
    """What is in flight as deliveries see it, changes under way included: ascending, equal neighbours joined."""
    return joined([StateBatch(run.first, run.last, run.state, run.count) for run in window.tiles()])


def as_recorded(window: Window, first: int, last: int) -> tuple[StateBatch, ...]:
    """A range as the draft records it: a delivery that may still be lost does not count.

    Args:
        window: of the share-partition.
        first: first offset.
        last: last offset, inclusive.
    Returns:
        Tiles of the whole range, ascending, equal neighbours joined: what is acquired with count n is available with
        n - 1, what was never fetched is available, what was let go of before the start has ended.
    Source: KIP-932 draft, in-flight state of a share-partition.
    """
    tiles: list[StateBatch] = []
    at = first
    for _, run in window.overlapping(first, last):
        low, high = max(run.first, first), min(run.last, last)
        tiles += _uncovered(window, at, low - 1)
        if run.before is not None:
            tiles.append(StateBatch(low, high, DeliveryState.AVAILABLE, run.before.delivery_count - 1))
        elif run.state is DeliveryState.ACQUIRED:
            tiles.append(StateBatch(low, high, DeliveryState.AVAILABLE, run.count - 1))
        else:
            tiles.append(StateBatch(low, high, run.state, run.count))
        at = high + 1
    tiles += _uncovered(window, at, last)
    return joined(tiles)


def _uncovered(window: Window, first: int, last: int) -> list[StateBatch]:
    start, tiles = window.start_offset, []
    if first <= min(last, start - 1):
        tiles.append(StateBatch(first, min(last, start - 1), DeliveryState.ARCHIVED, 0))
    if max(first, start) <= last:
        tiles.append(StateBatch(max(first, start), last, DeliveryState.AVAILABLE, 0))
    return tiles


class Status(StrEnum):
    """Whether a share-partition answers. Source: Kafka SharePartition.SharePartitionState."""

    EMPTY = "empty"
    ACTIVE = "active"
    FAILED = "failed"
    FENCED = "fenced"


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The answer to an acknowledgement, as far as it is known before the write is.

    Args:
        error: NONE where the request holds.
        message: why not, one line, empty where it holds.
        operation: what is to be persisted, None where nothing is.
        lock_timeout_ms: the lock duration in force, for the client to plan its renewals by (KIP-1222).
    """

    error: ErrorCode
    message: str
    operation: Operation | None
    lock_timeout_ms: int


class SharePartition:
    """What the leader of a topic-partition knows of one share group's progress in it.

    The machine has no clock and does no input or output: it is given the time, hands out what it wants persisted as
    pending writes, and is told of each by `written` or `failed` what became of it.

    Args:
        leader_epoch: of the topic-partition's leader.
        settings: limits in force; what the release cannot do is off.
        release: what the broker can do.
    Source: Kafka kafka.server.share.SharePartition.
    """

    def __init__(
        self, leader_epoch: int, settings: PartitionSettings | None = None, release: Release = RELEASES["4.3"]
    ):
        self.leader_epoch = leader_epoch
        self.state_epoch = NO_EPOCH
        self.release = release
        self.status = Status.EMPTY
        self.configure(settings or PartitionSettings())
        self._take(Window(0))

    def configure(self, settings: PartitionSettings) -> None:
        """Put other limits in force: for the next transition on, locks that run keep their deadline."""
        has_queue = settings.has_dead_letter_queue and self.release.dead_letters
        self.settings = replace(settings, has_dead_letter_queue=has_queue)

    def _take(self, window: Window) -> None:
        self._window = window
        self._locks = AcquisitionLocks()
        self._changes = Changes(
            window, self.leader_epoch, self.state_epoch, counts_completed=self.release.counts_completed
        )

    # Looking

    @property
    def start_offset(self) -> int:
        """The start (SPSO): everything before it has ended."""
        return self._window.start_offset

    @property
    def end_offset(self) -> int:
        """The end (SPEO), exclusive: the first offset that was never fetched."""
        return self._window.next_end

    @property
    def delivery_complete_count(self) -> int:
        """Terminal offsets at or after the start, changes under way included."""
        return self._window.completed

    @property
    def next_deadline(self) -> int | None:
        """No lock runs out before this one is passed; None where none is held."""
        return self._locks.next_deadline

    def next_fetch_offset(self) -> int:
        """The offset to read the log from. Source: SharePartition.nextFetchOffset."""
        return self._window.next_fetch_offset()

    def can_acquire(self) -> bool:
        """Whether a fetch may be answered. Source: SharePartition.canAcquireRecords."""
        window = self._window
        return window.next_fetch_offset() != window.end_offset + 1 or window.in_flight < self.settings.max_record_locks

    def memory(self) -> tuple[StateBatch, ...]:
        """What is in flight, as deliveries see it: ascending, equal neighbours joined."""
        return in_memory(self._window)

    def recorded(self, first: int, last: int) -> tuple[StateBatch, ...]:
        """A range as the draft would record it; see `as_recorded`."""
        return as_recorded(self._window, first, last)

    # Loading

    def load(self, read: StateRead, reset_offset: int = 0) -> tuple[DeadLetter, ...]:
        """Take over what was recorded; what was in memory is forgotten.

        Args:
            read: what the share coordinator answered.
            reset_offset: where to start if no start was ever recorded (`share.auto.offset.reset`).
        Returns:
            What was on its way to the dead letter queue and is to be sent again.
        Raises:
            UnloadableStateError: no window can be built of it; the share-partition has failed.
        Source: SharePartition.maybeInitialize.
        """
        self.status = Status.FAILED
        self.state_epoch = read.state_epoch
        start = reset_offset if read.start_offset == NO_START_OFFSET else read.start_offset
        self._take(loaded_window(start, read.batches, self.release))
        self._window.advance()
        self.status = Status.ACTIVE
        if self.release.archiving != "resumed":
            return ()
        return unfinished(self._window, self.settings.delivery_count_limit)

    # Requests

    def acquire(self, fetch: Fetch, now_ms: int) -> tuple[AcquiredRecords, ...]:
        """Hand fetched records to a member; nothing is persisted.

        Args:
            fetch: who asks for what, and what the log gave.
            now_ms: the time.
        Returns:
            What the member holds from now on, ascending.
        Source: SharePartition.acquire.
        """
        if self.status is not Status.ACTIVE or not fetch.log_batches:
            return ()
        return Acquisition(self._window, self._locks, self.settings, self.release, fetch, now_ms).run()

    def acknowledge(
        self,
        member: str,
        batches: Sequence[AckBatch],
        now_ms: int,
        *,
        is_renew_ack: bool = False,
        version: int = RENEW_SINCE_VERSION,
    ) -> Acknowledged:
        """Take a member's word for the records it holds: all of it, or after an error nothing but renewals.

        Args:
            member: who acknowledges.
            batches: ascending.
            now_ms: the time.
            is_renew_ack: the request says that it holds renewals.
            version: of the request.
        Returns:
            The answer, and what is to be persisted.
        Source: SharePartition.acknowledge; KIP-1222.
        """
        timeout = self.settings.record_lock_duration_ms
        if self.status is not Status.ACTIVE:
            return Acknowledged(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"share-partition is {self.status}", None, timeout)
        known = version if self.release.renews else RENEW_SINCE_VERSION - 1
        if refusal := complaint(batches, is_renew_ack=is_renew_ack, version=known):
            return Acknowledged(ErrorCode.INVALID_REQUEST, refusal, None, timeout)
        acknowledgement = Acknowledgement(self._window, self._locks, self.settings, member, now_ms)
        for batch in batches:
            if error := acknowledgement.apply(batch):
                self._changes.take_back(acknowledgement.runs, self.settings, now_ms)
                return Acknowledged(error.code, error.message, None, timeout)
        runs: Changed = acknowledgement.runs
        operation = self._changes.tentative(Trigger.ACKNOWLEDGE, runs, acknowledgement.reasons)
        return Acknowledged(ErrorCode.NONE, "", operation, timeout)

    def release_member(self, member: str) -> Operation | None:
        """Take back what a member holds whose session was closed or timed out.

        Args:
            member: who left.
        Returns:
            What is to be persisted, None where the member held nothing.
        Source: SharePartition.releaseAcquiredRecords.
        """
        if self.status is not Status.ACTIVE:
            return None
        lapse = Lapse(self._window, self._changes, self.settings)
        return lapse.of_member(member, lowers_count=self.release.leave_lowers_count)

    def expire(self, now_ms: int) -> Operation | None:
        """Take back the records whose lock ran out first; to be called until there is nothing left.

        Args:
            now_ms: the time; a lock has run out when this is greater than its deadline.
        Returns:
            What is to be persisted: one write a batch, or one an offset where the batch is tracked so.
        Source: SharePartition.releaseAcquisitionLockOnTimeout.
        """
        if self.status is not Status.ACTIVE:
            return None
        return Lapse(self._window, self._changes, self.settings).of_locks(self._locks.expired(now_ms))

    # Outcomes

    def written(self, pending: PendingWrite) -> tuple[DeadLetter, ...]:
        """Learn that a write is durable.

        Args:
            pending: the write.
        Returns:
            What is to be sent to the dead letter queue now.
        Source: SharePartition.rollbackOrProcessStateUpdates.
        """
        self._changes.keep(pending)
        return pending.dead_letters

    def failed(
        self, pending: PendingWrite, now_ms: int, error: ErrorCode = ErrorCode.KAFKA_STORAGE_ERROR
    ) -> tuple[DeadLetter, ...]:
        """Learn that a write failed: an acknowledgement never happened, a lock timeout stands in memory alone.

        Args:
            pending: the write.
            now_ms: the time; a lock that ran out meanwhile is not given back.
            error: why; a fence ends this leader.
        Returns:
            What is to be sent to the dead letter queue all the same.
        Source: SharePartition.rollbackOrProcessStateUpdates; KIP-1191 for lock timeouts.
        """
        self._changes.drop(pending, self.settings, now_ms)
        if error in FENCED:
            self.status = Status.FENCED
        return pending.dead_letters if pending.is_final else ()

    def dead_lettered(self, letter: DeadLetter) -> Operation | None:
        """Learn that the dead letter queue has answered, well or not: the records are archived either way.

        Args:
            letter: what was sent.
        Returns:
            The second of two writes, None where the records are no longer ARCHIVING.
        Source: KIP-1191, second phase of archiving.
        """
        first, last, count, _ = letter
        if not self._window.archive(first, last, DeliveryState.ARCHIVING):
            return None
        change = (StateBatch(first, last, DeliveryState.ARCHIVED, count),)
        return Operation(Trigger.DEAD_LETTER, change, (self._changes.final(change),))

    # The log underneath

    def move_log_start(self, offset: int) -> None:
        """Follow the start of the log: what could be delivered before it is archived, in memory only.

        Args:
            offset: the first offset that the log still has.
        Source: SharePartition.updateCacheAndOffsets.
        """
        if self.status is Status.ACTIVE and offset > self._window.start_offset:
            start = self._window.start_offset
            self._window.move_start(offset)
            if (gap := self._window.gap_start) is not None:
                # Kafka leaves the gap where it was, and for ever asks the log for offsets that it no longer has.
                self._window.fetched_up_to(max(gap, offset))
            self._window.archive(start, offset - 1, DeliveryState.AVAILABLE)

    def archive_hole(self, first: int, last: int) -> None:
        """Learn that the log holds nothing in a range (compaction): archived in memory only.

        Source: SharePartition.maybeArchiveStaleBatches.
        """
        self._window.archive(first, last, DeliveryState.AVAILABLE)

    def archive_aborted(self, first: int, last: int) -> None:
        """Learn that acquired records belong to an aborted transaction: archived in memory only, if that matters here.

        Source: SharePartition.maybeFilterAbortedTransactionalAcquiredRecords (share.isolation.level).
        """
        if self.settings.reads_committed:
            self._window.archive(first, last, DeliveryState.ACQUIRED, self._locks.next_turn())
