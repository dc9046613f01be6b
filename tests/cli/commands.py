"""Runs a command in this process, as a person would type it, and keeps what it says."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from share_state.cli import run

DATA = Path(__file__).parent.parent / "data"


@dataclass(frozen=True)
class Said:
    """What a command left behind: its exit code and what it printed."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


def say(capfd: pytest.CaptureFixture[str], *arguments: object) -> Said:
    """Run `share-state` with these arguments."""
    capfd.readouterr()
    code = run([str(argument) for argument in arguments])
    return Said(code, *capfd.readouterr())


def listing(folder: Path) -> set[str]:
    """Every path below a folder."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def flipped(segment: bytes, *, batch: int) -> bytes:
    """A segment with one bit of one batch's last record changed."""
    ends, at = [], 0
    while at < len(segment):
        at += 12 + int.from_bytes(segment[at + 8 : at + 12], "big")
        ends.append(at)
    place = ends[batch] - 3
    return segment[:place] + bytes([segment[place] ^ 1]) + segment[place + 1 :]
