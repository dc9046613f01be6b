"""How many cores there are, and how many of them each log is worth."""

import os
from collections.abc import Sequence

from share_state.wire.log_folder import LogPartition


def cores_here() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def shares(logs: Sequence[LogPartition], cores: int, most: int | None = None) -> dict[str, int]:
    """The logs that are worth more than one core while all are read at once, by name: so many as their bytes say.

    Args:
        logs: all of them.
        cores: that there are for all together.
        most: that one log may have; by default all.
    """
    total = max(1, sum(log.size for log in logs))
    worth = {log.name: min(round(cores * log.size / total), most or cores) for log in logs}
    return {name: count for name, count in worth.items() if count > 1}
