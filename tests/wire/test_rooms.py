"""Rooms that are used again, and no sooner than what lies in them may go."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.kafka.buffers import Rooms, byte_room


@given(st.integers(1, 4), st.lists(st.integers(1, 9), max_size=12))
def test_what_was_handed_out_holds_until_as_many_more_are_asked_for(count: int, stretches: list[int]):
    rooms, handed_out = Rooms(byte_room, 1, count), list[np.ndarray]()
    for in_it in stretches:
        room = rooms.next()
        held = handed_out[max(0, len(handed_out) - count + 1) :]
        assert not any(room is one for one in held)
        for _ in range(in_it):
            rooms.hand_out()
            handed_out.append(room)


@pytest.mark.parametrize(("in_each", "made"), [(1, 3), (2, 2), (8, 2)])
def test_few_rooms_do_where_much_of_what_holds_lies_in_one(in_each: int, made: int):
    rooms, given_out = Rooms(byte_room, 1, 3), list[np.ndarray]()
    for _ in range(20):
        given_out.append(rooms.next())
        for _ in range(in_each):
            rooms.hand_out()
    assert len({id(room) for room in given_out}) == made


def test_a_room_that_is_too_small_is_made_anew():
    rooms = Rooms(byte_room, 4, 1)
    first = rooms.next()
    rooms.hand_out()
    assert rooms.next() is first
    rooms.hand_out()
    larger = rooms.next(9)
    assert len(larger) == 9
    assert len(rooms.larger()) == 8
    rooms.hand_out()
    assert len(rooms.next()) == 8
