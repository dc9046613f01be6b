"""Applies the acknowledgements of one request to in-flight records."""

from collections.abc import Iterator
from typing import NamedTuple

from share_state.simulator.acquisition import AcquisitionLocks
from share_state.simulator.durability import DeadLetterReason
from share_state.simulator.settings import AckBatch, AckSegment, AckType, PartitionSettings, split_by_type
from share_state.simulator.types import ErrorCode
from share_state.simulator.window import InFlightBatch, OffsetRun, Window


class AckError(NamedTuple):
    """Why an acknowledgement is rejected."""

    code: ErrorCode
    message: str


def _invalid_state(message: str) -> AckError:
    return AckError(ErrorCode.INVALID_RECORD_STATE, message)


class Acknowledgement:
    """Applies the acknowledgements of one request in order; the caller can revert `runs`.

    Source: Kafka SharePartition.acknowledge, acknowledgeBatchRecords.
    """

    def __init__(self, window: Window, locks: AcquisitionLocks, settings: PartitionSettings, member: str, now_ms: int):
        self._window = window
        self._locks = locks
        self._settings = settings
        self._member = member
        self._deadline = now_ms + settings.record_lock_duration_ms
        self.runs: list[tuple[InFlightBatch, OffsetRun]] = []
        """Changed runs; their transitions are pending."""
        self.reasons: list[DeadLetterReason] = []
        """Per run: the reason if it goes to the dead letter queue."""

    def apply(self, request: AckBatch) -> AckError | None:
        """Apply one acknowledgement that passed `validate_ack_batches`; returns the error, if any."""
        if request.last_offset < self._window.start_offset:
            return None
        batches = self._batches(request)
        if isinstance(batches, AckError):
            return batches
        for batch in batches:
            if batch.last >= self._window.start_offset and (error := self._apply_to(batch, request)):
                return error
        return None

    def _batches(self, request: AckBatch) -> list[InFlightBatch] | AckError:
        """In-flight batches that the acknowledgement covers. Source: fetchSubMapForAcknowledgementBatch."""
        window = self._window
        i = window.floor_index(request.first_offset)
        if i < 0 and request.first_offset < window.start_offset <= request.last_offset:
            i = window.floor_index(window.start_offset)
        if i < 0:
            return _invalid_state(f"offsets {request.first_offset}-{request.last_offset} are not in flight")
        batches = window.between(window.batches[i].first, request.last_offset)
        if batches[-1].last < request.last_offset:
            return AckError(
                ErrorCode.INVALID_REQUEST,
                f"offsets {request.first_offset}-{request.last_offset} end after the last acquired offset,"
                f" {batches[-1].last}",
            )
        return batches

    def _apply_to(self, batch: InFlightBatch, request: AckBatch) -> AckError | None:
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
        for segment in _clip_segments(request, first, last):
            if error := self._acknowledge_allowed(batch, segment):
                return error
        return None

    def _acknowledge_allowed(self, batch: InFlightBatch, segment: AckSegment) -> AckError | None:
        """Acknowledge offsets up to the first invalid one; renewals before it stay in force."""
        begin, end, _ = segment
        error = None
        for run in batch.overlapping(begin, end):
            if error := self._check_acquired(run):
                end = run.first - 1
                break
        taken = self._acknowledge(batch, batch.split_out(begin, end), segment) if begin <= end else None
        return taken or error

    def _check_acquired(self, run: OffsetRun) -> AckError | None:
        if run.rollback_state is not None:
            return _invalid_state(f"offsets {run.first}-{run.last} have a pending change")
        if not run.is_acquired:
            return _invalid_state(f"offsets {run.first}-{run.last} are {run.state.name}, not ACQUIRED")
        if run.owner != self._member:
            return _invalid_state(f"offsets {run.first}-{run.last} are held by another member")
        return None

    def _acknowledge(self, batch: InFlightBatch, runs: list[OffsetRun], segment: AckSegment) -> AckError | None:
        if segment.type is AckType.RENEW:
            if not self._settings.renews:
                return _invalid_state("locks may not be renewed here (share.renew.acknowledge.enable)")
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


def _clip_segments(request: AckBatch, first: int, last: int) -> Iterator[AckSegment]:
    """The parts of an acknowledgement within [first, last], each of one type."""
    for segment in split_by_type(request):
        if segment.first_offset > last:
            return
        if segment.last_offset >= first:
            yield AckSegment(max(segment.first_offset, first), min(segment.last_offset, last), segment.type)
