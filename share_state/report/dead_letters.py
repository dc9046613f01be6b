"""The page's section about dead letters: by group and reason, and over time."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure

from share_state.delta.reader import CommittedTables
from share_state.report.plots.charts import INK, RC_STYLE, STATE_STYLES, inline_svg, integer_ticks

_LETTERS, _LOST = "dead_letters", "lost_dead_letters"
_MOST_ROWS, _BINS = 20, 40
_BAR_STYLES = {"written": STATE_STYLES["ACKNOWLEDGED"], "lost": STATE_STYLES["ARCHIVED"]}


@dataclass(frozen=True, slots=True)
class DeadLetterSummary:
    """What the page shows of dead letters.

    Attributes:
        rows: by group_id and reason: letters, duplicates and lost; those with most lost first, up to a limit.
        left_out: how many rows more there are.
        letters, lost: in total.
        chart: both over time; None if all are of one time.
    """

    rows: tuple[Mapping[str, Any], ...]
    left_out: int
    letters: int
    lost: int
    chart: Markup | None


def summarize_dead_letters(tables: CommittedTables) -> DeadLetterSummary | None:
    """Summarize the dead letters of an audit; None if it had no dead-letter topics, or there are none."""
    if not tables.holds(_LETTERS):
        return None
    letters = tables.read(_LETTERS, columns=["group_id", "reason", "duplicate", "timestamp"])
    lost = tables.read(_LOST, columns=["group_id", "record_count", "archived_time", "archiving_time"])
    if not len(letters) and not len(lost):
        return None
    written = letters.select(["group_id", "reason"])
    written = written.append_column("letters", pa.repeat(pa.scalar(1, pa.int64()), len(letters)))
    written = written.append_column("duplicates", letters["duplicate"].cast(pa.int64()))
    missing = pa.table({"group_id": lost["group_id"], "lost": lost["record_count"]})
    every = pa.concat_tables([written, missing], promote_options="default")
    zero_for_none = pc.ScalarAggregateOptions(min_count=0)
    sums = [(name, "sum", zero_for_none) for name in ("letters", "duplicates", "lost")]
    rows = every.group_by(["group_id", "reason"]).aggregate(sums).rename_columns(every.schema.names)
    order = [("lost", "descending"), ("letters", "descending"), ("group_id", "ascending"), ("reason", "ascending")]
    rows = rows.sort_by(order)
    times = pc.call_function("coalesce", [lost["archived_time"], lost["archiving_time"]])
    return DeadLetterSummary(
        rows=tuple(rows.slice(0, _MOST_ROWS).to_pylist()),
        left_out=max(0, len(rows) - _MOST_ROWS),
        letters=len(letters),
        lost=pc.sum(lost["record_count"]).as_py() or 0,
        chart=_over_time({"written": (letters["timestamp"], None), "lost": (times, lost["record_count"])}),
    )


def _over_time(series: Mapping[str, tuple[pa.ChunkedArray, pa.ChunkedArray | None]]) -> Markup | None:
    """Records by time; of each series the timestamps and how many records each counts, None for one."""
    seconds = {name: times.cast(pa.int64()).to_numpy(zero_copy_only=False) / 1e6 for name, (times, _) in series.items()}
    known = np.concatenate(list(seconds.values()))
    known = known[~np.isnan(known)]
    if not len(known) or known.min() == known.max():
        return None
    edges, total = np.linspace(known.min(), known.max(), _BINS + 1), np.zeros(_BINS)
    with rc_context(RC_STYLE):
        figure = Figure(figsize=(5.6, 1.7), facecolor="none", layout="constrained")
        axes = figure.subplots()
        axes.set_facecolor("none")
        for name, (_, counts) in series.items():
            weights = None if counts is None else counts.to_numpy()
            heights, _ = np.histogram(seconds[name], edges, weights=weights)
            colour, hatch = _BAR_STYLES[name]
            axes.bar(edges[:-1], heights, np.diff(edges), total, align="edge", label=name, facecolor=colour,
                     hatch=hatch, edgecolor=INK, linewidth=0.4)  # fmt: skip
            total += heights
        ends = (edges[0], edges[-1])
        axes.set_xticks(ends, [f"{datetime.fromtimestamp(end, UTC):%d %b %H:%M}" for end in ends])
        axes.set_xlim(*ends)
        axes.set_xlabel("time of the log (UTC)")
        axes.set_ylabel("records", fontsize=8)
        integer_ticks(axes.yaxis, 0, most=3)
        axes.legend(ncols=2, frameon=False, fontsize=8)
    return inline_svg(figure, "dead-letters", "Dead letters that were written and that were lost, over time.")
