"""Measures `share-state stream`: records/s, the delay from append to table, the size of its state."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory

import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from bench.inputs import Export, generate, key_value_tables
from bench.kafka_baseline import BenchError
from bench.process_tree import process_kind
from bench.report import Bound, Item, Table
from bench.runner import Settings
from share_state.pipeline.stream_tables import last_stream_run
from share_state.sources.discovery import find_logs

_FILES, _A_SECOND, _FILES_A_SECOND = 5, 1000, 4
_KINDS = {"worker": "read and fold", "jvm": "Spark", "command": "tables"}
_PATIENCE = 900.0


@dataclass(frozen=True, slots=True)
class _Run:
    """What was measured of one stream; seconds and MB. `worker`, `jvm` and `command` are CPU seconds a micro-batch."""

    share_partitions: int
    records_per_s: float
    records_per_cpu_s: float
    delay_p50: float
    delay_p95: float
    state_mb: float
    tables_mb: float
    load: float
    batch_records: float
    batch_s: float
    worker: float
    jvm: float
    command: float


def stream(settings: Settings, speed: Bound, delay: Bound) -> Iterator[Item]:
    """Streams over logs of few and many share-partitions."""
    runs = []
    for keys in settings.stream_keys:
        runs.append(_measure(generate(replace(settings.log, keys=keys)), settings.stream_seconds))
    columns = ["share-partitions|,", "records/s|,.0f", "records/CPU s|,.0f", "delay p50, s|.2f"]
    columns += ["delay p95, s|.2f", "state, MB|.1f", "tables, MB|.1f", "load|.1f"]
    rows = [(f"{run.share_partitions:,}", *astuple(run)[1 : len(columns)]) for run in runs]
    title = f"A stream: catching up in {_FILES} micro-batches, then {_A_SECOND:,} records/s with a trigger of 1 s"
    yield Table(title, columns, rows, runs)
    columns = ["share-partitions|,", "records|,.0f", "s|.2f", *(f"{what}, CPU s|.2f" for what in _KINDS.values())]
    rows = [(f"{run.share_partitions:,}", *astuple(run)[-len(columns) + 1 :]) for run in runs]
    yield Table("Where the time of a micro-batch that catches up goes", columns, rows)
    for run in runs:
        shown = {"keys": run.share_partitions}
        yield speed.check(run.records_per_s, f"{run.records_per_s:,.0f}", **shown)
        yield delay.check(run.delay_p95, f"{run.delay_p95:.1f} s", **shown)


def _measure(export: Export, seconds: int) -> _Run:
    tables = [table for log in find_logs([str(export.folder)]) for table in _whole(key_value_tables(log))]
    live = seconds * _A_SECOND
    kept = [len(table) - live // len(tables) for table in tables]
    load = os.getloadavg()[0]
    with TemporaryDirectory(prefix="share-state-bench-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        for number in range(_FILES):
            parts = [t.slice(k * number // _FILES, k * (number + 1) // _FILES - k * number // _FILES)
                     for t, k in zip(tables, kept, strict=True)]  # fmt: skip
            _append(folder, f"{number:06}", parts)
        cpu = list[dict[str, float]]()
        with _stream(folder, "--trigger", "0ms", "--max-files", "1") as process:
            commits = _commits(folder, sum(kept), lambda: None, lambda: cpu.append(_cpu_seconds(process)))
        (_, first), *_, (_, last) = commits[1:]
        records = commits[-1][0] - commits[1][0]
        batches = records * _FILES / sum(kept)
        used = {kind: cpu[-1][kind] - cpu[1][kind] for kind in _KINDS}
        with _stream(folder, "--trigger", "1s"):
            delays = _follow(folder, [t.slice(k) for t, k in zip(tables, kept, strict=True)], sum(kept))
        cuts = quantiles(delays, n=20)
        return _Run(
            export.shape.keys,
            records / (last - first),
            records / sum(used.values()),
            cuts[9],
            cuts[18],
            _size(folder / "checkpoint") / 1e6,
            _size(folder / "lake") / 1e6,
            load,
            records / batches,
            (last - first) / batches,
            **{kind: seconds / batches for kind, seconds in used.items()},
        )


def _whole(tables: Iterator[pa.Table]) -> list[pa.Table]:
    return [pa.concat_tables(tables).combine_chunks()]


def _append(folder: Path, name: str, parts: list[pa.Table]) -> int:
    """Write a file of a sink: it appears at once."""
    (folder / "in").mkdir(exist_ok=True)
    rows = pa.concat_tables(parts)
    pq.write_table(rows, folder / f"in/.{name}")
    (folder / f"in/.{name}").rename(folder / f"in/{name}.parquet")
    return len(rows)


@contextmanager
def _stream(folder: Path, *options: str) -> Iterator[psutil.Process]:
    command = [sys.executable, "-m", "share_state", "stream", str(folder / "in"), "--quiet", *options]
    command += ["--out", str(folder / "lake"), "--checkpoint", str(folder / "checkpoint")]
    with (folder / "stderr").open("w") as errors, subprocess.Popen(command, stderr=errors) as process:
        try:
            yield psutil.Process(process.pid)
            if process.poll() is not None:
                raise BenchError(f"the stream stopped: {(folder / 'stderr').read_text()[-500:]}")
        finally:
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
            raise BenchError(f"the stream reads no more: {(folder / 'stderr').read_text()[-500:]}")
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


def _cpu_seconds(process: psutil.Process) -> dict[str, float]:
    """CPU seconds so far by _KINDS, that of the JVM with the processes that it started and that have ended."""
    seconds = dict.fromkeys(_KINDS, 0.0)
    for one in (process, *process.children(recursive=True)):
        with suppress(psutil.Error):
            kind, times = "command" if one == process else process_kind(one), one.cpu_times()
            if kind in seconds:
                seconds[kind] += sum(times[:4] if kind == "jvm" else times[:2])
    return seconds


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
