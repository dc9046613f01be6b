"""Runs a command again and again, each time with a signal at another moment from the start of its commit to its end.

python -m tests.cli.stopped_runs FOLDER SIGNAL MOMENTS COMMAND...: `{place}` in COMMAND is a folder of each run. Prints
as JSON, for each moment, the exit code, stderr and the folder. A moment is a number of calls and returns in Python.
"""

import atexit
import json
import os
import signal
import sys
from importlib import import_module
from pathlib import Path
from types import FrameType

from share_state.cli.main import COMMANDS, main

COMMITS = ("commit_run", "write_decoded", "write_report")


class _Moment:
    """Sends a signal to this process at a number of calls after a commit has begun."""

    def __init__(self, number: int, moment: int) -> None:
        self.number, self.moment, self.count, self.is_begun = number, moment, 0, False

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        self.is_begun |= event == "call" and frame.f_code.co_name in COMMITS
        if self.is_begun:
            self.count += 1
            if self.count == self.moment:
                os.kill(os.getpid(), self.number)


def _run(place: Path, number: int, moment: int, command: list[str]) -> tuple[int, str, int]:
    """Exit code, stderr, and the calls of a run in a process of its own."""
    place.mkdir(parents=True)
    # No thread runs yet, so a fork is the same as a new process that has imported everything.
    child = os.fork()
    if child == 0:
        for name, stream in (("out", 1), ("err", 2)):
            os.dup2(os.open(place / name, os.O_WRONLY | os.O_CREAT), stream)
        at = _Moment(number, moment)
        atexit.register(lambda: (place / "calls").write_text(str(at.count)))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.setprofile(at)
        main([word.format(place=place) for word in command])
    _, status = os.waitpid(child, 0)
    calls = place / "calls"
    return os.waitstatus_to_exitcode(status), (place / "err").read_text(), int(calls.read_text() or 0)


def _all(folder: Path, number: int, moments: int, command: list[str]) -> list[tuple[int, str, str]]:
    _, _, calls = _run(folder / "whole", number, 0, command)
    runs = []
    for part in range(moments):
        place = folder / str(part)
        code, err, _ = _run(place, number, 1 + part * calls // moments, command)
        runs.append((code, err, str(place)))
    return runs


if __name__ == "__main__":
    for module in COMMANDS.values():
        import_module(f"share_state.cli.{module}")
    runs = _all(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
    sys.stdout.write(json.dumps(runs))
