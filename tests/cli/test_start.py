"""How a command starts and leaves: quickly, and with the exit code of the contract."""

import os
import signal
import subprocess
import sys

import pytest

from tests.profiles import nightly, some_of

_THREADS = "import atexit, os; atexit.register(lambda: print(len(os.listdir('/proc/self/task'))));"
_START = "from share_state.cli.main import main; main({arguments})"


@nightly("two processes; test_real_command has one")
@pytest.mark.parametrize(
    ("arguments", "code"), some_of([(["rules"], 0), (["nothing"], 2), (["show", "/no/such"], 2)], 2)
)
def test_a_command_leaves_with_its_exit_code(arguments: list[str], code: int):
    assert _run(_START.format(arguments=arguments)).returncode == code


@nightly("a process for each command")
def test_no_thread_waits_for_linear_algebra_unless_somebody_asks_for_it():
    counted = _THREADS + _START.format(arguments=["rules"])
    few, asked = (int(_run(counted, threads).stdout.split()[-1]) for threads in (None, "2"))
    assert few < asked


@nightly("two processes")
def test_what_was_imported_is_not_looked_through():
    text = "import atexit, gc; atexit.register(lambda: print(gc.get_stats()[2]['collections']));"
    assert _run(text + _START.format(arguments=["rules"])).stdout.split()[-1] == "0"


def _run(text: str, threads: str | None = None) -> subprocess.CompletedProcess[str]:
    without = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    environment = without if threads is None else without | {"OPENBLAS_NUM_THREADS": threads}
    return subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=environment, check=False)


@nightly("processes")
def test_what_the_c_library_does_at_exit_changes_no_exit_code():
    # Threads of pyarrow that wait for the end of the interpreter abort the process there (apache/arrow issue 34314).
    aborts = "import ctypes; c = ctypes.CDLL(None); c.on_exit(ctypes.cast(c.abort, ctypes.c_void_p), None); "
    for start, code in ((_START.format(arguments=["rules"]), 0), ("raise SystemExit(0)", -signal.SIGABRT)):
        done = subprocess.run([sys.executable, "-c", aborts + start], capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
