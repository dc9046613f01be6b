"""Processes that tests start end with the test run, even if that is killed."""

import ctypes
import signal

_PR_SET_PDEATHSIG = 1
# Loaded before the fork, which other threads may not survive.
_LIBC = ctypes.CDLL(None)


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends: a `preexec_fn` of Popen."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
