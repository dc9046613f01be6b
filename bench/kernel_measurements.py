"""Measurements of decode + fold alone: against Kafka's replay, a CRC pass and a Parquet table, by cores, by stage."""

import cProfile
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

import llvmlite.binding
import numpy as np

from bench import runner
from bench.fold_process import make_tables
from bench.inputs import Export, Shape, crcs, generate, parquet_of, user_log
from bench.report import Bound, Item, Table
from bench.runner import Pass, Settings
from share_state.fold.draft.control_log import fold_control_log
from share_state.fold.log_stats import LogCounts, LogExtent
from share_state.fold.state_chains import Chains
from share_state.fold.state_log import fold_log
from share_state.jit.portable import CPU_VARIABLE
from share_state.kafka.state_records import decode_state_records
from share_state.sources.discovery import find_logs
from share_state.sources.log_partition import LogPartition
from share_state.sources.segment_frames import frame_segments
from share_state.sources.segments import index_records, read_chunks

# Few log partitions, so that the cost of each does not hide the kernels; fewer records where replay is slow.
_MATRIX = (
    Shape(records=800_000, keys=8_000, ranges=1, batches_per_update=1, partitions=2),
    Shape(records=400_000, keys=4_000, ranges=30, partitions=2),
    Shape(records=120_000, keys=400, ranges=200, partitions=2),
)
_USER_LOG_BYTES = 1 << 30


def comparison(settings: Settings, per_core: Bound) -> Iterator[Item]:
    """Replay one log per batch size with both sides."""
    for batch in settings.records_per_batch:
        export = generate(replace(settings.log, batch_size=batch))
        with runner.kafka_process() as kafka, runner.fold_process() as ours:
            *sides, check = runner.replay_by_turns(kafka, ours, export, settings.warm_ups, settings.runs)
        ratio = runner.median_ratio(*sides)
        rows = [(*_side(runner.KAFKA, export, sides[0]), "1"), (*_side(runner.OURS, export, sides[1]), ratio)]
        columns = ("side", "records/s|,.0f", "MB/s|,.0f", "records per CPU s|,.0f", "CPU s|.2f", "spread|.2f")
        columns += ("peak memory, MB|.0f", "ratio per core|.1f")
        yield Table(f"decode + fold: {export.title}", columns, rows, sides)
        yield per_core.check(ratio, f"{ratio:.1f}", records=export.shape.records, batch=batch)
        yield check


def native(settings: Settings, slower: Bound) -> Iterator[Item]:
    """Fold one log per batch size with kernels for every CPU and with those for this one, by turns."""
    host = {CPU_VARIABLE: llvmlite.binding.get_host_cpu_name()}
    for batch in settings.records_per_batch:
        export = generate(replace(settings.log, batch_size=batch))
        with runner.fold_process() as portable, runner.fold_process(variables=host) as of_host:
            calls = [partial(side, export.folder) for side in (portable, of_host)]
            runner.by_turns(calls, settings.warm_ups)
            sides = runner.by_turns(calls, settings.runs)
        ratio = runner.median_ratio(*sides)
        names = ("every CPU", f"this one, {host[CPU_VARIABLE]}")
        rows = [(name, *_side("", export, side)[1:-1]) for name, side in zip(names, sides, strict=True)]
        columns = (
            "kernels for",
            "records/s|,.0f",
            "MB/s|,.0f",
            "records per CPU s|,.0f",
            "CPU s|.3f",
            "spread|.2f",
        )
        yield Table(f"decode + fold: {export.title}", columns, rows, sides)
        yield slower.check(ratio, f"{ratio:.3f}", batch=batch)


def _side(name: str, export: Export, passes: Sequence[Pass]) -> tuple[float | str, ...]:
    shown, times = runner.typical(passes), [one.cpu_s for one in passes]
    speeds = (shown.records / shown.wall_s, export.bytes / shown.wall_s / 1e6, shown.records / shown.cpu_s)
    return name, *speeds, shown.cpu_s, max(times) / min(times), passes[-1].peak_bytes / 1e6


def matrix(settings: Settings, *bounds: Bound) -> Iterator[Item]:
    """Replay logs of several ranges in flight, batch sizes and codecs with both sides, and read and checksum them."""
    *per_core, packed, cached, uncached = bounds
    scale, rows = settings.matrix_share, []
    small = [
        replace(one, records=int(one.records * scale), keys=max(1, int(one.keys * scale))) for one in _MATRIX
    ]
    shapes = [replace(shape, batch_size=size) for shape in small for size in (1, 5, 20, 500)]
    shapes += [replace(small[1], batch_size=20, codec=codec) for codec in ("gzip", "snappy", "lz4", "zstd")]
    # By shape: CPU time of Kafka over ours, ours over a CRC pass's, and the latter from the disk by wall time.
    measured: dict[Shape, tuple[float, float, float]] = {}
    with runner.kafka_process() as kafka, runner.fold_process() as ours:
        for export in map(generate, shapes):
            # The processes stay, so only the first export needs them warmed up for long.
            warm_ups, shape = 1 if measured else settings.warm_ups, export.shape
            of_kafka, of_ours, check = runner.replay_by_turns(kafka, ours, export, warm_ups, settings.runs)
            yield check
            crc_s, crc_disk_s, disk_s = _floors(export, ours, settings.runs)
            kafka_s, own_s = runner.typical(of_kafka).cpu_s, runner.typical(of_ours).cpu_s
            ratio = runner.median_ratio(of_kafka, of_ours)
            measured[shape] = ratio, own_s / crc_s, disk_s / crc_disk_s
            name = (f"{shape.ranges}", shape.batch_size, shape.codec)
            crc = crc_s, own_s / crc_s, disk_s, crc_disk_s, disk_s / crc_disk_s
            rows.append((*name, shape.records, shape.keys, export.bytes / 1e6, kafka_s, own_s, ratio, *crc))
    columns = ("ranges", "a batch", "codec", "records|,", "keys|,", "MB|.0f", f"{runner.KAFKA}|.2f")
    columns += (
        "share_state|.3f",
        "times Kafka|.1f",
        "CRC|.3f",
        "times|.1f",
        "disk|.3f",
        "CRC|.3f",
        "times|.1f",
    )
    title = "decode + fold, and reading and checksumming the same bytes, CPU s, then wall s from the disk"
    yield Table(title, columns, rows)
    plain = {shape: values for shape, values in measured.items() if shape.codec == "none"}
    for ranges, bound in zip((1, 30, 200), per_core, strict=True):
        worst, at = min(
            (values[0], _name(shape)) for shape, values in plain.items() if shape.ranges == ranges
        )
        yield bound.check(worst, f"{worst:.1f} at {at}, the worst", ranges=ranges)
    for shape, values in measured.items():
        if shape.codec != "none":
            yield packed.check(values[0], f"{values[0]:.1f}", codec=shape.codec)
    for place, bound in enumerate((cached, uncached), 1):
        worst, at = max((values[place], _name(shape)) for shape, values in plain.items())
        yield bound.check(worst, f"{worst:.1f} at {at}, the worst")


def _name(shape: Shape) -> str:
    return f"{shape.ranges} ranges, {shape.batch_size} a batch"


def _floors(export: Export, ours: runner.Replay, runs: int) -> tuple[float, float, float]:
    """CPU seconds of a CRC pass; then wall seconds of a CRC pass and of decode + fold, both from the disk."""
    logs = find_logs([str(export.folder)])

    def from_disk(call: Callable[[], object]) -> float:
        for segment in (segment for log in logs for segment in log.segments):
            with Path(segment.path).open("rb") as file:
                os.fsync(file)  # POSIX_FADV_DONTNEED keeps pages that are not on the disk yet
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return _seconds(time.perf_counter, call)

    _crc_pass(logs)
    crc_s = median(_crc_pass(logs) for _ in range(runs))
    calls = (partial(_crc_pass, logs), partial(ours, export.folder))
    crc_disk_s, disk_s = map(median, runner.by_turns([partial(from_disk, call) for call in calls], runs))
    return crc_s, crc_disk_s, disk_s


def _crc_pass(logs: Sequence[LogPartition], *, checksum: bool = True) -> float:
    """Read every segment and checksum its bytes, nothing else: the least that any reader does; returns CPU seconds."""
    buffer, begin, begun = np.zeros(4 << 20, np.uint8), np.zeros(1, np.int64), time.thread_time()
    for segment in (segment for log in logs for segment in log.segments):
        with Path(segment.path).open("rb", buffering=0) as file:
            while read := file.readinto(buffer.data):
                if checksum:
                    crcs(buffer, begin, np.array([read]))
    return time.thread_time() - begun


def _seconds(clock: Callable[[], float], call: Callable[[], object]) -> float:
    begun = clock()
    call()
    return clock() - begun


def table(settings: Settings, speed: Bound) -> Iterator[Item]:
    """Fold the same records from a Parquet table and from segments."""
    export = generate(settings.log)
    folders = export.folder, parquet_of(export)
    with runner.fold_process() as ours:
        forms = [partial(ours, folder) for folder in folders]
        yield runner.check_states("segments and table", *forms)[-1]
        sides = runner.by_turns(forms, settings.runs)
    segments_s, table_s = (median(one.wall_s for one in side) for side in sides)
    size, records = sum(file.stat().st_size for file in folders[1].glob("*.parquet")), export.shape.records
    rows = [
        ("segments", export.bytes / 1e6, records / segments_s),
        ("Parquet", size / 1e6, records / table_s),
    ]
    columns = ("form", "MB|.0f", "records/s|,.0f")
    yield Table(f"decode + fold of a table, {records:,} records", columns, rows, sides)
    yield speed.check(segments_s / table_s, f"{segments_s / table_s:.2f}")


def read_user_log(settings: Settings, speed: Bound) -> Iterator[Item]:
    """Read a user log with 1 % control records, and with a CRC pass."""
    log = user_log(_USER_LOG_BYTES)
    calls = (partial(_crc_pass, [log]), partial(fold_control_log, log))
    sides = [partial(_seconds, time.perf_counter, call) for call in calls]
    runner.by_turns(sides, 1)
    crc_s, fold_s = map(median, runner.by_turns(sides, settings.runs))
    speeds = f"{log.size / fold_s / 1e6:,.0f} / {log.size / crc_s / 1e6:,.0f} MB/s"
    yield speed.check(crc_s / fold_s, f"{speeds}, {crc_s / fold_s:.2f}")


def by_cores(export: Export, runs: int, scaling: Bound) -> Iterator[Item]:
    """Fold a log partition with one core and with all, and in as many processes at once as there are cores."""
    cores = len(os.sched_getaffinity(0))
    with ExitStack() as stack, ThreadPoolExecutor(cores) as threads:
        processes = [stack.enter_context(runner.fold_process()) for _ in range(cores)]
        by_count = [partial(processes[0], export.folder, cores=count) for count in (1, cores)]
        yield runner.check_states("one core and all", *by_count)[-1]

        def fold(replay: runner.Replay, count: int = 1) -> float:
            run = replay(export.folder, cores=count)
            return run.wall_s - run.tables_s

        one = processes[0]
        sides = (partial(fold, one), partial(fold, one, cores), lambda: max(threads.map(fold, processes)))
        runner.by_turns(sides, 1)
        one_s, all_s, each_s = map(median, runner.by_turns(sides, runs))
    faster, given = one_s / all_s, cores * one_s / each_s
    yield scaling.check(
        faster / given,
        f"{faster:.2f} / {given:.2f}, {one_s:.2f} s with one core, {all_s:.2f} s with all",
        cores=cores,
    )


def profile(settings: Settings) -> Iterator[Item]:
    """Time the stages of the largest log partition of each compared log, by CPU time, under Python's profiler."""
    for batch in settings.records_per_batch:
        export = generate(replace(settings.log, batch_size=batch))
        log = max(find_logs([str(export.folder)]), key=lambda one: one.size)
        passes = [_stages(log) for _ in range(settings.runs + 1)][1:]  # the first one warms up
        stages = {stage: max(median(one[stage] for one in passes), 1e-9) for stage in passes[0]}
        records, whole = fold_log(log).record_count, stages["fold_log"]
        rows = [(stage, s, s / whole, 1e9 * s / records, log.size / s / 1e6) for stage, s in stages.items()]
        columns = ("stage", "CPU s|.3f", "share of fold_log|.0%", "ns per record|,.0f", "MB/s|,.0f")
        title = f"decode + fold of {log.name} by stage, median of {settings.runs}, {records:,} records of"
        yield Table(f"{title} {export.title}", columns, rows, passes)


def _stages(log: LogPartition) -> dict[str, float]:
    read, read_and_crc = _crc_pass([log], checksum=False), _crc_pass([log])
    profiler = cProfile.Profile(time.process_time)
    folded = profiler.runcall(fold_log, log)
    spent = {entry.code: entry.totaltime for entry in profiler.getstats()}

    def of(*functions: Callable[..., object]) -> float:
        return sum(spent.get(function.__code__, 0.0) for function in functions)

    stages = {
        "read": read,
        "CRC-32C": read_and_crc - read,
        "frame": of(frame_segments) - read_and_crc,
        "decompress, order of batches": of(read_chunks) - of(frame_segments),
        "locate": of(index_records),
        "number keys, decode": of(decode_state_records),
        "fold": of(Chains.apply),
        "extents and counts": of(LogExtent.take, LogCounts.take),
        "tables": _seconds(time.process_time, lambda: make_tables(folded)),
    }
    whole = _seconds(time.process_time, lambda: make_tables(fold_log(log)))
    rest = {"rest of fold_log: gaps, faults, cutoff": whole - sum(stages.values())}
    return stages | rest | {"fold_log": whole}
