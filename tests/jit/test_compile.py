"""Where kernels are cached, and what happens if numba or llvmlite lack what `share_state.jit` uses."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from zipfile import ZipFile

import numpy as np
import pytest
from numba import njit
from numba.core import config as numba_config

from share_state.jit import compile, intrinsics, portable
from share_state.kafka.primitives import uvarint
from share_state.spark import session
from tests.profiles import nightly
from tests.truth import DATA

config: Any = numba_config
"""Its settings are made while it is imported."""

HOME = Path(__file__).parents[2]


@pytest.fixture
def cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Find the cache folder as if NUMBA_CACHE_DIR were this one, without any other candidate."""

    def find(folder: Path) -> Path | None:
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder))
        monkeypatch.setattr(compile.Path, "home", lambda: tmp_path / "home")
        compile._kernel_folder.cache_clear()
        return compile._kernel_folder()

    yield find
    monkeypatch.undo()
    compile._kernel_folder.cache_clear()


def test_kernels_of_the_package_are_cached_under_the_digest_of_their_sources():
    folder = compile._kernel_folder()
    assert folder is not None
    assert uvarint._cache.cache_path == str(folder / "kafka")
    source = str(Path(compile.__file__).parents[1] / "rules" / "composed.py")
    locator = compile.KernelCacheLocator.from_function(uvarint.py_func, source)
    assert locator is not None
    assert locator.get_cache_path() == str(folder / "rules")
    assert compile.KernelCacheLocator.from_function(uvarint.py_func, "/elsewhere/rules/composed.py") is None


def test_a_folder_that_others_may_write_is_not_used(cache_folder, tmp_path: Path):
    assert cache_folder(tmp_path / "own").is_relative_to(tmp_path / "own")
    for name in ("open/share-state", "open-parent"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name).chmod(0o777)
        assert cache_folder(tmp_path / name.split("/")[0]).is_relative_to(tmp_path / "home")
    (tmp_path / "home/.cache/share-state").chmod(0o777)
    assert cache_folder(tmp_path / "open-parent") is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give folders away")
@pytest.mark.parametrize("owned", ["theirs/share-state", "theirs"])
def test_a_folder_of_another_user_is_not_used(cache_folder, tmp_path: Path, owned: str):
    (tmp_path / "theirs/share-state").mkdir(parents=True)
    os.chown(tmp_path / owned, 12345, 12345)
    assert cache_folder(tmp_path / "theirs").is_relative_to(tmp_path / "home")


def test_kernels_of_other_sources_are_removed(cache_folder, tmp_path: Path):
    current = cache_folder(tmp_path)
    stale = current.parent / "0123456789abcdef"
    for folder in (current, stale):
        (folder / "fold").mkdir(parents=True)
    compile.remove_stale_kernels()
    assert (current.is_dir(), stale.exists()) == (True, False)


def test_without_numbas_setting_its_own_cache_is_used(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(config, "CACHE_LOCATOR_CLASSES")
    compile.register_cache_locator()
    assert not hasattr(config, "CACHE_LOCATOR_CLASSES")
    monkeypatch.setattr(config, "CACHE_LOCATOR_CLASSES", "InTreeCacheLocator", raising=False)
    compile.register_cache_locator()
    compile.register_cache_locator()
    assert config.CACHE_LOCATOR_CLASSES == "share_state.jit.compile.KernelCacheLocator,InTreeCacheLocator"


@pytest.mark.parametrize("is_available", [True, False])
def test_prefetching_changes_no_result(is_available: bool, monkeypatch: pytest.MonkeyPatch):
    if not is_available:
        monkeypatch.setattr(intrinsics, "cgutils", object())

    @njit
    def total(rows):
        found = 0
        for number in range(len(rows)):
            intrinsics.prefetch(rows, number)
            found += rows[number].size
        return found

    rows = np.zeros(5, np.dtype([("size", "i8"), ("text", "S200")]))
    rows["size"] = range(5)
    assert total(rows) == 10


def test_shipped_kernels_are_copied_once_and_whole(tmp_path: Path):
    shipped, folder = tmp_path / "shipped", tmp_path / "cache/kernels/digest"
    (shipped / "fold").mkdir(parents=True)
    (shipped / "fold/one.nbi").write_bytes(b"index")
    compile._take_shipped(tmp_path / "none", folder)
    assert not folder.parent.exists()
    compile._take_shipped(shipped, folder)
    assert (folder / "fold/one.nbi").read_bytes() == b"index"
    (shipped / "fold/one.nbi").write_bytes(b"later")
    compile._take_shipped(shipped, folder)
    assert (folder / "fold/one.nbi").read_bytes() == b"index"
    assert [one.name for one in folder.parent.iterdir()] == ["digest"]


def test_kernels_that_another_process_has_copied_meanwhile_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    shipped, folder = tmp_path / "shipped", tmp_path / "kernels/digest"
    shipped.mkdir()
    (shipped / "one.nbi").write_bytes(b"ours")

    def copy(source: Any, target: Path) -> None:
        copied(source, target)
        folder.mkdir()
        (folder / "one.nbi").write_bytes(b"theirs")

    copied = compile._copy
    monkeypatch.setattr(compile, "_copy", copy)
    compile._take_shipped(shipped, folder)
    assert (folder / "one.nbi").read_bytes() == b"theirs"
    assert [one.name for one in folder.parent.iterdir()] == ["digest"]


@pytest.mark.parametrize(
    ("own", "is_loaded", "expected"), [(None, False, "generic"), ("znver5", False, "znver5"), (None, True, None)]
)
def test_commands_compile_for_every_cpu_unless_one_is_named_or_numba_is_in_use(
    own: str | None, is_loaded: bool, expected: str | None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv(portable.CPU_VARIABLE, raising=False)
    if own is not None:
        monkeypatch.setenv(portable.CPU_VARIABLE, own)
    if not is_loaded:
        monkeypatch.delitem(sys.modules, "numba")
    portable.compile_for_every_cpu()
    assert os.environ.get(portable.CPU_VARIABLE) == expected


_ON_ANOTHER_CPU = """
import sys
import llvmlite.binding as llvm
llvm.get_host_cpu_name = lambda: "skylake-avx512"
from share_state.jit.compile_times import watch_compiling
from share_state.cli.main import run
with watch_compiling(lambda count: count and print("compiled", count, file=sys.stderr)):
    code = run(["reconstruct", sys.argv[1], "--out", sys.argv[2], "--quiet"])
import share_state
print(share_state.__file__, file=sys.stderr)
sys.exit(code)
"""


def _check_nothing_is_compiled(package: Path, folder: Path) -> None:
    """Fold a log with the package of a folder, on another CPU and with an empty cache."""
    places = {"PYTHONPATH": str(package), "NUMBA_CACHE_DIR": str(folder / "cache"), "NUMBA_CPU_NAME": "generic"}
    done = subprocess.run(
        [sys.executable, "-c", _ON_ANOTHER_CPU, DATA / "4.3.1/happy", folder / "w"],
        env=os.environ | places,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [str(package / "share_state/__init__.py")]


_IN_PLACE = """
import sys
from share_state.jit import compile
print(compile._kernel_folder(), file=sys.stderr)
"""


@nightly("compiles")
def test_the_archive_of_a_driver_spares_its_workers_compiling(tmp_path: Path):
    """On another CPU and with an empty cache."""
    if not compile.portable_kernels():
        pytest.skip("this process compiles for one CPU only")
    settings = session.package_settings({})
    assert settings["spark.executorEnv.NUMBA_CPU_NAME"] == "generic"
    with ZipFile(unquote(settings["spark.archives"].partition("#")[0].removeprefix("file://"))) as archive:
        archive.extractall(tmp_path / "unpacked")
    _check_nothing_is_compiled(tmp_path / "unpacked", tmp_path)


@nightly("builds a wheel")
def test_a_wheel_with_kernels_compiles_none_on_another_cpu_and_is_of_its_platform(tmp_path: Path):
    if not compile.portable_kernels():
        pytest.skip("this process compiles for one CPU only")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    environment = os.environ | {"SHARE_STATE_KERNELS": "1"}
    subprocess.run([*command, "--wheel-dir", tmp_path, HOME], check=True, env=environment)
    (wheel,) = tmp_path.glob("*.whl")
    assert not wheel.name.endswith("-none-any.whl")
    with ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    _check_nothing_is_compiled(tmp_path / "installed", tmp_path)


@nightly("compiles")
@pytest.mark.parametrize("is_open", [False, True])
def test_shipped_kernels_are_read_in_place_where_no_folder_can_be_written(tmp_path: Path, is_open: bool):
    """But for those that others may write."""
    kernels = compile.portable_kernels()
    if not kernels:
        pytest.skip("this process compiles for one CPU only")
    package = tmp_path / "installed/share_state"
    shutil.copytree(Path(compile.__file__).parents[1], package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("schemas", "conf"):
        shutil.copytree(HOME / name, package / f"_{name}")
    shipped = package / compile.SHIPPED / kernels.name
    shutil.copytree(kernels, shipped, ignore=shutil.ignore_patterns("lock"))
    (shipped / "fold").chmod(0o777 if is_open else 0o755)
    # A file is in the way of both folders.
    (tmp_path / "home").write_text("")
    environment = os.environ | {
        "PYTHONPATH": str(package.parent),
        "NUMBA_CACHE_DIR": str(tmp_path / "home"),
        "HOME": str(tmp_path / "home"),
        "NUMBA_CPU_NAME": "generic",
    }
    before = {path: path.stat().st_mtime_ns for path in shipped.rglob("*")}
    program = _IN_PLACE if is_open else _ON_ANOTHER_CPU
    command = [sys.executable, "-c", program, DATA / "4.3.1/happy", tmp_path / "w"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == (["None"] if is_open else [str(package / "__init__.py")])
    assert {path: path.stat().st_mtime_ns for path in shipped.rglob("*")} == before
