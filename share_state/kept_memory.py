"""Lets the C library keep what it frees for what is made next: fresh memory can cost as much as the work done in it."""

import ctypes

_LARGEST_KEPT = -3, 32 << 20
"""M_MMAP_THRESHOLD: larger blocks go back to the system at once; glibc takes no larger number."""
_KEPT = -1, 64 << 20
"""M_TRIM_THRESHOLD: bytes at the end of the heap that stay."""
_ARENAS = -8, 1
"""M_ARENA_MAX: what one thread frees the next one takes."""


def keep_memory() -> None:
    """Do so in this process, where its C library is glibc.

    Source: mallopt(3).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return
    for setting in (_LARGEST_KEPT, _KEPT, _ARENAS):
        mallopt(*setting)
