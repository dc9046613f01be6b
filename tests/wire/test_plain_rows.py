"""Rows copied as bytes, and the room that they are put into."""

import numpy as np
import pytest

from share_state.kafka import buffers
from share_state.kafka.buffers import copied, fill, joined, put, used_once

ROW = np.dtype([("offset", "i8"), ("count", "i2"), ("is_held", "?")], align=True)


@pytest.mark.parametrize("much", [1, 1 << 20])
@pytest.mark.parametrize("count", [0, 1, 2, 1000])
def test_rows_are_put_into_room_of_either_kind(monkeypatch: pytest.MonkeyPatch, much: int, count: int):
    monkeypatch.setattr(buffers, "_MUCH", much)
    rows = np.zeros(count, ROW)
    rows["offset"], rows["count"] = np.arange(count), 7
    room = used_once(count + 1, ROW)
    assert room.flags.writeable
    assert room.flags.c_contiguous
    put(rows, room)
    fill(room[count:], np.array([(-1, 3, True)], ROW)[0])
    assert room.tolist() == [*rows.tolist(), (-1, 3, True)]
    assert joined([copied(room), room[:0]]).tolist() == room.tolist()
