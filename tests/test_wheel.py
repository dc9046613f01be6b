"""The wheel works alone: it holds what the commands read, and an empty environment with it needs no checkout."""

import os
import shutil
import subprocess
import sys
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement

from share_state import __version__
from share_state.cli.command import DONE, UNUSABLE
from share_state.errors import EXTRAS
from tests.cli.every_command import CALLS, CLUSTER, prepare
from tests.processes import run_on_terminal
from tests.profiles import nightly

HOME = Path(__file__).parents[1]
EXPORT = HOME / "tests/data/4.3.1/happy"
_PIP = ["-m", "pip", "--quiet", "--disable-pip-version-check"]

_READS_DELTA = """
import share_state
with share_state.session("local[1]") as spark:
    print(spark.read.format("delta").load("w/share_partition_state").where("dialect = 'share_group_state'").count())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = ["wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(folder), str(HOME)]
    subprocess.run([sys.executable, *_PIP, *build], check=True)
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_what_the_commands_read_and_nothing_of_the_tests(wheel: Path):
    with ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(f"share_state-{__version__}.dist-info/METADATA").decode()
        scripts = archive.read(f"share_state-{__version__}.dist-info/entry_points.txt").decode()
    for source, target in (
        ("share_state", "share_state"),
        ("schemas", "share_state/_schemas"),
        ("conf", "share_state/_conf"),
    ):
        files = [path for path in (HOME / source).rglob("*") if path.is_file() and path.suffix != ".pyc"]
        assert {f"{target}/{path.relative_to(HOME / source)}" for path in files} <= names
    assert {name.split("/")[0] for name in names} == {"share_state", f"share_state-{__version__}.dist-info"}
    licenses = f"share_state-{__version__}.dist-info/licenses"
    assert {f"{licenses}/LICENSE", f"{licenses}/share_state/report/templates/panzoom.LICENSE.txt"} <= names
    assert "share_state/py.typed" in names
    for line in (f"Version: {__version__}", "License-Expression: Apache-2.0 AND MIT", "Requires-Python: >=3.11"):
        assert line in metadata.splitlines()
    assert "share-state = share_state.cli.main:main" in scripts


def test_the_wheel_alone_requires_neither_spark_nor_charts_nor_kafka_clients(wheel: Path):
    with ZipFile(wheel) as archive:
        metadata = Parser().parsestr(archive.read(f"share_state-{__version__}.dist-info/METADATA").decode())
    requirements = [Requirement(line) for line in metadata.get_all("Requires-Dist", [])]
    alone = {one.name for one in requirements if one.marker is None or one.marker.evaluate({"extra": ""})}
    heavy = {Requirement(requirement).name for _, requirement in EXTRAS.values()}
    assert {"pyarrow", "deltalake", "numba"} <= alone
    assert heavy <= {one.name for one in requirements} - alone


def _interpreter(version: str) -> str:
    """A Python of this version, of the PATH or of pyenv."""
    of_pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    candidates = [shutil.which(f"python{version}"), *map(str, sorted(of_pyenv.glob(f"{version}.*/bin/python3")))]
    for candidate in filter(None, candidates):
        # A shim of pyenv may stand for a version that is not active.
        asked = subprocess.run([candidate, "-c", "import venv"], capture_output=True, check=False)
        if asked.returncode == 0:
            return candidate
    pytest.skip(f"there is no Python {version}")


def _environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "NUMBA_CACHE_DIR")}
    return kept | {"HOME": str(home), "TERM": "xterm", "COLUMNS": "200"}


@nightly("installs 1.3 GB per version and compiles")
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_every_command_runs_from_the_wheel_in_each_version_of_python(wheel: Path, tmp_path: Path, version: str):
    subprocess.run([_interpreter(version), "-m", "venv", tmp_path / "venv"], check=True)
    subprocess.run([tmp_path / "venv/bin/python", *_PIP, "install", f"{wheel}[all]"], check=True, cwd=tmp_path)
    prepare(tmp_path)
    codes = dict[str, int]()
    told = dict[str, str]()
    for name, arguments in CALLS.items():
        command = [tmp_path / "venv/bin/share-state", name, *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=tmp_path, env=_environment(tmp_path)
        )
        codes[name] = done.returncode
        told[name] = done.stderr
    # No broker answers.
    assert codes == dict.fromkeys(CALLS, DONE) | {"compare": UNUSABLE}, told
    assert f"{CLUSTER}: " in told["compare"]


@nightly("installs 1.3 GB and compiles")
def test_an_empty_environment_with_the_wheel_needs_no_checkout(wheel: Path, tmp_path: Path):
    environment = _environment(tmp_path)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    subprocess.run([tmp_path / "venv/bin/python", *_PIP, "install", f"{wheel}[spark]"], check=True, cwd=tmp_path)
    assert not (tmp_path / "venv/share/share-state").exists()
    reconstruct = [str(tmp_path / "venv/bin/share-state"), "reconstruct", str(EXPORT), "--out"]
    code, output = run_on_terminal([*reconstruct, "w"], tmp_path, environment)
    assert code == 0, output
    assert "read and fold: compiling kernels (" in output
    assert "tables are in w " in output
    code, output = run_on_terminal([*reconstruct, "again"], tmp_path, environment)
    assert (code, "compiling" in output) == (0, False), output
    code, output = run_on_terminal([*reconstruct, "spark", "--master", "local[1]"], tmp_path, environment)
    assert code == 0, output
    jars = tmp_path / "venv/share/share-state/jars/delta-4.4.0"
    assert not jars.exists()
    python = [str(tmp_path / "venv/bin/python"), "-c", _READS_DELTA]
    code, output = run_on_terminal(python, tmp_path, environment)
    assert (code, output.splitlines()[-1]) == (0, "6"), output
    assert list(jars.glob("*.jar"))
