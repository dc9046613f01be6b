"""Rooms for decoded records go from log to log, but for those that one log has made large."""

import numpy as np

from share_state.kafka.buffers import RecordRoom, SpareRooms

RECORD, BATCH = np.dtype([("offset", "i8")]), np.dtype([("first", "i8"), ("last", "i8")])


def spare_rooms() -> SpareRooms:
    return SpareRooms(lambda: RecordRoom(RECORD, BATCH))


def test_a_room_that_is_taken_back_is_the_next_one_and_empty():
    spare = spare_rooms()
    room = spare.room()
    rows, batches = room.more(3, 5)
    rows["offset"], batches["last"], room.batch_count = 7, 9, 4
    spare.take_back(room)
    assert spare.room() is room
    assert (room.size, room.row_count, room.batch_count) == (0, 0, 0)
    assert room.more(3, 5)[0]["offset"].tolist() == [0, 0, 0]


def test_nobody_else_gets_a_room_that_is_in_use():
    spare = spare_rooms()
    one, other = spare.room(), spare.room()
    assert one is not other
    spare.take_back(other)
    assert spare.room() is other


def test_a_large_room_is_let_go():
    spare = spare_rooms()
    room = spare.room()
    room.more(1, 20_000_000)
    assert room.capacity > 256 << 20
    spare.take_back(room)
    assert spare.room() is not room
