"""Points in time of a log, as people name them: an offset, a moment, or a moment's text.

`as_of=` over several log partitions: a moment for all of them, or an offset for each.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from share_state.errors import InputError, ShareStateError
from share_state.sources.discovery import LogPartition, Window

AsOfPoint = int | str | datetime
"""An offset (records before it count), or a moment or its ISO 8601 text (records stamped at or before it count)."""


def as_of_window(point: AsOfPoint | None) -> Window:
    """The records that count as of a point; all of them where there is none.

    Args:
        point: an offset of the log partition, or a moment; UTC where it does not say.
    Raises:
        InputError: if a text is no moment, or an offset is negative.
    """
    if point is None:
        return Window()
    if isinstance(point, int):
        if point < 0:
            raise InputError(f"as of {point}: give an offset from 0 on")
        return Window(until_offset=point)
    return Window(until_time_ms=milliseconds(point))


def milliseconds(moment: str | datetime) -> int:
    """A moment as records are stamped.

    Args:
        moment: or its ISO 8601 text; UTC where it does not say.
    Raises:
        InputError: if a text is no moment.
    """
    try:
        found = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    except ValueError:
        raise InputError(f"as of {moment}: give a time as in 2026-11-21T02:10:00Z") from None
    found = found if found.tzinfo else found.replace(tzinfo=UTC)
    # Integers, because a float of this size may fall a millisecond short.
    since = found - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000


AsOf = datetime | str | Mapping[int | str, int]
"""A moment or its ISO 8601 text (UTC unless it says), or log partition (number or name) -> first offset left out."""


def windows(as_of: AsOf | None, logs: Sequence[LogPartition]) -> tuple[Window, dict[str, Window]]:
    """Which records count as of a moment.

    Args:
        as_of: records stamped later, or from these offsets on, are left out; None for none.
        logs: the log partitions.
    Returns:
        The window of every log partition, and name -> window of those that have their own.
    Raises:
        ShareStateError: if it is neither a moment nor offsets.
        InputError: if a text is no moment, or it names a log partition that is not there.
    """
    if as_of is None or isinstance(as_of, datetime | str):
        return as_of_window(as_of), {}
    if not isinstance(as_of, Mapping):
        raise ShareStateError(f"as_of={as_of!r}: give a datetime, its text, or offsets as in {{3: 12000}}")
    cuts = {}
    for given, offset in as_of.items():
        if not isinstance(offset, int) or isinstance(offset, bool):
            raise ShareStateError(f"as_of={as_of!r}: give a log partition and an offset, as in {{3: 12000}}")
        named = [log.name for log in logs if str(given) in (log.name, str(log.partition))]
        if not named:
            raise InputError(f"as_of={as_of!r}: log partition {given} is not in the input")
        cuts |= dict.fromkeys(named, as_of_window(offset))
    return Window(), cuts
