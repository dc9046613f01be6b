"""A table `timeline` as arrays: what charts over time draw."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

from share_state.errors import ShareStateError
from share_state.plots.chart import arrow, share_partition_name

KEY = ("group_id", "topic_id", "topic", "partition")
_TAIL = 0.03
"""Share of the time after the last record, so that the last state can be seen."""


# By what changes from tick to tick: years, months, days, hours, minutes, seconds; the date stands at the end once.
_TICKS = ["%Y", "%Y-%m", "%m-%d", "%m-%d %H:%M", "%H:%M", "%H:%M:%S.%f"]
_DAY = ["", "%Y", "%Y", "%Y", "%Y-%m-%d", "%Y-%m-%d"]


@dataclass(frozen=True, slots=True)
class History:
    """The states of one share-partition after each of its records, in log order.

    Attributes:
        name: of the share-partition.
        times: float64, days since 1970 (UTC) of each record; never going back.
        until: the same, where the picture ends.
        start, end: int64 SPSO and SPEO after each record; -1 where it has none.
        topic_end: the topic's end offset, None where unknown.
        rows: the table.
    """

    name: str
    times: np.ndarray
    until: float
    start: np.ndarray
    end: np.ndarray
    topic_end: int | None
    rows: pa.Table

    @property
    def edges(self) -> np.ndarray:
        """Times of the records and the end of the picture: state n holds from edges[n] to edges[n + 1]."""
        return np.append(self.times, self.until)


def history(timeline: Any, *more: str) -> History:
    """The timeline of one share-partition.

    Args:
        timeline: table `timeline`, Arrow or Spark, rows of one share-partition.
        more: columns that are needed besides times and offsets.
    Raises:
        ShareStateError: if it is no timeline, is empty, or holds several share-partitions.
    """
    wanted = (*KEY, "offset", "timestamp", "start_offset", "end_offset", "topic_end_offset", *more)
    rows = arrow(timeline, wanted, "timeline").sort_by("offset")
    names = rows.select(list(KEY)).group_by(list(KEY), use_threads=False).aggregate([]).to_pylist()
    if len(names) != 1:
        found = f"{len(names):,} share-partitions are in it" if names else "it has no rows"
        raise ShareStateError(f"timeline: {found}; choose one by group, topic and partition")
    stamps = rows["timestamp"].cast(pa.int64()).fill_null(0).to_numpy() / 86_400e6
    # A record without a stamp stands where its predecessor does, at the beginning where the first stamped one does.
    times = np.maximum.accumulate(np.maximum(stamps, stamps[stamps > 0].min(initial=stamps.max())))
    second = 1 / 86_400
    until = times[-1] + max(second if times[-1] == times[0] else 0, _TAIL * (times[-1] - times[0]))
    start, end = (rows[name].fill_null(-1).to_numpy() for name in ("start_offset", "end_offset"))
    ends = rows["topic_end_offset"].drop_null()
    return History(
        name=share_partition_name(names[0]),
        times=times,
        until=float(until),
        start=start,
        end=np.where(start < 0, -1, end),
        topic_end=ends[-1].as_py() if len(ends) else None,
        rows=rows,
    )


def time_axis(axes: Axes, drawn: History) -> None:
    """Times across, in UTC, with the date said once."""
    locator = AutoDateLocator(minticks=3, maxticks=7)
    written = ConciseDateFormatter(locator, formats=_TICKS, zero_formats=_TICKS, offset_formats=_DAY)
    axes.set_xlim(drawn.times[0], drawn.until)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(written)
    axes.set_xlabel("time of the records (UTC)")


def clock(days: float) -> str:
    """Days since 1970 as a time of day that a person reads."""
    return f"{datetime.fromtimestamp(round(days * 86_400, 3), UTC):%Y-%m-%d %H:%M:%S}"
