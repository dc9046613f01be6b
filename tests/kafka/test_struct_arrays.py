"""Rows copied as bytes, and the buffer that they are put into."""

import numpy as np
import pytest

from share_state.kafka import buffers
from share_state.kafka.buffers import allocate_rows, clone_rows, concat_rows, fill_rows, range_rows, write_rows

ROW = np.dtype([("offset", "i8"), ("count", "i2"), ("is_held", "?")], align=True)


@pytest.mark.parametrize("much", [1, 1 << 20])
@pytest.mark.parametrize("count", [0, 1, 2, 1000])
def test_rows_are_put_into_buffer_of_either_kind(monkeypatch: pytest.MonkeyPatch, much: int, count: int):
    monkeypatch.setattr(buffers, "_HUGE_PAGES_FROM", much)
    rows = np.zeros(count, ROW)
    rows["offset"], rows["count"] = np.arange(count), 7
    buffer = allocate_rows(count + 1, ROW)
    assert buffer.flags.writeable
    assert buffer.flags.c_contiguous
    write_rows(rows, buffer)
    fill_rows(buffer[count:], np.array([(-1, 3, True)], ROW)[0])
    assert buffer.tolist() == [*rows.tolist(), (-1, 3, True)]
    assert concat_rows([clone_rows(buffer), buffer[:0]]).tolist() == buffer.tolist()


def test_rows_of_ranges_follow_each_other():
    assert range_rows(np.array([7, 2, 0, 7]), np.array([2, 0, 3, 1], np.int32)).tolist() == [7, 8, 0, 1, 2, 7]
    assert range_rows(np.array([], np.int64), np.array([], np.int64)).tolist() == []
