"""Texts of durations: one spelling for every finding, verdict, table and page, as "1 d 1 h"."""

from datetime import timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_UNITS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))


def duration_text(milliseconds: int) -> str:
    """A duration in its two largest units, as "3 d 4 h"; below 10 s with a decimal."""
    if 0 < milliseconds < 10_000:
        return f"{milliseconds / 1000:.1f} s"
    rest = abs(round(milliseconds / 1000))
    parts = list[str]()
    for unit, seconds in _UNITS:
        if rest >= seconds:
            parts.append(f"{rest // seconds} {unit}")
            rest %= seconds
    return ("-" if milliseconds < 0 else "") + (" ".join(parts[:2]) or "0 s")


def timedelta_text(span: timedelta) -> str:
    """A duration as `duration_text` writes it."""
    return duration_text(round(span.total_seconds() * 1000))


def duration_texts(milliseconds: np.ndarray) -> pa.Array:
    """The texts of many durations, as `duration_text` writes them; each distinct one is written once.

    Args:
        milliseconds: int64.
    """
    # Two units show no more than this, so that there are few distinct texts.
    precision = np.select([milliseconds >= 172_800_000, milliseconds >= 7_200_000], [3_600_000, 60_000], 100)
    distinct, rows = np.unique(milliseconds // precision * precision, return_inverse=True)
    texts = pa.array([duration_text(value) for value in distinct.tolist()], pa.string())
    return pc.take(texts, pa.array(rows))
