"""How often what is in flight was delivered: the redelivery histogram."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib import rc_context
from matplotlib.patches import Patch

from share_state.plots.chart import Chart, arrow, printable, share_partition_name
from share_state.plots.history import KEY
from share_state.plots.looks import GAP, INK, LOOKS, OTHER, STYLE, whole_numbers

_NEEDED = (*KEY, "state", "delivery_count", "record_count", "gap")
_MOST_COUNTS = 20


def deliveries(in_flight: Any, *, limit: int | None = None) -> Chart:
    """Records in flight by delivery count, stacked by delivery state.

    Args:
        in_flight: table `in_flight`, Arrow or Spark: of one share-partition, of a group, or all of it.
        limit: the group's delivery count limit, drawn as a line where it is given.
    Returns:
        Delivery count across, records up. Counts of 20 and more share a bar.
    Raises:
        ShareStateError: if it is another table.
    Source: KIP-932, group.share.delivery.count.limit.
    """
    rows = arrow(in_flight, _NEEDED, "in_flight")
    heading = f"{_whose(rows)}: deliveries of what is in flight"
    chart = Chart(heading, height=3.4)
    counts = np.clip(rows["delivery_count"].to_numpy(), 0, _MOST_COUNTS).astype(np.int64)
    records = rows["record_count"].to_numpy()
    names = np.where(rows["gap"].to_numpy(zero_copy_only=False), GAP, rows["state"].to_numpy(zero_copy_only=False))
    top = max(int(counts.max(initial=0)), min(limit or 0, _MOST_COUNTS))
    with rc_context(STYLE):
        axes = chart.subplots()
        bottom, handles = np.zeros(top + 1), []
        for name in [*LOOKS, *sorted(set(names.tolist()) - set(LOOKS))]:
            of_state = names == name
            if not of_state.any():
                continue
            heights = np.bincount(counts[of_state], records[of_state], minlength=top + 1)
            colour, hatch = LOOKS.get(name, OTHER)
            look = {"facecolor": colour, "hatch": hatch, "edgecolor": INK, "linewidth": 0.6}
            look |= {"linestyle": "dotted"} if name == GAP else {}
            axes.bar(np.arange(top + 1), heights, bottom=bottom, width=0.7, **look)
            handles.append(Patch(**look, label=f"{printable(name.lower())} ({int(heights.sum()):,})"))
            bottom += heights
        for count in np.flatnonzero(bottom):
            axes.text(count, bottom[count], f"{int(bottom[count]):,}", ha="center", va="bottom", fontsize=8)
        if limit is not None and limit <= top:
            line = {"color": INK, "linestyle": "dashed", "linewidth": 1.2}
            handles.append(axes.axvline(limit, zorder=0, label=f"delivery limit ({limit})", **line))
        axes.set_xticks(range(top + 1), [f"{n}+" if n == _MOST_COUNTS else str(n) for n in range(top + 1)])
        axes.set_xlabel("delivery count (deliveries of a record)")
        axes.set_ylabel("records in flight")
        axes.margins(y=0.12)
        whole_numbers(axes.yaxis, 0)
        if handles:
            chart.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
        else:
            axes.text(0.5, 0.5, "nothing is in flight", ha="center", transform=axes.transAxes)
    chart.says = _said(bottom)
    return chart


def _whose(rows: pa.Table) -> str:
    if not len(rows):
        return "no share-partition"
    first = rows.slice(0, 1).to_pylist()[0]
    alike = {name: pc.count_distinct(rows[name], mode="all").as_py() == 1 for name in KEY}
    if all(alike.values()):
        return share_partition_name(first)
    return str(first["group_id"]) if alike["group_id"] else "all groups"


def _said(records: np.ndarray) -> str:
    if not records.any():
        return "Nothing is in flight."
    often = {0: "never delivered", 1: "delivered once"}
    counts = np.flatnonzero(records).tolist()
    said = ", ".join(f"{int(records[count]):,} {often.get(count, f'delivered {count} times')}" for count in counts)
    return f"Records in flight: {said}."
