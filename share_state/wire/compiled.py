"""How kernels are compiled: kept on disk, run without Python's lock, and with indices from the beginning only.

An array that a kernel is given lives until the kernel returns, since its caller holds it. So kernels that make no array
do not count references to those they have: counting is atomic, and took an eighth of the time of decode and fold.
"""

from typing import Any

from numba import njit

from share_state.wire.plain_indices import PlainIndices

# numba's own kernels are told _nrt, too, but its types do not say so.
kernel: Any = njit(cache=True, nogil=True, pipeline_class=PlainIndices, _nrt=False)  # pyright: ignore[reportCallIssue]
"""Compiles a function that makes no array and returns none. Where one is made, compiling fails."""

allocating_kernel: Any = njit(cache=True, nogil=True, pipeline_class=PlainIndices, _nrt=True)  # pyright: ignore[reportCallIssue]
"""Compiles a function that makes arrays, or returns any."""

inlined: Any = njit(cache=True, inline="always")
"""Compiles a function as a part of those that call it."""
