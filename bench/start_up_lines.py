"""`share-state reconstruct` in this process, with a clock around every step of its start-up; started by start_up.py.

Arguments: a file for the seconds (JSON), then those of share-state. Nothing is left out or replaced: the steps are
wrapped where the command itself calls them.
"""

import functools
import json
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from share_state.cli.main.main import settle

_TICKS = os.sysconf("SC_CLK_TCK")
_STARTED_AT = 19
_COMMITS = ("replace", "put", "add")


def _age() -> float:
    """Seconds since this process was started. Source: proc(5), /proc/PID/stat field 22."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[_STARTED_AT]) / _TICKS


class _Clock:
    """Adds up seconds by line; those of a line inside another are its own, and not the outer one's."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inner = [0.0]

    def around(self, work: Callable[..., Any], line: Callable[..., str]) -> Callable[..., Any]:
        @functools.wraps(work)
        def timed(*arguments: Any, **named: Any) -> Any:
            begun = time.perf_counter()
            self._inner.append(0.0)
            try:
                return work(*arguments, **named)
            finally:
                took = time.perf_counter() - begun
                own, name = took - self._inner.pop(), line(*arguments)
                self._inner[-1] += took
                self.seconds[name] = self.seconds.get(name, 0.0) + own

        return timed


def main() -> None:
    """Run the command, and leave as it does."""
    target, *arguments = sys.argv[1:]
    clock = _Clock()
    clock.seconds["interpreter"] = _age()
    settle()
    command = clock.around(_imported, lambda *_: "imports: the command, pyarrow, Delta, kernels, Spark's Python side")(
        "--master" in arguments
    )
    _put_clocks(clock, "--master" in arguments)
    try:
        command(arguments)
    finally:
        Path(target).write_text(json.dumps(clock.seconds), encoding="utf-8")


def _imported(in_spark: bool) -> Callable[[list[str]], None]:
    for name in ("commands.reconstruct", "spark.spark_tasks" if in_spark else "runs.here"):
        import_module(f"share_state.{name}")
    return import_module("share_state.cli.main.main").main


def _put_clocks(clock: _Clock, in_spark: bool) -> None:
    from share_state.delta.warehouse import Warehouse  # noqa: PLC0415

    for name in _COMMITS:
        setattr(Warehouse, name, clock.around(getattr(Warehouse, name), lambda _, table, *__: f"commit {table}"))
    if not in_spark:
        return
    from pyspark.core import context  # noqa: PLC0415

    from share_state.spark import session  # noqa: PLC0415

    context.launch_gateway = clock.around(context.launch_gateway, lambda *_: "start the JVM")
    session.start = clock.around(session.start, lambda *_: "session and context")


if __name__ == "__main__":
    main()
