"""Merged lists mean, per offset, the greatest (count, state); their cuts are those of the release."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.simulator.state_values import combine_state_batches
from share_state.simulator.types import StateBatch
from tests.simulator.logs.conversations import state_batches
from tests.simulator.state_batches import state_batch
from tests.truth import runs, value_by_offset

LISTS = st.lists(state_batches(), max_size=6)


def batches(text: str) -> list[StateBatch]:
    """Of first-last/state/count, as in 0-4/2/1."""
    parsed = []
    for one in text.split():
        span, state, count = one.split("/")
        first, _, last = span.partition("-")
        parsed.append(state_batch(int(first), int(last), int(state), int(count)))
    return parsed


def canonical(union: list[StateBatch], start: int) -> list[tuple[int, int, int, int]]:
    values = value_by_offset([list(one) for one in union])
    kept = sorted((offset, value) for offset, value in values.items() if start == -1 or offset >= start)
    return [(first, last, state, count) for first, last, (count, state) in runs(kept)]


@given(LISTS, LISTS, st.integers(-1, 35))
def test_the_greatest_of_each_offset_stays(recorded, written, start):
    plain = canonical(recorded + written, start)
    merge_adjacent = combine_state_batches(recorded, written, start, merges=True)
    if len(merge_adjacent) != 1:
        assert list(merge_adjacent) == plain
    apart = combine_state_batches(recorded, written, start, merges=False)
    assert canonical(list(apart), -1) == plain
    assert all(left.last_offset < right.first_offset for left, right in pairwise(apart))


# What 4.3.1 was seen to leave apart, and what follows from it.
@pytest.mark.parametrize(
    ("recorded", "written", "start", "apart", "merge_adjacent"),
    [
        ("1-1/2/2 2-2/4/1", "2-2/2/2", -1, "1-1/2/2 2-2/2/2", "1-2/2/2"),
        ("0-4/2/1 5-9/0/1", "5-9/2/1", 0, "0-4/2/1 5-9/2/1", "0-9/2/1"),
        ("0-4/0/1 5-9/2/1", "0-4/2/1", 0, "0-9/2/1", "0-9/2/1"),
        ("0-0/4/1 1-1/2/1", "1-2/4/1", 0, "0-0/4/1 1-2/4/1", "0-2/4/1"),
        ("3-3/4/2 4-7/4/2 8-8/0/2", "2-4/2/0", 3, "3-3/4/2 4-7/4/2 8-8/0/2", "3-7/4/2 8-8/0/2"),
        ("1-2/0/3 3-4/2/2 5-5/2/2 7-8/0/2", "3-4/0/3 5-7/4/2", -1, "1-2/0/3 3-4/0/3 5-7/4/2 8-8/0/2",
         "1-4/0/3 5-7/4/2 8-8/0/2"),
        ("1-4/4/3 5-6/2/1", "7-7/4/1 4-5/0/2 5-5/4/3", 1, "1-4/4/3 5-5/4/3 6-6/2/1 7-7/4/1",
         "1-5/4/3 6-6/2/1 7-7/4/1"),
        ("0-10/0/1 20-30/0/1", "5-25/2/1", 3, "3-4/0/1 5-25/2/1 26-30/0/1", "3-4/0/1 5-25/2/1 26-30/0/1"),
        ("100-110/0/1 121-130/0/1", "111-119/2/2 116-123/2/2", -1, "100-110/0/1 111-123/2/2 124-130/0/1",
         "100-110/0/1 111-123/2/2 124-130/0/1"),
    ],
)  # fmt: skip
def test_known_lists_come_out_as_kafka_leaves_them(recorded, written, start, apart, merge_adjacent):
    assert list(combine_state_batches(batches(recorded), batches(written), start, merges=False)) == batches(apart)
    assert list(combine_state_batches(batches(recorded), batches(written), start, merges=True)) == batches(
        merge_adjacent
    )


def test_a_single_batch_comes_back_cut_but_otherwise_as_it_is():
    assert combine_state_batches((), batches("5-9/2/1"), 7, merges=True) == tuple(batches("7-9/2/1"))
    assert combine_state_batches((), batches("5-9/2/1"), 10, merges=True) == ()
