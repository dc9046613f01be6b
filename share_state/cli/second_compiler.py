"""A second process that compiles kernels at the same time: numba compiles in one thread of a process.

The processes share the cache; each waits for a kernel that the other compiles (`share_state.jit.shared_cache`).
"""

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress

from share_state.pipeline.plan import available_cores

EVERYTHING = "--everything"
_PROGRAM = "share_state.cli.kernels"


def start_second_compiler(*, everything: bool = False) -> Callable[[], object]:
    """Start it, unless there is only one core; it ends with this process, or when it is done.

    Args:
        everything: compile all kernels, the last ones first; by default those that fold records, which a command needs
            once it has compiled those that read them.
    Returns:
        A function that ends it.
    """
    if available_cores() < 2 or not sys.executable:
        return int
    command = [sys.executable, "-m", _PROGRAM, *([EVERYTHING] if everything else [])]
    quiet = subprocess.DEVNULL
    with suppress(OSError):
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet)
        _started.append(process)
        return process.kill
    return int


_started = list[subprocess.Popen[bytes]]()
"""Their inputs end when this process does."""
