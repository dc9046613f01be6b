"""A Spark standalone cluster on this machine, a master and two workers, each a process; and the package as a wheel."""

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import share_state
from bench.standalone_cluster import standalone_cluster
from share_state.jit import compile as compile_module
from tests.truth import DATA

CHECKOUT = Path(__file__).parents[3]
EXPORT = DATA / "4.3.1/chaos"


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster.

    Attributes:
        address: of its master.
        work: the folder with a folder a worker, and in those one an executor.
        kernels: where executors are told to keep compiled kernels.
        missing: those that the tests' own process has compiled, and executors must compile.
    """

    address: str
    work: Path
    kernels: Path
    missing: frozenset[Path]


@dataclass(frozen=True, slots=True)
class Installed:
    """The package, installed from a wheel of this checkout.

    Attributes:
        wheel: the file.
        folder: where what it holds lies, and nothing else.
    """

    wheel: Path
    folder: Path


@pytest.fixture(scope="package")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    _pip("wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(folder), str(CHECKOUT))
    (wheel,) = folder.glob("share_state-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "installed")
    return Installed(wheel, folder / "installed")


@pytest.fixture(scope="package")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with standalone_cluster(folder, [{}, {}]) as address:
        yield Cluster(address, folder, folder / "kernels", _seeded(folder / "kernels"))


def _seeded(kernels: Path) -> frozenset[Path]:
    """Copy the kernels of this process, so that a job takes seconds, but for those of one module: their paths."""
    share_state.reconstruct(EXPORT)
    compiled = compile_module._kernel_folder()
    assert compiled is not None
    found = set[Path]()

    def left_out(folder: str, names: list[str]) -> list[str]:
        out = [name for name in names if name.startswith("share_partition_keys.")]
        found.update(kernels / "share-state/kernels" / Path(folder, name).relative_to(compiled.parent) for name in out)
        return out

    shutil.copytree(compiled, kernels / "share-state/kernels" / compiled.name, ignore=left_out)
    return frozenset(path for path in found if path.suffix == ".nbi")


def _pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
