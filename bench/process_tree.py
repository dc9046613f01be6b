"""Runs a command and accounts for every process that it starts, including those that outlive their parents. Linux only.

Orphans become children of this process (PR_SET_CHILD_SUBREAPER), which waits for each, so that the kernel's sums cover
the tree. Spark's Python workers are the exception: their parent ignores SIGCHLD, so the kernel drops their times. Those
are sampled while they run, as peak memory is.
"""

import ctypes
import os
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

_PR_SET_CHILD_SUBREAPER = 36
_SAMPLE_S = 0.1
_WORKERS = ("pyspark.daemon", "pyspark/daemon", "share_state.spark.worker_daemon")
"""In the command lines of Spark's Python workers."""


@dataclass(frozen=True, slots=True)
class TreeUsage:
    """Usage of a command and its descendants; memory is the largest VmHWM by kind: command, jvm, worker, other."""

    exit_code: int
    wall_s: float
    cpu_s: float
    peak_bytes: dict[str, int]


def run_tree(command: Sequence[str], environment: Mapping[str, str], errors: IO[str]) -> TreeUsage:
    """Run a command and wait for everything that it starts; the caller must have no other child process."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    begun = time.perf_counter()
    process = subprocess.Popen(command, env=dict(environment), stdout=subprocess.DEVNULL, stderr=errors)
    peaks, sampled_cpu, ended = dict[str, int](), dict[int, float](), threading.Event()
    sampler = threading.Thread(target=_sample, args=(process.pid, ended, peaks, sampled_cpu), daemon=True)
    sampler.start()
    cpu_s, wall_s, waited_for = 0.0, 0.0, set[int]()
    with suppress(ChildProcessError):  # none is left
        while True:
            pid, status, used = os.wait4(-1, 0)
            cpu_s += used.ru_utime + used.ru_stime
            waited_for.add(pid)
            if pid == process.pid:
                wall_s, process.returncode = time.perf_counter() - begun, os.waitstatus_to_exitcode(status)
    ended.set()
    sampler.join()
    cpu_s += sum(seconds for pid, seconds in sampled_cpu.items() if pid not in waited_for)
    return TreeUsage(process.returncode, wall_s, cpu_s, peaks)


def peak_memory(pid: int) -> int:
    """VmHWM of a process, in bytes; 0 if it has ended."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next((int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0)


def _sample(
    command: int, ended: threading.Event, peaks: dict[str, int], sampled_cpu: dict[int, float]
) -> None:
    while not ended.wait(_SAMPLE_S):
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.Error, OSError):  # it ended meanwhile
                kind = "command" if process.pid == command else process_kind(process)
                peaks[kind] = max(peaks.get(kind, 0), peak_memory(process.pid))
                if kind == "worker" and process_kind(process.parent()) == "worker":
                    sampled_cpu[process.pid] = sum(process.cpu_times()[:2])


def cpu_seconds(root: psutil.Process) -> Counter[str]:
    """CPU seconds so far by kind of process; the root is `command`, and ended processes count with their parents."""
    seconds = Counter[str]()
    for one in (root, *root.children(recursive=True)):
        with suppress(psutil.Error):
            kind, times = "command" if one == root else process_kind(one), one.cpu_times()
            seconds[kind] += sum(times[:4])
    return seconds


def process_kind(process: psutil.Process | None) -> str:
    """The role of a process in Spark: worker, jvm or other."""
    arguments = process.cmdline() if process else []
    # Its settings name the module of the workers.
    if arguments and arguments[0].endswith("java"):
        return "jvm"
    is_worker = any(name in argument for argument in arguments for name in _WORKERS)
    return "worker" if is_worker else "other"


def run_beside(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, errors: IO[str]
) -> TreeUsage:
    """Run a command beside processes that this one has started already, and which work for it; Linux only.

    Every process is sampled, so that up to 0.1 s of each is not counted.
    """
    own = psutil.Process()
    before = {one.pid: _own_cpu(one) for one in own.children(recursive=True)}
    after, peaks = dict(before), dict[str, int]()
    begun = time.perf_counter()
    with subprocess.Popen(
        command, env=dict(environment), cwd=folder, stdout=subprocess.DEVNULL, stderr=errors
    ) as process:
        while process.poll() is None:
            for one in own.children(recursive=True):
                with suppress(psutil.Error, OSError):  # it ended meanwhile
                    after[one.pid] = _own_cpu(one)
                    kind = "command" if one.pid == process.pid else process_kind(one)
                    peaks[kind] = max(peaks.get(kind, 0), peak_memory(one.pid))
            with suppress(subprocess.TimeoutExpired):
                process.wait(_SAMPLE_S)
        wall_s = time.perf_counter() - begun
    cpu_s = sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())
    return TreeUsage(process.returncode, wall_s, cpu_s, peaks)


def _own_cpu(process: psutil.Process) -> float:
    with suppress(psutil.Error):
        return sum(process.cpu_times()[:2])
    return 0.0
