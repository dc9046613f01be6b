"""Runs a command in this process and keeps what it printed, its exit code, and what it left behind."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from share_state.cli import run


@dataclass(frozen=True)
class Said:
    """What a command said.

    Attributes:
        code: its exit code.
        out: stdout.
        err: stderr.
    """

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Stdout as one JSON document."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        """Stdout line by line."""
        return self.out.splitlines()

    @property
    def table(self) -> list[list[str]]:
        """Stdout's first table as cells, the header first."""
        rows = [line.split() for line in self.out.split("\n\n")[0].splitlines()]
        return [row for row in rows if row]


Command = Callable[..., Said]


def command(capfd: pytest.CaptureFixture[str]) -> Command:
    """A function that runs `share-state` with the arguments it is given."""

    def call(*arguments: object) -> Said:
        capfd.readouterr()
        code = run([str(argument) for argument in arguments])
        return Said(code, *capfd.readouterr())

    return call


def everything_under(folder: Path) -> dict[str, bytes | None]:
    """Path -> content of every file, None for folders: what a command must not have changed."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")
    }
