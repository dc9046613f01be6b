"""Where compiled kernels are kept: numba's own cache looks at one file at a time, a kernel is compiled from several."""

import hashlib
import os
import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numba.core.caching import CacheImpl, FunctionCache, _CacheLocator
from numba.core.runtime import rtsys

_PACKAGE = Path(__file__).parent
_ROOMS = ("wire", "fold")
_OF_KERNELS = (b"wire.compiled import", b"numba")
"""What a source with kernels, or with what they call, says."""


def keep() -> None:
    """Let numba keep kernels under a name that changes with any of their sources; called before the first one."""
    if _KeptKernel not in CacheImpl._locator_classes:
        CacheImpl._locator_classes.insert(0, _KeptKernel)


def kept(compiled: Any) -> Any:
    """A function that numba compiles, its kernels kept on disk and read back from there."""
    compiled._cache = _KeptKernels(compiled.py_func)
    return compiled


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


class _KeptKernels(FunctionCache):
    """The kernels of one function.

    Before it reads the first one back numba lists all that it can compile, which takes longer than to read all that a
    fold needs (bench/README.md). Compiling lists it as well, so that is left to where a kernel is not there.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """A kernel that is there, None for none."""
        # Kernels call this part of numba while they run.
        rtsys.initialize(target_context)
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)


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
