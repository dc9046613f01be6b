"""When acquisition locks run out."""

from heapq import heappop, heappush

from share_state.partition.in_flight import InFlightBatch, Run


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
