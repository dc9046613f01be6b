"""The compiled sweep, offset by offset against a dictionary."""

from random import Random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from share_state.fold.interval_merge import count_of, priority, range_columns, state_of, sweep
from share_state.kafka.state_records import STATE_BATCH
from tests.profiles import nightly
from tests.truth import runs, value_by_offset

Range = list[int]
"""[first, last, delivery state, delivery count]"""


@st.composite
def ranges(draw: st.DrawFn, states: st.SearchStrategy[int], counts: st.SearchStrategy[int]) -> list[Range]:
    """Ranges within 60 offsets, in any order."""
    drawn = []
    for _ in range(draw(st.integers(0, 12))):
        first = draw(st.integers(0, 60))
        drawn.append([first, draw(st.integers(first, 60)), draw(states), draw(counts)])
    return drawn


usual = ranges(st.sampled_from([0, 2, 3, 4]), st.integers(0, 5))
values = st.tuples(st.integers(-(2**15), 2**15 - 1), st.integers(-128, 127))
extreme = ranges(st.sampled_from([-128, -1, 0, 4, 127]), st.sampled_from([-(2**15), -1, 0, 1, 2**15 - 1]))


def _swept(drawn: list[Range], base: int = 0) -> list[tuple[int, int, tuple[int, int]]]:
    size = len(drawn)
    first = np.array([row[0] + base for row in drawn], np.int64)
    last = np.array([row[1] + base for row in drawn], np.int64)
    packed = np.array([priority(row[3], row[2]) for row in drawn], np.int32)
    out = np.empty(2 * size, STATE_BATCH)
    end = sweep(first, last, packed, size, *range_columns(size), out, 0)
    return [(int(r["first"]) - base, int(r["last"]) - base, (int(r["count"]), int(r["state"]))) for r in out[:end]]


@given(usual)
@example([[0, 4, 2, 1], [5, 9, 0, 1], [5, 9, 2, 1]])
@example([[1, 1, 2, 2], [2, 2, 4, 1], [2, 2, 2, 2]])
@example([[3, 3, 4, 2], [4, 7, 4, 2], [8, 8, 0, 2], [2, 4, 2, 0]])
def test_every_offset_has_the_greatest_value_that_covers_it_in_maximal_runs(drawn: list[Range]):
    assert _swept(drawn) == list(runs(sorted(value_by_offset(drawn).items())))


@given(extreme)
def test_values_are_compared_as_signed_numbers_over_their_whole_range(drawn: list[Range]):
    assert _swept(drawn) == list(runs(sorted(value_by_offset(drawn).items())))


@pytest.mark.parametrize("base", [-(2**63), -(2**62), -30, 2**31 - 30, 2**32 - 30, 2**62, 2**63 - 2 - 60])
@given(drawn=usual)
def test_where_on_the_number_line_the_ranges_lie_does_not_matter(base: int, drawn: list[Range]):
    assert _swept(drawn, base) == _swept(drawn)


@given(usual, st.randoms(use_true_random=False))
def test_the_order_of_the_ranges_does_not_matter(drawn: list[Range], random):
    shuffled = list(drawn)
    random.shuffle(shuffled)
    assert _swept(shuffled) == _swept(drawn) == _swept([*drawn, *shuffled])


@given(usual)
def test_a_swept_list_stays_as_it_is(drawn: list[Range]):
    once = [[first, last, state, count] for first, last, (count, state) in _swept(drawn)]
    assert [[first, last, state, count] for first, last, (count, state) in _swept(once)] == once


@given(usual, usual)
def test_sweeping_in_two_steps_is_sweeping_at_once(left: list[Range], right: list[Range]):
    halves = [[first, last, *value[::-1]] for part in (left, right) for first, last, value in _swept(part)]
    assert _swept(halves) == _swept([*left, *right])


@nightly("thousands of ranges")
def test_many_ranges_that_all_overlap_are_swept():
    drawn = [[0, number, 0, number % 7] for number in range(3000)]
    assert _swept(drawn) == list(runs(sorted(value_by_offset(drawn).items())))


@pytest.mark.parametrize("size", [127, 128, 129, 255, 256, 257, 700])
@given(seed=st.integers(0, 2**32))
def test_many_ranges_in_any_order_are_swept(size: int, seed: int):
    random = Random(seed)
    starts = [random.randrange(4 * size) for _ in range(size)]
    drawn = [[first, first + random.randrange(9), random.choice([0, 2, 4]), random.randrange(4)] for first in starts]
    assert _swept(drawn) == list(runs(sorted(value_by_offset(drawn).items())))


@given(values)
def test_a_priority_gives_back_what_it_was_made_of(value: tuple[int, int]):
    assert (count_of(priority(*value)), state_of(priority(*value))) == value


@given(values, values)
def test_priorities_compare_by_count_then_state(left: tuple[int, int], right: tuple[int, int]):
    assert (priority(*left) < priority(*right)) == (left < right)
