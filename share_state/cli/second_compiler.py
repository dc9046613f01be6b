"""A second process that compiles kernels at the same time: numba compiles in one thread of a process.

The processes share the cache; each waits for a kernel that the other compiles (`share_state.jit.shared_cache`).
"""

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from share_state.pipeline.memory import available_memory
from share_state.pipeline.plan import available_cores

_PROGRAM = "share_state.cli.kernels"
_LEAST_MEMORY = 2 << 30
"""Bytes that must be free: a process that compiles takes up to 700 MB."""


def start_second_compiler(scratch: Path | None = None) -> Callable[[], object]:
    """Start it once, unless there is only one core or little memory; it ends with this process, or when it is done.

    Args:
        scratch: an empty folder for logs, to compile all kernels, the last ones first; by default those that fold
            records, which a command needs once it has compiled those that read them.
    Returns:
        A function that ends it.
    """
    memory = available_memory()
    has_room = available_cores() > 1 and (memory is None or memory >= _LEAST_MEMORY)
    if _started or not has_room or not sys.executable:
        return int
    command = [sys.executable, "-m", _PROGRAM, *([] if scratch is None else [str(scratch)])]
    quiet = subprocess.DEVNULL
    with suppress(OSError):
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet)
        _started.append(process)
        return partial(_end, process)
    return int


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


_started = list[subprocess.Popen[bytes]]()
"""Their inputs end when this process does."""
