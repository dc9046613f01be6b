"""How long something takes."""

import time
from collections.abc import Callable


def seconds(work: Callable[[], object]) -> float:
    """Wall seconds of a call."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun
