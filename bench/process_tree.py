"""Runs a command and accounts for every process it starts, however deep, also those that outlive their parents.

Works on Linux. Orphans of the tree are handed to this process (PR_SET_CHILD_SUBREAPER), which waits for each, so the
kernel's own sums cover the tree; with one exception: children of a process that ignores SIGCHLD leave no trace in those
sums (the daemon that forks Spark's Python workers does so), and are read from /proc while they live, as peak memory is.
"""

import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.1
_PROC = Path("/proc")
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class TreeUsage:
    """What a command and all its descendants took.

    Attributes:
        exit_code: of the command.
        wall_s: from its start until it ended.
        cpu_s: user and system seconds of all processes, until the last of them ended.
        peak_bytes: most resident memory (VmHWM) of the largest process of each kind: `command`, `jvm`, `worker` (a
            Python process of Spark), `other`.
    """

    exit_code: int
    wall_s: float
    cpu_s: float
    peak_bytes: dict[str, int]


def run_tree(command: Sequence[str], environment: Mapping[str, str], stdout: IO[str], stderr: IO[str]) -> TreeUsage:
    """Run a command to its end, and wait for everything it left behind.

    The caller must have no other child running: it would be waited for, and counted.
    """
    _adopt_orphans()
    begun = time.perf_counter()
    process = subprocess.Popen(command, env=dict(environment), stdout=stdout, stderr=stderr)
    watch = _Watch(process.pid)
    cpu_s, wall_s = 0.0, 0.0
    try:
        while True:
            pid, status, used = os.wait4(-1, 0)
            cpu_s += used.ru_utime + used.ru_stime
            watch.counted.add(pid)
            if pid == process.pid:
                wall_s = time.perf_counter() - begun
                process.returncode = os.waitstatus_to_exitcode(status)
    except ChildProcessError:
        pass
    finally:
        watch.end()
    return TreeUsage(process.returncode, wall_s, cpu_s + watch.untraced_cpu_s(), watch.peak_bytes)


def _adopt_orphans() -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


@dataclass(frozen=True, slots=True)
class _Stat:
    """What /proc/PID/stat tells: parent, and CPU seconds of the process and the children it waited for."""

    parent: int
    cpu_s: float


@dataclass(slots=True)
class _Watch:
    """Looks at the tree below this process from time to time, on a thread of its own.

    Attributes:
        command: pid of the command.
        counted: pids that were waited for by this process.
        peak_bytes: by kind of process.
    """

    command: int
    counted: set[int] = field(default_factory=set)
    peak_bytes: dict[str, int] = field(default_factory=dict)
    _untraced: dict[int, float] = field(default_factory=dict)
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._look_again_and_again)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def untraced_cpu_s(self) -> float:
        """CPU seconds, as last seen, of the processes that no one could wait for."""
        return sum(cpu_s for pid, cpu_s in self._untraced.items() if pid not in self.counted)

    def _look_again_and_again(self) -> None:
        while not self._ended.wait(_POLL_S):
            stats = _all_stats()
            for pid in _descendants(os.getpid(), stats):
                try:
                    self._look(pid, stats[pid])
                except OSError:
                    continue  # it ended between the listing and the look

    def _look(self, pid: int, stat: _Stat) -> None:
        if _ignores_children(stat.parent):
            self._untraced[pid] = stat.cpu_s
        peak = 1024 * int(_status(pid).get("VmHWM", "0").split()[0])
        kind = "command" if pid == self.command else _kind(pid)
        self.peak_bytes[kind] = max(self.peak_bytes.get(kind, 0), peak)


def _all_stats() -> dict[int, _Stat]:
    found = {}
    for entry in _PROC.iterdir():
        if entry.name.isdecimal():
            try:
                text = (entry / "stat").read_text()
            except OSError:
                continue
            # The name in brackets may hold anything; state, parent, ... and the four times (fields 14 to 17) follow it.
            fields = text[text.rindex(")") + 2 :].split()
            found[int(entry.name)] = _Stat(int(fields[1]), _TICK_S * sum(map(int, fields[11:15])))
    return found


def _descendants(ancestor: int, stats: Mapping[int, _Stat]) -> list[int]:
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(stat.parent, []).append(pid)
    found, level = [], [ancestor]
    while level:
        level = [child for parent in level for child in children.get(parent, [])]
        found += level
    return found


def _status(pid: int) -> dict[str, str]:
    lines = (_PROC / str(pid) / "status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _ignores_children(pid: int) -> bool:
    return bool(int(_status(pid)["SigIgn"], 16) >> (signal.SIGCHLD - 1) & 1)


def _kind(pid: int) -> str:
    arguments = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    if any(b"pyspark.daemon" in argument or b"pyspark/daemon" in argument for argument in arguments):
        return "worker"
    return "jvm" if arguments[0].endswith(b"java") else "other"
