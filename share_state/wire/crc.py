"""CRC-32C for compiled kernels: the C library that google-crc32c carries, called without leaving the kernel."""

from pathlib import Path

import google_crc32c._crc32c
import llvmlite.binding as llvm
from numba import types

from share_state.errors import SetupError


def _library() -> Path:
    extension = Path(google_crc32c._crc32c.__file__)
    for pattern in (
        "google_crc32c.libs/libcrc32c*",
        "google_crc32c/.dylibs/libcrc32c*",
        "google_crc32c/extra-dll/*crc32c*",
    ):
        for library in sorted(extension.parent.parent.glob(pattern)):
            return library
    raise SetupError(f"{extension.parent}: google-crc32c was built without its C library; install it from its wheel")


# A kernel read back from the cache refers to the function by name, so the library must be loaded before any kernel.
llvm.load_library_permanently(str(_library()))

crc32c = types.ExternalFunction("crc32c_value", types.uint32(types.CPointer(types.uint8), types.uintp))
"""crc32c(pointer to the first byte, number of bytes) -> uint32; picks the CPU's own instruction at run time."""
