"""Where the command's start-up goes, line by line: run over next to nothing, with a clock around every step."""

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.end_to_end import commanded, reconstructing
from bench.exports import Export
from bench.kafka import DATA

_STOP, _REST = "stop Spark", "settings, plan, summary, exit"
_UNTIMED = ("start Spark", "commit", "interpreter, imports, exit")
"""Phases that the lines take apart."""
_FIRST_TASK = "first task (in Spark: fork a worker, its imports; kernels)"


@dataclass(frozen=True, slots=True)
class StartUp:
    """Medians over the runs, in seconds.

    Attributes:
        lines: step -> wall time, in the order in which they happen.
        wall_s: from the shell to the end.
        cpu_s: of the whole process tree.
    """

    lines: dict[str, float]
    wall_s: float
    cpu_s: float


def taken_apart(export: Export, runs: int, *options: str) -> StartUp:
    """Run the command over an export that holds next to nothing; a first run that fills the page cache is not counted.

    Args:
        export: of `growth.start_up_export`.
        runs: that count.
        options: of the command.
    Raises:
        CommandError: if the command fails.
    """
    seen = [_once(export, options) for _ in range(runs + 1)][1:]
    names = seen[0].lines
    lines = {name: median(one.lines.get(name, 0.0) for one in seen) for name in names}
    return StartUp(lines, median(one.wall_s for one in seen), median(one.cpu_s for one in seen))


def _once(export: Export, options: Sequence[str]) -> StartUp:
    with tempfile.TemporaryDirectory(prefix="start-up-", dir=DATA) as scratch:
        clocked = Path(scratch, "lines.json")
        arguments = reconstructing(export, Path(scratch, "warehouse"))
        program = (sys.executable, "-m", "bench.start_up_lines", str(clocked))
        usage, phases, _ = commanded(*arguments, *options, program=program)
        clocks = json.loads(clocked.read_text())
    commits = {line: seconds for line, seconds in clocks.items() if line.startswith("commit ")}
    before = {line: seconds for line, seconds in clocks.items() if line not in commits}
    during = {_FIRST_TASK if name == "read and fold" else name: s for name, s in phases.items() if name not in _UNTIMED}
    # It ends after the commits, and only where it began.
    stopped = {_STOP: during.pop(_STOP)} if _STOP in during else {}
    lines = before | during | commits | stopped
    return StartUp(lines | {_REST: usage.wall_s - sum(lines.values())}, usage.wall_s, usage.cpu_s)
