"""Ranges that stand elsewhere, against offsets looked at one by one."""

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.report.diff import (
    BELOW,
    BEYOND,
    InFlightWindow,
    RangeChange,
    RangeState,
    compare_windows,
    print_differences,
)
from tests.present import present

VALUES: list[RangeState] = [("AVAILABLE (1)", False), ("gap", False), ("ACKNOWLEDGED (1)", True)]


@st.composite
def windows(draw: st.DrawFn) -> InFlightWindow | None:
    if draw(st.integers(0, 5)) == 0:
        return None
    start = at = draw(st.integers(0, 20))
    tiles = []
    for _ in range(draw(st.integers(0, 5))):
        last = at + draw(st.integers(0, 6))
        tiles.append((at, last, draw(st.sampled_from(VALUES))))
        at = last + 1
    return InFlightWindow(start, at, tiles)


def _value(window: InFlightWindow, offset: int) -> RangeState:
    if offset < window.start:
        return BELOW
    return next((value for first, last, value in window.ranges if first <= offset <= last), BEYOND)


@given(windows(), windows())
def test_ranges_differ_where_offsets_do(before: InFlightWindow | None, after: InFlightWindow | None):
    found = compare_windows(before, after)
    told = {offset: (one.before, one.after) for one in found for offset in range(one.first_offset, one.last_offset + 1)}
    assert sum(one.last_offset - one.first_offset + 1 for one in found) == len(told)
    if before is None and after is None:
        assert not found
        return
    start = present(before or after).start
    old, new = (
        before or InFlightWindow(start, start, []),
        after or InFlightWindow(start, start, []),
    )
    expected = {}
    for offset in range(100):
        was, is_now = _value(old, offset), _value(new, offset)
        if was != is_now:
            expected[offset] = was[0], is_now[0]
    assert told == expected
    assert found == sorted(found, key=lambda one: one.first_offset)


def _window(start: int, *tiles: tuple[int, int, RangeState]) -> InFlightWindow:
    return InFlightWindow(start, tiles[-1][1] + 1 if tiles else start, tiles)


def test_each_change_has_its_name():
    available, acknowledged, again = ("AVAILABLE (1)", False), ("ACKNOWLEDGED (1)", True), ("AVAILABLE (2)", False)
    before = _window(10, (10, 11, acknowledged), (12, 14, available), (15, 19, available))
    after = _window(12, (12, 14, acknowledged), (15, 19, again), (20, 22, available), (23, 25, acknowledged))
    assert compare_windows(before, after) == [
        RangeChange(10, 11, "passed", "ACKNOWLEDGED (1)", "below SPSO"),
        RangeChange(12, 14, "finished", "AVAILABLE (1)", "ACKNOWLEDGED (1)"),
        RangeChange(15, 19, "changed", "AVAILABLE (1)", "AVAILABLE (2)"),
        RangeChange(20, 22, "new", "beyond SPEO", "AVAILABLE (1)"),
        RangeChange(23, 25, "finished", "beyond SPEO", "ACKNOWLEDGED (1)"),
    ]
    assert {one.change for one in compare_windows(after, before)} == {"returned", "changed", "gone"}
    assert [one.change for one in compare_windows(None, before)] == ["finished", "new"]


def test_neighbours_that_differ_only_in_counts_are_printed_as_one_range(
    capsys: pytest.CaptureFixture[str],
):
    before = [(10, 19, ("AVAILABLE (1)", False)), (20, 20, ("AVAILABLE (2)", False)), (21, 40, ("gap", False))]
    after = [
        (10, 12, ("ACKNOWLEDGED (1)", True)),
        (13, 20, ("ACKNOWLEDGED (3)", True)),
        (21, 21, ("ARCHIVED (5)", True)),
        (22, 40, ("gap", False)),
    ]
    changes = compare_windows(InFlightWindow(10, 41, before), InFlightWindow(10, 41, after))
    ranges = [asdict(one) | {"record_count": one.last_offset - one.first_offset + 1} for one in changes]
    row = {"group_id": "g", "topic": "t", "partition": 0, "change": "changed", "scalars": {}, "ranges": ranges}
    print_differences({"share_partitions": 1, "differing": 1, "changed": [row], "without_beginning": []})
    lines = capsys.readouterr().out.splitlines()
    assert lines[4:6] == [
        "  finished  10-20: AVAILABLE (1 to 2) -> ACKNOWLEDGED (1 to 3)",
        "  given up  21: gap -> ARCHIVED (5)",
    ]
    assert lines[1].endswith("11 finished, 1 given up")
    assert lines[-1] == "1 of 1 share-partition differs"


def test_what_became_of_deliveries_stands_in_words_where_it_is_known(capsys: pytest.CaptureFixture[str]):
    deliveries = {"acknowledged": 41_200, "given_up": 50, "rejected": 0, "released": 300, "dead_lettered": 0}
    ranges = [
        {
            "first_offset": 0,
            "last_offset": 41_249,
            "change": "passed",
            "before": "ACKNOWLEDGED (1)",
            "after": "below SPSO",
        },
        {
            "first_offset": 41_250,
            "last_offset": 41_251,
            "change": "new",
            "before": "beyond SPEO",
            "after": "AVAILABLE (1)",
        },
    ]
    ranges = [one | {"record_count": one["last_offset"] - one["first_offset"] + 1} for one in ranges]
    row = {"group_id": "g", "topic": "t", "partition": 0, "change": "changed", "scalars": {}, "ranges": ranges}
    changed = {"share_partitions": 1, "differing": 1, "without_beginning": []}
    print_differences(changed | {"changed": [row | {"deliveries": deliveries}]})
    assert capsys.readouterr().out.splitlines()[1].endswith("41,200 acknowledged, 50 given up, 300 released, 2 new")
    print_differences(changed | {"changed": [row | {"deliveries": None}]})
    assert capsys.readouterr().out.splitlines()[1].endswith("2 new, 41,250 passed")
