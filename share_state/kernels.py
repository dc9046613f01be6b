"""Where compiled kernels are kept: numba's own cache looks at one file at a time, a kernel is compiled from several."""

import hashlib
import os
import shutil
import sys
from functools import cache
from pathlib import Path

import numba

_PACKAGE = Path(__file__).parent
_ROOMS = ("wire", "fold")


def keep() -> None:
    """Let numba keep kernels under a name that changes with any of their sources; called before the first one."""
    numba.config.CACHE_DIR = str(_folder())


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
            if b"numba" in (text := source.read_bytes()):
                digest.update(text)
    return _kept() / "kernels" / digest.hexdigest()


def _kept() -> Path:
    """Where a person's own NUMBA_CACHE_DIR says; else in the environment, and goes when that goes; else at home."""
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        return Path(chosen) / "share-state"
    shared = Path(sys.prefix) / "share"
    nearest = next(place for place in (shared / "share-state", shared, Path(sys.prefix)) if place.exists())
    return shared / "share-state" if os.access(nearest, os.W_OK) else Path.home() / ".cache" / "share-state"
