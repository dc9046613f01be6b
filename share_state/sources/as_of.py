"""Points of a log: `Window`, which records are read, and `parse_time`, the one parser of times that a person gives."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from share_state.errors import InputError
from share_state.kafka.record_batches import BatchStatus

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_EPOCH_MS = re.compile(r"\d{12,13}", re.ASCII)
_OTHER_EPOCHS = {range(10, 12): "seconds", range(15, 21): "micro- or nanoseconds"}
"""Digits of a number -> the unit since 1970 that it probably has."""

_BACK = re.compile(r"-(?:(\d{1,6})d)?(?:(\d{1,7})h)?(?:(\d{1,9})m)?(?:(\d{1,11})s)?", re.ASCII)
_TIME_OF_DAY = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)(?::([0-5]\d))?", re.ASCII)
_ZONED = re.compile(r"(?P<time>\d.*?) +(?P<zone>[A-Za-z][A-Za-z0-9_+/-]*)")

TIME_FORMS = "2026-11-21T02:10:00Z, '2026-11-21 03:10 Europe/Berlin', 1795227000000 (ms), 02:10 or -30m"
"""How a time may be written, for messages."""


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

    def ends_before(self, batches: np.ndarray) -> bool:
        """Whether it leaves out later records, those of BATCH rows among them."""
        if self.until_offset is None and self.until_time_ms is None:
            return False
        is_beyond = np.zeros(len(batches), bool)
        if self.until_offset is not None:
            is_beyond |= batches["last_offset"] >= self.until_offset
        if self.until_time_ms is not None:
            is_beyond |= batches["max_timestamp"] > self.until_time_ms
        return bool((is_beyond & (batches["status"] == BatchStatus.VALID)).any())


def to_epoch_ms(moment: str | datetime) -> int:
    """A time in ms since 1970.

    Args:
        moment: a time or its text; UTC if it has no time zone.
    Raises:
        NotATimeError: if a text is not a time, or one that depends on a log.
    """
    found = parse_time(moment)
    if not isinstance(found, int):
        raise NotATimeError(moment, "depends on the newest record of a log; give a date and a time")
    return found


class NotATimeError(InputError):
    """Raised for a text that is no time; callers that know how it was given say so before the reason."""

    def __init__(self, moment: object, reason: str | None = None) -> None:
        super().__init__(f"as of {moment}: {reason or f'give a time as in {TIME_FORMS}'}")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class LogTime:
    """A time that depends on the newest record of the input.

    Attributes:
        before_ms: that long before the newest record; None for a time of day.
        second_of_day: the latest such time of day that is not after the newest record.
        zone: of the time of day.
    """

    before_ms: int | None = None
    second_of_day: int = 0
    zone: tzinfo = UTC

    def at(self, newest_ms: int) -> int:
        """The time in ms since 1970.

        Args:
            newest_ms: timestamp of the newest record.
        """
        if self.before_ms is not None:
            return newest_ms - self.before_ms
        newest = (_EPOCH + newest_ms * _MS).astimezone(self.zone)
        minutes, second = divmod(self.second_of_day, 60)
        time = newest.replace(hour=minutes // 60, minute=minutes % 60, second=second, microsecond=0)
        return _ms_of(time if time <= newest else time - timedelta(days=1))


def parse_time(moment: str | datetime) -> int | LogTime:
    """A time that a person gives, in any of TIME_FORMS.

    Args:
        moment: a time, or its text: ISO 8601, ms since 1970, ISO 8601 and the name of a time zone, a time of
            day, or a duration before the newest record; UTC if it has no time zone.
    Returns:
        ms since 1970, or a LogTime.
    Raises:
        NotATimeError: if it is none of these, or a time that does not exist, or exists twice, in its time
            zone.
    """
    if isinstance(moment, datetime):
        return _ms_of(moment)
    text = moment.strip()
    zone = None
    back = _BACK.fullmatch(moment.strip())
    if back is not None and any(back.groups()):
        days, hours, minutes, seconds = (int(number or 0) for number in back.groups())
        return LogTime(1000 * (seconds + 60 * (minutes + 60 * (hours + 24 * days))))
    if _EPOCH_MS.fullmatch(text):
        return int(text)
    if text.isdecimal() and (
        unit := next((unit for size, unit in _OTHER_EPOCHS.items() if len(text) in size), None)
    ):
        raise NotATimeError(moment, f"{unit} since 1970? give milliseconds")
    if zoned := _ZONED.fullmatch(text):
        text, zone = zoned["time"], _zone(moment, zoned["zone"])
    if of_day := _TIME_OF_DAY.fullmatch(text):
        hour, minute, second = (int(number or 0) for number in of_day.groups())
        return LogTime(second_of_day=3600 * hour + 60 * minute + second, zone=zone or UTC)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise NotATimeError(moment) from None
    if zone is not None and time.tzinfo is not None:
        raise NotATimeError(moment, "has two time zones; give one")
    try:
        return _ms_of(time if zone is None else _in_zone(moment, time, zone))
    except OverflowError:
        raise NotATimeError(moment, "is outside of the years 1 to 9999") from None


def _zone(moment: str, name: str) -> tzinfo:
    if name.upper() in ("UTC", "GMT", "Z"):  # known without a database of time zones
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise NotATimeError(
            moment, f"{name} is no known time zone; give one as Europe/Berlin, or UTC"
        ) from None


def _in_zone(moment: str, time: datetime, zone: tzinfo) -> datetime:
    """A local time with its zone; refused where clocks skip it or show it twice."""
    first, second = (time.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    if first == second:
        return first
    if first.astimezone(zone).replace(tzinfo=None) != time:
        raise NotATimeError(moment, "clocks skip this time there; give the time in UTC")
    both = " or ".join(f"{time:%Y-%m-%dT%H:%M:%SZ}" for time in (first, second))
    raise NotATimeError(moment, f"clocks show this time twice there; give {both}")


def _ms_of(time: datetime) -> int:
    time = time if time.tzinfo else time.replace(tzinfo=UTC)
    # Not by timestamp(): a float of this size may be off by a millisecond.
    return (time - _EPOCH) // _MS


@dataclass(frozen=True, slots=True)
class TimeSpan:
    """The times of the records of an input, ms since 1970.

    Attributes:
        first: of the first record; None if unknown.
        last: of the newest record, or now for a running cluster.
        is_live: whether the input is a running cluster.
    """

    first: int | None
    last: int
    is_live: bool = False

    def outside(self, ms: int) -> str | None:
        """Why no record tells of a time, and the first and last time of the records; None if they do."""
        if (self.first is None or ms >= self.first) and ms <= self.last:
            return None
        side = "after the newest record" if ms > self.last else "before the first record"
        side = "in the future" if ms > self.last and self.is_live else side
        end = time_text(self.last)
        span = f"until {end}" if self.first is None else f"from {time_text(self.first)} to {end}"
        return f"{side}; the records of the input are {span} (times without a zone are UTC)"


def time_text(ms: int) -> str:
    """A time as messages print it, to the ms; the number itself outside of the years 1 to 9999."""
    try:
        return f"{_EPOCH + ms * _MS:%Y-%m-%d %H:%M:%S}.{ms % 1000:03} UTC"
    except OverflowError:
        return f"{ms} ms"


AsOf = datetime | str | Mapping[int | str, int]
"""A time or its text (UTC by default), or log partition (number or name) -> first offset to leave out."""
