"""Commands start without pandas; who asks for it gets it."""

import subprocess
import sys

import pytest

from tests.truth import DATA

HAPPY = str(DATA / "4.3.1/happy")
ONE = (str(DATA / "4.3.1/chaos"), "--group", "g3", "--topic", "t0", "--partition", "0", "--offset", "590")


@pytest.mark.parametrize("command", [("cutoff", HAPPY), ("decode", HAPPY), ("explain", *ONE), ("rules",)])
def test_a_command_imports_no_pandas(command: tuple[str, ...]):
    told = _run("-X", "importtime", "-m", "share_state", *command).stderr
    assert "pyarrow.lib" in told
    assert "pandas.core" not in told


def test_what_asks_for_pandas_gets_it():
    text = (
        "from share_state.cli.main import keep_pandas_out; keep_pandas_out(); import pyarrow, sys;"
        "assert 'pandas' not in sys.modules; print(pyarrow.table({'a': [7]}).to_pandas()['a'].sum())"
    )
    assert _run("-c", text).stdout == "7\n"


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=True)
