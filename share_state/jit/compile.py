"""Where compiled kernels are kept: numba's own cache looks at one file at a time, a kernel is compiled from several.

How kernels are compiled: kept on disk, run without Python's lock.

An array that a kernel is given lives until the kernel returns, since its caller holds it. So kernels that make no array
do not count references to those they have: counting is atomic, and took an eighth of the time of decode and fold.

Tells the CPU which row of an array a compiled kernel reads next, so that many rows are on their way at once.
"""

import hashlib
import os
import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.caching import CacheImpl, _CacheLocator
from numba.extending import intrinsic

_PACKAGE = Path(__file__).parents[1]
_ROOMS = ("fold", "jit", "kafka", "rules", "sources")
_OF_KERNELS = (b"share_state.jit.compile import", b"numba")
"""What a source with kernels, or with what they call, says."""


def keep() -> None:
    """Let numba keep kernels under a name that changes with any of their sources; called before the first one."""
    if _KeptKernel not in CacheImpl._locator_classes:
        CacheImpl._locator_classes.insert(0, _KeptKernel)


def forget_others() -> None:
    """Remove the kernels of other versions of the sources."""
    current = _folder()
    for folder in current.parent.glob("*"):
        if folder != current:
            shutil.rmtree(folder, ignore_errors=True)


@cache
def _folder() -> Path:
    digest = hashlib.blake2b(digest_size=8)
    for room in _ROOMS:
        for source in sorted((_PACKAGE / room).glob("*.py")):
            # Constants that kernels use are defined beside kernels, so other files cannot change one.
            text = source.read_bytes()
            if any(name in text for name in _OF_KERNELS):
                digest.update(text)
    return _kept() / "kernels" / digest.hexdigest()


def _kept() -> Path:
    """Where a person's own NUMBA_CACHE_DIR says; else in the environment, and goes when that goes; else at home."""
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        return Path(chosen) / "share-state"
    shared = Path(sys.prefix) / "share"
    nearest = next(place for place in (shared / "share-state", shared, Path(sys.prefix)) if place.exists())
    return shared / "share-state" if os.access(nearest, os.W_OK) else Path.home() / ".cache" / "share-state"


class _KeptKernel(_CacheLocator):
    """Where numba keeps one kernel: not by the path of its source, which on a cluster is another one in every job."""

    def __init__(self, kernel: Callable[..., object], source: Path) -> None:
        self._place, self._line = _folder() / source.parent.name, kernel.__code__.co_firstlineno

    @classmethod
    def from_function(cls, py_func: Callable[..., object], py_file: str) -> "_KeptKernel | None":
        if Path(py_file).parent not in [_PACKAGE / room for room in _ROOMS]:
            return None
        kept = cls(py_func, Path(py_file))
        try:
            kept.ensure_cache_path()
        except OSError:
            return None
        return kept

    def get_cache_path(self) -> str:
        return str(self._place)

    def get_source_stamp(self) -> str:
        # The folder's name is the digest of all sources.
        return ""

    def get_disambiguator(self) -> str:
        return str(self._line)


keep()


def _kernel(*, counts: bool) -> Any:
    # numba's own kernels are told _nrt, too, but its types do not say so.
    return njit(nogil=True, cache=True, _nrt=counts)  # pyright: ignore[reportCallIssue]


kernel: Any = _kernel(counts=False)
"""Compiles a function that makes no array and returns none. Where one is made, compiling fails."""

allocating_kernel: Any = _kernel(counts=True)
"""Compiles a function that makes arrays, or returns any."""

inlined: Any = njit(cache=True, inline="always")
"""Compiles a function as a part of those that call it."""


_BYTE = ir.IntType(8).as_pointer()
_NUMBER = ir.IntType(32)
_WORD, _LINE = 8, 64
_READ, _KEEP, _DATA = _NUMBER(0), _NUMBER(3), _NUMBER(1)


def _prefetch(typing_context: Any, array: Any, row: Any) -> Any:
    del typing_context, row

    def made(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        kind = signature.args[0]
        rows = context.make_array(kind)(context, builder, given[0])
        at = cgutils.get_item_pointer(context, builder, kind, rows, [given[1]])
        first = builder.bitcast(at, _BYTE)
        size = context.get_abi_sizeof(context.get_data_type(kind.dtype))
        asked = ir.FunctionType(ir.VoidType(), [_BYTE, _NUMBER, _NUMBER, _NUMBER])
        function = cgutils.get_or_insert_function(builder.module, asked, "llvm.prefetch.p0i8")
        # What is not larger than a word lies in one line.
        places = [0] if size <= _WORD else [*range(0, size - 1, _LINE), size - 1]
        for place in places:
            builder.call(function, [builder.gep(first, [_NUMBER(place)]), _READ, _KEEP, _DATA])
        return context.get_dummy_value()

    return types.void(array, types.intp), made


prefetch: Any = intrinsic(_prefetch)
"""prefetch(array, row): begin to load array[row], all of it; the row must be there.

Nothing changes but the time. Source: LLVM Language Reference, llvm.prefetch.
"""
