"""The two sides as long-lived processes that replay whatever folder they are handed, so that both are warm."""

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.kafka import command
from bench.process_tree import TreeUsage
from share_state.errors import ShareStateError

KAFKA = "Kafka 4.4.0"
OURS = "share_state"


class ReplayError(ShareStateError):
    """Raised when one of the two sides stops in the middle."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One replay of an export by one side.

    Attributes:
        records: data records read.
        bytes: of the segments read.
        wall_s: seconds.
        cpu_s: CPU seconds of the whole process, its compiler and collector threads counted.
        thread_cpu_s: CPU seconds of the replaying thread alone.
        peak_bytes: the most memory the process held since its start (VmHWM).
        digest: numbers of the folded state.
    """

    records: int
    bytes: int
    wall_s: float
    cpu_s: float
    thread_cpu_s: float
    peak_bytes: int
    digest: dict[str, Any]


class Contestant:
    """A child process that answers one line of JSON to each folder; a context manager that ends it."""

    def __init__(self, name: str, command_line: list[str]) -> None:
        self.name = name
        self._command = command_line

    def __enter__(self) -> Self:
        self._said = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said, text=True
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        if error is not None:
            self._process.kill()
        self._process.wait()
        self._said.close()

    def replay(self, folder: Path) -> Pass:
        """One pass over an export.

        Raises:
            ReplayError: if the process ends instead, with its last line.
        """
        self._ask(str(folder))
        return Pass(**self._answer())

    def states(self, folder: Path) -> dict[str, tuple[list[int], list[list[int]]]]:
        """Scalars and ranges of every live share-partition, by its routing text."""
        self._ask(f"states {folder}")
        by_key = {}
        while answer := self._answer():
            by_key[answer["key"]] = (answer["scalars"], answer["ranges"])
        return by_key

    def _ask(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ReplayError(f"{self.name} stopped: {self._last_line()}") from None

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            raise ReplayError(f"{self.name} stopped: {self._last_line()}")
        return json.loads(line)

    def _last_line(self) -> str:
        self._said.seek(0)
        lines = [line.strip() for line in self._said if line.strip() and not line.startswith("SLF4J")]
        return lines[-1] if lines else "no message"


def kafka() -> Contestant:
    """Kafka's own classes."""
    return Contestant(KAFKA, command("Replay"))


def ours() -> Contestant:
    """This project's `find_logs` and `fold_log`."""
    return Contestant(OURS, [sys.executable, "-m", "bench.core"])


def typical(passes: Sequence[Pass]) -> Pass:
    """The pass of median CPU time (the lower of the middle two)."""
    return sorted(passes, key=lambda one: one.cpu_s)[(len(passes) - 1) // 2]


def spread(passes: Sequence[Pass]) -> float:
    """How far CPU times of the passes lie apart: largest over smallest."""
    return max(one.cpu_s for one in passes) / max(min(one.cpu_s for one in passes), 1e-9)


def median_ratio(slower: Sequence[Pass | TreeUsage], faster: Sequence[Pass | TreeUsage]) -> float:
    """Median over the pairs of passes, run one after the other, of CPU time over CPU time."""
    return statistics.median(a.cpu_s / b.cpu_s for a, b in zip(slower, faster, strict=True))
