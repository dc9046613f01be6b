"""Runs a command in this process, as a person would type it, and keeps what it says and leaves behind."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from share_state.cli.main import run


@dataclass(frozen=True)
class CommandResult:
    """What a command left behind: its exit code and what it printed."""

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
        """The first table on stdout as words, the header first."""
        return [line.split() for line in self.out.split("\n\n")[0].splitlines()]


Command = Callable[..., CommandResult]
"""Takes the arguments of a command."""


def run_cli(capfd: pytest.CaptureFixture[str], *arguments: object) -> CommandResult:
    """Run `share-state` with these arguments."""
    capfd.readouterr()
    code = run([str(argument) for argument in arguments])
    captured = capfd.readouterr()
    return CommandResult(code, captured.out, captured.err)


def contents(folder: Path) -> dict[str, bytes | None]:
    """Path -> bytes of every file below a folder, None for folders."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def flipped(segment: bytes, *, batch: int) -> bytes:
    """A segment with one bit of one batch's last record changed."""
    ends, at = [], 0
    while at < len(segment):
        at += 12 + int.from_bytes(segment[at + 8 : at + 12], "big")
        ends.append(at)
    place = ends[batch] - 3
    return segment[:place] + bytes([segment[place] ^ 1]) + segment[place + 1 :]
