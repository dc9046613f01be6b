"""Functions of C libraries that kernels call."""

from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
from numba import types

CPU_BYTES = types.CPointer(types.uint8)
SIZE = types.uintp
UINT32 = types.uint32


def native_function(library: Path, name: str, result: Any, *parameters: Any) -> Any:
    """A function of a C library, for kernels.

    Cached kernels refer to the function by its name, so this is called before any kernel that uses it.

    Args:
        library: the file of the library, which stays loaded.
        name: the name of the function in it.
        result, parameters: numba types.
    """
    llvm.load_library_permanently(str(library))
    return types.ExternalFunction(name, result(*parameters))
