"""What the pictures draw, read back from their SVG."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from xml.etree import ElementTree

import pytest

from share_state.report.page import MAX_SINGLE_BARS, history_svg, window_svg
from share_state.report.plots.charts import SHADES
from tests.present import present
from tests.report.made_warehouse import IN_FLIGHT, TONIGHT, share_partition

Ranges = list[dict[str, Any]]


def _ranges(*ranges: tuple[int, int, str, int]) -> Ranges:
    return share_partition(ranges=ranges)["flights"]


def _texts(picture: str | None) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(present(picture)).iter("text")]


def _bars(picture: str) -> list[tuple[float, float]]:
    """(left, right) of every bar of every lane, from the paths that more than one bar makes one element of."""
    bars = []
    for path in ElementTree.fromstring(picture).iter("path"):
        style = path.get("style", "")
        if path.get("clip-path") and "fill" in style:
            for piece in path.get("d", "").split("z"):
                across = [float(x) for x in re.findall(r"[ML] ([\d.]+) [\d.]+", piece)]
                if across:
                    bars.append((min(across), max(across)))
    return bars


def _night(day: int, start: int, lag: int | None = None, verdict: str = "OK") -> dict[str, Any]:
    return {"time": TONIGHT + timedelta(days=day), "start_offset": start, "lag": lag, "verdict": verdict}


def test_each_state_has_its_lane_and_each_range_its_bar_to_scale():
    picture = window_svg(_ranges(*IN_FLIGHT), 5, "w")
    assert [text for text in _texts(picture) if text.isalpha()] == [
        "available",
        "gap",
        "acknowledged",
        "archiving",
        "archived",
    ]
    bars = sorted(_bars(picture))
    assert len(bars) == len(IN_FLIGHT)
    scale = (bars[-1][1] - bars[0][0]) / (173 - 100)
    for (first, last, _, _), (left, right) in zip(IN_FLIGHT, bars, strict=True):
        assert left - bars[0][0] == pytest.approx((first - 100) * scale, abs=0.01)
        assert right - left == pytest.approx((last + 1 - first) * scale, abs=0.01)


def test_states_are_told_apart_without_colour():
    hatched = window_svg(_ranges(*IN_FLIGHT), 5, "w")
    patterns = ElementTree.fromstring(hatched).iter("pattern")
    drawn = {path.get("d") for pattern in patterns for path in pattern.iter("path")}
    assert len(drawn) == len({"acknowledged", "archiving", "archived"})


def test_a_range_near_the_delivery_limit_is_marked():
    counts = [text for text in _texts(window_svg(_ranges(*IN_FLIGHT), 5, "w")) if text.startswith("×")]
    assert sorted(counts) == ["×1", "×1", "×2", "×4!", "×5", "×5!"]
    counts = [text for text in _texts(window_svg(_ranges(*IN_FLIGHT), 9, "w")) if text.startswith("×")]
    assert "×4!" not in counts


def test_offsets_beyond_the_precision_of_a_double_are_written_exactly():
    start = 2**62 + 1
    texts = _texts(window_svg(_ranges((start, start + 3, "AVAILABLE", 1)), 5, "w"))
    assert f"{start:,}" in texts


def test_too_many_ranges_become_shares_of_the_offsets():
    many = _ranges(*((n, n, ("AVAILABLE", "ACKNOWLEDGED")[n % 2], 1) for n in range(MAX_SINGLE_BARS + 800)))
    picture = window_svg(many, 5, "w")
    assert any("share of the offsets" in text for text in _texts(picture))
    assert len(picture) < 40_000
    assert "In flight from offset 0 to 999: 500 available, 500 acknowledged." in picture


def test_a_state_that_kafka_does_not_know_has_a_lane_of_its_own():
    ranges = _ranges((0, 3, "AVAILABLE", 1), (4, 5, "UNKNOWN(9)", 1))
    assert "unknown(9)" in _texts(window_svg(ranges, 5, "w"))


def test_ids_begin_with_the_name_of_the_picture_and_the_bytes_are_the_same_again():
    first, again = (window_svg(_ranges(*IN_FLIGHT), 5, "p1w") for _ in range(2))
    assert first == again
    ids = [element.get("id") for element in ElementTree.fromstring(first).iter() if element.get("id")]
    assert ids
    assert all(re.fullmatch(r"p1w-\d+", one or "") for one in ids)
    assert {one.removeprefix("#") for one in re.findall(r'href="(#[^"]*)"', first)} <= set(ids)


def test_the_history_marks_every_audit_with_its_verdict():
    nights = [_night(n, 100 + n, lag=n, verdict="OK" if n < 3 else "STALL") for n in range(5)]
    texts = _texts(history_svg(nights, "h"))
    assert {"start offset", "lag (records)", "OK", "STALL"} <= set(texts)
    assert f"{nights[0]['time']:%d %b %H:%M}" in texts
    assert f"{nights[-1]['time']:%d %b %H:%M}" in texts


def test_a_lag_that_is_not_known_is_not_drawn():
    texts = _texts(history_svg([_night(0, 1), _night(1, 2)], "h"))
    assert "start offset" in texts
    assert "lag (records)" not in texts


def test_one_point_makes_no_picture():
    assert history_svg([], "h") is None
    assert history_svg([_night(0, 5)], "h") is None
    assert history_svg([_night(0, 5), _night(0, 5)], "h") is None
    assert history_svg([_night(0, -1), _night(1, 5)], "h") is None


def test_times_at_the_ends_of_the_calendar_are_drawn():
    ends = [datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)]
    nights = [_night(0, 5) | {"time": time} for time in ends]
    assert "31 Dec 23:59" in _texts(history_svg(nights, "h"))


def test_ranges_of_one_state_differ_in_colour_by_their_delivery_count():
    picture = window_svg(_ranges((0, 4, "AVAILABLE", 1), (5, 9, "AVAILABLE", 2), (10, 14, "AVAILABLE", 2)), 5, "w")
    assert [picture.count(shade) for shade in SHADES["AVAILABLE"]] == [0, 1, 1, 0]
