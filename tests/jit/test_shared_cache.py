"""Several processes that need a kernel: one compiles it, whatever happens to the others."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from share_state.jit import compile
from tests.profiles import nightly

KERNEL = """
import sys
from share_state.jit.compile import kernel
from share_state.jit.compile_times import watch_compiling

@kernel
def total(values):
    found = 0.0
    for value in values:
        found += value
    return found

def run():
    import numpy as np
    compiled = []
    with watch_compiling(compiled.append):
        assert total(np.arange(4.0)) == 6.0
    print(max(compiled, default=0))

if __name__ == "__main__":
    run()
"""

HOLD = """
import fcntl, sys, time
from pathlib import Path
Path(sys.argv[1]).parent.mkdir(parents=True)
file = open(sys.argv[1], "wb")
# The locks of all kernels.
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def module(tmp_path: Path) -> Path:
    file = tmp_path / "one_kernel.py"
    file.write_text(KERNEL)
    return file


def _lock_of(cache: Path) -> Path:
    folder = compile._kernel_folder()
    assert folder is not None
    return cache / "share-state/kernels" / folder.name / "lock"


def _environment(cache: Path) -> dict[str, str]:
    return os.environ | {"NUMBA_CACHE_DIR": str(cache)}


@contextmanager
def _held(cache: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that compiles for ever."""
    command = [sys.executable, "-c", HOLD, str(_lock_of(cache))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        try:
            yield holder
        finally:
            holder.kill()


def _wait_for_lock(process: subprocess.Popen[str], file: Path) -> None:
    """Until the system lists a process among those that wait for the lock of a file."""
    inode = str(file.stat().st_ino)
    waits = f" {process.pid} "
    while not any(
        "->" in line and waits in line and f":{inode} " in line for line in Path("/proc/locks").read_text().splitlines()
    ):
        assert process.poll() is None
        time.sleep(0.05)


@nightly("processes that compile")
def test_one_process_compiles_and_the_others_load_even_if_one_is_killed(module: Path, tmp_path: Path):
    cache = tmp_path / "cache"
    with _held(cache) as holder:
        command = [sys.executable, str(module)]
        waiting = [
            subprocess.Popen(command, env=_environment(cache), stdout=subprocess.PIPE, text=True) for _ in range(2)
        ]
        for process in waiting:
            _wait_for_lock(process, _lock_of(cache))
        holder.send_signal(signal.SIGKILL)
        compiled = sorted(int(process.communicate(timeout=120)[0]) for process in waiting)
    assert compiled == [0, 1]
    # The lock is free again, and a cached kernel does not need it.
    with _lock_of(cache).open("wb") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        done = subprocess.run(command, env=_environment(cache), capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "0\n"


TWO_KERNELS = """
import sys
import numpy as np
from share_state.jit.compile import kernel

@kernel
def first(values):
    return values[0] + shared(values)

@kernel
def second(values):
    return values[0] * shared(values)

@kernel
def shared(values):
    return values[1]

for name in sys.argv[1:]:
    globals()[name](np.arange(4.0))
    print(name, sum(globals()[name].stats.cache_misses.values()), flush=True)
"""


@nightly("processes that compile")
def test_processes_compile_different_kernels_at_the_same_time(tmp_path: Path):
    module, cache = tmp_path / "kernels.py", tmp_path / "cache"
    module.write_text(TWO_KERNELS)
    orders = (["first", "second"], ["second", "first"])
    commands = ([sys.executable, str(module), *order] for order in orders)
    running = [
        subprocess.Popen(command, env=_environment(cache), stdout=subprocess.PIPE, text=True) for command in commands
    ]
    compiled = [process.communicate(timeout=300)[0].split() for process in running]
    # Whoever came first, each kernel was compiled once.
    missed = [int(count) for texts in compiled for count in texts[1::2]]
    assert [texts[::2] for texts in compiled] == [*orders]
    assert sum(missed) == 2


@nightly("two processes that compile")
def test_a_kernel_that_fails_to_compile_keeps_no_other_process_waiting(module: Path, tmp_path: Path):
    cache = tmp_path / "cache"
    module.write_text(KERNEL.replace("found += value", "found += value.nothing"))
    fails = f"""
import fcntl, sys
import numpy as np
sys.path.insert(0, {str(tmp_path)!r})
import one_kernel
try:
    one_kernel.total(np.arange(4.0))
except Exception as error:
    print(type(error).__name__)
from share_state.jit import compile
from tests.profiles import nightly
from tests.profiles import nightly
print(compile._LOCKS.held)
"""
    done = subprocess.run(
        [sys.executable, "-c", fails], env=_environment(cache), capture_output=True, text=True, check=True
    )
    assert done.stdout == "TypingError\nset()\n"
