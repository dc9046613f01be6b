"""The first `reconstruct` on a machine without compiled kernels, in process and on a cluster, over a warm one."""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.kafka_baseline import DATA, BenchError, last_error
from bench.process_tree import run_beside
from bench.report import Bound, Item, Table
from bench.runner import Settings
from bench.standalone_cluster import QUICK_JAVA, standalone_cluster
from share_state.jit.compile import SHIPPED, portable_kernels
from share_state.jit.portable import CPU_VARIABLE

_CHECKOUT = Path(__file__).parents[1]
_EXPORT = _CHECKOUT / "tests/data/4.3.1/chaos"
_ANOTHER_CPU = "skylake-avx512"
_HOST_NAME = f"""
import llvmlite.binding
llvmlite.binding.get_host_cpu_name = lambda: {_ANOTHER_CPU!r}
"""
"""A `sitecustomize` module: what numba takes for the CPU of the machine."""
_SET_CPU = "x86-64-v2"


@dataclass(frozen=True, slots=True)
class _Start:
    """One run: its seconds, and how many kernels its processes compiled."""

    wall_s: float
    cpu_s: float
    compiled: int
    peak_bytes: int


def cold_starts(settings: Settings, over_warm: Bound) -> Iterator[Item]:
    """Run the demo's `reconstruct` with empty and filled caches; on a cluster with a cache per worker."""
    del settings
    DATA.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=DATA) as scratch:
        folder = Path(scratch)
        _warm_up(folder)
        package = _package_with_kernels(folder / "shipped")
        bare = _package(folder / "bare")
        yield from _in_process(folder, bare, package, over_warm)
        yield from _on_a_cluster(folder, bare, package, over_warm)


def _warm_up(folder: Path) -> None:
    """Compile what a command needs, once, in the checkout's own environment."""
    _run(folder, _CHECKOUT, {})


def _package(folder: Path) -> Path:
    """A copy of the package, as its wheel has it; compiled modules of Python included."""
    target = folder / "share_state"
    shutil.copytree(_CHECKOUT / "share_state", target)
    for name in ("schemas", "conf"):
        shutil.copytree(_CHECKOUT / name, target / f"_{name}")
    return folder


def _package_with_kernels(folder: Path) -> Path:
    """The same with compiled kernels, as a wheel that was built with them."""
    _package(folder)
    if (kernels := portable_kernels()) is None:
        raise BenchError("no compiled kernels for every CPU; run `share-state setup`")
    target = folder / "share_state" / SHIPPED / kernels.name
    shutil.copytree(kernels, target, ignore=shutil.ignore_patterns("lock"))
    return folder


def _in_process(folder: Path, bare: Path, package: Path, over_warm: Bound) -> Iterator[Item]:
    another = {"PYTHONPATH": _host_named(folder / "another")}
    chosen = {CPU_VARIABLE: _SET_CPU}
    cases: dict[str, tuple[Path, str, Mapping[str, str]]] = {
        "no kernels shipped, empty cache": (bare, "empty", {}),
        "the same again: warm": (bare, "empty", {}),
        "kernels shipped, empty cache": (package, "filled", {}),
        f"kernels shipped, empty cache, the CPU is {_ANOTHER_CPU}": (package, "another", another),
        f"kernels shipped, empty cache, {CPU_VARIABLE}={_SET_CPU}": (package, "chosen", chosen),
        "no kernels shipped, the cache of the second on another CPU": (bare, "empty", another),
    }
    starts = {
        title: _counted(folder, [folder / "caches" / cache], place, variables)
        for title, (place, cache, variables) in cases.items()
    }
    yield _table("share-state reconstruct of the demo's export, in process", starts)
    yield from _checks(starts, over_warm, "in process")


def _on_a_cluster(folder: Path, bare: Path, package: Path, over_warm: Bound) -> Iterator[Item]:
    starts = dict[str, _Start]()
    # A driver with kernels sends them in the archive of the package; `bare` has an empty cache of its own.
    another = {"PYTHONPATH": _host_named(folder / "another")}
    cases: dict[str, tuple[Path, Mapping[str, str]]] = {
        "no kernels shipped, empty caches": (bare, {}),
        "kernels shipped, empty caches": (package, {}),
        f"kernels shipped, empty caches, the CPU is {_ANOTHER_CPU}": (package, another),
    }
    for number, (title, (place, variables)) in enumerate(cases.items()):
        work = folder / f"cluster-{number}"
        work.mkdir()
        caches = [work / f"cache-{worker}" for worker in range(2)]
        workers = [{"NUMBA_CACHE_DIR": str(cache)} for cache in caches]
        with standalone_cluster(work, workers) as master:
            options = ["--master", master, "--spark-conf", "spark.executor.memory=512m"]
            for name, value in variables.items():
                options += ["--spark-conf", f"spark.executorEnv.{name}={value}"]
            starts[title] = _counted(work, [work / "cache-driver", *caches], place, variables, *options)
            if number == 0:
                starts["the same again: warm"] = _counted(
                    work, [work / "cache-driver", *caches], place, variables, *options
                )
    yield _table(
        "the same on a standalone cluster of two workers of one core; the driver's cache is empty, too",
        starts,
    )
    yield from _checks(starts, over_warm, "cluster")


def _checks(starts: Mapping[str, _Start], over_warm: Bound, where: str) -> Iterator[Item]:
    warm = next(start for title, start in starts.items() if "warm" in title)
    for title, start in starts.items():
        if title.startswith("kernels shipped") and CPU_VARIABLE not in title:
            beyond = start.wall_s - warm.wall_s
            yield over_warm.check(
                beyond, f"{beyond:.1f} s, {start.compiled} kernels compiled: {title}", where=where
            )


def _table(title: str, starts: Mapping[str, _Start]) -> Table:
    columns = [
        "first command",
        "wall s|.1f",
        "CPU s|.1f",
        "kernels compiled|,",
        "MB of the largest process|,.0f",
    ]
    rows = [
        (name, start.wall_s, start.cpu_s, start.compiled, start.peak_bytes / 1e6)
        for name, start in starts.items()
    ]
    return Table(title, columns, rows, list(starts.values()))


def _counted(
    folder: Path, caches: list[Path], place: Path, variables: Mapping[str, str], *options: str
) -> _Start:
    """Run a command whose own cache is the first of some; count the kernels in them that nobody shipped.

    One for another CPU is stored beside the shipped one of the same name, under a higher number.
    """
    shipped = {path.name for path in place.rglob("*.nbc")}
    before = {path for cache in caches for path in cache.rglob("*.nbc")}
    start = _run(folder, place, {"NUMBA_CACHE_DIR": str(caches[0]), **variables}, *options)
    after = {path for cache in caches for path in cache.rglob("*.nbc")}
    compiled = sum(1 for path in after - before if path.name not in shipped)
    return _Start(start.wall_s, start.cpu_s, compiled, start.peak_bytes)


def _run(folder: Path, place: Path, variables: Mapping[str, str], *options: str) -> _Start:
    path = os.pathsep.join([str(place), *filter(None, [variables.get("PYTHONPATH")])])
    environment = {**os.environ, **QUICK_JAVA, **variables, "PYTHONPATH": path}
    with TemporaryDirectory(dir=folder) as scratch, Path(scratch, "errors").open("w+") as errors:
        command = [
            sys.executable,
            "-m",
            "share_state",
            "reconstruct",
            str(_EXPORT),
            "--out",
            f"{scratch}/warehouse",
        ]
        usage = run_beside([*command, *options], environment, Path(scratch), errors)
        if usage.exit_code:
            errors.seek(0)
            raise BenchError(f"reconstruct exits with {usage.exit_code}: {last_error(errors.read())}")
    return _Start(usage.wall_s, usage.cpu_s, 0, max(usage.peak_bytes.values(), default=0))


def _host_named(folder: Path) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(_HOST_NAME)
    return str(folder)
