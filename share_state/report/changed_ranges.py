"""What became of the offsets of one share-partition between two points: ranges whose standing is another."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

Value = tuple[str, bool]
"""How a range is called, and whether it is finished: nobody gets it any more."""

BELOW: Value = ("below SPSO", True)
BEYOND: Value = ("beyond SPEO", False)

NEW, FINISHED, PASSED, CHANGED, RETURNED, GONE = "new", "finished", "passed", "changed", "returned", "gone"


@dataclass(frozen=True, slots=True)
class Flights:
    """The in-flight window of a share-partition.

    Attributes:
        start, end: SPSO and SPEO.
        tiles: (first offset, last offset, value), which tile [start, end) in order.
    """

    start: int
    end: int
    tiles: Sequence[tuple[int, int, Value]]


@dataclass(frozen=True, slots=True)
class Change:
    """Offsets first to last, inclusive, that stand elsewhere now.

    Attributes:
        kind: new (in flight now, and beyond SPEO before), finished, passed (by SPSO, finished before), changed (in
            flight before and after), returned (finished before, in flight now) or gone (beyond SPEO now, not before).
        before, after: where they stood and stand, in words.
    """

    first: int
    last: int
    kind: str
    before: str
    after: str


def changes(before: Flights | None, after: Flights | None) -> list[Change]:
    """The ranges that stand elsewhere, in order of offset.

    Args:
        before, after: the window at each point; None where there is none (no state, or no start yet).
    Returns:
        Ranges between the first and the last offset that is in either window, or between the two; what lies below both
        or beyond both has not changed. Where one is None, all of the other is new or gone.
    """
    if before is None and after is None:
        return []
    one, other = before or _nothing_at(after), after or _nothing_at(before)
    bounds = sorted({*_bounds(one), *_bounds(other)})
    found: list[Change] = []
    values = zip(_values(one, bounds), _values(other, bounds), strict=True)
    for (first, end), (was, is_now) in zip(pairwise(bounds), values, strict=True):
        if was == is_now:
            continue
        kind = _kind(was, is_now)
        if found and found[-1].last == first - 1 and (found[-1].before, found[-1].after) == (was[0], is_now[0]):
            found[-1] = Change(found[-1].first, end - 1, kind, was[0], is_now[0])
        else:
            found.append(Change(first, end - 1, kind, was[0], is_now[0]))
    return found


def _nothing_at(other: Flights | None) -> Flights:
    """A window without offsets where another begins: all of the other is beyond it."""
    start = other.start if other else 0
    return Flights(start, start, [])


def _bounds(window: Flights) -> Iterator[int]:
    yield window.start
    yield window.end
    for first, last, _ in window.tiles:
        yield first
        yield last + 1


def _values(window: Flights, bounds: Sequence[int]) -> Iterator[Value]:
    """The value of each range between two neighbouring bounds."""
    at = 0
    for first in bounds[:-1]:
        while at < len(window.tiles) and window.tiles[at][1] < first:
            at += 1
        if first < window.start:
            yield BELOW
        elif at < len(window.tiles) and window.tiles[at][0] <= first:
            yield window.tiles[at][2]
        else:
            yield BEYOND


def _kind(was: Value, is_now: Value) -> str:
    if is_now is BEYOND:
        return GONE
    if was[1] and not is_now[1]:
        return RETURNED
    if is_now[1] and not was[1]:
        return FINISHED
    if was is BEYOND:
        return NEW
    return PASSED if is_now is BELOW else CHANGED
