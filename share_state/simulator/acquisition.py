"""When acquisition locks run out.

Handing fetched records to a member: which offsets, in which batches, how many at once.

Locks that end without an acknowledgement: they run out, or their member leaves.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from heapq import heappop, heappush
from typing import NamedTuple

from share_state.simulator.durability import (
    Changed,
    Changes,
    DeadLetter,
    DeadLetterReason,
    Operation,
    PendingWrite,
    Trigger,
    dead_letters_of,
    joined,
)
from share_state.simulator.settings import PartitionSettings
from share_state.simulator.types import DeliveryState, Release, StateBatch
from share_state.simulator.window import TERMINAL, InFlightBatch, Run, Window


class AcquisitionLocks:
    """Deadlines of the locks that members hold, looked up by batch when they pass.

    A deadline that was moved or whose lock has ended stays in the queue and finds nothing when it is due.

    Source: Kafka AcquisitionLockTimerTask and the broker's timer.
    """

    __slots__ = ("_queue", "_turn")

    def __init__(self) -> None:
        self._queue: list[tuple[int, int, InFlightBatch]] = []
        self._turn = 0

    @property
    def next_deadline(self) -> int | None:
        """No lock runs out before this one is passed, None where none is watched."""
        return self._queue[0][0] if self._queue else None

    def next_turn(self) -> int:
        """A turn for locks that are set up now, after all others."""
        self._turn += 1
        return self._turn

    def watch(self, batch: InFlightBatch, deadline: int) -> None:
        """Look at the batch once the deadline has passed."""
        if batch.watched != deadline:
            batch.watched = deadline
            heappush(self._queue, (deadline, self.next_turn(), batch))

    def expired(self, now_ms: int) -> list[tuple[InFlightBatch, Run]]:
        """The locks of the earliest deadline before now that some member still holds.

        Args:
            now_ms: the time; a lock runs out when it is greater than the deadline.
        Returns:
            Runs whose lock has run out, each with its batch, in the order their locks were set up.
        """
        queue = self._queue
        while queue and queue[0][0] < now_ms:
            deadline = queue[0][0]
            batches: dict[int, InFlightBatch] = {}
            while queue and queue[0][0] == deadline:
                batch = heappop(queue)[2]
                if batch.watched == deadline:
                    batch.watched = None
                batches[batch.first] = batch
            found = [
                (batch, run)
                for batch in batches.values()
                for run in batch.runs
                if run.is_held and run.deadline is not None and run.deadline <= deadline
            ]
            if found:
                return sorted(found, key=_order)
        return []


def _order(expired: tuple[InFlightBatch, Run]) -> tuple[int, int]:
    return expired[1].turn, expired[1].first


NO_LIMIT = 2**31 - 1


class AcquireMode(IntEnum):
    """Whether a fetch may hand out whole log batches, or keeps to the number of records asked for.

    Source: Kafka org.apache.kafka.server.share.fetch.ShareAcquireMode; KIP-1206.
    """

    BATCH_OPTIMIZED = 0
    RECORD_LIMIT = 1


class AcquiredRecords(NamedTuple):
    """Neighbouring offsets handed to a member at one delivery count. Source: ShareFetchResponse AcquiredRecords."""

    first_offset: int
    last_offset: int
    delivery_count: int


class LogBatch(NamedTuple):
    """The offsets of one record batch of the log, both inclusive."""

    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """What a member asks for, and what the log gave.

    Args:
        member: who asks.
        log_batches: what was read, ascending, at least one.
        fetch_offset: where the log was read from; what could be delivered before the first batch is no longer there.
        max_records: how many records the member wants.
        batch_size: how many records a batch in flight should hold, rounded up to log batches.
        mode: what `max_records` means where it cuts a log batch.
    """

    member: str
    log_batches: Sequence[LogBatch]
    fetch_offset: int
    max_records: int = NO_LIMIT
    batch_size: int = NO_LIMIT
    mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED


class Acquisition:
    """One fetch being handed out.

    Args:
        window: of the share-partition.
        locks: where the deadlines are watched.
        settings: limits in force.
        release: what the broker can do.
        fetch: who asks for what.
        now_ms: the time.
    Source: Kafka SharePartition.acquire.
    """

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
        self._keeps_to_limit = release.limits_records and fetch.mode is AcquireMode.RECORD_LIMIT
        self._throttle_from = settings.throttle_from if release.throttles else NO_LIMIT
        self._acquired: list[AcquiredRecords] = []
        self._count = 0

    def run(self) -> tuple[AcquiredRecords, ...]:
        """Hand out what may be handed out.

        Returns:
            Ascending; equal neighbours within one batch in flight are one entry.
        """
        window, fetch = self._window, self._fetch
        first, last = fetch.log_batches[0].first_offset, fetch.log_batches[-1].last_offset
        limit, last = (0, last) if last < window.start_offset else self._room(last)
        if limit <= 0:
            return ()
        if fetch.fetch_offset < first:
            window.archive(fetch.fetch_offset, first - 1, DeliveryState.AVAILABLE)
        base = self._base(first)
        if min(first, base) > last:
            # A full window, and what could be delivered again is no longer there: Kafka's fetch fails on it.
            return ()
        batches = window.between(min(first, base), last)
        if not batches:
            self._acquire_new(base, last, limit)
            return tuple(self._acquired)
        if self._acquire_again(batches, base, first, last, limit) and batches[-1].last < last:
            self._acquire_new(batches[-1].last + 1, last, limit - self._count)
        if self._acquired:
            window.fetched_up_to(self._acquired[-1].last_offset + 1)
        return tuple(self._acquired)

    def _room(self, last: int) -> tuple[int, int]:
        """How many records may be acquired, and up to where. Source: lastOffsetAndMaxRecordsToAcquire."""
        window, wanted = self._window, self._fetch.max_records
        room = min(wanted, self._settings.max_record_locks - window.in_flight)
        if room > 0 or self._fetch.fetch_offset > window.end_offset:
            return room, last
        # A full window still delivers again what was in it before.
        return min(wanted, window.end_offset - self._fetch.fetch_offset + 1), min(last, window.end_offset)

    def _base(self, first: int) -> int:
        window = self._window
        i = window.floor(first)
        if i < 0:
            return max(first, window.start_offset)
        floor = window.batches[i]
        return floor.first if floor.last >= first else first

    def _acquire_again(self, batches: list[InFlightBatch], base: int, first: int, last: int, limit: int) -> bool:
        """Acquire what is free in batches in flight, and the load gaps between them; whether more may follow."""
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
            is_cut = self._keeps_to_limit and batch.last - batch.first + 1 > remaining
            if batch.by_offset or throttled or is_cut or not is_whole:
                before = self._count
                self._acquire_part(batch, first, last, remaining if self._keeps_to_limit else NO_LIMIT)
                if throttled and self._count > before:
                    return False
            elif batch.runs[0].is_free:
                self._lock(batch, batch.runs[0], self._locks.next_turn())
        return self._count < limit

    def _is_throttled(self, batch: InFlightBatch, first: int, last: int) -> bool:
        """Whether something free in the range nears the delivery count limit. Source: shouldThrottleRecordsDelivery."""
        return any(run.is_free and run.count >= self._throttle_from for run in batch.overlapping(first, last))

    def _acquire_part(self, batch: InFlightBatch, first: int, last: int, limit: int) -> None:
        """Acquire the free offsets of a batch in a range. Source: acquireSubsetBatchRecords."""
        free = [run for run in batch.overlapping(first, last) if run.is_free]
        if free:
            batch.by_offset = True
        limit_of_deliveries = self._settings.delivery_count_limit
        taken, turn = 0, self._locks.next_turn()
        for run in free:
            is_last_delivery = limit_of_deliveries > 2 and run.count == limit_of_deliveries - 1
            if is_last_delivery:
                limit = 1
            elif run.count >= self._throttle_from:
                size = batch.last - batch.first + 1
                limit = min(limit, max(1, size >> (run.count - self._throttle_from + 1)))
            low = max(first, run.first)
            high = min(last, run.last, low + limit - taken - 1)
            if high < low:
                break
            for part in batch.carve(low, high):
                self._lock(batch, part, turn)
            taken += high - low + 1
        batch.join()

    def _acquire_new(self, first: int, last: int, limit: int) -> None:
        """Put offsets in flight that never were. Source: acquireNewBatchRecords."""
        window = self._window
        if limit < last - first + 1:
            aligned = self._log_batch_end(first + limit - 1)
            last = min(aligned, last) if window.gap_start is not None else aligned
        is_foremost = not window.batches or first < window.batches[0].first
        room = limit
        for low, high in self._cut_at_log_batches(first, last):
            size = min(high - low + 1, room) if self._keeps_to_limit else high - low + 1
            runs = [Run(low, low + size - 1, DeliveryState.AVAILABLE, 0)]
            if low + size <= high:
                runs.append(Run(low + size, high, DeliveryState.AVAILABLE, 0))
                window.freed(low + size)
            batch = InFlightBatch(runs, by_offset=low + size <= high)
            window.insert(batch)
            self._lock(batch, runs[0], self._locks.next_turn())
            room -= size
        if is_foremost:
            window.move_start(first)
        window.fetched_up_to((min(last, first + limit - 1) if self._keeps_to_limit else last) + 1)

    def _log_batch_end(self, offset: int) -> int:
        """Where the log batch that holds the offset ends; the offset itself where none holds it."""
        for batch in self._fetch.log_batches:
            if batch.first_offset <= offset <= batch.last_offset:
                return batch.last_offset
        return offset

    def _cut_at_log_batches(self, first: int, last: int) -> list[LogBatch]:
        """Ranges of at least `batch_size` offsets that begin where log batches do. Source: createBatches."""
        size = self._fetch.batch_size
        if self._keeps_to_limit or last - first + 1 <= size:
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

    def _lock(self, batch: InFlightBatch, run: Run, turn: int) -> None:
        run.lock(self._fetch.member, self._deadline, turn)
        self._locks.watch(batch, self._deadline)
        acquired = self._acquired
        if (
            acquired
            and acquired[-1].delivery_count == run.count
            and acquired[-1].last_offset + 1 == run.first > batch.first
        ):
            acquired[-1] = AcquiredRecords(acquired[-1].first_offset, run.last, run.count)
        else:
            acquired.append(AcquiredRecords(run.first, run.last, run.count))
        self._count += run.last - run.first + 1


class Lapse:
    """Takes records back from members that did not say what became of them.

    Args:
        window: of the share-partition.
        changes: where the writes are made.
        settings: limits in force.
    Source: Kafka SharePartition.releaseAcquisitionLockOnTimeout, releaseAcquiredRecords.
    """

    __slots__ = ("_changes", "_settings", "_window")

    def __init__(self, window: Window, changes: Changes, settings: PartitionSettings):
        self._window = window
        self._changes = changes
        self._settings = settings

    def of_member(self, member: str, *, lowers_count: bool) -> Operation | None:
        """Take back everything a member holds, in one write.

        Args:
            member: who left.
            lowers_count: whether its deliveries do not count.
        """
        lowered = 1 if lowers_count else 0
        changed: Changed = []
        for batch in self._window.batches:
            held = [run for run in batch.runs if run.owner == member and run.is_held]
            for part in self._cut_at_start(batch, held):
                part.become_tentatively(self._state_of(part, part.count - lowered))
                if part.state is DeliveryState.AVAILABLE:
                    part.count -= lowered
                self._window.completes(part)
                changed.append((batch, part))
        return self._changes.tentative(Trigger.MEMBER_LEAVE, changed, [DeadLetterReason.EXHAUSTED] * len(changed))

    def of_locks(self, expired: Sequence[tuple[InFlightBatch, Run]]) -> Operation | None:
        """Take back runs whose lock ran out: one write a batch, or one an offset where it is tracked so.

        Args:
            expired: the runs in question, each with its batch, in the order that the writes come in.
        """
        changed: list[StateBatch] = []
        writes: list[PendingWrite] = []
        for batch, run in expired:
            by_offset = batch.by_offset
            parts = self._cut_at_start(batch, [run])
            for part in parts:
                part.become(self._state_of(part, part.count))
                if part.state is DeliveryState.AVAILABLE:
                    self._window.freed(part.first)
            writes += self._by_offset(parts) if by_offset else [self._at_once(batch, parts)]
            changed += _state_batches(parts)
        for batch, _ in expired:
            batch.join()
        return Operation(Trigger.LOCK_TIMEOUT, joined(sorted(changed)), tuple(writes)) if writes else None

    def _at_once(self, batch: InFlightBatch, parts: list[Run]) -> PendingWrite:
        for part in parts:
            self._window.completes(part)
        letters = dead_letters_of([(batch, part) for part in parts], [DeadLetterReason.EXHAUSTED] * len(parts))
        return self._changes.final(tuple(_state_batches(parts)), letters)

    def _by_offset(self, parts: list[Run]) -> list[PendingWrite]:
        writes = []
        for part in parts:
            for offset in range(part.first, part.last + 1):
                if part.state in TERMINAL and offset >= self._window.start_offset:
                    self._window.completed += 1
                letters = ()
                if part.state is DeliveryState.ARCHIVING:
                    letters = (DeadLetter(offset, offset, part.count, DeadLetterReason.EXHAUSTED),)
                writes.append(self._changes.final((StateBatch(offset, offset, part.state, part.count),), letters))
        return writes

    def _cut_at_start(self, batch: InFlightBatch, runs: list[Run]) -> list[Run]:
        """The runs, cut where the start lies within one: what is before it ends, whatever the rest may do."""
        start = self._window.start_offset
        parts: list[Run] = []
        for run in runs:
            first, last = run.first, run.last
            if first < start <= last:
                batch.by_offset = True
                parts += batch.carve(first, start - 1) + batch.carve(start, last)
            else:
                parts.append(run)
        return parts

    def _state_of(self, run: Run, count: int) -> DeliveryState:
        if run.last < self._window.start_offset:
            return DeliveryState.ARCHIVED
        return self._settings.state_after_release(count)


def _state_batches(runs: list[Run]) -> list[StateBatch]:
    return [StateBatch(run.first, run.last, run.state, run.count) for run in runs]
