"""What of each log may be cleaned: the cutoff against the log, one bar a partition."""

from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.patches import Patch

from share_state.plots.chart import Chart, arrow, printable
from share_state.plots.looks import INK, STYLE, whole_numbers

_NEEDED = (
    "topic", "partition", "cutoff_offset", "log_start_offset", "log_end_offset", "redundant_records",
    "limited_by_group", "limited_by_partition", "safe",
)  # fmt: skip

MOST_LOGS = 60
"""With more partitions the picture shows those that have most records to clean, and says so."""

_MAY_GO = {"facecolor": "#56b4e9", "hatch": "//", "edgecolor": INK, "linewidth": 0.6}
_UNSAFE = {"facecolor": "#d55e00", "hatch": "xx", "edgecolor": INK, "linewidth": 0.6}
_STAYS = {"facecolor": "#f2f2f2", "edgecolor": INK, "linewidth": 0.6}


def cutoffs(cutoff: Any) -> Chart:
    """The part of each log before its cutoff, which may be cleaned, and the part that must stay.

    Args:
        cutoff: table `cutoff`, Arrow or Spark.
    Returns:
        Offsets of the log across, a bar a log partition; behind it the records that may go and who holds the rest back.
    Raises:
        ShareStateError: if it is another table, or empty.
    Source: Kafka ShareCoordinatorOffsetsManager.lastRedundantOffset.
    """
    rows = arrow(cutoff, _NEEDED, "cutoff")
    order = [("redundant_records", "descending"), ("topic", "ascending"), ("partition", "ascending")]
    shown = rows.sort_by(order).slice(0, MOST_LOGS).sort_by(order[1:]).to_pylist()
    some = f", the {MOST_LOGS} of {len(rows):,} partitions with most to clean" if len(shown) < len(rows) else ""
    chart = Chart(f"cutoff against log{some}", height=1.6 + 0.3 * max(len(shown), 1))
    origin = min((row["log_start_offset"] for row in shown), default=0)
    with rc_context(STYLE):
        axes = chart.subplots()
        for place, row in enumerate(shown):
            start, end = row["log_start_offset"] - origin, row["log_end_offset"] - origin
            border = start if row["cutoff_offset"] is None else min(max(row["cutoff_offset"] - origin, start), end)
            axes.barh(place, end - border, left=border, height=0.62, **_STAYS)
            axes.barh(place, border - start, left=start, height=0.62, **(_MAY_GO if row["safe"] else _UNSAFE))
            axes.text(end, place, f"  {_told(row)}", va="center", fontsize=8)
        axes.set_yticks(range(len(shown)), [printable(f"{row['topic']}-{row['partition']}") for row in shown])
        axes.set_ylim(len(shown) - 0.4, -0.6)
        widest = max((row["log_end_offset"] - origin for row in shown), default=1)
        axes.set_xlim(0, max(widest, 1) * 1.5)
        axes.set_xlabel("offset of the log (records)")
        whole_numbers(axes.xaxis, origin)
        handles = [Patch(**_MAY_GO, label="before the cutoff: redundant"), Patch(**_STAYS, label="must stay")]
        if not all(row["safe"] for row in shown):
            handles.append(Patch(**_UNSAFE, label="before the cutoff, but the log cannot be trusted"))
        chart.legend(handles=handles, loc="outside lower left", ncols=3, frameon=False, fontsize=8)
    redundant = int(np.sum(rows["redundant_records"].fill_null(0).to_numpy(), dtype=np.int64))
    chart.says = f"{redundant:,} records lie before the cutoffs of {len(rows):,} log partitions."
    return chart


def _told(row: dict[str, Any]) -> str:
    holder = ""
    if row["limited_by_group"] is not None:
        holder = f"; held by {row['limited_by_group']}, partition {row['limited_by_partition']}"
    return printable(f"{row['redundant_records'] or 0:,} may go{holder}" if row["safe"] else f"not safe{holder}")
