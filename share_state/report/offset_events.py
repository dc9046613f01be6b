"""What ended an earlier life of an offset: resets, deletions, re-creations and regressions, as sentences."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import pairwise

from share_state.fold.durations import timedelta_text
from share_state.fold.offset_history import OffsetState, Place, Touch
from share_state.fold.states import to_datetime
from share_state.kafka.delivery_states import state_name
from share_state.report.console import format_time

_MOST_EVENTS = 4
_WITHOUT_STATE = (Place.UNKNOWN, Place.DELETED)


def when(touch: Touch) -> str:
    """The time and the offset of a record."""
    time = to_datetime(touch.timestamp)
    return f"record {touch.offset}" if time is None else f"{format_time(time)} (record {touch.offset})"


def is_reset(touch: Touch) -> bool:
    """Whether a record is that of an initialization: a snapshot of a later state epoch, or with an empty window.

    Source: Kafka ShareCoordinatorShard.initializeState.
    """
    if touch.kind != "snapshot" or touch.is_cold or touch.before.place in _WITHOUT_STATE:
        return False
    if (touch.state_epoch or 0) > (touch.state_epoch_before or 0):
        return touch.before.place is not Place.UNINITIALISED
    return goes_back(touch) and touch.end_offset == touch.start_offset


def earlier_life(touches: Sequence[Touch], describe: Callable[[OffsetState], str]) -> str | None:
    """What an offset was before the events that discarded it, and these events.

    Args:
        touches: the records that touched it, in log order.
        describe: puts an in-flight state into words, such as "acknowledged in delivery 1".
    Returns:
        Clauses without a full stop; None if nothing was discarded.
    """
    events = {
        number: text
        for number, touch in enumerate(touches)
        if (text := _event(touch, is_first=number == 0)) is not None
    }
    if not events:
        return None
    last = max(events)
    held = [number for number in range(last) if touches[number].after.place is Place.IN_FLIGHT]
    clauses = list[str]()
    if held:
        clauses.append(f"{describe(touches[held[-1]].after)} at {when(touches[held[-1]])}")
    since = [text for number, text in events.items() if not held or number > held[-1]]
    if len(since) > _MOST_EVENTS:
        left_out = len(since) - _MOST_EVENTS
        since = [*since[: _MOST_EVENTS - 1], f"{left_out:,} more such records", since[-1]]
    return "; ".join(clauses + since)


def has_delivery(touches: Sequence[Touch]) -> bool:
    """Whether the offset was in flight after any of some records."""
    return any(touch.after.place is Place.IN_FLIGHT for touch in touches)


def goes_back(touch: Touch) -> bool:
    """Whether a record moves SPSO back: by a reset, or by a regression."""
    return touch.start_offset is not None and (came_from(touch) or 0) > touch.start_offset


def came_from(touch: Touch) -> int | None:
    """SPSO before a record that set it.

    The recorded one is a write behind: a snapshot that drops finished records takes it from where they ended.
    """
    is_dropped = touch.kind == "snapshot" and (touch.lead_before or 0) > (touch.lead or 0)
    return touch.lead_before if is_dropped else touch.start_before


def _event(touch: Touch, *, is_first: bool) -> str | None:
    """A clause on a record that discards what an offset was; None if it does not."""
    if not touch.is_readable or is_first:
        return None
    if touch.kind == "tombstone":
        return f"the state was deleted at {when(touch)}" if touch.before.place is not Place.DELETED else None
    if touch.before.place is Place.DELETED:
        begun = "without a start offset" if touch.start_offset is None else f"with SPSO {touch.start_offset}"
        return f"the state was created again {begun} at {when(touch)}"
    if is_reset(touch):
        before = "" if touch.start_before is None else f"from {came_from(touch)} "
        return f"the offsets were reset {before}to {touch.start_offset} at {when(touch)}"
    if goes_back(touch):
        return f"SPSO went back from {came_from(touch)} to {touch.start_offset} at {when(touch)}"
    is_dropped = touch.after.place in (Place.GAP, Place.BEYOND_END, Place.UNINITIALISED)
    if touch.before.place is Place.IN_FLIGHT and is_dropped:
        return f"the {touch.kind} at {when(touch)} no longer holds it"
    return None


_JITTER = 0.2


def spacing(times: Sequence[datetime]) -> tuple[str, timedelta | None]:
    """How far apart failed deliveries are recorded.

    Args:
        times: of their records, in log order.
    Returns:
        "31 s apart", "28 s to 2 min apart", or nothing for fewer than two, or if times go back; and the mean distance,
        None unless the distances are nearly equal.
    """
    steps = [later - earlier for earlier, later in pairwise(times)]
    if not steps or min(steps) < timedelta():
        return "", None
    if max(steps) <= (1 + _JITTER) * min(steps):
        step = sum(steps, timedelta()) / len(steps)
        return f"{timedelta_text(step)} apart", step
    return f"{timedelta_text(min(steps))} to {timedelta_text(max(steps))} apart", None


def repeated_deliveries(touches: Sequence[Touch]) -> str | None:
    """How far apart deliveries that failed are recorded; None for fewer than two."""
    failed = list(failed_deliveries(touches))
    if len(failed) < 2:
        return None
    times = [to_datetime(touch.timestamp) for touch in failed]
    apart, _ = spacing([time for time in times if time is not None])
    return f"{len(failed)} deliveries failed{', ' * bool(apart)}{apart}"


def failed_deliveries(touches: Sequence[Touch]) -> Iterator[Touch]:
    """The records that show a failed delivery: the offset is AVAILABLE with a higher count than before."""
    for touch in touches:
        before, after = touch.before, touch.after
        is_waiting = after.state is not None and state_name(after.state) == "AVAILABLE"
        if is_waiting and (after.delivery_count or 0) > (before.delivery_count or 0):
            yield touch
