"""Acquisition locks: acquiring fetched records for a member, and releasing locks that expire or whose member leaves."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from heapq import heappop, heappush
from typing import NamedTuple

from share_state.kafka.delivery_states import DeliveryState
from share_state.kafka.releases import Release
from share_state.simulator.durability import (
    ChangedRuns,
    DeadLetterReason,
    Operation,
    PendingWrite,
    StateTransitions,
    Trigger,
    build_dead_letters,
)
from share_state.simulator.settings import PartitionSettings
from share_state.simulator.types import StateBatch, merge_adjacent
from share_state.simulator.window import InFlightBatch, OffsetRun, Window


class AcquisitionLocks:
    """Deadlines of acquisition locks, looked up by batch; stale entries are skipped when due.

    Source: Kafka AcquisitionLockTimerTask.
    """

    def __init__(self) -> None:
        self._queue: list[tuple[int, int, InFlightBatch]] = []
        self._turn = 0

    @property
    def next_deadline(self) -> int | None:
        """No lock expires before this deadline has passed; None without locks."""
        return self._queue[0][0] if self._queue else None

    def next_lock_seq(self) -> int:
        """Sequence number for locks that are acquired now."""
        self._turn += 1
        return self._turn

    def schedule(self, batch: InFlightBatch, deadline: int) -> None:
        """Check the batch for expired locks after the deadline."""
        if batch.timer_deadline != deadline:
            batch.timer_deadline = deadline
            heappush(self._queue, (deadline, self.next_lock_seq(), batch))

    def expired(self, now_ms: int) -> list[tuple[InFlightBatch, OffsetRun]]:
        """Runs of the earliest deadline before `now_ms` whose lock expired, in order of acquisition."""
        queue = self._queue
        while queue and queue[0][0] < now_ms:
            deadline = queue[0][0]
            batches: dict[int, InFlightBatch] = {}
            while queue and queue[0][0] == deadline:
                batch = heappop(queue)[2]
                if batch.timer_deadline == deadline:
                    batch.timer_deadline = None
                batches[batch.first] = batch
            expired_runs = [
                (batch, run)
                for batch in batches.values()
                for run in batch.runs
                if run.is_acquired and run.deadline is not None and run.deadline <= deadline
            ]
            if expired_runs:
                return sorted(expired_runs, key=lambda one: (one[1].lock_seq, one[1].first))
        return []


NO_LIMIT = 2**31 - 1


class AcquireMode(IntEnum):
    """Whether a fetch acquires whole log batches or respects `max_records`.

    Source: Kafka org.apache.kafka.server.share.fetch.ShareAcquireMode; KIP-1206.
    """

    BATCH_OPTIMIZED = 0
    RECORD_LIMIT = 1


class AcquiredRecords(NamedTuple):
    """Adjacent offsets acquired with the same delivery count. Source: ShareFetchResponse AcquiredRecords."""

    first_offset: int
    last_offset: int
    delivery_count: int


class LogBatch(NamedTuple):
    """Offsets of one record batch of the log, both inclusive."""

    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """A member's fetch and the log batches read for it.

    Args:
        log_batches: ascending, at least one.
        fetch_offset: where the read began; available offsets before the first batch no longer exist.
        max_records: requested number of records.
        batch_size: minimum size of an in-flight batch, rounded up to log batches.
        mode: how `max_records` applies within a log batch.
    """

    member: str
    log_batches: Sequence[LogBatch]
    fetch_offset: int
    max_records: int = NO_LIMIT
    batch_size: int = NO_LIMIT
    mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED


class Acquisition:
    """Acquires the records of one fetch. Source: Kafka SharePartition.acquire."""

    def __init__(
        self,
        window: Window,
        locks: AcquisitionLocks,
        settings: PartitionSettings,
        release: Release,
        fetch: Fetch,
        now_ms: int,
    ):
        self._window = window
        self._locks = locks
        self._settings = settings
        self._fetch = fetch
        self._deadline = now_ms + settings.record_lock_duration_ms
        self._is_record_limited = release.limits_records and fetch.mode is AcquireMode.RECORD_LIMIT
        self._throttle_from = settings.throttle_from if release.throttles else NO_LIMIT
        self._acquired: list[AcquiredRecords] = []
        self._count = 0

    def run(self) -> tuple[AcquiredRecords, ...]:
        """Acquire; returns ascending ranges, equal neighbours within an in-flight batch merged."""
        window, fetch = self._window, self._fetch
        first, last = fetch.log_batches[0].first_offset, fetch.log_batches[-1].last_offset
        limit, last = (0, last) if last < window.start_offset else self._acquire_limit(last)
        if limit <= 0:
            return ()
        if fetch.fetch_offset < first:
            window.archive(fetch.fetch_offset, first - 1, DeliveryState.AVAILABLE)
        base = self._base_offset(first)
        if min(first, base) > last:
            # The window is full and the available offsets no longer exist in the log: Kafka's fetch fails
            # too.
            return ()
        batches = window.between(min(first, base), last)
        if not batches:
            self._acquire_new(base, last, limit)
            return tuple(self._acquired)
        if self._reacquire(batches, base, first, last, limit) and batches[-1].last < last:
            self._acquire_new(batches[-1].last + 1, last, limit - self._count)
        if self._acquired:
            window.update_load_gap(self._acquired[-1].last_offset + 1)
        return tuple(self._acquired)

    def _acquire_limit(self, last: int) -> tuple[int, int]:
        """Maximum number of records and last offset. Source: lastOffsetAndMaxRecordsToAcquire."""
        window, max_records = self._window, self._fetch.max_records
        remaining = min(max_records, self._settings.max_record_locks - window.in_flight_count)
        if remaining > 0 or self._fetch.fetch_offset > window.end_offset:
            return remaining, last
        # A full window still redelivers its available offsets.
        return min(max_records, window.end_offset - self._fetch.fetch_offset + 1), min(
            last, window.end_offset
        )

    def _base_offset(self, first: int) -> int:
        window = self._window
        i = window.floor_index(first)
        if i < 0:
            return max(first, window.start_offset)
        floor_index = window.batches[i]
        return floor_index.first if floor_index.last >= first else first

    def _reacquire(self, batches: list[InFlightBatch], base: int, first: int, last: int, limit: int) -> bool:
        """Acquire available offsets of in-flight batches and load gaps; returns whether more may follow."""
        window, gap_from = self._window, base
        for batch in batches:
            if self._count >= limit:
                return False
            if window.gap_start is not None:
                if gap_from < batch.first:
                    self._acquire_new(gap_from, batch.first - 1, limit - self._count)
                gap_from = batch.last + 1
                if self._count >= limit:
                    return False
            throttled = self._is_throttled(batch, first, last)
            if throttled and self._count:
                return False
            remaining = limit - self._count
            is_whole = first <= batch.first and batch.last <= last
            is_cut = self._is_record_limited and batch.last - batch.first + 1 > remaining
            if batch.per_offset or throttled or is_cut or not is_whole:
                before = self._count
                self._acquire_part(batch, first, last, remaining if self._is_record_limited else NO_LIMIT)
                if throttled and self._count > before:
                    return False
            elif batch.runs[0].is_available:
                self._lock(batch, batch.runs[0], self._locks.next_lock_seq())
        return self._count < limit

    def _is_throttled(self, batch: InFlightBatch, first: int, last: int) -> bool:
        """True if an available offset nears the delivery count limit.

        Source: shouldThrottleRecordsDelivery.
        """
        return any(
            run.is_available and run.count >= self._throttle_from for run in batch.overlapping(first, last)
        )

    def _acquire_part(self, batch: InFlightBatch, first: int, last: int, limit: int) -> None:
        """Acquire the available offsets of a batch within a range. Source: acquireSubsetBatchRecords."""
        available = [run for run in batch.overlapping(first, last) if run.is_available]
        if available:
            batch.per_offset = True
        limit_of_deliveries = self._settings.delivery_count_limit
        count, lock_seq = 0, self._locks.next_lock_seq()
        for run in available:
            is_last_delivery = limit_of_deliveries > 2 and run.count == limit_of_deliveries - 1
            if is_last_delivery:
                limit = 1
            elif run.count >= self._throttle_from:
                size = batch.last - batch.first + 1
                limit = min(limit, max(1, size >> (run.count - self._throttle_from + 1)))
            low = max(first, run.first)
            high = min(last, run.last, low + limit - count - 1)
            if high < low:
                break
            for part in batch.split_out(low, high):
                self._lock(batch, part, lock_seq)
            count += high - low + 1
        batch.merge_runs()

    def _acquire_new(self, first: int, last: int, limit: int) -> None:
        """Acquire offsets that were never in flight. Source: acquireNewBatchRecords."""
        window = self._window
        if limit < last - first + 1:
            aligned = self._log_batch_end(first + limit - 1)
            last = min(aligned, last) if window.gap_start is not None else aligned
        is_foremost = not window.batches or first < window.batches[0].first
        remaining = limit
        for low, high in self._split_at_log_batches(first, last):
            size = min(high - low + 1, remaining) if self._is_record_limited else high - low + 1
            runs = [OffsetRun(low, low + size - 1, DeliveryState.AVAILABLE, 0)]
            if low + size <= high:
                runs.append(OffsetRun(low + size, high, DeliveryState.AVAILABLE, 0))
                window.mark_available_from(low + size)
            batch = InFlightBatch(runs, per_offset=low + size <= high)
            window.insert(batch)
            self._lock(batch, runs[0], self._locks.next_lock_seq())
            remaining -= size
        if is_foremost:
            window.move_start(first)
        window.update_load_gap((min(last, first + limit - 1) if self._is_record_limited else last) + 1)

    def _log_batch_end(self, offset: int) -> int:
        """Last offset of the log batch that contains the offset, or the offset itself."""
        for batch in self._fetch.log_batches:
            if batch.first_offset <= offset <= batch.last_offset:
                return batch.last_offset
        return offset

    def _split_at_log_batches(self, first: int, last: int) -> list[LogBatch]:
        """Ranges of at least `batch_size` offsets, starting at log batches. Source: createBatches."""
        size = self._fetch.batch_size
        if self._is_record_limited or last - first + 1 <= size:
            return [LogBatch(first, last)]
        cut, begin = [], first
        for batch in self._fetch.log_batches:
            if batch.first_offset > last:
                break
            if batch.first_offset - begin >= size:
                cut.append(LogBatch(begin, batch.first_offset - 1))
                begin = batch.first_offset
        cut.append(LogBatch(begin, last))
        return cut

    def _lock(self, batch: InFlightBatch, run: OffsetRun, lock_seq: int) -> None:
        run.lock(self._fetch.member, self._deadline, lock_seq)
        self._locks.schedule(batch, self._deadline)
        last = self._acquired[-1] if self._acquired else None
        if last and last.delivery_count == run.count and last.last_offset + 1 == run.first > batch.first:
            self._acquired[-1] = last._replace(last_offset=run.last)
        else:
            self._acquired.append(AcquiredRecords(run.first, run.last, run.count))
        self._count += run.last - run.first + 1


class LockRelease:
    """Releases acquired records that were not acknowledged.

    Source: Kafka SharePartition.releaseAcquisitionLockOnTimeout, releaseAcquiredRecords.
    """

    def __init__(self, window: Window, transitions: StateTransitions, settings: PartitionSettings):
        self._window = window
        self._transitions = transitions
        self._settings = settings

    def release_member(self, member: str, *, decrements_count: bool) -> Operation | None:
        """Release all records that a member holds, in one write."""
        decrement = 1 if decrements_count else 0
        changed: ChangedRuns = []
        for batch in self._window.batches:
            acquired = [run for run in batch.runs if run.owner == member and run.is_acquired]
            for part in self._split_at_start(batch, acquired):
                part.start_transition(self._state_of(part, part.count - decrement))
                if part.state is DeliveryState.AVAILABLE:
                    part.count -= decrement
                self._window.count_terminal(part)
                changed.append((batch, part))
        return self._transitions.build_operation(
            Trigger.MEMBER_LEAVE, changed, [DeadLetterReason.EXHAUSTED] * len(changed)
        )

    def release_expired(self, expired: Sequence[tuple[InFlightBatch, OffsetRun]]) -> Operation | None:
        """Release expired runs: one write per batch, or per offset if the batch is tracked per offset."""
        changed: list[StateBatch] = []
        writes: list[PendingWrite] = []
        for batch, run in expired:
            per_offset = batch.per_offset
            parts = self._split_at_start(batch, [run])
            for part in parts:
                part.transition_to(self._state_of(part, part.count))
                if part.state is DeliveryState.AVAILABLE:
                    self._window.mark_available_from(part.first)
            changed += [part.batch for part in parts]
            written = [[one] for part in parts for one in _offsets(part)] if per_offset else [parts]
            writes += [self._write(batch, runs) for runs in written]
        for batch, _ in expired:
            batch.merge_runs()
        return (
            Operation(Trigger.LOCK_TIMEOUT, merge_adjacent(sorted(changed)), tuple(writes))
            if writes
            else None
        )

    def _write(self, batch: InFlightBatch, parts: list[OffsetRun]) -> PendingWrite:
        for part in parts:
            self._window.count_terminal(part)
        dead_letters = build_dead_letters(
            [(batch, part) for part in parts], [DeadLetterReason.EXHAUSTED] * len(parts)
        )
        return self._transitions.build_final_write(tuple(part.batch for part in parts), dead_letters)

    def _split_at_start(self, batch: InFlightBatch, runs: list[OffsetRun]) -> list[OffsetRun]:
        """Split runs at the start offset: offsets before it are archived."""
        start = self._window.start_offset
        parts: list[OffsetRun] = []
        for run in runs:
            first, last = run.first, run.last
            if first < start <= last:
                batch.per_offset = True
                parts += batch.split_out(first, start - 1) + batch.split_out(start, last)
            else:
                parts.append(run)
        return parts

    def _state_of(self, run: OffsetRun, count: int) -> DeliveryState:
        if run.last < self._window.start_offset:
            return DeliveryState.ARCHIVED
        return self._settings.state_after_release(count)


def _offsets(run: OffsetRun) -> Iterator[OffsetRun]:
    """Each offset of a run as a run."""
    return (replace(run, first=offset, last=offset) for offset in range(run.first, run.last + 1))
