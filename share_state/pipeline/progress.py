"""Says what a command is doing: a progress line for whoever waits, seconds a phase for whoever measures."""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

_PATIENCE = 2.0


class Phases:
    """Times the phases of a command; `with phases("fold"):` around each.

    A line on stderr shows the running phase, where stderr is a terminal and `quiet` is off. The environment variable
    SHARE_STATE_PHASES names a file that receives the seconds of each phase as JSON.
    """

    def __init__(self, *, quiet: bool = True) -> None:
        self.seconds: dict[str, float] = {}
        self._begun = time.monotonic()
        self._console = Console(stderr=True, quiet=quiet or not sys.stderr.isatty())

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Time one phase."""
        begun = time.monotonic()
        with self._console.status(f"{phase} …"):
            yield
        self.seconds[phase] = round(self.seconds.get(phase, 0.0) + time.monotonic() - begun, 3)

    def close(self) -> None:
        """Write the seconds where SHARE_STATE_PHASES asks for them."""
        target = os.environ.get("SHARE_STATE_PHASES")
        if target:
            Path(target).write_text(json.dumps(self.seconds), encoding="utf-8")
        total = time.monotonic() - self._begun
        if total > _PATIENCE:
            said = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in self.seconds.items())
            self._console.print(f"[dim]{total:.1f} s: {said}[/dim]")
