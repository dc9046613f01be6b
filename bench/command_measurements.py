"""Measurements of whole commands, from the shell to committed tables, start-up included."""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench import runner
from bench.inputs import Export, Shape, faulty, generate, generate_bytes, repeat
from bench.kafka_baseline import DATA
from bench.kernel_measurements import by_cores
from bench.report import Bound, Claim, Item, Table
from bench.runner import CommandRun, Pass, Settings, by_turns, run_command, run_on_export, typical

_SMALL = Shape(records=53_000, keys=2_000, partitions=50)
_WARM_RECORDS, _MANY_RECORDS = 2_000_000, 50_000_000
_REPETITIONS, _BYTES_PER_KEY, _USUAL_KEYS = 16, 1_250, 20_000
_KAFKAS_PARTITIONS = 50
_SHORT_HISTORY, _NEW_BYTES, _MANY_KEYS_MB, _FAULTY_SHARE = 400_000, 1 << 20, 1024, 0.05
_FOLD_ONLY = ("--judge", "none")
"""What Kafka's replay and the bare kernels do."""
_START_UP = ("start Spark", "stop Spark", "interpreter, imports, exit")


@dataclass(frozen=True, slots=True)
class _Size:
    """An export, `reconstruct` of it, and both sides' replay, warm."""

    export: Export
    run: CommandRun
    kafka: Pass
    ours: Pass
    check: Claim


def _measure_size(shape: Shape, warm_ups: int, runs: int, *options: str) -> _Size:
    export, warm = generate(shape), generate(replace(shape, records=min(_WARM_RECORDS, shape.records)))

    def replay(process: Callable[[], AbstractContextManager[runner.Replay]], states: Path | str = "") -> Pass:
        with process() as side:
            by_turns([partial(side, warm.folder)], warm_ups)
            return side(export.folder, states=states)

    def command(states: Path) -> CommandRun:
        # The memory that a replay has just released costs the first run up to a second.
        call = partial(run_on_export, "reconstruct", export, *_FOLD_ONLY, *options, states=states)
        return typical([call() for _ in range(runs)])

    ours = replay(runner.fold_process)
    kafka, run, check = runner.check_states(export.title, partial(replay, runner.kafka_process), command)
    return _Size(export, run, kafka, ours, check)


def _sizes_table(sizes: Sequence[_Size]) -> Table:
    columns = [
        {
            "MB of segments": f"{one.export.bytes / 1e6:,.0f}",
            **{f"  {phase}, s": f"{seconds:.1f}" for phase, seconds in one.run.phases.items()},
            "shell to printed result, s": f"{one.run.wall_s:.1f}",
            f"{runner.KAFKA}'s replay, warm, s": f"{one.kafka.wall_s:.1f}",
            "CPU s of all its processes": f"{one.run.cpu_s:.1f}",
            "CPU s of decode + fold alone, warm": f"{one.ours.cpu_s:.1f}",
            f"CPU s of {runner.KAFKA}'s replay, warm": f"{one.kafka.cpu_s:.1f}",
            **{
                f"peak memory, largest {kind}, MB": f"{peak / 1e6:.0f}"
                for kind, peak in one.run.peak_bytes.items()
            },
            "largest log partition, MB": f"{max(one.export.partition_bytes) / 1e6:.1f}",
        }
        for one in sizes
    ]
    # The largest size, which may be the only one in Spark, has all phases.
    labels = dict.fromkeys(label for column in reversed(columns) for label in column)
    rows = [(label, *(column.get(label, "") for column in columns)) for label in labels]
    headings = ("", *(f"{one.export.shape.records:,} records" for one in sizes))
    passes = [(one.run, one.kafka, one.ours) for one in sizes]
    return Table("share-state reconstruct, from the shell to committed tables", headings, rows, passes)


def small_export(settings: Settings, wall: Bound) -> Iterator[Item]:
    """Run `reconstruct` on about 10 MB in 50 log partitions."""
    size = _measure_size(_SMALL, settings.warm_ups, runs=1)
    yield from (_sizes_table([size]), size.check)
    yield wall.check(size.run.wall_s, f"{size.run.wall_s:.1f} s", megabytes=size.export.bytes / 1e6)


def end_to_end(settings: Settings, *bounds: Bound) -> Iterator[Item]:
    """Run `reconstruct` on several sizes, compared with both sides' replay, and break down its start-up."""
    kernel_cpu, kafka_wall, kafka_cpu, memory, *in_spark = bounds
    shapes = [replace(settings.log, records=records) for records in settings.end_to_end_records]
    executor = runner.IN_SPARK if settings.in_spark else ()
    sizes = [_measure_size(shape, settings.warm_ups, 3, *executor) for shape in shapes]
    yield _sizes_table(sizes)
    start_up_cpu, count = {}, settings.log.partitions
    nearly_empty = _nearly_empty(count)
    for is_in_spark, options in ((False, ()), (True, runner.IN_SPARK)):
        # A first run fills the page cache.
        run = typical(
            [run_on_export("reconstruct", nearly_empty, *options) for _ in range(settings.runs + 1)][1:]
        )
        steps = {**run.phases, "shell to printed result": run.wall_s, "CPU s of all its processes": run.cpu_s}
        title = f"start-up, over next to nothing, {'in' if options else 'without'} Spark, median of {settings.runs}"
        yield Table(title, ("step", "s|.2f"), list(steps.items()), run)
        start_up_cpu[is_in_spark] = run.cpu_s
    for one in sizes:
        spent, start_up, records = one.run.cpu_s, start_up_cpu[one.run.is_in_spark], one.export.shape.records
        times, share = one.kafka.wall_s / one.run.wall_s, spent / one.kafka.cpu_s
        measured = f"({spent:.1f} - {start_up:.1f}) / {one.ours.cpu_s:.1f} CPU s"
        yield kernel_cpu.check((spent - start_up) / one.ours.cpu_s, measured, records=records)
        wall = in_spark[records >= _MANY_RECORDS] if settings.in_spark else kafka_wall
        yield wall.check(times, f"{one.run.wall_s:.1f} s, {times:.1f} times", records=records)
        yield kafka_cpu.check(
            share, f"{spent:.1f} / {one.kafka.cpu_s:.1f} CPU s, {share:.2f}", records=records
        )
        yield one.check
    yield _worst_memory(memory, [(one.export, one.run) for one in sizes])


def _worst_memory(bound: Bound, runs: Sequence[tuple[Export, CommandRun]]) -> Claim:
    """Check the peak memory of the folding process beyond the live state, in the worst run."""
    worst = max((run.fold_bytes - run.live_bytes, run.live_bytes, export.bytes) for export, run in runs)
    beyond, state, size = (number / 1e6 for number in worst)
    return bound.check(
        beyond, f"{beyond:,.0f} beyond a live state of {state:,.0f} MB at {size:,.0f} MB, the worst"
    )


def shape(settings: Settings, apart: Bound, memory: Bound, scaling: Bound) -> Iterator[Item]:
    """Run `reconstruct` on pairs of exports of equal bytes, and fold one hot log partition with one core and all."""
    size, executor = settings.shape_megabytes * 1_000_000, runner.IN_SPARK if settings.in_spark else ()
    one_key = generate_bytes(size // _REPETITIONS, keys=1)
    hot = generate_bytes(size // _REPETITIONS, keys=_USUAL_KEYS)
    even = generate_bytes(size // _REPETITIONS, keys=_USUAL_KEYS, partitions=50)
    hot_log, many = repeat(hot, size, new_keys=False), _many_keys(settings.shape_megabytes)
    # Kafka's segment.bytes is an int32.
    segments = [
        repeat(hot, size, new_keys=False, segment_bytes=min(size // parts, 2**31 - 1)) for parts in (1, 4_000)
    ]
    pairs = (
        {"1 key": repeat(one_key, size, new_keys=False), f"{many.shape.keys:,} keys": many},
        {"one hot log partition": hot_log, "50 even log partitions": repeat(even, size, new_keys=False)},
        {f"segments: {one.segments:,}": one for one in segments},
    )
    rows, all_runs = [], list[tuple[Export, CommandRun]]()
    for pair in pairs:
        sides = [partial(run_on_export, "reconstruct", export, *executor) for export in pair.values()]
        per_byte = []
        for (name, export), runs in zip(pair.items(), by_turns(sides, settings.runs), strict=True):
            run, peak = typical(runs), max(one.fold_bytes for one in runs)
            used = (run.cpu_s, run.wall_s, peak / 1e6, run.live_bytes / 1e6)
            rows.append((name, export.bytes / 1e6, export.shape.records, run.share_partitions, *used))
            all_runs += [(export, one) for one in runs]
            per_byte.append(run.cpu_s / export.bytes)
        times, (first, second) = max(per_byte) / min(per_byte), pair
        yield apart.check(times, f"{times:.2f} times", first=first, second=second)
    columns = ("export", "MB|,.1f", "records|,", "share-partitions|,", "CPU s|.1f", "wall s|.1f")
    columns += ("MB of the folding process|,.0f", "live state MB|,.1f")
    passes = [run for _, run in all_runs]
    yield Table(f"share-state reconstruct, median of {settings.runs} by turns", columns, rows, passes)
    yield _worst_memory(memory, all_runs)
    yield from by_cores(hot_log, settings.runs, scaling)


def _many_keys(megabytes: int) -> Export:
    """One log partition with a share-partition per 1,250 bytes."""
    size = megabytes * 1_000_000
    base = generate_bytes(size // _REPETITIONS, keys=size // _BYTES_PER_KEY // _REPETITIONS)
    return repeat(base, size, new_keys=True)


def large(settings: Settings, memory: Bound) -> Iterator[Item]:
    """Run `reconstruct`, `audit` and `cutoff` in process on an export that is larger than memory."""
    size = settings.large_megabytes * 1_000_000
    base = generate_bytes(size // _REPETITIONS, keys=settings.large_keys, partitions=_KAFKAS_PARTITIONS)
    export, columns = repeat(base, size, new_keys=False), ("command", "s|.1f", "CPU s|.1f", "MB|,.0f")
    runs = list[CommandRun]()
    for command in ("reconstruct", "audit"):
        run = run_on_export(command, export)
        row = (command, run.wall_s, run.cpu_s, run.fold_bytes / 1e6)
        yield Table(
            f"in process, {run.live_bytes / 1e6:,.0f} MB of live state: {export.title}", columns, [row], run
        )
        runs.append(run)
    run = run_command("cutoff", str(export.folder), "--fail-on", "off")
    yield Table(
        f"in process: {export.title}", columns, [("cutoff", run.wall_s, run.cpu_s, run.fold_bytes / 1e6)], run
    )
    yield _worst_memory(memory, [(export, run) for run in runs])


def nightly(settings: Settings, history: Bound, *rules: Bound) -> Iterator[Item]:
    """Audit a few new bytes after a short and a long history; fold everything with and without rules."""
    executor = runner.IN_SPARK if settings.in_spark else ()
    exports = [generate(Shape(records=records)) for records in (_SHORT_HISTORY, 10 * _SHORT_HISTORY)]
    sides = by_turns([partial(_second_night, export, executor) for export in exports], settings.runs)
    ratio, (short, long) = median(b / a for a, b in zip(*sides, strict=True)), map(median, sides)
    old = [(export.bytes - export.shape.partitions * _NEW_BYTES) / 1e6 for export in exports]
    yield history.check(ratio, f"{long:.1f} s / {short:.1f} s, {ratio:.2f}", short=old[0], long=old[1])
    usual = exports[1]
    start_ups = [
        median(one.cpu_s for one in side)
        for side in _judged_and_folded(_nearly_empty(usual.shape.partitions), executor, settings.runs)
    ]
    subjects = (usual, _many_keys(_MANY_KEYS_MB), faulty(usual, _FAULTY_SHARE))
    for export, bound in zip(subjects, rules, strict=True):
        judged, folded = (
            [one.cpu_s - start_up for one in side]
            for side, start_up in zip(
                _judged_and_folded(export, executor, settings.runs), start_ups, strict=True
            )
        )
        ratio = median(a / b for a, b in zip(judged, folded, strict=True))
        measured = f"{median(judged):.1f} / {median(folded):.1f} CPU s, {ratio:.2f}"
        yield bound.check(ratio, measured, keys=export.shape.keys)


def _judged_and_folded(export: Export, executor: Sequence[str], runs: int) -> list[list[CommandRun]]:
    """`reconstruct` of an export by turns: with every rule, and with none."""
    sides = [
        partial(run_on_export, "reconstruct", export, *options, *executor) for options in ((), _FOLD_ONLY)
    ]
    return by_turns(sides, runs)


def _nearly_empty(partitions: int) -> Export:
    """An export over which a command takes as long as to start."""
    return generate(Shape(records=20 * partitions, keys=10 * partitions, partitions=partitions))


def _second_night(export: Export, executor: Sequence[str]) -> float:
    """Audit an export without the last MB of each log partition, then with it; seconds of that without start-up."""
    with TemporaryDirectory(dir=DATA) as scratch:
        logs, warehouse = Path(scratch, "logs"), f"{scratch}/warehouse"
        shutil.copytree(export.folder, logs, copy_function=os.link)
        last_segments = [max(folder.glob("*.log")) for folder in logs.iterdir() if folder.is_dir()]
        contents = {file: file.read_bytes() for file in last_segments}
        for file, content in contents.items():
            file.unlink()  # a link to the export
            file.write_bytes(content[:-_NEW_BYTES])
        audit = ("audit", str(logs), "--out", warehouse, "--fail-on", "off", *executor)
        run_command(*audit)
        for file, content in contents.items():
            file.write_bytes(content)
        return sum(seconds for phase, seconds in run_command(*audit).phases.items() if phase not in _START_UP)
