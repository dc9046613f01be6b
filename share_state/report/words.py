"""Numbers, times and names as people read them."""

from datetime import UTC, datetime

from share_state.report.console import UNKNOWN, printable

_UNITS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))


def number(value: int | None) -> str:
    """A whole number with its thousands apart."""
    return UNKNOWN if value is None else f"{value:,}"


def moment(time: datetime | None) -> str:
    """A time in UTC, to the second."""
    return UNKNOWN if time is None else f"{time.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def span(begin: datetime | None, end: datetime | None) -> str:
    """The time between two moments, in its two largest units."""
    if begin is None or end is None:
        return UNKNOWN
    seconds = (end - begin).total_seconds()
    if 0 < seconds < 10:
        return f"{seconds:.1f} s"
    left, parts = abs(round(seconds)), []
    for unit, size in _UNITS:
        if left >= size:
            parts.append(f"{left // size} {unit}")
            left %= size
    return ("-" if seconds < 0 else "") + (" ".join(parts[:2]) or "0 s")


def size(octets: int | None) -> str:
    """A number of bytes."""
    if octets is None:
        return UNKNOWN
    value, units = float(octets), iter(("B", "kB", "MB", "GB", "TB"))
    unit = next(units)
    while value >= 1000 and (larger := next(units, None)):
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def name(text: str | None) -> str:
    """A name that may hold any character: what cannot be seen is escaped, what is empty is quoted."""
    if text is None:
        return UNKNOWN
    return printable(text) if text else '""'
