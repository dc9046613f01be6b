"""What a process frees it takes again, without asking the system for it."""

import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

from share_state.cli.process import collect_garbage

_FAULTS = """
import resource
import numpy as np
from share_state.cli.process import keep_freed_memory
{begin}
def work():
    blocks = [np.ones(16 << 20, np.uint8) for _ in range(3)]
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not Path("/lib64/ld-linux-x86-64.so.2").exists(), reason="glibc on x86 only")
def test_memory_that_was_freed_is_used_again():
    assert 5 * _faults("keep_freed_memory()") < _faults("")


_GROUPED = """
from share_state.cli.process import share_one_heap
{begin}
import pyarrow as pa
pa.table({{"key": [1, 2, 1]}}).group_by("key").aggregate([])
print(pa.system_memory_pool().max_memory() > 0, pa.mimalloc_memory_pool().max_memory() > 0)
"""


def test_arrow_takes_memory_from_the_same_heap():
    taken = [
        subprocess.run(
            [sys.executable, "-c", _GROUPED.format(begin=begin)],
            capture_output=True,
            text=True,
            check=True,
            env=_plain(),
        ).stdout
        for begin in ("share_one_heap()", "")
    ]
    assert taken == ["True False\n", "False True\n"]


def test_objects_that_refer_to_each_other_are_freed():
    class One:
        def __init__(self) -> None:
            self.itself = self

    is_alive = weakref.ref(One())
    assert is_alive() is not None
    collect_garbage()
    assert is_alive() is None


def _plain() -> dict[str, str]:
    """The environment, without a choice of Arrow's memory."""
    return {name: value for name, value in os.environ.items() if name != "ARROW_DEFAULT_MEMORY_POOL"}


def _faults(begin: str) -> int:
    """Pages that five rounds of the same work ask the system for."""
    done = subprocess.run(
        [sys.executable, "-c", _FAULTS.format(begin=begin)], capture_output=True, text=True, check=True
    )
    return int(done.stdout)
