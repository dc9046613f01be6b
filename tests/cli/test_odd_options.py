"""Every option of every command with odd values: a right answer or one line with exit code 2, never anything else.

profiles.py says how many pairs of an option and a value are drawn.
"""

import os
import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
import typer
from hypothesis import assume, given
from hypothesis import strategies as st

from share_state.cli.command import app
from share_state.cli.main import COMMANDS, run
from tests.cli.commands import CommandResult, run_cli
from tests.truth import DATA

HAPPY = DATA / "4.3.1/happy"
STATE, TOPICS = HAPPY / "__share_group_state-2", HAPPY / "topics.json"
KEY = ["--group", "app-a", "--topic", "cZIhGIMPQJWPghBGSXkyBg", "--partition", "0"]

CALLS = {
    "reconstruct": [STATE, "--out", "w"],
    "audit": [STATE, "--out", "w"],
    "stream": ["nowhere", "--out", "w", "--checkpoint", "c", "--once"],
    "cutoff": [STATE],
    "repair": [STATE],
    "show": ["lake"],
    "explain": [STATE, *KEY, "--offset", "0"],
    "diff": [STATE, "--as-of-offset", "2=5"],
    "groups": ["lake"],
    "decode": [STATE],
    "simulate": ["--out", "s", "--minutes", "1"],
    "compare": ["lake", "kafka://localhost:1"],
    "plot": ["window", STATE, *KEY, "--out", "p.svg"],
}
"""Command -> a call of it in a folder with a warehouse; usable, but for a stream, which would start Spark."""

NOT_TRIED = {"--help", "--master", "--spark-conf"}
"""Spark checks these itself, which takes a JVM."""

NUMBERS = ["0", "-1", "1", "-0", "+1", "1.5", "1e9", "0x10", "1_000", "٣", "²", "inf", "nan", " 1", "1 "]
NUMBERS += [str(sign * 2**bits + more) for bits in (15, 16, 31, 32, 63, 64) for more in (-1, 0) for sign in (1, -1)]
NUMBERS += ["9" * digits for digits in (30, 400, 5000)]
TIMES = ["0001-01-01", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59.999999-14:00", "2026-W01-1", "12:00"]
TIMES += ["1969-12-31T23:59:59Z", "2026-02-30", "2026-11-21T02:10:00+99:00", f"{'9' * 5000}-01-01"]
PATHS = [
    ".",
    "..",
    "/",
    "/dev/null",
    "/dev/full",
    "/proc/self/mem",
    "nowhere/x",
    "a\0b",
    "\0",
    "*",
    "**",
    "[",
    "~",
    "-",
]
PATHS += ["a" * 300, "a/" * 3000, "s3://", "file://", "kafka://", "kafka://h:" + "9" * 5000, "lake", "\x1b]0;t\x07"]
TEXTS = ["", " ", "x", "=", "x=", "=x", "a=b=c", "é\u202e", "a" * 5000, "\n"]
VALUES = NUMBERS + TIMES + PATHS + TEXTS
FORMS = {
    "--as-of-offset": "2={}",
    "--and-as-of-offset": "2={}",
    "--column": "key={}",
    "--rule": "TORN_TAIL={}",
    "--limit": "delivery_count={}",
    "--group-config": "share.delivery.count.limit={}",
}
SETTINGS = ["limits.delivery_count", "limits.stall_minutes", "groups.retry_seconds", "topics", "retention.history_days"]
SETTINGS += ["sources.0.path", "limits.groups.g.record_locks", "sources", "warehouse", "report.html"]


def _options() -> Iterator[tuple[str, str]]:
    for module in {*COMMANDS.values()}:
        import_module(f"share_state.cli.{module}")
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        for parameter in command.params if name in CALLS else ():
            if parameter.param_type_name == "option" and not parameter.is_flag and parameter.opts[0] not in NOT_TRIED:
                yield name, parameter.opts[0]


OPTIONS = sorted(_options())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a warehouse."""
    folder = tmp_path_factory.mktemp("place")
    assert run(["reconstruct", str(STATE), "--out", str(folder / "lake"), "--topics", str(TOPICS)]) == 0
    return folder


def _is_endless(name: str, value: str) -> bool:
    """Whether a simulation is asked for more than ends within a test."""
    digits = value.strip().replace("_", "")
    return name == "simulate" and len(digits) > 2 and digits.isdecimal()


def _written(option: str, value: str, setting: str) -> str:
    """The value in the form that the option takes, at least up to the value."""
    return f"{setting}={value}" if option == "--set" else FORMS.get(option, "{}").format(value)


def _called(capfd: pytest.CaptureFixture[str], place: Path, name: str, option: str, value: str) -> CommandResult:
    folder, here = place / "call", Path.cwd()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "lake").symlink_to(place / "lake")
    call = CALLS[name]
    if option in call:
        call = [*call[: call.index(option)], *call[call.index(option) + 2 :]]
    os.chdir(folder)
    try:
        return run_cli(capfd, name, *call, option, value)
    finally:
        os.chdir(here)


@given(st.sampled_from(OPTIONS), st.sampled_from(VALUES), st.sampled_from(SETTINGS), st.booleans())
def test_an_odd_value_is_refused_in_one_line_or_answered(
    capfd: pytest.CaptureFixture[str], place: Path, named: tuple[str, str], value: str, setting: str, is_bare: bool
):
    name, option = named
    written = value if is_bare else _written(option, value, setting)
    assume(not _is_endless(name, value))
    said = _called(capfd, place, name, option, written)
    call = (name, option, written[:80], said.code, said.err[:300])
    assert said.code in (0, 1, 2), call
    assert "Traceback" not in said.err, call
    assert not any(character in said.err for character in "\0\x1b\u202e"), call
    if said.code == 2:
        assert said.err.splitlines()[-1].startswith("share-state: "), call
        assert max(map(len, said.err.splitlines())) < 1000, call
