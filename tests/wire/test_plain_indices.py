"""Indices of kernels: taken as they are, but for those that are written out."""

from typing import Any

import numpy as np
from numba import njit
from share_state.wire.plain_indices import PlainIndices

from share_state.jit.compile import kernel


@kernel
def _at(rows, index):
    return rows[index]


@kernel
def _set(rows, index, value):
    rows[index] = value


@kernel
def _last(rows):
    return rows[-1]


def test_no_kernel_looks_at_the_sign_of_an_index_as_numba_does_by_itself():
    def looks(compiled: Any) -> bool:
        compiled(np.arange(3), 1)
        (code,) = compiled.inspect_llvm().values()
        assert "%arg.index" in code
        return "icmp slt i64 %arg.index" in code

    # Not from what numba keeps on disk, which holds no text.
    plain, ours = njit(_at.py_func), njit(pipeline_class=PlainIndices)(_at.py_func)
    assert looks(plain)
    assert not looks(ours)


def test_every_kind_of_index_finds_its_row():
    rows = np.arange(300) * 7
    for index in (np.int8(100), np.uint8(200), np.int32(299), np.int64(0), 3):
        assert _at(rows, index) == 7 * int(index)
        _set(rows, index, -int(index))
        assert rows[index] == -int(index)


def test_a_negative_index_that_is_written_out_counts_from_the_end():
    assert _last(np.arange(5)) == 4
