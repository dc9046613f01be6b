"""Measures whether `share-state stream` stays as it is over thousands of micro-batches: memory, files, descriptors."""

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import psutil

from bench.inputs import Export, generate
from bench.kafka_baseline import BenchError
from bench.report import Bound, Item, Table
from bench.runner import Settings
from share_state.sources.discovery import find_logs
from share_state.sources.segments import read_chunks

_RECORDS_A_MICRO_BATCH = 200
_PATIENCE = 120.0
_SAMPLES, _MOST_SAMPLES = 10, 1000


@dataclass(frozen=True, slots=True)
class _Sample:
    """The stream after a number of micro-batches; memory is RssAnon, of the process alone."""

    micro_batches: int
    seconds: float
    memory: float
    descriptors: float
    files: float
    entries: float


def soak(settings: Settings, memory: Bound) -> Iterator[Item]:
    """Let a stream follow segments that grow with each of its micro-batches."""
    count = settings.soak_micro_batches
    shape = replace(
        settings.log,
        records=2 * count * _RECORDS_A_MICRO_BATCH,
        keys=settings.soak_keys,
        partitions=settings.soak_partitions,
    )
    with TemporaryDirectory(prefix="share-state-bench-", ignore_cleanup_errors=True) as scratch:
        samples = _follow(generate(shape), count, Path(scratch), settings.soak_minutes)
    tenth = max(1, len(samples) // _SAMPLES)
    rows = list[tuple[float | str, ...]]()
    for begin in range(0, len(samples), tenth):
        part = samples[begin : begin + tenth]
        last, took = part[-1], (part[-1].seconds - samples[max(0, begin - 1)].seconds)
        rows.append(
            (
                last.micro_batches,
                took / (last.micro_batches - samples[max(0, begin - 1)].micro_batches or 1),
                median(one.memory for one in part),
                last.descriptors,
                max(one.files for one in part),
                max(one.entries for one in part),
            )
        )
    columns = ["micro-batches|,.0f", "s each|.2f", "memory, MB|,.1f", "descriptors|,.0f"]
    columns += ["files|,.0f", "entries of logs|,.0f"]
    title = f"A stream of {settings.soak_keys:,} share-partitions as its logs grow, by tenths"
    yield Table(title, columns, rows, rows)
    first, latest = float(rows[0][2]), float(rows[-1][2])
    yield memory.check(latest / first, f"{latest / first:.2f}")


def _follow(export: Export, count: int, folder: Path, minutes: float) -> list[_Sample]:
    """A sample for each thousandth of the micro-batches."""
    every = max(1, count // _MOST_SAMPLES)
    parts = dict[Path, list[bytes]]()
    for log in find_logs([str(export.folder)]):
        (chunk,) = read_chunks(log, chunk=log.size + 1)
        ends = np.concatenate(([0], np.cumsum(chunk.batches["size"])))
        # The first half, until windows are full, is there at first; then some batches for each micro-batch.
        places = len(ends) // 2 + np.arange(count + 1) * (len(ends) - 1 - len(ends) // 2) // count
        places[0] = 0
        parts[folder / "in" / log.name / f"{0:020}.log"] = [
            chunk.data[begin:end].tobytes() for begin, end in pairwise(ends[places])
        ]
    for path in parts:
        path.parent.mkdir(parents=True)
    command = [
        sys.executable,
        "-m",
        "share_state",
        "stream",
        str(folder / "in"),
        "--quiet",
        "--trigger",
        "0ms",
    ]
    command += ["--out", str(folder / "lake")]
    samples, begun = list[_Sample](), time.monotonic()
    with (folder / "stderr").open("w") as errors, subprocess.Popen(command, stderr=errors) as process:
        try:
            for number in range(count):
                before = _version(folder)
                for path, of_log in parts.items():
                    with path.open("ab") as segment:
                        segment.write(of_log[number])
                _await(process, folder, before)
                seconds = time.monotonic() - begun
                if (number + 1) % every == 0:
                    samples.append(_sample(process.pid, folder, number + 1, seconds))
                if seconds > 60 * minutes:
                    break
        finally:
            process.terminate()
    return samples


def _version(folder: Path) -> int:
    """The latest version of `runs`, which each micro-batch adds one to; -1 before the first."""
    return max((int(entry.stem) for entry in (folder / "lake/runs/_delta_log").glob("0*.json")), default=-1)


def _await(process: subprocess.Popen[bytes], folder: Path, version: int) -> None:
    """Wait for the next version of `runs`; to list thousands of entries each time would keep a core busy."""
    entry = folder / f"lake/runs/_delta_log/{version + 1:020}.json"
    deadline = time.monotonic() + _PATIENCE
    while not entry.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise BenchError(f"the stream stopped: {(folder / 'stderr').read_text()[-500:]}")
        time.sleep(0.02)


def _sample(pid: int, folder: Path, number: int, seconds: float) -> _Sample:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    (anonymous,) = [int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon")]
    counts = [sum(1 for _ in (folder / "lake").glob(kind)) for kind in ("*/*.parquet", "*/_delta_log/*")]
    return _Sample(number, seconds, anonymous / 1000, psutil.Process(pid).num_fds(), *counts)
