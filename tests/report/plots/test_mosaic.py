"""Every offset at every time is in exactly one tile, the one of its state and delivery count."""

import numpy as np
import pyarrow as pa
import pytest

from share_state.report.plots import timelines
from share_state.report.plots.timelines import History, read_history

Look = tuple[int | None, int]


def _plainly(drawn: History) -> dict[tuple[float, int], Look]:
    """(time, offset) -> (state, count), of what is in flight, offset by offset."""
    looks: dict[tuple[float, int], Look] = {}
    for time, row in zip(drawn.times.tolist(), drawn.rows.to_pylist(), strict=True):
        looks = {place: look for place, look in looks.items() if place[0] != time}
        start, end = row["start_offset"], row["end_offset"]
        if start is None or start < 0:
            continue
        looks |= {(time, offset): (None, 0) for offset in range(start, end)}
        for batch in row["state_batches"]:
            for offset in range(max(start, batch["first_offset"]), batch["last_offset"] + 1):
                looks[time, offset] = (
                    batch["delivery_state"],
                    min(batch["delivery_count"], timelines.MAX_COUNT),
                )
    return looks


def _tiled(drawn: History, origin: int, end: int) -> dict[tuple[float, int], Look]:
    looks: dict[tuple[float, int], Look] = {}
    times = np.unique(drawn.times)
    for tile in timelines.tiles(drawn, origin, end):
        for left, right, low, high in tile.bounds.tolist():
            for time in times[(times >= left) & (times < right)].tolist():
                for offset in range(origin + int(low), origin + int(high)):
                    assert (time, offset) not in looks, "two tiles overlap"
                    looks[time, offset] = (tile.state, tile.count)
    return looks


def test_tiles_are_what_the_states_say_offset_by_offset(stuck: pa.Table):
    drawn = read_history(stuck, "state_batches")
    assert _tiled(drawn, 0, int(drawn.end.max())) == _plainly(drawn)


def test_offsets_that_no_batch_covers_are_gaps_and_a_deleted_state_leaves_nothing(stuck: pa.Table):
    first = stuck.slice(0, 4).to_pylist()
    one = {"first_offset": 12, "last_offset": 12, "delivery_state": 0, "delivery_count": 9}
    first[1] |= {"start_offset": 10, "end_offset": 13, "state_batches": [one]}
    first[2] |= {"start_offset": 11, "end_offset": 11, "state_batches": []}
    first[3] |= {"start_offset": None, "end_offset": None, "state_batches": None}
    drawn = read_history(pa.Table.from_pylist(first, schema=stuck.schema), "state_batches")
    assert _tiled(drawn, 10, 13) == _plainly(drawn)
    assert set(_plainly(drawn).values()) == {(None, 0), (0, timelines.MAX_COUNT)}


def test_a_long_history_is_drawn_from_few_cells(stuck: pa.Table, monkeypatch: pytest.MonkeyPatch):
    drawn = read_history(stuck, "state_batches")
    true = _plainly(drawn)
    monkeypatch.setattr(timelines, "MAX_TIMES", 20)
    monkeypatch.setattr(timelines, "MAX_OFFSETS", 30)
    found = list(timelines.tiles(drawn, 0, int(drawn.end.max())))
    assert sum(len(tile.bounds) for tile in found) <= 20 * 30
    assert {(tile.state, tile.count) for tile in found} <= set(true.values())
    last = [tile for tile in found if (tile.bounds[:, 1] == drawn.until).any()]
    covered = sum((high - low) for tile in last for _, right, low, high in tile.bounds if right == drawn.until)
    assert covered == pytest.approx(drawn.end[-1] - drawn.start[-1], abs=2 * drawn.end.max() / 30)
