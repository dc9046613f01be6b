"""Measures `share-state stream`: records/s, the delay from append to table, the size of its state."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from bench.inputs import Export, generate, key_value_tables
from bench.kafka_baseline import BenchError
from bench.process_tree import cpu_seconds
from bench.report import Bound, Item, Table
from bench.runner import Settings
from share_state.pipeline.stream_run import last_stream_run
from share_state.sources.discovery import find_logs

_FILES, _A_SECOND, _FILES_A_SECOND = 5, 1000, 4
_KINDS = {"worker": "read and fold", "jvm": "Spark", "command": "tables"}
_PATIENCE = 900.0
HERE, SPARK = "own process", "Spark"


def stream(settings: Settings, speed: Bound, delay: Bound) -> Iterator[Item]:
    """Stream logs of few and of many share-partitions."""
    rows, batches = list[tuple[float | str, ...]](), list[tuple[float | str, ...]]()
    for keys in settings.stream_keys:
        export = generate(replace(settings.log, keys=keys))
        for engine in settings.stream_engines:
            with TemporaryDirectory(prefix="share-state-bench-", ignore_cleanup_errors=True) as scratch:
                row, batch = _measure(export, settings.stream_seconds, _Place(Path(scratch), engine))
            rows.append((f"{keys:,}", engine, *row))
            batches.append((f"{keys:,}", engine, *batch))
            yield speed.check(row[0], f"{row[0]:,.0f}", keys=keys, engine=engine)
            yield delay.check(row[3], f"{row[3]:.1f} s", keys=keys, engine=engine)
    columns = ["share-partitions", "engine", "records/s|,.0f", "records/CPU s|,.0f", "delay p50, s|.2f"]
    columns += ["delay p95, s|.2f", "state, MB|.1f", "tables, MB|.1f", "peak memory, MB|,.0f", "load|.1f"]
    title = (
        f"A stream: catching up in {_FILES} micro-batches, then {_A_SECOND:,} records/s with a trigger of 1 s"
    )
    yield Table(title, columns, rows, rows)
    columns = [
        "share-partitions",
        "engine",
        "records|,.0f",
        "s|.2f",
        *(f"{what}, CPU s|.2f" for what in _KINDS.values()),
    ]
    yield Table("Where the time of a micro-batch that catches up goes", columns, batches, batches)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a stream works, and which engine runs it."""

    folder: Path
    engine: str

    def files(self, what: str) -> int:
        """Bytes of its state or of its tables."""
        of_state = (
            ("checkpoint",)
            if self.engine == SPARK
            else ("lake/carried_logs", "lake/carried_share_partitions")
        )
        found = [file for part in of_state for file in (self.folder / part).rglob("*") if file.is_file()]
        if what == "tables":
            found = [
                file for file in (self.folder / "lake").rglob("*") if file.is_file() and file not in {*found}
            ]
        return sum(file.stat().st_size for file in found)


def _measure(export: Export, seconds: int, place: _Place) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Numbers of the stream, and of a micro-batch that catches up, in the order of the tables' columns."""
    folder, peaks = place.folder, Counter[int]()
    logs, load = find_logs([str(export.folder)]), os.getloadavg()[0]
    tables = [pa.concat_tables(key_value_tables(log)).combine_chunks() for log in logs]
    kept = [len(table) - seconds * _A_SECOND // len(tables) for table in tables]
    for number in range(_FILES):
        parts = [t.slice(k * number // _FILES, k * (number + 1) // _FILES - k * number // _FILES)
                 for t, k in zip(tables, kept, strict=True)]  # fmt: skip
        _append(folder, f"{number:06}", parts)
    cpu = list[Counter[str]]()
    with _stream(place, peaks, "--trigger", "0ms", "--max-files", "1") as process:
        commits = _commits(folder, sum(kept), lambda: None, lambda: cpu.append(cpu_seconds(process)))
    # The first one also warms up; in its own process, a stream reads several files while it writes tables.
    skipped = 1 if len(commits) > 2 else 0
    (before, first), *_, (after, last) = commits[skipped:]
    records, took, used = (
        after - before,
        last - first,
        [cpu[-1][kind] - cpu[skipped][kind] for kind in _KINDS],
    )
    with _stream(place, peaks, "--trigger", "1s"):
        delays = _follow(folder, [t.slice(k) for t, k in zip(tables, kept, strict=True)], sum(kept))
    cuts, batches = quantiles(delays, n=20), records * _FILES / sum(kept)
    sizes = [place.files(what) / 1e6 for what in ("state", "tables")]
    memory = max(peaks.values(), default=0) / 1e6
    stream_numbers = (records / took, records / sum(used), cuts[9], cuts[18], *sizes, memory, load)
    return stream_numbers, tuple(number / batches for number in (records, took, *used))


def _append(folder: Path, name: str, parts: list[pa.Table]) -> int:
    """Write a file as a sink does: it appears only when it is complete."""
    (folder / "in").mkdir(exist_ok=True)
    rows = pa.concat_tables(parts)
    pq.write_table(rows, folder / f"in/.{name}")
    (folder / f"in/.{name}").rename(folder / f"in/{name}.parquet")
    return len(rows)


@contextmanager
def _stream(place: _Place, peaks: Counter[int], *options: str) -> Iterator[psutil.Process]:
    """Run a stream; `peaks` gets the largest memory of all its processes together, by the time of a sample."""
    folder, ended = place.folder, threading.Event()
    command = [sys.executable, "-m", "share_state", "stream", str(folder / "in"), "--quiet", *options]
    command += ["--out", str(folder / "lake")]
    if place.engine == SPARK:
        command += ["--checkpoint", str(folder / "checkpoint"), "--master", "local[*]"]
    with (folder / "stderr").open("w") as errors, subprocess.Popen(command, stderr=errors) as process:
        root = psutil.Process(process.pid)

        def sample() -> None:
            while not ended.wait(0.25):
                with suppress(psutil.Error):
                    peaks[len(peaks)] = sum(
                        one.memory_info().rss for one in (root, *root.children(recursive=True))
                    )

        sampler = threading.Thread(target=sample, daemon=True)
        sampler.start()
        try:
            yield root
            if process.poll() is not None:
                raise BenchError(f"the stream stopped: {(folder / 'stderr').read_text()[-500:]}")
        finally:
            ended.set()
            sampler.join()
            process.send_signal(signal.SIGTERM)


def _commits(
    folder: Path, until: int, feed: Callable[[], None], note: Callable[[], object] = int
) -> list[tuple[int, float]]:
    """(records committed, when) of each micro-batch that is seen, until all records are."""
    seen, deadline = list[tuple[int, float]](), time.monotonic() + _PATIENCE
    while not seen or seen[-1][0] < until:
        feed()
        run = last_stream_run(str(folder / "lake"))
        now = time.monotonic()
        if run is not None and (not seen or run.records > seen[-1][0]):
            seen.append((run.records, now))
            note()
        if now > deadline:
            raise BenchError(f"the stream has stopped reading: {(folder / 'stderr').read_text()[-500:]}")
        time.sleep(0.02)
    return seen


def _follow(folder: Path, tables: list[pa.Table], before: int) -> list[float]:
    """Seconds from the append of each file to the commit that holds its records, once Spark has started."""
    most, step = max(map(len, tables)), max(1, _A_SECOND // _FILES_A_SECOND // len(tables))

    def append(at: int) -> int:
        return _append(folder, f"live-{at:06}", [table.slice(at, step) for table in tables])

    appended, due = list[tuple[int, float]](), [0.0]
    started = before + append(0)
    _commits(folder, started, lambda: None)

    def feed() -> None:
        at = (len(appended) + 1) * step
        if at < most and time.monotonic() >= due[0]:
            total = (appended[-1][0] if appended else started) + append(at)
            appended.append((total, time.monotonic()))
            due[0] = max(due[0], time.monotonic() - 1) + 1 / _FILES_A_SECOND

    commits = _commits(folder, before + sum(map(len, tables)), feed)
    return [next(at for seen, at in commits if seen >= total) - when for total, when in appended]
