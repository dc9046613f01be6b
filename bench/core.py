"""This project's side: `find_logs` and `fold_log` in one process, one log partition after the other.

Speaks as bench/java/Replay.java does: reads folders from standard input, one a line, and answers each with one line of
JSON; the process stays, so later passes find the kernels loaded. The digest is taken with the clocks stopped.
"""

import json
import sys
import time
from collections import deque
from pathlib import Path

from share_state.cli.main.main import keep_memory

from bench.digest import Digest, described
from share_state.fold.log import FoldedLog, fold_log
from share_state.sources.discovery import find_logs


def fold_export(folder: str) -> dict[str, object]:
    """One pass over an export.

    Args:
        folder: holds the `__share_group_state-N` folders.

    Returns:
        records, bytes, wall_s, cpu_s (this process, every thread), thread_cpu_s, peak_bytes (VmHWM), digest.
    """
    digest, records, size = Digest(), 0, 0
    wall = cpu = thread_cpu = 0.0
    before = _clocks()
    logs = find_logs([folder])
    for log in logs:
        folded = fold_log(log)
        make_tables(folded)
        after = _clocks()
        wall, cpu, thread_cpu = (
            spent + end - start for spent, end, start in zip((wall, cpu, thread_cpu), after, before, strict=True)
        )
        digest.add(folded.states)
        records += folded.record_count
        size += log.size
        del folded
        before = _clocks()
    return {
        "records": records,
        "bytes": size,
        "wall_s": wall,
        "cpu_s": cpu,
        "thread_cpu_s": thread_cpu,
        "peak_bytes": _peak_bytes(),
        "digest": digest.as_json(),
    }


def make_tables(folded: FoldedLog) -> None:
    """Make the tables of a fold, which are made when they are asked for, and drop them."""
    for pieces in (folded.state_pieces, folded.in_flight_pieces):
        deque(pieces, maxlen=0)


def _clocks() -> tuple[float, float, float]:
    return time.perf_counter(), time.process_time(), time.thread_time()


def _peak_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    raise OSError("/proc/self/status has no VmHWM")


def _print_states(folder: str) -> None:
    for log in find_logs([folder]):
        for key, (scalars, ranges) in described(fold_log(log).states).items():
            print(json.dumps({"key": key, "scalars": scalars, "ranges": ranges}))
    print("{}")


def main() -> None:
    """Answer each folder on standard input; `states FOLDER` with one line a share-partition, then {}."""
    keep_memory()
    for line in map(str.strip, sys.stdin):
        if line.startswith("states "):
            _print_states(line.removeprefix("states "))
        else:
            print(json.dumps(fold_export(line)))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
