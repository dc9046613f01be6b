"""Whether the state of an export fits into the memory of this process, said before the work begins.

A fold holds the live state of its share-partitions, but not the log: exports of any size are folded in a
process. What the state takes is not known before the logs are read; the newest segments of some show about
how many share-partitions there are at least, since Kafka spreads them evenly over the logs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from share_state.fold.state_log import decode_log
from share_state.sources.as_of import Window
from share_state.sources.log_partition import STATE_TOPIC, LogPartition

BYTES_PER_SHARE_PARTITION = 1_100
"""Of a fold with its second copy and its tables; docs/scale.md has the measurement. Many ranges take more."""

BYTES_WITHOUT_STATE = 370 << 20
"""Of a process over small logs."""

_LOG_TO_STATE = 4
"""A state takes at most about so many times the bytes of its snapshot in the log."""

_SAMPLED = 4

_NO_LIMIT = 1 << 60
"""cgroups have a greater number where no limit is set."""


def memory_note(logs: Sequence[LogPartition]) -> str | None:
    """What to say before logs are folded whose state will not fit into the memory that is available; else None.

    Reads the newest segment of _SAMPLED logs, if the logs are large enough to matter.
    """
    available = available_memory()
    of_state = [log for log in logs if log.topic == STATE_TOPIC and log.source is None and log.segments]
    total = sum(log.size for log in of_state)
    if available is None or _LOG_TO_STATE * total < available:
        return None
    sampled = sorted(of_state, key=lambda log: -log.size)[:_SAMPLED]
    share = sum(log.size for log in sampled) / max(1, total)
    least = round(sum(map(_share_partitions_at_least, sampled)) / share)
    needed = BYTES_WITHOUT_STATE + least * BYTES_PER_SHARE_PARTITION
    if needed <= available:
        return None
    return (
        f"the logs hold about {least:,} share-partitions or more, whose state takes {needed / 1e9:.1f} GB, and "
        f"{available / 1e9:.1f} GB of memory are available: the run may be killed; use a machine with more memory, or "
        "Spark (--master), whose tasks hold the state of a few log partitions each"
    )


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that this process can use in addition: those of the machine, within its control group; None if unknown.

    Args:
        root: the folder with `proc` and `sys`.
    Source: proc(5), /proc/meminfo; cgroups(7).
    """
    found = [size for size in (_free_of_machine(root), *_free_of_groups(root)) if size is not None]
    return min(found, default=None)


def _free_of_machine(root: Path) -> int | None:
    lines = _text(root / "proc/meminfo").splitlines()
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)


def _free_of_groups(root: Path) -> Iterator[int | None]:
    """What is left of the limit of each control group that this process is in."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # In a container, its own group is the base.
        parts = Path(path.lstrip("/")).parts
        for count in range(len(parts) + 1):
            yield _free_of(base.joinpath(*parts[:count]), *names)


def _free_of(group: Path, limit_name: str, used_name: str, cache_name: str) -> int | None:
    limit, used = _text(group / limit_name).strip(), _text(group / used_name).strip()
    if not limit.isdigit() or not used.isdigit() or int(limit) >= _NO_LIMIT:
        return None
    # The system frees unused pages of files before it kills.
    lines = (line.split() for line in _text(group / "memory.stat").splitlines())
    cache = next((int(words[1]) for words in lines if words[:1] == [cache_name]), 0)
    return max(0, int(limit) - int(used) + cache)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""


def _share_partitions_at_least(log: LogPartition) -> int:
    """Number of share-partitions with a record in the newest segment of a log."""
    count = 0
    for _, keys in decode_log(replace(log, segments=log.segments[-1:]), Window()):
        count = len(keys)
    return count
