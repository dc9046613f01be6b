"""Buffers that are used again, and no sooner than what lies in them may go."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.kafka.buffers import BufferPool, byte_buffer


@given(st.integers(1, 4), st.lists(st.integers(1, 9), max_size=12))
def test_what_was_used_holds_until_as_many_more_are_asked_for(count: int, slices: list[int]):
    pool, used = BufferPool(byte_buffer, 1, count), list[np.ndarray]()
    for in_it in slices:
        buffer = pool.next()
        held = used[max(0, len(used) - count + 1) :]
        assert not any(buffer is one for one in held)
        for _ in range(in_it):
            pool.mark_used()
            used.append(buffer)


@pytest.mark.parametrize(("in_each", "made"), [(1, 3), (2, 2), (8, 2)])
def test_few_buffers_do_where_much_of_what_holds_lies_in_one(in_each: int, made: int):
    pool, given_out = BufferPool(byte_buffer, 1, 3), list[np.ndarray]()
    for _ in range(20):
        given_out.append(pool.next())
        for _ in range(in_each):
            pool.mark_used()
    assert len({id(buffer) for buffer in given_out}) == made


def test_a_buffer_that_is_too_small_is_made_anew():
    pool = BufferPool(byte_buffer, 4, 1)
    first = pool.next()
    pool.mark_used()
    assert pool.next() is first
    pool.mark_used()
    larger = pool.next(9)
    assert len(larger) == 9
    assert len(pool.grow()) == 8
    pool.mark_used()
    assert len(pool.next()) == 8
