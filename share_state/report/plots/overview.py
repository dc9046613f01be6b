"""How often what is in flight was delivered: the redelivery histogram.

What of each log may be cleaned: the cutoff against the log, one bar a partition.

`share-state plot`: folds what one picture needs, and draws it.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib import rc_context
from matplotlib.patches import Patch

from share_state.delta.reader import of_key
from share_state.errors import ShareStateError
from share_state.fold.options import Chosen
from share_state.pipeline.plan import Work
from share_state.report.plots.charts import (
    GAP,
    INK,
    LOOKS,
    OTHER,
    STYLE,
    Chart,
    arrow,
    printable,
    share_partition_name,
    whole_numbers,
)
from share_state.report.plots.share_partition import KEY, offsets, window
from share_state.schema.declarations import table_schema

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


_CUTOFF_COLUMNS = (
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
    rows = arrow(cutoff, _CUTOFF_COLUMNS, "cutoff")
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


WINDOW, OFFSETS, DELIVERIES, CUTOFF = "window", "offsets", "deliveries", "cutoff"
PICTURES = (WINDOW, OFFSETS, DELIVERIES, CUTOFF)


def drawn(what: str, work: Work, chosen: Chosen, delivery_limit: int | None) -> Chart:
    """Fold logs and draw one picture of them.

    Args:
        what: one of PICTURES.
        work: the log partitions, and which of their records count.
        chosen: the share-partitions; one of them for a picture over time, none for the cutoff.
        delivery_limit: of the group, for DELIVERIES.
    Raises:
        ShareStateError: if there is no such picture, or nothing to draw.
        InputError: if a segment cannot be read.
    """
    if what not in PICTURES:
        raise ShareStateError(f"plot {what}: no such picture; give one of {', '.join(PICTURES)}")
    if what == CUTOFF:
        return cutoffs(pa.concat_tables([one.cutoff for one in work.each()]))
    if what == DELIVERIES:
        where = of_key(chosen.group_id, chosen.topic, chosen.partition)
        in_flight = pa.concat_tables([one.in_flight for one in work.each()])
        return deliveries(in_flight if where is None else in_flight.filter(where), limit=delivery_limit)
    work = replace(work, timeline=chosen)
    states = [table for log in work.logs for table in work.states_of(log)]
    return {WINDOW: window, OFFSETS: offsets}[what](pa.concat_tables([table_schema("timeline").empty_table(), *states]))
