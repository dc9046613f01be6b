"""Measures `share-state stream`: records/s, the delays from append to table and to metrics, the size of its state."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from statistics import quantiles
from tempfile import TemporaryDirectory
from urllib.error import URLError
from urllib.request import urlopen

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
_LONGEST_SCRAPE_PAUSE = 4.0
"""Seconds: a scrape each 2 s on average; one that never rests would take a core from the stream that it measures."""
_LEAST_ANSWERS = 5
_KINDS = {"worker": "read and fold", "jvm": "Spark", "command": "tables"}
_PATIENCE = 900.0
HERE, SPARK = "own process", "Spark"


@dataclass(frozen=True, slots=True)
class StreamGoals:
    """What is claimed of a stream on an engine.

    Attributes:
        engine: the engine.
        most_keys: share-partitions up to which it is claimed.
        speed: records/s.
        tables, metrics: delays; None for no claim.
    """

    engine: str
    most_keys: float
    speed: Bound
    tables: Bound
    metrics: Bound | None = None


def stream(settings: Settings, *goals: StreamGoals) -> Iterator[Item]:
    """Stream logs of few and of many share-partitions."""
    rows, batches = list[tuple[float | str, ...]](), list[tuple[float | str, ...]]()
    for keys in settings.stream_keys:
        export = generate(replace(settings.log, keys=keys))
        for engine in settings.stream_engines:
            with TemporaryDirectory(prefix="share-state-bench-", ignore_cleanup_errors=True) as scratch:
                row, batch = _measure(export, settings.stream_seconds, _Place(Path(scratch), engine))
            rows.append((f"{keys:,}", engine, *row))
            batches.append((f"{keys:,}", engine, *batch))
            goal = next(one for one in goals if one.engine == engine and keys <= one.most_keys)
            yield goal.speed.check(row[0], f"{row[0]:,.0f}", keys=keys, engine=engine)
            yield goal.tables.check(row[3], f"{row[3]:.1f} s", keys=keys, engine=engine)
            if goal.metrics is not None:
                yield goal.metrics.check(row[5], f"{row[5]:.1f} s", keys=keys, engine=engine)
    columns = ["share-partitions", "engine", "records/s|,.0f", "records/CPU s|,.0f", "tables' p50, s|.2f"]
    columns += ["p95, s|.2f", "metrics' p50, s|.2f", "p95, s|.2f", "state, MB|.1f", "tables, MB|.1f"]
    columns += ["peak memory, MB|,.0f", "load|.1f"]
    title = (
        f"A stream: catching up in {_FILES} micro-batches, then {_A_SECOND:,} records/s with a trigger of 1 s, "
        "then with metrics"
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
    live = seconds * _A_SECOND // len(tables)
    kept = [len(table) - 2 * live for table in tables]
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
        feed = _Feed(folder, "live", [t.slice(k, live) for t, k in zip(tables, kept, strict=True)], sum(kept))
        of_tables = quantiles(_follow_tables(feed), n=20)
    # Apart, as a stream reads more often where metrics are served.
    port = _free_port()
    with _stream(place, peaks, "--trigger", "1s", "--prometheus-port", str(port)):
        rest = [t.slice(k + live) for t, k in zip(tables, kept, strict=True)]
        of_metrics = quantiles(_follow_metrics(_Feed(folder, "more", rest, feed.total), port), n=20)
    batches = records * _FILES / sum(kept)
    delays = [cuts[at] for cuts in (of_tables, of_metrics) for at in (9, 18)]
    sizes = [place.files(what) / 1e6 for what in ("state", "tables")]
    memory = max(peaks.values(), default=0) / 1e6
    stream_numbers = (records / took, records / sum(used), *delays, *sizes, memory, load)
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
    log, entries = folder / "lake/runs/_delta_log", set[Path]()
    while not seen or seen[-1][0] < until:
        feed()
        now = time.monotonic()
        # To read the tables each time would take half a core from the stream.
        listed = set(log.iterdir()) if log.exists() else set[Path]()
        if listed != entries:
            entries, run = listed, last_stream_run(str(folder / "lake"))
            if run is not None and (not seen or run.records > seen[-1][0]):
                seen.append((run.records, now))
                note()
        if now > deadline:
            raise BenchError(f"the stream has stopped reading: {(folder / 'stderr').read_text()[-500:]}")
        time.sleep(0.02)
    return seen


class _Feed:
    """Appends records to a folder, 1,000 a second.

    Attributes:
        folder: the folder of the stream.
        total, end: records in what it reads, now and once all are appended.
        appended: `total` after each file, and when it was appended.
    """

    def __init__(self, folder: Path, name: str, tables: list[pa.Table], before: int) -> None:
        """Begin.

        Args:
            folder: the folder of the stream.
            name: how its files are named.
            tables: the records of each log partition.
            before: how many records are in the folder.
        """
        self.folder = folder
        self.total, self.end = before, before + sum(map(len, tables))
        self.appended = list[tuple[int, float]]()
        self._name = name
        self._tables = tables
        self._step = max(1, _A_SECOND // _FILES_A_SECOND // len(tables))
        self._at, self._due = 0, 0.0

    @property
    def is_done(self) -> bool:
        """Whether all records are appended."""
        return self._at >= max(map(len, self._tables))

    def append(self) -> None:
        """Append the next file, if it is time for it."""
        now = time.monotonic()
        if self.is_done or now < self._due:
            return
        parts = [table.slice(self._at, self._step) for table in self._tables]
        self.total += _append(self.folder, f"{self._name}-{self._at:06}", parts)
        self._at += self._step
        self.appended.append((self.total, time.monotonic()))
        self._due = max(self._due, now - 1) + 1 / _FILES_A_SECOND


def _follow_tables(feed: _Feed) -> list[float]:
    """Seconds from the append of each file to the commit that holds its records, once Spark has started."""
    feed.append()
    _commits(feed.folder, feed.total, lambda: None)
    commits = _commits(feed.folder, feed.end, feed.append)
    return [next(at for seen, at in commits if seen >= total) - when for total, when in feed.appended[1:]]


def _follow_metrics(feed: _Feed, port: int) -> list[float]:
    """Seconds since the append of the oldest record that an answer of /metrics does not count yet, at random times.

    Of records that come evenly, these are the delays from append to the first answer; how often it is asked
    does not matter.
    """
    deadline = time.monotonic() + _PATIENCE
    while _counted(port) < feed.total:
        if time.monotonic() > deadline:
            raise BenchError(f"no metrics: {(feed.folder / 'stderr').read_text()[-500:]}")
        time.sleep(1)
    ages, drawn = list[float](), Random(port)

    def ask() -> None:
        while not feed.is_done:
            time.sleep(drawn.uniform(0, _LONGEST_SCRAPE_PAUSE))
            counted, now = _counted(port), time.monotonic()
            ages.append(now - next((when for total, when in feed.appended if total > counted), now))

    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(ask)
        while not feed.is_done:
            feed.append()
            time.sleep(0.01)
        asked.result()
    if len(ages) < _LEAST_ANSWERS:
        raise BenchError(f"/metrics gave {len(ages)} answers: give --stream-seconds more time")
    return ages


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def _counted(port: int) -> int:
    """The records that /metrics counts; -1 while there is no answer."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            found = re.search(rb"^share_state_stream_records_total (\S+)", answer.read(), re.MULTILINE)
    except URLError:
        return -1
    return -1 if found is None else int(float(found[1]))
