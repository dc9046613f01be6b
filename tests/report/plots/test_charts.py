"""What the charts draw, read back from the figures."""

import warnings
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from matplotlib.colors import to_rgb
from matplotlib.dates import date2num
from matplotlib.patches import Rectangle
from pyspark.sql import SparkSession

from share_state import plots
from share_state.api.tables import Tables
from share_state.errors import ShareStateError
from share_state.report.plots.charts import SHADES
from share_state.schema.declarations import table_schema
from tests.profiles import nightly, some_of


def _legend(chart: plots.Chart) -> list[str]:
    return [text.get_text() for text in chart.legends[0].get_texts()]


def test_start_and_end_are_drawn_as_recorded(stuck: pa.Table):
    chart = plots.offsets(stuck)
    lines = {line.get_label(): line for line in chart.axes[0].get_lines()}
    origin = 0
    for label, column in (("SPSO (start)", "start_offset"), ("SPEO (end)", "end_offset")):
        drawn = np.asarray(lines[label].get_ydata(), np.float64)
        recorded = np.array([value if (value or 0) >= 0 else np.nan for value in stuck[column].to_pylist()], np.float64)
        recorded[np.array(stuck["start_offset"].to_pylist()) < 0] = np.nan
        np.testing.assert_array_equal(drawn[:-1] + origin, recorded)
    (end,) = set(np.asarray(lines["end of the topic"].get_ydata()).tolist())
    assert end == stuck["topic_end_offset"][-1].as_py()
    assert "the start offset moved from 0 to 130" in chart.says
    assert chart.axes[0].get_xlabel() == "time of the records (UTC)"
    assert chart.axes[0].get_ylabel() == "offset (records)"


def test_the_window_names_every_state_that_occurred_and_both_its_ends(stuck: pa.Table):
    chart = plots.window(stuck)
    occurred = {
        (batch["delivery_state"], min(batch["delivery_count"], 3))
        for batches in stuck["state_batches"].to_pylist()
        for batch in batches
    }
    names = {0: "available", 2: "acknowledged", 3: "archiving", 4: "archived"}
    expected = {f"{names[state]} ×{count}{' or more' if count == 3 else ''}" for state, count in occurred}
    assert set(_legend(chart)) == expected | {"SPSO", "SPEO"}
    assert chart.axes[0].get_ylabel() == "offset (records)"


@pytest.mark.parametrize("plot", [plots.window, plots.offsets])
def test_the_axis_reaches_to_the_end_of_the_log(stuck: pa.Table, plot: Callable[..., plots.Chart]):
    """A share-partition that nobody touches any more has stood still as long as the log went on."""
    last = stuck["timestamp"].to_pylist()[-1]
    own, whole = plot(stuck), plot(stuck, until=last + timedelta(hours=2))
    shown = [chart.axes[0].get_xlim()[1] - date2num(last) for chart in (own, whole)]
    assert shown[0] < 1 / 24 < 2 / 24 < shown[1] < 2.2 / 24
    assert f"to {last + timedelta(hours=2):%Y-%m-%d %H:%M:%S} UTC" in whole.says
    assert whole.axes[0].get_xlabel().endswith("to the end of the log")


def test_states_differ_in_grey_and_more_deliveries_are_darker():
    def lightness(colour: str) -> float:
        red, green, blue = (x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in to_rgb(colour))
        return 116 * (0.2126 * red + 0.7152 * green + 0.0722 * blue) ** (1 / 3) - 16

    bands = sorted((sorted(map(lightness, SHADES[name])) for name in SHADES if name != "ACQUIRED"), reverse=True)
    for lighter, darker in pairwise(bands):
        assert lighter[0] - darker[-1] > 5
    for shades in SHADES.values():
        assert all(lightness(one) - lightness(more) > 3.5 for one, more in pairwise(shades))


def bars_of(chart: plots.Chart) -> list[Rectangle]:
    """The bars of a chart."""
    return [patch for patch in chart.axes[0].patches if isinstance(patch, Rectangle)]


def test_deliveries_stack_to_the_records_in_flight(tables: Tables):
    chosen = tables.in_flight.filter(pc.field("group_id") == "dq-off")
    chart = plots.deliveries(chosen, limit=3)
    heights: dict[int, float] = {}
    for bar in bars_of(chart):
        count = round(bar.get_x() + bar.get_width() / 2)
        heights[count] = heights.get(count, 0) + bar.get_height()
    counted = chosen.group_by("delivery_count").aggregate([("record_count", "sum")]).to_pylist()
    assert {k: v for k, v in heights.items() if v} == {r["delivery_count"]: r["record_count_sum"] for r in counted}
    assert chart.heading.startswith("dq-off:")
    assert "delivery limit (3)" in _legend(chart)


def test_the_cutoff_splits_each_log_where_it_is(tables: Tables):
    chart = plots.cutoffs(tables.cutoff)
    bars = sorted((bar.get_y(), bar.get_x(), bar.get_width()) for bar in bars_of(chart))
    rows = tables.cutoff.sort_by("partition").to_pylist()
    expected = []
    for row in rows:
        expected.append((row["log_start_offset"], row["cutoff_offset"] - row["log_start_offset"]))
        expected.append((row["cutoff_offset"], row["log_end_offset"] - row["cutoff_offset"]))
    assert [(x, width) for _, x, width in bars] == expected
    said = " ".join(text.get_text() for text in chart.axes[0].texts)
    assert all(f"held by {row['limited_by_group']}" in said for row in rows)
    assert f"{sum(row['redundant_records'] for row in rows):,} records" in chart.says


def test_where_nothing_may_be_cleaned_nothing_is_drawn_as_redundant(tables: Tables):
    row = tables.cutoff.to_pylist()[0] | {"cutoff_offset": None, "safe": False, "redundant_records": None}
    chart = plots.cutoffs(pa.Table.from_pylist([row], schema=tables.cutoff.schema))
    assert [bar.get_width() for bar in bars_of(chart)] == [row["log_end_offset"] - row["log_start_offset"], 0]
    assert "not safe" in chart.axes[0].texts[0].get_text()


def test_many_logs_show_those_with_most_to_clean_and_say_so(tables: Tables):
    rows = [tables.cutoff.to_pylist()[0] | {"partition": n, "redundant_records": n} for n in range(70)]
    chart = plots.cutoffs(pa.Table.from_pylist(rows, schema=tables.cutoff.schema))
    assert chart.axes[0].get_yticklabels()[0].get_text() == "__share_group_state-10"
    assert "60 of 70" in chart.heading


def test_a_name_in_any_script_is_drawn_without_a_warning(stuck: pa.Table):
    rows = [row | {"group_id": "日本 $x_1$ \n\x07"} for row in stuck.to_pylist()]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shown = plots.offsets(pa.Table.from_pylist(rows, schema=stuck.schema))._repr_png_()
    assert shown.startswith(b"\x89PNG")


def test_a_share_partition_without_a_start_says_so(stuck: pa.Table):
    first = stuck.slice(0, 1)
    assert "never initialized" in plots.offsets(first).says
    assert "Nothing was ever in flight" in plots.window(first).says
    assert "Nothing in flight is recorded" in plots.deliveries(table_schema("in_flight").empty_table()).says


def test_records_without_a_stamp_do_not_stretch_the_time(stuck: pa.Table):
    rows = [row | ({"timestamp": None} if number in (0, 5) else {}) for number, row in enumerate(stuck.to_pylist())]
    chart = plots.offsets(pa.Table.from_pylist(rows, schema=stuck.schema))
    days = [stamp.timestamp() / 86_400 for stamp in (rows[1]["timestamp"], rows[-1]["timestamp"])]
    left, right = chart.axes[0].get_xlim()
    assert left == pytest.approx(days[0], abs=1e-9)
    assert right == pytest.approx(days[1] + 0.03 * (days[1] - days[0]), abs=1e-9)


def test_a_table_that_is_another_or_holds_several_is_refused(stuck: pa.Table, tables: Tables):
    with pytest.raises(ShareStateError, match=r"timeline: it lacks .*timestamp.*; give the table `timeline`"):
        plots.window(tables.in_flight)
    with pytest.raises(ShareStateError, match="this is a list"):
        plots.cutoffs([])
    with pytest.raises(
        ShareStateError,
        match=r"it has no rows; give that of one: share_state.timeline\(input, group, topic, partition\)",
    ):
        plots.offsets(stuck.slice(0, 0))
    other = pa.Table.from_pylist([row | {"partition": 2} for row in stuck.to_pylist()], schema=stuck.schema)
    with pytest.raises(ShareStateError, match="timeline: 2 share-partitions; give that of one"):
        plots.offsets(pa.concat_tables([stuck, other]))


@nightly("three libraries")
@pytest.mark.parametrize("form", some_of([pa.Table.to_pandas, pl.from_arrow], 1))
def test_frames_of_other_libraries_draw_as_an_arrow_table_does(stuck: pa.Table, tables: Tables, form):
    assert plots.window(form(stuck))._repr_png_() == plots.window(stuck)._repr_png_()
    assert plots.deliveries(form(tables.in_flight)).says == plots.deliveries(tables.in_flight).says
    assert plots.cutoffs(form(tables.cutoff)).says == plots.cutoffs(tables.cutoff).says


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"until": "late"}, "until='late': give a datetime"),
        ({"offset_range": 5}, r"offset_range=5: give \(first, last\)"),
        ({"offset_range": (5, 1)}, r"offset_range=\(5, 1\): give \(first, last\)"),
        ({"since": datetime(2030, 1, 1)}, "since 2030-01-01 00:00:00 UTC: the log ends before"),
    ],
)
def test_what_a_chart_cannot_show_is_said_of_the_argument(stuck: pa.Table, arguments: Any, said: str):
    with pytest.raises(ShareStateError, match=said):
        plots.window(stuck, **arguments)


@nightly("an extra of Spark's frames")
def test_a_spark_dataframe_draws_as_an_arrow_table_does(spark: SparkSession, tables: Tables):
    arrow = plots.cutoffs(tables.cutoff)
    assert plots.cutoffs(spark.createDataFrame(tables.cutoff))._repr_png_() == arrow._repr_png_()
