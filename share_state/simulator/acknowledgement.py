"""One request's acknowledgements applied to the records in flight."""

from collections.abc import Iterator
from typing import NamedTuple

from share_state.simulator.acquisition import AcquisitionLocks
from share_state.simulator.durability import DeadLetterReason
from share_state.simulator.settings import AckBatch, AckSegment, AckType, PartitionSettings, segments
from share_state.simulator.types import ErrorCode
from share_state.simulator.window import InFlightBatch, Run, Window


class Refusal(NamedTuple):
    """Why an acknowledgement does not hold."""

    code: ErrorCode
    message: str


def _state(message: str) -> Refusal:
    return Refusal(ErrorCode.INVALID_RECORD_STATE, message)


class Acknowledgement:
    """The acknowledgements of one request, taken in order; what they change can be taken back.

    Args:
        window: of the share-partition.
        locks: where renewed deadlines are watched.
        settings: limits in force.
        member: who acknowledges.
        now_ms: the time.
    Source: Kafka SharePartition.acknowledge, acknowledgeBatchRecords.
    """

    def __init__(self, window: Window, locks: AcquisitionLocks, settings: PartitionSettings, member: str, now_ms: int):
        self._window = window
        self._locks = locks
        self._settings = settings
        self._member = member
        self._deadline = now_ms + settings.record_lock_duration_ms
        self.runs: list[tuple[InFlightBatch, Run]] = []
        """What has changed so far, tentatively."""
        self.reasons: list[DeadLetterReason] = []
        """One a run: why it goes to the dead letter queue, should it."""

    def apply(self, request: AckBatch) -> Refusal | None:
        """Apply one acknowledgement.

        Args:
            request: checked by `complaint`.
        Returns:
            Why it does not hold, None where it does.
        """
        if request.last_offset < self._window.start_offset:
            return None
        batches = self._batches(request)
        if isinstance(batches, Refusal):
            return batches
        for batch in batches:
            if batch.last >= self._window.start_offset and (refusal := self._apply_to(batch, request)):
                return refusal
        return None

    def _batches(self, request: AckBatch) -> list[InFlightBatch] | Refusal:
        """The batches in flight an acknowledgement speaks of. Source: fetchSubMapForAcknowledgementBatch."""
        window = self._window
        i = window.floor(request.first_offset)
        if i < 0 and request.first_offset < window.start_offset <= request.last_offset:
            i = window.floor(window.start_offset)
        if i < 0:
            return _state(f"offsets {request.first_offset}-{request.last_offset} are not in flight")
        batches = window.between(window.batches[i].first, request.last_offset)
        if batches[-1].last < request.last_offset:
            return Refusal(
                ErrorCode.INVALID_REQUEST,
                f"offsets {request.first_offset}-{request.last_offset} end past what was acquired, {batches[-1].last}",
            )
        return batches

    def _apply_to(self, batch: InFlightBatch, request: AckBatch) -> Refusal | None:
        first = max(request.first_offset, batch.first, self._window.start_offset)
        last = min(request.last_offset, batch.last)
        is_whole = first == batch.first and last == batch.last and len(request.types) == 1
        if is_whole and not batch.by_offset:
            return self._refused(batch.runs[0]) or self._take(
                batch, batch.runs, AckSegment(first, last, AckType(request.types[0]))
            )
        if not batch.by_offset:
            if refusal := self._refused(batch.runs[0]):
                return refusal
            batch.split(self._locks.next_turn())
        for segment in _within(request, first, last):
            if refusal := self._take_up_to_refused(batch, segment):
                return refusal
        return None

    def _take_up_to_refused(self, batch: InFlightBatch, segment: AckSegment) -> Refusal | None:
        """Take offsets in order up to the first that may not be: what was renewed before it stays renewed."""
        begin, end, _ = segment
        refusal = None
        for run in batch.overlapping(begin, end):
            if refusal := self._refused(run):
                end = run.first - 1
                break
        taken = self._take(batch, batch.carve(begin, end), segment) if begin <= end else None
        return taken or refusal

    def _refused(self, run: Run) -> Refusal | None:
        if run.before is not None:
            return _state(f"offsets {run.first}-{run.last} have a change under way")
        if not run.is_held:
            return _state(f"offsets {run.first}-{run.last} are {run.state.name}, not ACQUIRED")
        if run.owner != self._member:
            return _state(f"offsets {run.first}-{run.last} are held by another member")
        return None

    def _take(self, batch: InFlightBatch, runs: list[Run], segment: AckSegment) -> Refusal | None:
        if segment.type is AckType.RENEW:
            if not self._settings.renews:
                return _state("locks may not be renewed here (share.renew.acknowledge.enable)")
            turn = self._locks.next_turn()
            for run in runs:
                run.deadline, run.turn = self._deadline, turn
            self._locks.watch(batch, self._deadline)
            return None
        for run in runs:
            run.become_tentatively(self._settings.state_after(segment.type, run.count))
            self._window.completes(run)
            self.runs.append((batch, run))
            is_reject = segment.type is AckType.REJECT
            self.reasons.append(DeadLetterReason.REJECTED if is_reject else DeadLetterReason.EXHAUSTED)
        return None


def _within(request: AckBatch, first: int, last: int) -> Iterator[AckSegment]:
    """The parts of an acknowledgement that lie in a range, each of one type."""
    for segment in segments(request):
        if segment.first_offset > last:
            return
        if segment.last_offset >= first:
            yield AckSegment(max(segment.first_offset, first), min(segment.last_offset, last), segment.type)
