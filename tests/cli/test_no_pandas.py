"""Commands start without pandas; who asks for it gets it."""

import subprocess
import sys

from tests.profiles import nightly
from tests.truth import DATA

HAPPY = str(DATA / "4.3.1/happy")
ONE = ("explain", str(DATA / "4.3.1/chaos"), "--group", "g3", "--topic", "t0", "--partition", "0", "--offset", "590")
PROGRAM = f"""
import sys
from share_state.cli.process import keep_pandas_out
from share_state.cli.main import run
keep_pandas_out()
told = []
for command in [("rules",), ("cutoff", {HAPPY!r}), ("decode", {HAPPY!r}), {ONE!r}]:
    run(command), told.append((command[0], "pandas" in sys.modules))
import pyarrow
print(told, pyarrow.table({{"a": [7]}}).to_pandas()["a"].sum())
"""


@nightly("a process for each command")
def test_commands_import_no_pandas_and_who_asks_for_it_gets_it():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    expected = [(name, False) for name in ("rules", "cutoff", "decode", "explain")]
    assert done.stdout.splitlines()[-1] == f"{expected} 7"
