"""Commands start without pandas; who asks for it gets it."""

import subprocess
import sys

from tests.truth import DATA

HAPPY = str(DATA / "4.3.1/happy")
ONE = ("explain", str(DATA / "4.3.1/chaos"), "--group", "g3", "--topic", "t0", "--partition", "0", "--offset", "590")
PROGRAM = f"""
import sys
from share_state.cli.main import keep_pandas_out, run
keep_pandas_out()
for command in [("rules",), ("cutoff", {HAPPY!r}), ("decode", {HAPPY!r}), {ONE!r}]:
    run(command), print(command[0], "pandas" in sys.modules, file=sys.stderr)
import pyarrow
print(pyarrow.table({{"a": [7]}}).to_pandas()["a"].sum(), file=sys.stderr)
"""


def test_commands_import_no_pandas_and_who_asks_for_it_gets_it():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    expected = ["rules False", "cutoff False", "decode False", "explain False", "7"]
    assert done.stderr.splitlines()[-5:] == expected, done.stderr
