"""The progress of a command: how long its phases take, and whether kernels are being compiled."""

import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from share_state.jit.compile_times import watch_compiling
from share_state.terminal import styled

_LOG = logging.getLogger("share_state")
_SHOWN_AFTER_SECONDS = 2.0


class Progress:
    """Times the phases of a command; `with progress("fold"):` around each.

    If stderr is a terminal and `quiet` is off, a line shows the running phase, and whether it is compiling
    kernels. A note says for how long a phase compiled. The environment variable SHARE_STATE_PHASES names a
    file that receives the seconds of each phase as JSON.
    """

    def __init__(self, *, quiet: bool = True) -> None:
        self.seconds: dict[str, float] = {}
        self._begun = time.monotonic()
        self._console = Console(file=styled(sys.stderr), quiet=quiet or not sys.stderr.isatty())

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Time one phase."""
        begun = time.monotonic()
        with self._console.status(f"{phase} …") as status:

            def show(kernels: int) -> None:
                compiling = f": compiling kernels ({kernels}), later commands start at once"
                status.update(f"{phase}{compiling if kernels else ''} …")

            with watch_compiling(show) as compiled:
                yield
        if compiled.seconds > _SHOWN_AFTER_SECONDS:
            _LOG.info("%s: compiled kernels for %.0f s", phase, compiled.seconds)
        self.seconds[phase] = round(self.seconds.get(phase, 0.0) + time.monotonic() - begun, 3)

    def close(self) -> None:
        """Print the seconds of all phases, and write them to SHARE_STATE_PHASES."""
        target = os.environ.get("SHARE_STATE_PHASES")
        if target:
            Path(target).write_text(json.dumps(self.seconds), encoding="utf-8")
        total = time.monotonic() - self._begun
        if total > _SHOWN_AFTER_SECONDS:
            phases = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in self.seconds.items())
            self._console.print(f"[dim]{total:.1f} s: {phases}[/dim]")
