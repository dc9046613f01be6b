"""The floor of any reader: the segments of an export read, one compiled CRC-32C over every byte, nothing else."""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numba import njit

from share_state.kafka.primitives import crc32c
from share_state.kafka.record_batches import CHUNK
from share_state.sources.discovery import LogPartition


def crc_pass(logs: Sequence[LogPartition]) -> float:
    """Read and checksum every segment once.

    Args:
        logs: log partitions, read one after the other.
    Returns:
        CPU seconds of the reading thread.
    """
    buffer, begun = np.zeros(CHUNK, np.uint8), time.thread_time()
    for log in logs:
        for segment in log.segments:
            with Path(segment.path).open("rb", buffering=0) as file:
                while read := file.readinto(buffer.data):
                    _crc(buffer, read)
    return time.thread_time() - begun


@njit(nogil=True)
def _crc(data, size):
    return crc32c(data.ctypes, size)
