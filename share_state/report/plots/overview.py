"""Charts over many share-partitions or logs (delivery counts, cutoffs), and `draw_plot` for `share-state plot`."""

from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from operator import or_
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.patches import Patch

from share_state.errors import ShareStateError, pluralize
from share_state.fold.fold_options import SharePartitionFilter
from share_state.fold.states import SHARE_GROUP_STATE, to_datetime
from share_state.pipeline.local_executor import LocalExecutor
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.task import CUTOFF, IN_FLIGHT, STATE, OutputSpec
from share_state.report.cutoff_text import name_holders
from share_state.report.plots.charts import (
    GAP,
    INK,
    OTHER_STYLE,
    STATE_STYLES,
    Chart,
    escape_missing_glyphs,
    integer_ticks,
    share_partition_name,
    styled,
    to_arrow,
)
from share_state.report.plots.timelines import KEY_COLUMNS, offsets, window
from share_state.report.share_partitions import NO_BEGINNING, lacks_beginning
from share_state.schema.declarations import table_schema
from share_state.sources.as_of import LogTime, Window
from share_state.sources.log_partition import STATE_TOPIC, LogPartition
from share_state.sources.log_times import time_span

MAX_LOGS = 60
"""With more log partitions the chart shows those with the most redundant records, and its heading says so."""

_MAX_COUNT = 20
_IN_FLIGHT_COLUMNS = (*KEY_COLUMNS, "state", "delivery_count", "record_count", "gap")
_CUTOFF_COLUMNS = (
    "topic", "partition", "cutoff_offset", "log_start_offset", "log_end_offset", "redundant_records",
    "limited_by_group", "limited_by_topic_id", "limited_by_partition", "safe",
)  # fmt: skip
_REDUNDANT = {"facecolor": "#56b4e9", "hatch": "//", "edgecolor": INK, "linewidth": 0.6}
_UNSAFE = {"facecolor": "#d55e00", "hatch": "xx", "edgecolor": INK, "linewidth": 0.6}
_NEEDED = {"facecolor": "#f2f2f2", "edgecolor": INK, "linewidth": 0.6}


@styled
def deliveries(in_flight: Any, *, limit: int | None = None) -> Chart:
    """Records in flight by delivery count, stacked by delivery state.

    Args:
        in_flight: table `in_flight` of any library, of one share-partition, of a group, or whole.
        limit: the group's delivery count limit; drawn as a line.
    Returns:
        Delivery count across, records up. Counts of 20 and more share a bar.
    Raises:
        ShareStateError: if it is another table.
    Source: KIP-932, group.share.delivery.count.limit.
    """
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise ShareStateError(f"limit={limit!r}: give a number from 1 on")
    rows = to_arrow(in_flight, _IN_FLIGHT_COLUMNS, "in_flight")
    chart = Chart(f"{_common_name(rows)}: deliveries of what is in flight", height=3.4)
    counts = np.clip(rows["delivery_count"].to_numpy(), 0, _MAX_COUNT).astype(np.int64)
    records = rows["record_count"].to_numpy()
    names = np.where(
        rows["gap"].to_numpy(zero_copy_only=False), GAP, rows["state"].to_numpy(zero_copy_only=False)
    )
    top = max(int(counts.max(initial=0)), min(limit or 0, _MAX_COUNT))
    axes = chart.subplots()
    bottom, handles = np.zeros(top + 1), []
    for name in [*STATE_STYLES, *sorted(set(names.tolist()) - set(STATE_STYLES))]:
        of_state = names == name
        if not of_state.any():
            continue
        heights = np.bincount(counts[of_state], records[of_state], minlength=top + 1)
        colour, hatch = STATE_STYLES.get(name, OTHER_STYLE)
        style = {"facecolor": colour, "hatch": hatch, "edgecolor": INK, "linewidth": 0.6}
        style |= {"linestyle": "dotted"} if name == GAP else {}
        axes.bar(np.arange(top + 1), heights, bottom=bottom, width=0.7, **style)
        handles.append(
            Patch(**style, label=f"{escape_missing_glyphs(name.lower())} ({int(heights.sum()):,})")
        )
        bottom += heights
    for count in np.flatnonzero(bottom).tolist():
        axes.text(count, bottom[count], f"{int(bottom[count]):,}", ha="center", va="bottom", fontsize=8)
    if limit is not None and limit <= top:
        line = {"color": INK, "linestyle": "dashed", "linewidth": 1.2}
        handles.append(axes.axvline(limit, zorder=0, label=f"delivery limit ({limit})", **line))
    axes.set_xticks(range(top + 1), [f"{n}+" if n == _MAX_COUNT else str(n) for n in range(top + 1)])
    axes.set_xlabel("delivery count (deliveries of a record)")
    axes.set_ylabel("records in flight")
    axes.margins(y=0.12)
    integer_ticks(axes.yaxis, 0)
    if handles:
        chart.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, fontsize=8)
    else:
        axes.text(0.5, 0.5, "nothing in flight is recorded", ha="center", transform=axes.transAxes)
    often = {0: "without a recorded delivery", 1: "delivered once"}
    parts = [
        f"{int(bottom[n]):,} {often.get(n, f'delivered {n} times')}" for n in np.flatnonzero(bottom).tolist()
    ]
    chart.says = f"Records in flight: {', '.join(parts)}." if parts else "Nothing in flight is recorded."
    return chart


def _common_name(rows: pa.Table) -> str:
    """The share-partition or group that all rows are about."""
    if not len(rows):
        return "no share-partitions"
    first = rows.slice(0, 1).to_pylist()[0]
    is_common = {name: pc.count_distinct(rows[name], mode="all").as_py() == 1 for name in KEY_COLUMNS}
    if all(is_common.values()):
        return share_partition_name(first)
    return str(first["group_id"]) if is_common["group_id"] else "all groups"


@styled
def cutoffs(cutoff: Any) -> Chart:
    """The part of each log before its cutoff, which may be cleaned, and the part that must stay.

    Args:
        cutoff: table `cutoff` of any library; a column limited_by_topic holds names of topics.
    Returns:
        Offsets of the log across, one bar per log partition, labelled with its redundant records and the
        share-partition that holds the cutoff back.
    Raises:
        ShareStateError: if it is another table, or empty.
    Source: Kafka ShareCoordinatorOffsetsManager.lastRedundantOffset.
    """
    names = getattr(cutoff, "column_names", None) or getattr(cutoff, "columns", ())
    rows = to_arrow(cutoff, (*_CUTOFF_COLUMNS, *({"limited_by_topic"} & set(names))), "cutoff")
    order = [("redundant_records", "descending"), ("topic", "ascending"), ("partition", "ascending")]
    shown = rows.sort_by(order).slice(0, MAX_LOGS).sort_by(order[1:]).to_pylist()
    some = (
        f", the {MAX_LOGS} of {len(rows):,} partitions with the most to clean"
        if len(shown) < len(rows)
        else ""
    )
    chart = Chart(f"cutoff against log{some}", height=1.6 + 0.3 * max(len(shown), 1))
    origin = min((row["log_start_offset"] for row in shown), default=0)
    axes = chart.subplots()
    for place, row in enumerate(shown):
        start, end = row["log_start_offset"] - origin, row["log_end_offset"] - origin
        border = (
            start if row["cutoff_offset"] is None else min(max(row["cutoff_offset"] - origin, start), end)
        )
        axes.barh(place, end - border, left=border, height=0.62, **_NEEDED)
        axes.barh(place, border - start, left=start, height=0.62, **(_REDUNDANT if row["safe"] else _UNSAFE))
        axes.text(end, place, f"  {_cutoff_label(row)}", va="center", fontsize=8)
    names = [escape_missing_glyphs(f"{row['topic']}-{row['partition']}") for row in shown]
    axes.set_yticks(range(len(shown)), names)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    widest = max((row["log_end_offset"] - origin for row in shown), default=1)
    axes.set_xlim(0, max(widest, 1) * 1.5)
    axes.set_xlabel("offset of the log (records)")
    integer_ticks(axes.xaxis, origin)
    handles = [Patch(**_REDUNDANT, label="before the cutoff: redundant"), Patch(**_NEEDED, label="must stay")]
    if not all(row["safe"] for row in shown):
        handles.append(Patch(**_UNSAFE, label="before the cutoff, but the log cannot be trusted"))
    chart.legend(handles=handles, loc="outside lower left", ncols=3, frameon=False, fontsize=8)
    redundant = int(np.sum(rows["redundant_records"].fill_null(0).to_numpy(), dtype=np.int64))
    logs = pluralize(len(rows), "log partition")
    chart.says = f"{redundant:,} records lie before the cutoffs of {logs}."
    return chart


def _cutoff_label(row: dict[str, Any]) -> str:
    label = f"{row['redundant_records'] or 0:,} may go" if row["safe"] else "not safe"
    if row["limited_by_group"] is not None:
        topic = row.get("limited_by_topic") or row["limited_by_topic_id"] or row["topic"]
        label += f"; held by {row['limited_by_group']} {topic}-{row['limited_by_partition']}"
    return escape_missing_glyphs(label)


def draw_plot(
    kind: str,
    plan: FoldPlan,
    selection: SharePartitionFilter,
    *,
    since: int | LogTime | None = None,
    offset_range: tuple[int, int] | None = None,
) -> Chart:
    """Fold logs and draw one chart of them.

    Args:
        kind, plan: window, offsets, deliveries or cutoff, and the log partitions.
        selection: the share-partitions; exactly one for `offsets`; for the cutoff those whose logs are shown.
        since, offset_range: what part of a window is shown; by default all of it.
    Raises:
        ShareStateError: if there is nothing to draw.
        InputError: if a segment cannot be read.
    """
    plan.check_time()
    if kind in ("window", "offsets"):
        plan = replace(plan, timeline=selection)
        states = [(log, table) for log in plan.logs for table in plan.states_of(log)]
        if not states:
            plan.check(selection)
        timeline = pa.concat_tables([table_schema("timeline").empty_table(), *(table for _, table in states)])
        shown = {log.name: log for log, table in states if len(table)}
        newest = _end_of(plan, shown)
        until = to_datetime(newest)
        _check_selected(kind, timeline)
        if kind == "offsets":
            return offsets(timeline, until=until)
        begin = since.at(newest) if isinstance(since, LogTime) else since
        begin_time = None if begin is None else to_datetime(begin)
        return window(timeline, until=until, since=begin_time, offset_range=offset_range)
    executor, where = LocalExecutor(), selection.of_rows
    name = IN_FLIGHT if kind == "deliveries" else CUTOFF if where is None else STATE
    folded = (STATE, IN_FLIGHT) if name == IN_FLIGHT else (name,) if name != CUTOFF else ()
    rows = executor.fold(plan, OutputSpec(folded))
    tables = executor.returned_tables(rows, (*folded, CUTOFF))
    shown = tables[name] if where is None else tables[name].filter(where)
    if not len(shown) and where is not None:
        plan.check(selection)
    if kind == "deliveries":
        chart = deliveries(shown, limit=plan.known_limit("delivery_count", selection.group_id))
        states = tables[STATE] if where is None else tables[STATE].filter(where)
        if unknown := pc.sum(lacks_beginning(states)).as_py():
            chart.says += f" It is not known for {pluralize(unknown, 'share-partition')}: {NO_BEGINNING}."
        return chart
    of_logs = tables[CUTOFF] if where is None else tables[CUTOFF].filter(_logs_of(shown))
    return cutoffs(name_holders(of_logs, plan.options.topics))


def _check_selected(kind: str, timeline: pa.Table) -> None:
    """Refuse a timeline of more than a chart shows: `offsets` is of one share-partition, `window` of one group.

    Raises:
        ShareStateError: naming the options.
    """
    count = timeline.group_by(list(KEY_COLUMNS)).aggregate([]).num_rows
    groups = pc.count_distinct(timeline["group_id"]).as_py()
    said = pluralize(count, "share-partition") if count else "no share-partition has a record"
    if kind == "offsets" and count != 1:
        raise ShareStateError(f"plot offsets: {said}; choose one by --group, --topic and --partition")
    if groups != 1:
        raise ShareStateError(f"plot {kind}: {said}; choose one group by --group")


def _end_of(plan: FoldPlan, shown: Mapping[str, LogPartition]) -> int:
    """The time (ms) at which an export ends: that of its newest record, whichever log holds it."""
    if not any(plan.window_of(log) != Window() for log in plan.logs):
        span = time_span(plan.logs)
        if span is not None and not span.is_live:
            return span.last
    return max((plan.fold(log).newest_time for log in shown.values()), default=-1)


def _logs_of(states: pa.Table) -> pc.Expression:
    """A filter for the rows of `cutoff` about the logs that hold the records of share-partitions."""
    is_state = states["dialect"].to_numpy() == SHARE_GROUP_STATE
    numbers = np.where(is_state, states["state_partition"].fill_null(-1), states["partition"]).tolist()
    topics = np.where(is_state, STATE_TOPIC, states["topic"]).tolist()
    logs = set(zip(topics, numbers, strict=True))
    found = []
    for topic, number in logs:
        same = pc.field("partition").is_null() if number < 0 else pc.field("partition") == number
        found.append((pc.field("topic") == topic) & same)
    return reduce(or_, found, pc.scalar(False))
