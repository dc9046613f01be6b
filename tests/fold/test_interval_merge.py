"""What a leader makes of folded ranges: the start it moves to, and the in-flight window without holes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from share_state.fold.interval_merge import effective_starts, end_offsets, tiles
from share_state.kafka.delivery_states import DeliveryState, is_terminal
from share_state.kafka.state_records import STATE_BATCH

Range = tuple[int, int, int, int]


@st.composite
def canonical(draw: st.DrawFn) -> tuple[int, list[Range]]:
    """A start offset, and sorted disjoint ranges (first, last, state, count) around it."""
    at, drawn = draw(st.integers(0, 8)), []
    for _ in range(draw(st.integers(0, 6))):
        first = at + draw(st.integers(0, 2))
        at = first + draw(st.integers(1, 4))
        drawn.append((first, at - 1, draw(st.sampled_from([0, 2, 2, 3, 4, 4])), draw(st.integers(0, 3))))
    return draw(st.integers(-1, 20)), drawn


def _columns(drawn: list[tuple[int, list[Range]]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    batches = np.zeros(sum(len(ranges) for _, ranges in drawn), STATE_BATCH)
    for row, (first, last, state, count) in enumerate(batch for _, ranges in drawn for batch in ranges):
        batches[row]["first"], batches[row]["last"] = first, last
        batches[row]["state"], batches[row]["count"] = state, count
    starts = np.array([start for start, _ in drawn], np.int64)
    return starts, np.cumsum([0, *(len(ranges) for _, ranges in drawn)]).astype(np.int64), batches


many = st.lists(canonical(), max_size=6)


@given(many)
def test_a_leader_starts_behind_the_leading_run_of_terminal_offsets(drawn: list[tuple[int, list[Range]]]):
    expected = []
    for start, ranges in drawn:
        terminal = {at for first, last, state, _ in ranges if state in (2, 4) for at in range(first, last + 1)}
        effective = start
        if start >= 0 and not (ranges and ranges[0][0] < start):
            while effective in terminal:
                effective += 1
        expected.append(effective)
    assert effective_starts(*_columns(drawn)).tolist() == expected


@given(many)
def test_the_end_is_the_first_offset_behind_the_last_range(drawn: list[tuple[int, list[Range]]]):
    expected = [-1 if start < 0 else max(start, *(r[1] + 1 for r in ranges), start) for start, ranges in drawn]
    assert end_offsets(*_columns(drawn)).tolist() == expected


@given(many)
def test_the_tiles_of_a_share_partition_cover_its_window_once_and_say_what_covers_it(
    drawn: list[tuple[int, list[Range]]],
):
    columns = _columns(drawn)
    tile_ends, rows = tiles(*columns)
    assert len(rows) == tile_ends[-1]
    for number, (start, ranges) in enumerate(drawn):
        own = rows[tile_ends[number] : tile_ends[number + 1]]
        covered = [at for row in own for at in range(row["first"], row["last"] + 1)]
        end = int(end_offsets(*columns)[number])
        assert covered == (list(range(start, end)) if start >= 0 else [])
        values = {at: (state, count) for first, last, state, count in ranges for at in range(first, last + 1)}
        for row in own:
            told = (int(row["state"]), int(row["count"]))
            for at in range(row["first"], row["last"] + 1):
                assert (values.get(at, (0, 0)), at not in values) == (told, bool(row["gap"]))


def test_an_offset_in_archiving_holds_the_start_back():
    drawn = [(0, [(0, 4, 2, 1), (5, 5, 3, 1), (6, 9, 4, 2)])]
    assert effective_starts(*_columns(drawn)).tolist() == [5]


def test_a_gap_at_the_start_holds_the_start_back():
    assert effective_starts(*_columns([(0, [(1, 4, 2, 1)])])).tolist() == [0]


def test_only_acknowledged_and_archived_are_terminal():
    assert [state.name for state in DeliveryState if is_terminal(state)] == ["ACKNOWLEDGED", "ARCHIVED"]
