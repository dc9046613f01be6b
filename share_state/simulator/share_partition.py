"""The state machine of one share-partition on its leader, and how it applies acknowledgements."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

from share_state.kafka.delivery_states import DeliveryState
from share_state.kafka.releases import LATEST, Release
from share_state.simulator.acquisition import (
    AcquiredRecords,
    Acquisition,
    AcquisitionLocks,
    Fetch,
    LockRelease,
)
from share_state.simulator.durability import (
    ChangedRuns,
    DeadLetter,
    DeadLetterReason,
    Operation,
    PendingWrite,
    StateTransitions,
    Trigger,
    load_window,
    pending_dead_letters,
)
from share_state.simulator.settings import (
    RENEW_SINCE_VERSION,
    AckBatch,
    AckSegment,
    AckType,
    PartitionSettings,
    split_by_type,
    validate_ack_batches,
)
from share_state.simulator.types import (
    FENCED,
    NO_EPOCH,
    NO_START_OFFSET,
    ErrorCode,
    StateBatch,
    StateRead,
    merge_adjacent,
)
from share_state.simulator.window import InFlightBatch, OffsetRun, Window


class Status(StrEnum):
    """State of a share-partition on its leader. Source: Kafka SharePartition.SharePartitionState."""

    EMPTY = "empty"
    ACTIVE = "active"
    FAILED = "failed"
    FENCED = "fenced"


@dataclass(frozen=True, slots=True)
class AcknowledgeResult:
    """The result of an acknowledgement before its write has a response.

    Args:
        message: why it was rejected, or empty.
        operation: what to persist, or None.
    """

    error: ErrorCode
    message: str = ""
    operation: Operation | None = None


class SharePartition:
    """One share group's state of a topic-partition, as its leader keeps it in memory.

    Size: one method per transition of Kafka's class of this name.

    It has no clock and does no I/O: callers pass the time, persist the pending writes it returns, and report
    each result with `write_succeeded` or `write_failed`.

    Args:
        settings: limits; features that the release lacks are off.
        release: features of the broker.
    Source: Kafka kafka.server.share.SharePartition.
    """

    def __init__(
        self, leader_epoch: int, settings: PartitionSettings | None = None, release: Release = LATEST
    ):
        self.leader_epoch = leader_epoch
        self.state_epoch = NO_EPOCH
        self.release = release
        self.status = Status.EMPTY
        self.configure(settings or PartitionSettings())
        self._reset(Window(0))

    def configure(self, settings: PartitionSettings) -> None:
        """Apply new limits to later transitions; held locks keep their deadline."""
        has_queue = settings.has_dead_letter_queue and self.release.dead_letters
        self.settings = replace(settings, has_dead_letter_queue=has_queue)

    def _reset(self, window: Window) -> None:
        self._window = window
        self._locks = AcquisitionLocks()
        self._transitions = StateTransitions(
            window, self.leader_epoch, self.state_epoch, counts_completed=self.release.counts_completed
        )

    @property
    def start_offset(self) -> int:
        """SPSO: every offset before it is terminal."""
        return self._window.start_offset

    @property
    def end_offset(self) -> int:
        """SPEO, exclusive: the first offset that was never fetched."""
        return self._window.next_new_offset

    @property
    def delivery_complete_count(self) -> int:
        """Terminal offsets at or after the start, pending writes included."""
        return self._window.delivery_complete_count

    @property
    def next_deadline(self) -> int | None:
        """No lock expires before this deadline has passed; None without locks."""
        return self._locks.next_deadline

    def next_fetch_offset(self) -> int:
        """The offset to fetch from. Source: SharePartition.nextFetchOffset."""
        return self._window.next_fetch_offset()

    def can_acquire(self) -> bool:
        """Whether a fetch may acquire records. Source: SharePartition.canAcquireRecords."""
        window = self._window
        return (
            window.next_fetch_offset() != window.end_offset + 1
            or window.in_flight_count < self.settings.max_record_locks
        )

    def in_flight_batches(self) -> tuple[StateBatch, ...]:
        """In-flight state including pending writes, ascending, equal neighbours merged."""
        return merge_adjacent(run.batch for run in self._window.runs())

    def durable_batches(self, first: int, last: int) -> tuple[StateBatch, ...]:
        """The state of [first, last] as the draft persists it: a delivery in progress does not count.

        Acquired with count n becomes available with n - 1; offsets that were never fetched are available;
        offsets before the start are archived.
        Source: KIP-932 draft, in-flight state of a share-partition.
        """
        runs: list[StateBatch] = []
        at = first
        for _, run in self._window.overlapping(first, last):
            low, high = max(run.first, first), min(run.last, last)
            runs += self._uncovered(at, low - 1)
            if run.rollback_state is not None:
                runs.append(
                    StateBatch(low, high, DeliveryState.AVAILABLE, run.rollback_state.delivery_count - 1)
                )
            elif run.state is DeliveryState.ACQUIRED:
                runs.append(StateBatch(low, high, DeliveryState.AVAILABLE, run.count - 1))
            else:
                runs.append(StateBatch(low, high, run.state, run.count))
            at = high + 1
        runs += self._uncovered(at, last)
        return merge_adjacent(runs)

    def _uncovered(self, first: int, last: int) -> list[StateBatch]:
        start, runs = self._window.start_offset, []
        if first <= min(last, start - 1):
            runs.append(StateBatch(first, min(last, start - 1), DeliveryState.ARCHIVED, 0))
        if max(first, start) <= last:
            runs.append(StateBatch(max(first, start), last, DeliveryState.AVAILABLE, 0))
        return runs

    def load(self, read: StateRead, reset_offset: int = 0) -> tuple[DeadLetter, ...]:
        """Replace the in-memory state with persisted state.

        Args:
            read: the share coordinator's response.
            reset_offset: start if none is persisted (`share.auto.offset.reset`).
        Returns:
            Dead letters to send again.
        Raises:
            UnloadableStateError: the share-partition has failed.
        Source: SharePartition.maybeInitialize.
        """
        self.status = Status.FAILED
        self.state_epoch = read.state_epoch
        start = reset_offset if read.start_offset == NO_START_OFFSET else read.start_offset
        self._reset(load_window(start, read.batches, self.release))
        self._window.advance_start()
        self.status = Status.ACTIVE
        if self.release.archiving != "resumed":
            return ()
        return pending_dead_letters(self._window, self.settings.delivery_count_limit)

    def acquire(self, fetch: Fetch, now_ms: int) -> tuple[AcquiredRecords, ...]:
        """Acquire fetched records for a member; nothing is persisted. Source: SharePartition.acquire."""
        if self.status is not Status.ACTIVE or not fetch.log_batches:
            return ()
        return Acquisition(self._window, self._locks, self.settings, self.release, fetch, now_ms).run()

    def withhold(
        self, acquired: Sequence[AcquiredRecords], offsets: Sequence[int]
    ) -> tuple[AcquiredRecords, ...]:
        """Archive acquired control records, in memory only; returns what is left for the member.

        Source: KIP-932 draft: control records are not returned to consumers.
        """
        left = []
        for first, last, count in acquired:
            control_offsets = [offset for offset in offsets if first <= offset <= last]
            for offset in control_offsets:
                self._window.archive(offset, offset, DeliveryState.ACQUIRED, self._locks.next_lock_seq())
            ends = pairwise([first - 1, *control_offsets, last + 1])
            left += [AcquiredRecords(low + 1, high - 1, count) for low, high in ends if low + 1 < high]
        return tuple(left)

    def acknowledge(
        self,
        member: str,
        batches: Sequence[AckBatch],
        now_ms: int,
        *,
        is_renew_ack: bool = False,
        version: int = RENEW_SINCE_VERSION,
    ) -> AcknowledgeResult:
        """Apply a member's acknowledgements: all of them, or after an error none but renewals.

        Args:
            batches: ascending.
            is_renew_ack: the request's IsRenewAck field.
            version: version of the request.
        Source: SharePartition.acknowledge; KIP-1222.
        """
        if self.status is not Status.ACTIVE:
            return AcknowledgeResult(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"share-partition is {self.status}")
        supported_version = version if self.release.renews else RENEW_SINCE_VERSION - 1
        if refusal := validate_ack_batches(batches, is_renew_ack=is_renew_ack, version=supported_version):
            return AcknowledgeResult(ErrorCode.INVALID_REQUEST, refusal)
        acknowledgement = Acknowledgement(self._window, self._locks, self.settings, member, now_ms)
        for batch in batches:
            if error := acknowledgement.apply(batch):
                self._transitions.revert(acknowledgement.runs, self.settings, now_ms)
                return error
        runs: ChangedRuns = acknowledgement.runs
        operation = self._transitions.build_operation(Trigger.ACKNOWLEDGE, runs, acknowledgement.reasons)
        return AcknowledgeResult(ErrorCode.NONE, operation=operation)

    def release_member(self, member: str) -> Operation | None:
        """Release the records of a member whose session ended; None if it holds none.

        Source: SharePartition.releaseAcquiredRecords.
        """
        if self.status is not Status.ACTIVE:
            return None
        release = LockRelease(self._window, self._transitions, self.settings)
        return release.release_member(member, decrements_count=self.release.leave_decrements_count)

    def expire_locks(self, now_ms: int) -> Operation | None:
        """Release the records with the earliest expired lock; call until it returns None.

        A lock has expired when `now_ms` is greater than its deadline.
        Source: SharePartition.releaseAcquisitionLockOnTimeout.
        """
        if self.status is not Status.ACTIVE:
            return None
        return LockRelease(self._window, self._transitions, self.settings).release_expired(
            self._locks.expired(now_ms)
        )

    def write_succeeded(self, pending: PendingWrite) -> tuple[DeadLetter, ...]:
        """Complete a durable write; returns the dead letters to send.

        Source: SharePartition.rollbackOrProcessStateUpdates.
        """
        self._transitions.commit(pending)
        return pending.dead_letters

    def write_failed(
        self, pending: PendingWrite, now_ms: int, error: ErrorCode = ErrorCode.KAFKA_STORAGE_ERROR
    ) -> tuple[DeadLetter, ...]:
        """Roll back a failed acknowledgement, or keep a failed lock timeout in memory.

        Args:
            now_ms: locks that expired meanwhile are not restored.
            error: a fencing error ends this leader.
        Returns:
            Dead letters to send regardless.
        Source: SharePartition.rollbackOrProcessStateUpdates; KIP-1191 for lock timeouts.
        """
        self._transitions.roll_back(pending, self.settings, now_ms)
        if error in FENCED:
            self.status = Status.FENCED
        return pending.dead_letters if pending.is_final else ()

    def dead_letter_answered(self, dead_letter: DeadLetter) -> Operation | None:
        """Archive records after the dead letter queue responded, successfully or not.

        Returns:
            The second of two writes, or None if the records are no longer ARCHIVING.
        Source: KIP-1191, second phase of archiving.
        """
        first, last, count, _ = dead_letter
        if not self._window.archive(first, last, DeliveryState.ARCHIVING):
            return None
        change = (StateBatch(first, last, DeliveryState.ARCHIVED, count),)
        return Operation(Trigger.DEAD_LETTER, change, (self._transitions.build_final_write(change),))

    def move_log_start(self, offset: int) -> None:
        """Follow the log start: archive available offsets before it, in memory only.

        Source: SharePartition.updateCacheAndOffsets.
        """
        if self.status is Status.ACTIVE and offset > self._window.start_offset:
            start = self._window.start_offset
            self._window.move_start(offset)
            if (gap := self._window.gap_start) is not None:
                # Kafka leaves the gap in place and keeps fetching offsets that the log no longer has.
                self._window.update_load_gap(max(gap, offset))
            self._window.archive(start, offset - 1, DeliveryState.AVAILABLE)

    def archive_hole(self, first: int, last: int) -> None:
        """Archive available offsets that compaction removed, in memory only.

        Source: SharePartition.maybeArchiveStaleBatches.
        """
        self._window.archive(first, last, DeliveryState.AVAILABLE)

    def archive_aborted(self, first: int, last: int) -> None:
        """Archive acquired records of an aborted transaction, in memory only.

        Source: SharePartition.maybeFilterAbortedTransactionalAcquiredRecords (share.isolation.level).
        """
        if self.settings.reads_committed:
            self._window.archive(first, last, DeliveryState.ACQUIRED, self._locks.next_lock_seq())


def _invalid_state(message: str) -> AcknowledgeResult:
    return AcknowledgeResult(ErrorCode.INVALID_RECORD_STATE, message)


class Acknowledgement:
    """Applies the acknowledgements of one request in order; the caller can revert `runs`.

    Source: Kafka SharePartition.acknowledge, acknowledgeBatchRecords.
    """

    def __init__(
        self, window: Window, locks: AcquisitionLocks, settings: PartitionSettings, member: str, now_ms: int
    ):
        self._window = window
        self._locks = locks
        self._settings = settings
        self._member = member
        self._deadline = now_ms + settings.record_lock_duration_ms
        self.runs: list[tuple[InFlightBatch, OffsetRun]] = []
        """Changed runs; their transitions are pending."""
        self.reasons: list[DeadLetterReason] = []
        """Per run: the reason if it goes to the dead letter queue."""

    def apply(self, request: AckBatch) -> AcknowledgeResult | None:
        """Apply one acknowledgement that passed `validate_ack_batches`; returns the error, if any."""
        if request.last_offset < self._window.start_offset:
            return None
        batches = self._batches(request)
        if isinstance(batches, AcknowledgeResult):
            return batches
        for batch in batches:
            if batch.last >= self._window.start_offset and (error := self._apply_to(batch, request)):
                return error
        return None

    def _batches(self, request: AckBatch) -> list[InFlightBatch] | AcknowledgeResult:
        """In-flight batches that the acknowledgement covers. Source: fetchSubMapForAcknowledgementBatch."""
        window = self._window
        i = window.floor_index(request.first_offset)
        if i < 0 and request.first_offset < window.start_offset <= request.last_offset:
            i = window.floor_index(window.start_offset)
        if i < 0:
            return _invalid_state(f"offsets {request.first_offset}-{request.last_offset} are not in flight")
        batches = window.between(window.batches[i].first, request.last_offset)
        if batches[-1].last < request.last_offset:
            return AcknowledgeResult(
                ErrorCode.INVALID_REQUEST,
                f"offsets {request.first_offset}-{request.last_offset} end after the last acquired offset,"
                f" {batches[-1].last}",
            )
        return batches

    def _apply_to(self, batch: InFlightBatch, request: AckBatch) -> AcknowledgeResult | None:
        first = max(request.first_offset, batch.first, self._window.start_offset)
        last = min(request.last_offset, batch.last)
        is_whole = first == batch.first and last == batch.last and len(request.types) == 1
        if is_whole and not batch.per_offset:
            return self._check_acquired(batch.runs[0]) or self._acknowledge(
                batch, batch.runs, AckSegment(first, last, AckType(request.types[0]))
            )
        if not batch.per_offset:
            if error := self._check_acquired(batch.runs[0]):
                return error
            batch.track_per_offset(self._locks.next_lock_seq())
        for segment in split_by_type(request, first, last):
            if error := self._acknowledge_allowed(batch, segment):
                return error
        return None

    def _acknowledge_allowed(self, batch: InFlightBatch, segment: AckSegment) -> AcknowledgeResult | None:
        """Acknowledge offsets up to the first invalid one; renewals before it stay in force."""
        begin, end, _ = segment
        error = None
        for run in batch.overlapping(begin, end):
            if error := self._check_acquired(run):
                end = run.first - 1
                break
        taken = self._acknowledge(batch, batch.split_out(begin, end), segment) if begin <= end else None
        return taken or error

    def _check_acquired(self, run: OffsetRun) -> AcknowledgeResult | None:
        if run.rollback_state is not None:
            return _invalid_state(f"offsets {run.first}-{run.last} have a pending change")
        if not run.is_acquired:
            return _invalid_state(f"offsets {run.first}-{run.last} are {run.state.name}, not ACQUIRED")
        if run.owner != self._member:
            return _invalid_state(f"offsets {run.first}-{run.last} are held by another member")
        return None

    def _acknowledge(
        self, batch: InFlightBatch, runs: list[OffsetRun], segment: AckSegment
    ) -> AcknowledgeResult | None:
        if segment.type is AckType.RENEW:
            if not self._settings.renews:
                return _invalid_state("the group does not allow renewals (share.renew.acknowledge.enable)")
            lock_seq = self._locks.next_lock_seq()
            for run in runs:
                run.deadline, run.lock_seq = self._deadline, lock_seq
            self._locks.schedule(batch, self._deadline)
            return None
        for run in runs:
            run.start_transition(self._settings.state_after(segment.type, run.count))
            self._window.count_terminal(run)
            self.runs.append((batch, run))
            is_reject = segment.type is AckType.REJECT
            self.reasons.append(DeadLetterReason.REJECTED if is_reject else DeadLetterReason.EXHAUSTED)
        return None
