"""How kernels are compiled: kept on disk, run without Python's lock, and with indices from the beginning only.

An array that a kernel is given lives until the kernel returns, since its caller holds it. So kernels that make no array
do not count references to those they have: counting is atomic, and took an eighth of the time of decode and fold.
"""

from collections.abc import Callable
from typing import Any

from numba import njit

from share_state.kernels import kept
from share_state.wire.plain_indices import PlainIndices


def _kernel(*, counts: bool) -> Any:
    # numba's own kernels are told _nrt, too, but its types do not say so.
    compiled = njit(nogil=True, pipeline_class=PlainIndices, _nrt=counts)  # pyright: ignore[reportCallIssue]

    def made(function: Callable[..., object]) -> Any:
        return kept(compiled(function))

    return made


kernel: Any = _kernel(counts=False)
"""Compiles a function that makes no array and returns none. Where one is made, compiling fails."""

allocating_kernel: Any = _kernel(counts=True)
"""Compiles a function that makes arrays, or returns any."""

inlined: Any = njit(cache=True, inline="always")
"""Compiles a function as a part of those that call it."""
