"""Without Spark, pandas, matplotlib and Kafka's clients, a command works or names in one line what it needs."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from share_state.cli.command import DONE, UNUSABLE
from share_state.cli.main import COMMANDS
from share_state.errors import EXTRAS
from tests.cli.every_command import CALLS, EXPORT, TOPICS, prepare
from tests.profiles import nightly

BLOCKED = sorted({*EXTRAS, "delta"})

_BLOCKS = """
import sys

class Blocked:
    def find_spec(name, path=None, target=None):
        if name in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked)
"""

_RUNS = """
import contextlib, io, json
from share_state.cli.main import run
ran = {}
for name, arguments in json.loads(sys.argv[2]).items():
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        code = run(arguments)
    ran[name] = code, errors.getvalue()
print(json.dumps(ran))
"""

CALLED = {name: (name, *arguments) for name, arguments in CALLS.items()} | {
    "reconstruct on Spark": ("reconstruct", EXPORT, *TOPICS, "--out", "on-spark", "--master", "local[1]"),
    "audit on Spark": ("audit", EXPORT, "--out", "on-spark", "--master", "local[1]"),
    "cutoff on Spark": ("cutoff", EXPORT, "--spark-conf", "spark.ui.enabled=false"),
    "decode on Spark": ("decode", EXPORT, "--out", "decoded", "--master", "local[1]"),
    "audit with its page": ("audit", EXPORT, "--out", "with-page", "--html", "page.html"),
    "reconstruct of a cluster": ("reconstruct", "kafka://127.0.0.1:1", "--out", "cluster"),
    "stream on Spark": ("stream", "growing", "--out", "on-spark", "--checkpoint", "cp", "--master", "local[1]"),
    "stream of a cluster": ("stream", "kafka://127.0.0.1:1", "--out", "cluster", "--once"),
}

NEEDS = {
    "stream on Spark": "pyspark",
    "stream of a cluster": "confluent_kafka",
    "compare": "confluent_kafka",
    "plot": "matplotlib",
    "reconstruct on Spark": "pyspark",
    "audit on Spark": "pyspark",
    "cutoff on Spark": "pyspark",
    "decode on Spark": "pyspark",
    "audit with its page": "matplotlib",
    "reconstruct of a cluster": "confluent_kafka",
}
"""What the other calls do not need."""


@dataclass(frozen=True)
class Ran:
    """The exit codes and stderr of all calls, and the folder in which they ran."""

    codes: dict[str, int]
    errors: dict[str, str]
    folder: Path


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("without-extras")
    prepare(folder)
    command = [sys.executable, "-c", _BLOCKS + _RUNS, ",".join(BLOCKED), json.dumps(CALLED)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return Ran(
        {name: code for name, (code, _) in found.items()}, {name: text for name, (_, text) in found.items()}, folder
    )


def test_every_command_is_called():
    assert set(CALLS) == set(COMMANDS)


@pytest.mark.parametrize("name", [name for name in CALLED if name not in NEEDS])
def test_a_command_that_needs_no_extra_works_without_any(ran: Ran, name: str):
    assert ran.codes[name] == DONE, ran.errors[name]


@pytest.mark.parametrize("name", NEEDS)
def test_a_command_that_needs_an_extra_names_it_in_one_line(ran: Ran, name: str):
    extra, _ = EXTRAS[NEEDS[name]]
    line = f"share-state: {NEEDS[name]} is not installed: run `pip install 'share-state[{extra}]'`\n"
    assert (ran.codes[name], ran.errors[name]) == (UNUSABLE, line)


def test_a_command_that_lacks_an_extra_writes_nothing(ran: Ran):
    assert {"reconstructed", "audited"} <= {path.name for path in ran.folder.iterdir()}
    for name in ("on-spark", "with-page", "decoded", "cluster", "cp", "window.svg"):
        assert not (ran.folder / name).exists(), name


def test_setup_without_spark_says_what_it_leaves_out(ran: Ran):
    compiled, left_out = ran.errors["setup"].splitlines()[-2:]
    assert compiled.startswith("share-state: compile kernels: ")
    assert "everything but Spark and `compare` works" in left_out
    assert "pip install 'share-state[spark]'" in left_out


_PYTHON = """
import share_state
from share_state.errors import SetupError
print(share_state.reconstruct(sys.argv[2]).in_flight.num_rows > 0)
for name in ("session", "register", "plots"):
    try:
        getattr(share_state, name)
    except SetupError as error:
        print(name, error)
"""


@nightly("a process for each extra")
def test_in_python_what_needs_an_extra_names_it():
    command = [sys.executable, "-c", _BLOCKS + _PYTHON, ",".join(BLOCKED), EXPORT]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    missing = {"session": "pyspark", "register": "pyspark", "plots": "matplotlib"}
    lines = [
        f"{name} {module} is not installed: run `pip install 'share-state[{EXTRAS[module][0]}]'`"
        for name, module in missing.items()
    ]
    assert done.stdout.splitlines() == ["True", *lines]


_BESIDE_A_CLUSTER_S_SPARK = """
import sys
from share_state.errors import missing_module, require
sys.modules["pandas"] = None
try:
    require("pyspark", "pandas")
except Exception as error:
    print(error)
print(missing_module(ImportError("cannot import name 'ReadLimit' from 'pyspark.sql' (a.py)", name="pyspark.sql")))
print(missing_module(ModuleNotFoundError("No module named 'numba'", name="numba")))
"""


def test_a_cluster_s_own_pyspark_is_not_replaced():
    """What is missing beside it is installed alone; one that is too old is named, with the range that fits."""
    command = [sys.executable, "-c", _BESIDE_A_CLUSTER_S_SPARK]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    beside, too_old, other = done.stdout.splitlines()
    assert beside == f"pandas is not installed: run `pip install '{EXTRAS['pandas'][1]}'`"
    assert "cannot import name 'ReadLimit' from 'pyspark.sql'" in too_old
    assert EXTRAS["pyspark"][1] in too_old
    assert other == "No module named 'numba'"
