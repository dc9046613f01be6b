"""A window shows the least finished offset of a cell, unfinished offsets always, and the part that is asked for."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.patches import PathPatch

from share_state import plots
from share_state.errors import ShareStateError
from share_state.report.plots import timelines
from share_state.report.plots.charts import SHADES
from share_state.report.plots.timelines import read_history
from tests.cli.commands import Command
from tests.kafka.batches import NOW, Batch
from tests.log_writer import Key, Range, snapshot, update, write_log_folder
from tests.profiles import by_profile, nightly
from tests.truth import DATA

KEY: Key = ("app", "AAAAAAAAAAEAAAAAAAAAAg", 3)
DLQ = DATA / "4.4.0/dlq"
LATER = NOW + 7_200_000
_LEAST_FINISHED = [None, 0, 1, 3, 2, 4]


def _timeline(stuck: pa.Table, ranges: list[Range], end: int) -> pa.Table:
    """Two records of one share-partition with these ranges in flight from offset 0 on."""
    names = ("first_offset", "last_offset", "delivery_state", "delivery_count")
    rows = stuck.slice(0, 2).to_pylist()
    for row in rows:
        batches = [dict(zip(names, one, strict=True)) for one in ranges]
        row |= {"start_offset": 0, "end_offset": end, "state_batches": batches}
    return pa.Table.from_pylist(rows, schema=stuck.schema)


@settings(max_examples=by_profile(40, 1000))
@given(st.lists(st.tuples(st.integers(1, 9), st.sampled_from([None, 0, 2, 3, 4])), min_size=3, max_size=40))
def test_a_cell_shows_the_least_finished_of_its_offsets(stuck: pa.Table, pieces: list[tuple[int, int | None]]) -> None:
    states = [state for length, state in pieces for _ in range(length)]
    ranges = [(offset, offset, state, 1) for offset, state in enumerate(states) if state is not None]
    drawn = read_history(_timeline(stuck, ranges, len(states)), "state_batches")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timelines, "MAX_OFFSETS", 7)
        tiles = list(timelines.tiles(drawn, 0, len(states)))
    assert sum((tile.bounds[:, 3] - tile.bounds[:, 2]).sum() for tile in tiles) == len(states)
    for tile in tiles:
        for _, _, low, high in tile.bounds.tolist():
            covered = states[int(low) : int(high)]
            assert tile.state in covered
    # No unfinished offset is hidden by a finished one.
    for offset, state in enumerate(states):
        (shown,) = {tile.state for tile in tiles for _, _, low, high in tile.bounds if low <= offset < high}
        assert _LEAST_FINISHED.index(shown) <= _LEAST_FINISHED.index(state)


def _heights(chart: plots.Chart, colour: str) -> np.ndarray:
    patches = [one for one in chart.axes[0].patches if isinstance(one, PathPatch)]
    (path,) = [one.get_path() for one in patches if one.get_facecolor() == pytest.approx(_rgba(colour))]
    corners = np.asarray(path.vertices).reshape(-1, 5, 2)
    return corners[:, :, 1].max(axis=1) - corners[:, :, 1].min(axis=1)


def _rgba(colour: str) -> tuple[float, ...]:
    red, green, blue = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    return red, green, blue, 1.0


@pytest.mark.parametrize("state", [0, 3])
def test_one_stuck_record_of_a_million_is_seen(stuck: pa.Table, state: int) -> None:
    end = 1_000_000
    ranges: list[Range] = [(0, 499_999, 2, 1), (500_000, 500_000, state, 3), (500_001, end - 1, 2, 1)]
    chart = plots.window(_timeline(stuck, ranges, end))
    name = {0: "AVAILABLE", 3: "ARCHIVING"}[state]
    (height,) = set(_heights(chart, SHADES[name][3]).tolist())
    assert height / end > 0.005


def test_the_chart_begins_and_is_cut_where_it_is_asked_to(stuck: pa.Table) -> None:
    last = stuck["timestamp"].to_pylist()[-1]
    chart = plots.window(stuck, since=last - timedelta(seconds=1), offset_range=(120, 160))
    whole = plots.window(stuck)
    begin, end = (np.diff(one.axes[0].get_xlim())[0] for one in (chart, whole))
    assert begin < end
    assert f"From {last - timedelta(seconds=1):%Y-%m-%d %H:%M:%S}" in chart.says
    low, high = chart.axes[0].get_ylim()
    assert (round(low), round(high)) == (-1, 42)
    with pytest.raises(ShareStateError, match="the log ends before"):
        plots.window(stuck, since=last + timedelta(days=1))


@nightly("draws a large chart")
def test_each_partition_of_a_group_has_its_facet(cli: Command, tmp_path: Path) -> None:
    named = ("--topics", DLQ / "topics.json", "--group", "dq-isr", "--topic", "t0")
    out = tmp_path / "group.svg"
    said = cli("plot", "window", DLQ, *named, "--out", out)
    assert said.code == 0
    text = out.read_text()
    for partition in range(4):
        assert f"dq-isr on t0-{partition}" in text
        assert f"dq-isr on t0-{partition}: at the end the window is from" in said.out
    assert "dq-isr: 4 share-partitions" in text


def test_the_chart_ends_with_the_export_even_if_another_log_is_newer(cli: Command, tmp_path: Path) -> None:
    records = [snapshot(KEY), update(KEY, [(0, 4, 0, 1)])]
    write_log_folder(tmp_path / "log", 0, [Batch([one], base_timestamp=NOW) for one in records])
    other: Key = ("other", KEY[1], 0)
    write_log_folder(tmp_path / "log", 1, [Batch([snapshot(other)], base_timestamp=LATER, max_timestamp=LATER)])
    words = ("--group", "app", "--topic", KEY[1], "--partition", 3, "--out", tmp_path / "w.svg")
    assert "to 2023-11-15 00:13:20 UTC" in cli("plot", "window", tmp_path / "log", *words).out


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("window", "--offsets", "9-5"), "--offsets 9-5: give A-B, the first and the last offset"),
        (("window", "--offsets", "x"), "--offsets x: give A-B, the first and the last offset"),
        (("offsets", "--since=-1m"), "plot offsets: --since and --offsets choose a part of a window"),
    ],
)
def test_unusable_parts_are_refused(cli: Command, tmp_path: Path, words: tuple[str, ...], error: str) -> None:
    said = cli("plot", words[0], DLQ, *words[1:], "--group", "dq-isr", "--out", tmp_path / "w.svg")
    assert (said.code, said.err) == (2, f"share-state: {error}\n")


def test_no_label_is_cut(stuck: pa.Table, tmp_path: Path) -> None:
    """A group id as long as Kafka allows, in a heading that wraps; labels of the cutoff beside its bars."""
    rows: list[dict[str, Any]] = stuck.to_pylist()
    long = pa.Table.from_pylist([row | {"group_id": "long-group-id-" * 17} for row in rows], schema=stuck.schema)
    chart = plots.window(long)
    assert chart.title.get_text().count("\n") >= 2
    plots.save(chart, tmp_path / "w.png")
    renderer = chart.canvas.get_renderer()  # type: ignore[attr-defined]
    width = chart.get_window_extent(renderer).width
    assert chart.title.get_window_extent(renderer).x1 <= width
    assert chart.get_tightbbox(renderer).width * chart.dpi >= chart.legends[0].get_window_extent(renderer).x1 * 0.99
