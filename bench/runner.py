"""Runs what is measured: both sides' replays of an export, by turns, and `share-state` commands."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory, TemporaryFile
from types import MappingProxyType
from typing import Any, TypeVar

import pyarrow.parquet as pq
from deltalake import DeltaTable

from bench.fold_process import write_states
from bench.inputs import Export, Shape, option
from bench.kafka_baseline import DATA, BenchError, java_command, last_error
from bench.process_tree import TreeUsage, peak_memory, run_tree
from bench.report import Claim

IN_SPARK = ("--master", "local[*]")
KAFKA, OURS = "Kafka 4.4.0", "share_state"
_T, _U = TypeVar("_T"), TypeVar("_U")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings from the command line."""

    log: Shape
    records_per_batch: tuple[int, ...] = option((1, 20), "--comparison and --profile: one log for each")
    warm_ups: int = option(2, "passes of each side that are not measured")
    runs: int = option(3, "measured passes of each side, by turns")
    matrix_share: float = option(1.0, "--matrix: fraction of its records and keys, for a trial")
    shape_megabytes: int = option(1024, "--shape: size of each export")
    large_megabytes: int = option(45_000, "--large: size of the export; a ninth more of the disk is needed")
    large_keys: int = option(200_000, "--large: share-partitions")
    growth_megabytes: int = option(160, "--growth: size of the smallest export")
    in_spark: bool = option(False, "--end-to-end, --shape and --nightly: in Spark, whatever the size")
    stream_keys: tuple[int, ...] = option(
        (1_000, 20_000, 200_000), "--stream: share-partitions, one log for each"
    )
    stream_engines: tuple[str, ...] = option(("own process", "Spark"), "--stream: which engines, by turns")
    stream_seconds: int = option(
        60, "--stream: how long 1,000 records/s are written, once for the tables and once for metrics"
    )
    soak_micro_batches: int = option(10_000, "--soak: for how many the logs grow")
    soak_minutes: float = option(60.0, "--soak: it ends then, with fewer micro-batches")
    soak_keys: int = option(2_000, "--soak: share-partitions")
    soak_partitions: int = option(8, "--soak: log partitions; each adds some milliseconds to a micro-batch")
    end_to_end_records: tuple[int, ...] = option(
        (2_000_000, 20_000_000, 50_000_000), "--end-to-end: its sizes"
    )


@dataclass(frozen=True, slots=True)
class Pass:
    """One replay of an export by one side; `tables_s` of its wall seconds build tables, which Kafka does not.

    CPU seconds are of the process; peak memory is VmHWM since it started.
    """

    records: int
    wall_s: float
    cpu_s: float
    peak_bytes: int
    tables_s: float = 0.0


Replay = Callable[..., Pass]
"""Replays an export: replay(folder, states=FILE, cores=1); the resulting states go to the file, if given."""
Comparison = tuple[
    list[Pass], list[Pass], Claim
]  # Kafka's, this project's, and that they end in the same states


@contextmanager
def _replay_process(
    side: str, command: Sequence[str], variables: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Replay]:
    """Start a process that replays exports and keeps running, so that it is warm.

    Args:
        side, command: its name and what it runs.
        variables: of its environment, besides those of this process.
    """
    with (
        TemporaryFile("w+") as errors,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **variables},
        ) as process,
    ):

        def replay(folder: Path, *, states: Path | str = "", cores: int = 1) -> Pass:
            print(folder, states, cores, sep="\t", file=process.stdin, flush=True)
            line = process.stdout.readline() if process.stdout else ""
            if not line:
                errors.seek(0)
                raise BenchError(f"{side} stopped: {last_error(errors.read())}")
            return Pass(**json.loads(line), peak_bytes=peak_memory(process.pid))

        try:
            yield replay
        except BaseException:
            process.kill()
            raise


def kafka_process() -> AbstractContextManager[Replay]:
    """Kafka's own classes, which replay with one thread."""
    return _replay_process(KAFKA, java_command("Replay"))


fold_process = partial(_replay_process, OURS, (sys.executable, "-m", "bench.fold_process"))
"""`find_logs` and `fold_log`."""


def by_turns(sides: Sequence[Callable[[], _T]], runs: int) -> list[list[_T]]:
    """Call each side in turn, `runs` times; returns the results of each."""
    turns = [[side() for side in sides] for _ in range(runs)]
    return [list(results) for results in zip(*turns, strict=True)]


def check_states(title: str, kafka: Callable[..., _T], ours: Callable[..., _U]) -> tuple[_T, _U, Claim]:
    """Call both sides, each with a file for its states, and compare the files."""
    with TemporaryDirectory(dir=DATA) as scratch:
        files = Path(scratch, "kafka"), Path(scratch, "ours")
        results = kafka(states=files[0]), ours(states=files[1])
        expected, found = (
            dict(line.split(" ", 1) for line in file.read_text().splitlines()) for file in files
        )
    differing = [key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key)]
    measured = f"equal for {len(expected):,} share-partitions"
    if differing:
        key = min(differing, key=lambda key: (len(expected.get(key, "")), key))
        measured = (
            f"{len(differing):,} differ, e.g. {key}: {expected.get(key)} is expected, {found.get(key)} found"
        )
    return *results, Claim(f"the same states, {title}", measured, not differing, is_about_states=True)


def replay_by_turns(kafka: Replay, ours: Replay, export: Export, warm_ups: int, runs: int) -> Comparison:
    """Replay an export with both sides; a last pass, not measured, compares their states."""
    sides = [partial(side, export.folder) for side in (kafka, ours)]
    by_turns(sides, warm_ups)
    of_kafka, of_ours = by_turns(sides, runs)
    return of_kafka, of_ours, check_states(export.title, *sides)[-1]


@dataclass(frozen=True, slots=True)
class CommandRun(TreeUsage):
    """One run of a `share-state` command: seconds by phase, as it reports them, and what remains.

    The live state is the tables `share_partition_state`, which has a row per share-partition, and `in_flight` in Arrow.
    """

    phases: dict[str, float]
    live_bytes: int = 0
    share_partitions: int = 0

    @property
    def is_in_spark(self) -> bool:
        """Whether Spark ran its tasks."""
        return "start Spark" in self.phases

    @property
    def fold_bytes(self) -> int:
        """Peak memory of the largest process that folds."""
        return self.peak_bytes.get("worker" if self.is_in_spark else "command", 0)


def run_command(*arguments: str) -> CommandRun:
    """Run `share-state` with these arguments; raises BenchError if it does not exit with 0."""
    with TemporaryDirectory(dir=DATA) as scratch, Path(scratch, "errors").open("w+") as errors:
        phases = Path(scratch, "phases.json")
        environment = {**os.environ, "SHARE_STATE_PHASES": str(phases)}
        usage = run_tree([sys.executable, "-m", "share_state", *arguments], environment, errors)
        if usage.exit_code:
            errors.seek(0)
            raise BenchError(
                f"share-state {arguments[0]} exits with {usage.exit_code}: {last_error(errors.read())}"
            )
        by_phase: dict[str, float] = json.loads(phases.read_text())
    by_phase["interpreter, imports, exit"] = usage.wall_s - sum(by_phase.values())
    return CommandRun(**asdict(usage), phases=by_phase)


def run_on_export(command: str, export: Export, *options: str, states: Path | None = None) -> CommandRun:
    """Run `reconstruct` or `audit` into a fresh warehouse; the states that it stored go to a file, if given."""
    with TemporaryDirectory(dir=DATA) as warehouse:
        run = run_command(command, str(export.folder), "--out", warehouse, "--fail-on", "off", *options)
        state, in_flight = (
            [pq.read_table(file) for file in DeltaTable(f"{warehouse}/{name}").file_uris()]
            for name in ("share_partition_state", "in_flight")
        )
    if states:
        write_states(state, states)
    live_bytes = sum(table.nbytes for table in (*state, *in_flight))
    return replace(run, live_bytes=live_bytes, share_partitions=sum(table.num_rows for table in state))


def typical(passes: Sequence[_T]) -> _T:
    """The pass or run of median CPU time, the lower of the middle two."""
    return sorted(passes, key=lambda one: one.cpu_s)[(len(passes) - 1) // 2]


def median_ratio(first: Sequence[Any], second: Sequence[Any]) -> float:
    """The median of the pairs' ratios of CPU time."""
    return median(a.cpu_s / b.cpu_s for a, b in zip(first, second, strict=True))
