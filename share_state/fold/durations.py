"""Texts of durations: one spelling for every finding, verdict, table and page, as "1 d 1 h"."""

from datetime import timedelta
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_UNITS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
_STEPS = ((2 * 86_400_000, 3_600_000), (2 * 3_600_000, 60_000))
"""(ms from which on, ms to whose multiple a duration is rounded down)"""
_SHORTEST_STEP = 100


# Those of a stream hardly change between two reads.
@lru_cache(1 << 12)
def duration_text(milliseconds: int) -> str:
    """A duration in its two largest units, as "3 d 4 h"; below 10 s with a decimal, from 2 h on in whole minutes."""
    if milliseconds < 0:
        return f"-{duration_text(-milliseconds)}"
    whole = milliseconds - milliseconds % _step(milliseconds)
    if 0 < whole < 10_000:
        return f"{whole / 1000:.1f} s"
    rest = round(whole / 1000)
    parts = list[str]()
    for unit, seconds in _UNITS:
        if rest >= seconds:
            parts.append(f"{rest // seconds} {unit}")
            rest %= seconds
    return " ".join(parts[:2]) or "0 s"


def _step(milliseconds: int) -> int:
    """Ms, to whose multiple a duration is rounded down."""
    return next((step for least, step in _STEPS if milliseconds >= least), _SHORTEST_STEP)


def timedelta_text(span: timedelta) -> str:
    """A duration as `duration_text` writes it."""
    return duration_text(round(span.total_seconds() * 1000))


def duration_texts(milliseconds: np.ndarray) -> pa.Array:
    """The texts of many durations, as `duration_text` writes them; each distinct one is written once.

    Args:
        milliseconds: int64.
    """
    # Two units show no more than this, so that there are few distinct texts.
    steps = np.select(
        [milliseconds >= least for least, _ in _STEPS], [step for _, step in _STEPS], _SHORTEST_STEP
    )
    distinct, rows = np.unique(milliseconds // steps * steps, return_inverse=True)
    texts = pa.array([duration_text(value) for value in distinct.tolist()], pa.string())
    return pc.take(texts, pa.array(rows))
