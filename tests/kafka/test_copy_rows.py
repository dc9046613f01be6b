"""Rows moved within their array, onto themselves too, and from one array to another."""

import numpy as np
import pytest

from share_state.jit.compile import kernel
from share_state.jit.intrinsics import copy_rows
from share_state.kafka.state_records import STATE_BATCH


@kernel
def _moved(source, begin, target, to, count):
    copy_rows(source, begin, target, to, count)


def _rows() -> np.ndarray:
    return np.array([(number, number + 1, number, number % 5) for number in range(10)], STATE_BATCH)


@pytest.mark.parametrize(("begin", "to", "count"), [(0, 1, 9), (1, 0, 9), (2, 7, 3), (7, 2, 3), (0, 3, 7), (10, 10, 0)])
def test_rows_are_what_those_they_come_from_were(begin: int, to: int, count: int):
    rows = _rows()
    expected = rows.tolist()
    expected[to : to + count] = expected[begin : begin + count]
    _moved(rows, begin, rows, to, count)
    assert rows.tolist() == expected


def test_rows_of_another_array_stay_as_they_are():
    source, target = _rows(), np.zeros(10, STATE_BATCH)
    _moved(source, 2, target, 5, 3)
    assert source.tolist() == _rows().tolist()
    assert target.tolist() == [*[(0, 0, 0, 0)] * 5, *source[2:5].tolist(), *[(0, 0, 0, 0)] * 2]
