"""Which records of a log partition count: `Window`, and the `as_of` arguments that become one."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np

from share_state.errors import InputError


@dataclass(frozen=True, slots=True)
class Window:
    """Which records count: offsets in [from_offset, until_offset), timestamps up to until_time_ms."""

    from_offset: int | None = None
    until_offset: int | None = None
    until_time_ms: int | None = None

    def counts(self, records: np.ndarray) -> np.ndarray:
        """Mask of the RECORD rows that count."""
        counted = np.ones(len(records), bool)
        if self.from_offset is not None:
            counted &= records["offset"] >= self.from_offset
        if self.until_offset is not None:
            counted &= records["offset"] < self.until_offset
        if self.until_time_ms is not None:
            counted &= records["timestamp"] <= self.until_time_ms
        return counted


AsOfPoint = int | str | datetime
"""An offset (records before it count), or a time or its ISO 8601 text (records up to that timestamp count)."""


def as_of_window(point: AsOfPoint | None) -> Window:
    """The records that count as of a point; all if it is None.

    Args:
        point: an offset of the log partition, or a time; UTC if it has no time zone.
    Raises:
        InputError: if a text is not a time, or an offset is negative.
    """
    if point is None:
        return Window()
    if isinstance(point, int):
        if point < 0:
            raise InputError(f"as of {point}: give an offset from 0 on")
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
        found = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    except ValueError:
        raise InputError(f"as of {moment}: give a time as in 2026-11-21T02:10:00Z") from None
    found = found if found.tzinfo else found.replace(tzinfo=UTC)
    # Not by timestamp(): a float of this size may be off by a millisecond.
    return (found - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


AsOf = datetime | str | Mapping[int | str, int]
"""A time or its ISO 8601 text (UTC by default), or log partition (number or name) -> first offset to leave out."""
