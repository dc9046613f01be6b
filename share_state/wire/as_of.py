"""Points in time of a log, as people name them: an offset, a moment, or a moment's text."""

from datetime import UTC, datetime

from share_state.errors import InputError
from share_state.wire.log_folder import Window

AsOf = int | str | datetime
"""An offset (records before it count), or a moment or its ISO 8601 text (records stamped at or before it count)."""


def as_of_window(point: AsOf | None) -> Window:
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
