"""Big-endian integers, varints and CRC-32C for kernels, and the partition of a key.

The caller of `..._at` checks that the bytes exist.

`crc32c` calls the C library inside google-crc32c directly from a kernel.
"""

from pathlib import Path

import google_crc32c._crc32c
import numpy as np

from share_state.errors import SetupError
from share_state.jit.compile import inlined, kernel
from share_state.jit.native import CPU_BYTES, SIZE, UINT32, native_function

LARGEST_INT64 = 2**63 - 1


def parse_digits(text: str, largest: int = LARGEST_INT64) -> int | None:
    """The number that ASCII digits write; None if the text is none, or the number is above `largest`.

    int() takes digits of every script, and raises ValueError above 4,300 of them.
    """
    if not text.isascii() or not text.isdecimal() or len(text.lstrip("0")) > len(str(largest)):
        return None
    number = int(text.lstrip("0") or "0")
    return number if number <= largest else None


# With an unsigned position numba emits no check for negative indices, and LLVM loads one word.


@inlined
def byte_at(data, at):
    """The byte `data[at]`."""
    return data[np.uint64(at)]


@inlined
def int16_at(data, at):
    """The int16 whose first byte is `data[at]`."""
    a = np.uint64(at)
    return np.int16((np.uint16(data[a]) << np.uint16(8)) | np.uint16(data[a + np.uint64(1)]))


@inlined
def int32_at(data, at):
    """The int32 whose first byte is `data[at]`."""
    a = np.uint64(at)
    return np.int32(
        (np.uint32(data[a]) << np.uint32(24))
        | (np.uint32(data[a + np.uint64(1)]) << np.uint32(16))
        | (np.uint32(data[a + np.uint64(2)]) << np.uint32(8))
        | np.uint32(data[a + np.uint64(3)])
    )


@inlined
def int64_at(data, at):
    """The int64 whose first byte is `data[at]`."""
    a = np.uint64(at)
    return np.int64(
        (np.uint64(data[a]) << np.uint64(56))
        | (np.uint64(data[a + np.uint64(1)]) << np.uint64(48))
        | (np.uint64(data[a + np.uint64(2)]) << np.uint64(40))
        | (np.uint64(data[a + np.uint64(3)]) << np.uint64(32))
        | (np.uint64(data[a + np.uint64(4)]) << np.uint64(24))
        | (np.uint64(data[a + np.uint64(5)]) << np.uint64(16))
        | (np.uint64(data[a + np.uint64(6)]) << np.uint64(8))
        | np.uint64(data[a + np.uint64(7)])
    )


@kernel
def uvarint(data, position, end):
    """An unsigned LEB128 of at most 5 bytes inside [at, end).

    Returns:
        (value, position after it or -1 if it passes `end` or is longer than Kafka allows).
    Source: Kafka ByteUtils.readUnsignedVarint.
    """
    if position < end and byte_at(data, position) < 128:
        return np.int64(byte_at(data, position)), position + 1
    value = np.int64(0)
    for shift in range(0, 35, 7):
        if position >= end:
            return value, np.int64(-1)
        byte = np.int64(byte_at(data, position))
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFFFFFF, position
    return value, np.int64(-1)


@kernel
def varint(data, at, end):
    """A zigzag varint (lengths, offset deltas, header counts): (value, position after it or -1)."""
    raw, after = uvarint(data, at, end)
    return np.int64(np.int32((raw >> 1) ^ -(raw & 1))), after


@kernel
def varlong(data, at, end):
    """A zigzag varint of up to 10 bytes (timestamp deltas): (value, position after it or -1).

    Source: Kafka ByteUtils.readVarlong.
    """
    value = np.uint64(0)
    for shift in range(0, 70, 7):
        if at >= end:
            return np.int64(0), np.int64(-1)
        byte = np.uint64(byte_at(data, at))
        at += 1
        value |= (byte & np.uint64(127)) << np.uint64(shift)
        if byte < np.uint64(128):
            return np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1)), at
    return np.int64(0), np.int64(-1)


def _library() -> Path:
    extension = Path(google_crc32c._crc32c.__file__)
    for pattern in (
        "google_crc32c.libs/libcrc32c*",
        "google_crc32c/.dylibs/libcrc32c*",
        "google_crc32c/extra-dll/*crc32c*",
    ):
        for library in sorted(extension.parent.parent.glob(pattern)):
            return library
    raise SetupError(
        f"{extension.parent}: google-crc32c is installed without its C library; install it from a wheel"
    )


crc32c = native_function(_library(), "crc32c_value", UINT32, CPU_BYTES, SIZE)
"""crc32c(pointer to the first byte, number of bytes) -> uint32; uses the CPU's CRC instruction if there is
one."""


def string_hash(text: str) -> int:
    """java.lang.String.hashCode as an unsigned number."""
    # Java hashes UTF-16 code units: characters after U+FFFF count as two.
    units = text.encode("utf-16-be")
    code = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8 | low)) & 0xFFFFFFFF
    return code


def partition_for(key: str, partitions: int) -> int:
    """The partition of `__consumer_offsets` or `__share_group_state` that holds the records of a key.

    Args:
        key: a group id; for `__share_group_state` "group:topic id:partition".
        partitions: number of partitions of the topic.
    Source: Kafka GroupCoordinatorService.partitionFor, ShareCoordinatorService.partitionFor; Utils.abs.
    """
    code = string_hash(key)
    signed = code - 2**32 if code >= 2**31 else code
    return (0 if signed == -(2**31) else abs(signed)) % partitions
