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


def _faults(begin: str) -> int:
    """Pages that five rounds of the same work ask the system for."""
    done = subprocess.run(
        [sys.executable, "-c", _FAULTS.format(begin=begin)], capture_output=True, text=True, check=True
    )
    return int(done.stdout)
