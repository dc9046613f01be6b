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
    # A person's own NUMBA_CACHE_DIR is respected; the usual place goes when the environment goes.
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    kept = Path(chosen) / "share-state" if chosen else Path(sys.prefix) / "share" / "share-state"
    return kept / "kernels" / digest.hexdigest()
