"""What numba reports while it compiles kernels."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from numba.core import event


class CompilingTimes(event.Listener):
    """Counts the kernels that numba compiles, and how long that takes.

    Compiling one compiles those that it calls.

    Attributes:
        seconds: how long kernels were compiled.
    """

    def __init__(self, show: Callable[[int], None]) -> None:
        """Begin.

        `show` is called with the number of kernels so far, and with 0 when none is being compiled.
        """
        self.seconds = 0.0
        self._show = show
        self._begun = 0
        self._depth = 0
        self._since = 0.0

    def on_start(self, event: event.Event) -> None:
        """A kernel is being compiled."""
        del event
        if self._depth == 0:
            self._since = time.monotonic()
        self._begun += 1
        self._depth += 1
        self._show(self._begun)

    def on_end(self, event: event.Event) -> None:
        """A kernel is compiled."""
        del event
        self._depth -= 1
        if self._depth == 0:
            self.seconds += time.monotonic() - self._since
            self._show(0)


@contextmanager
def watch_compiling(show: Callable[[int], None]) -> Iterator[CompilingTimes]:
    """Watch what numba compiles meanwhile; `show` as for CompilingTimes."""
    listener = CompilingTimes(show)
    event.register("numba:compile", listener)
    try:
        yield listener
    finally:
        event.unregister("numba:compile", listener)
