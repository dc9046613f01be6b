"""Processes that tests start: they end with the test run, even if that is killed, and may have a terminal."""

import ctypes
import os
import pty
import signal
import subprocess
from pathlib import Path

_PR_SET_PDEATHSIG = 1
# Loaded before the fork, which other threads may not survive.
_LIBC = ctypes.CDLL(None)


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent ends: a `preexec_fn` of Popen."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def run_on_terminal(command: list[str], folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    """Exit code and output of a command whose stdout and stderr are one terminal."""
    reader, terminal = pty.openpty()
    with subprocess.Popen(command, stdout=terminal, stderr=terminal, cwd=folder, env=environment) as process:
        os.close(terminal)
        output = b""
        try:
            while read := os.read(reader, 65536):
                output += read
        except OSError:  # Linux: the last writer has closed the terminal
            pass
    os.close(reader)
    return process.returncode, output.decode()
