"""From recorded batches to a window, as a new leader builds it."""

from collections.abc import Iterable

from share_state.errors import ShareStateError
from share_state.partition.in_flight import InFlightBatch, Run
from share_state.partition.operations import DeadLetter, DeadLetterReason
from share_state.partition.releases import Release
from share_state.partition.window import LoadGap, Window
from share_state.partition.writes import DeliveryState, StateBatch


class UnloadableStateError(ShareStateError):
    """Raised when no share-partition can be built from what was recorded."""


def loaded_window(start_offset: int, batches: Iterable[StateBatch], release: Release) -> Window:
    """The window that recorded batches make.

    Args:
        start_offset: the start, known.
        batches: as recorded.
        release: of the broker that loads them.
    Returns:
        Start not yet moved past what has ended.
    Raises:
        UnloadableStateError: a batch before the start, inverted, across another, or in an unknown state.
    Source: Kafka SharePartition.maybeInitialize.
    """
    by_first = {}
    previous, gap = start_offset - 1, None
    for batch in batches:
        _check(batch, start_offset, release)
        if gap is None and batch.first_offset > previous + 1:
            gap = previous + 1
        previous = batch.last_offset
        by_first[batch.first_offset] = batch
    window = Window(start_offset)
    for first in sorted(by_first):
        _, last, state, count = by_first[first]
        if window.batches and window.batches[-1].last >= first:
            raise UnloadableStateError(
                f"recorded batch {first}-{last}: begins before the one ahead of it ends, at {window.batches[-1].last}; "
                "two states of one offset cannot be held"
            )
        run = Run(first, last, DeliveryState(state), count)
        window.insert(InFlightBatch([run]))
        window.completes(run)
    if window.batches:
        window.freed(start_offset)
        if gap is not None and release.fetches_load_gaps:
            window.load_gap = LoadGap(gap, window.end_offset)
    return window


def _check(batch: StateBatch, start_offset: int, release: Release) -> None:
    first, last, state, _ = batch
    if first < start_offset:
        raise UnloadableStateError(f"recorded batch {first}-{last}: begins before the start offset {start_offset}")
    if last < first and release.refuses_inverted_batches:
        raise UnloadableStateError(f"recorded batch {first}-{last}: ends before it begins")
    if state == DeliveryState.ARCHIVING and release.archiving == "refused":
        raise UnloadableStateError(f"recorded batch {first}-{last}: state 3, which {release.name} does not know")
    if state not in set(DeliveryState):
        raise UnloadableStateError(f"recorded batch {first}-{last}: state {state}, which nothing knows")


def unfinished(window: Window, delivery_count_limit: int) -> tuple[DeadLetter, ...]:
    """What was on its way to the dead letter queue when it was recorded.

    Args:
        window: as loaded.
        delivery_count_limit: in force; the reason is not recorded, so it is told from the count.
    """
    return tuple(
        DeadLetter(
            run.first,
            run.last,
            run.count,
            DeadLetterReason.EXHAUSTED if run.count >= delivery_count_limit else DeadLetterReason.REJECTED,
        )
        for run in window.tiles()
        if run.state is DeliveryState.ARCHIVING
    )
