"""Commands on a terminal of 80 columns: nothing is cut, and no control sequence is left in the text."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes import run_on_terminal
from tests.profiles import by_profile, nightly
from tests.truth import DATA

CHAOS = str(DATA / "4.3.1/chaos")
SHARE_PARTITION = ("--group", "g3", "--topic", "t0", "--partition", "3")
COMMAND = [str(Path(sys.executable).with_name("share-state"))]
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\r")
_SPINNER = re.compile("[\u2800-\u28ff][^\u2800-\u28ff\n]*…")


def _shown(folder: Path, *arguments: str) -> str:
    """What a person sees on a terminal, and the lines of the running phase before it are gone."""
    code, output = run_on_terminal([*COMMAND, *arguments], folder, os.environ | {"COLUMNS": "80"})
    assert code == 0, output
    return _SPINNER.sub("", _CONTROL.sub("", output))


@nightly("processes on terminals")
@pytest.mark.parametrize(
    "arguments",
    [
        ("show", CHAOS, "--group", "g3"),
        ("explain", CHAOS, *SHARE_PARTITION),
        ("cutoff", CHAOS, "--verify"),
        ("groups", CHAOS),
        ("why", "g3", CHAOS),
        ("decode", CHAOS, "--group", "g5"),
    ][: by_profile(1, None)],
    ids=lambda arguments: arguments[0],
)
def test_all_words_of_a_file_are_on_a_terminal_of_80_columns(tmp_path: Path, arguments: tuple[str, ...]):
    shown = _shown(tmp_path, *arguments)
    printed = subprocess.run([*COMMAND, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert "\\u001b" not in shown
    assert set(printed.stdout.replace(",", "").split()) - {"-"} <= set(shown.replace(",", "").split())
    if arguments[0] != "decode":
        # Commands are whole, so that they can be pasted, and a topic's id is longer than a name.
        longest = max((line for line in shown.splitlines() if "`" not in line and "--" not in line), key=len)
        assert len(longest) <= 80
