"""What a process frees it takes again, without asking the system for it."""

import subprocess
import sys
from pathlib import Path

import pytest

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


def test_arrow_takes_memory_from_the_same_heap():
    program = "from share_state.cli.process import {0}; {0}(); import pyarrow as pa; print(pa.array([1]).nbytes, {1})"
    told = "pa.default_memory_pool().backend_name"
    done = subprocess.run(
        [sys.executable, "-c", program.format("share_one_heap", told)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "8 system\n"


def _faults(begin: str) -> int:
    """Pages that five rounds of the same work ask the system for."""
    done = subprocess.run(
        [sys.executable, "-c", _FAULTS.format(begin=begin)], capture_output=True, text=True, check=True
    )
    return int(done.stdout)
