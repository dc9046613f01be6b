"""`Window`: which records of a log partition are read, and the `as_of` arguments that define it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np

from share_state.errors import InputError
from share_state.kafka.primitives import LARGEST_INT64


@dataclass(frozen=True, slots=True)
class Window:
    """Selects records: offsets in [from_offset, until_offset), timestamps up to until_time_ms."""

    from_offset: int | None = None
    until_offset: int | None = None
    until_time_ms: int | None = None

    def mask(self, records: np.ndarray) -> np.ndarray:
        """Mask of the RECORD rows in the window."""
        mask = np.ones(len(records), bool)
        if self.from_offset is not None:
            mask &= records["offset"] >= self.from_offset
        if self.until_offset is not None:
            mask &= records["offset"] < self.until_offset
        if self.until_time_ms is not None:
            mask &= records["timestamp"] <= self.until_time_ms
        return mask


AsOfPoint = int | str | datetime
"""An offset (selects the records before it), or a time or its ISO 8601 text (selects records up to that timestamp)."""


def as_of_window(point: AsOfPoint | None) -> Window:
    """The window up to a point; everything if the point is None.

    Args:
        point: an offset of the log partition, or a time; UTC if it has no time zone.
    Raises:
        InputError: if a text is not a time, or an offset is negative.
    """
    if point is None:
        return Window()
    if isinstance(point, int):
        if not 0 <= point <= LARGEST_INT64:
            raise InputError(f"as of an offset outside of 0 to {LARGEST_INT64}: no log holds it")
        return Window(until_offset=point)
    return Window(until_time_ms=to_epoch_ms(point))


def to_epoch_ms(moment: str | datetime) -> int:
    """A time in ms since 1970.

    Args:
        moment: a time or its ISO 8601 text; UTC if it has no time zone.
    Raises:
        InputError: if a text is not a time.
    """
    try:
        time = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    except ValueError:
        raise InputError(f"as of {moment}: give a time such as 2026-11-21T02:10:00Z") from None
    time = time if time.tzinfo else time.replace(tzinfo=UTC)
    # Not by timestamp(): a float of this size may be off by a millisecond.
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


AsOf = datetime | str | Mapping[int | str, int]
"""A time or its ISO 8601 text (UTC by default), or log partition (number or name) -> first offset to leave out."""
