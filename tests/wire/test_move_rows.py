"""Rows moved within their array, onto themselves too."""

import numpy as np
import pytest

from share_state.wire.compiled import kernel
from share_state.wire.move_rows import move_rows
from share_state.wire.share_group_state import STATE_BATCH


@kernel
def _moved(rows, begin, to, count):
    move_rows(rows, begin, to, count)


@pytest.mark.parametrize(("begin", "to", "count"), [(0, 1, 9), (1, 0, 9), (2, 7, 3), (7, 2, 3), (0, 3, 7), (10, 10, 0)])
def test_rows_are_what_those_they_come_from_were(begin: int, to: int, count: int):
    rows = np.array([(number, number + 1, number, number % 5) for number in range(10)], STATE_BATCH)
    expected = rows.tolist()
    expected[to : to + count] = expected[begin : begin + count]
    _moved(rows, begin, to, count)
    assert rows.tolist() == expected
