"""The share-partitions of a log, each under a small number: a dictionary of key bytes that compiled kernels fill."""

import base64

import numpy as np
import pyarrow as pa

from share_state.jit.compile import allocating_kernel, inlined, kernel, prefetch
from share_state.kafka.buffers import column_bytes
from share_state.kafka.primitives import int16_at, int32_at, int64_at

_START_KEYS = 1 << 10
_BYTES_A_KEY = 64


class KeyTable:
    """Key bytes (a record key without its type) <-> number, in order of first sight."""

    def __init__(self, room: int = _START_KEYS, size: int = 0) -> None:
        """Begin without keys.

        Args:
            room: for so many keys, a power of two; it grows.
            size: for so many bytes of keys beside the usual.
        """
        self.slots = np.full(4 * room, -1, np.int32)
        self.hashes = np.empty(room, np.uint64)
        self.starts = np.zeros(room + 1, np.int64)
        self.arena = np.empty(size + room * _BYTES_A_KEY, np.uint8)
        self.count = np.zeros(1, np.int64)

    @classmethod
    def of(cls, keys: pa.ChunkedArray) -> "KeyTable":
        """A table of distinct keys that are known already, numbered in their order.

        Args:
            keys: binary, key bytes as `binary` gives them.
        """
        count, parts = len(keys), [column_bytes(chunk) for chunk in keys.chunks]
        table = cls(max(_START_KEYS, 1 << count.bit_length()), sum(len(data) for data, _ in parts))
        row = begin = 0
        for data, ends in parts:
            table.arena[begin : begin + len(data)] = data
            table.starts[row + 1 : row + len(ends)] = begin + ends[1:]
            row, begin = row + len(ends) - 1, begin + len(data)
        table.count[0] = count
        _hash_all(table.arena, table.starts, table.hashes, count)
        _place_again(table.slots, table.hashes, count)
        return table

    def binary(self) -> pa.Array:
        """The keys' bytes, row n for number n."""
        count = len(self)
        offsets, kept = self.starts[: count + 1].copy(), self.arena[: self.starts[count]].copy()
        binary = pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(kept)]
        )
        return binary.cast(pa.binary())

    def __len__(self) -> int:
        """How many share-partitions have been seen."""
        return int(self.count[0])

    def grow(self, room: int) -> None:
        """Make room for twice as many keys, and for a key of `room` bytes."""
        self.hashes = _longer(self.hashes, 2 * len(self.hashes))
        self.starts = _longer(self.starts, 2 * len(self.starts))
        self.arena = _longer(self.arena, 2 * len(self.arena) + room)
        self.slots = np.full(2 * len(self.slots), -1, np.int32)
        _place_again(self.slots, self.hashes, len(self))

    def columns(self) -> tuple[pa.Array, pa.Array, pa.Array]:
        """The keys as Arrow columns, row n for number n: group_id string, topic_id string, partition int32.

        Bytes of a group id that are not UTF-8 become U+FFFD, as Java reads them.
        """
        count = len(self)
        ends = self.starts[1 : count + 1]
        group_size = ends - self.starts[:count] - 22
        offsets = np.concatenate(([0], np.cumsum(group_size))).astype(np.int64)
        groups, ids = np.empty(int(offsets[-1]), np.uint8), np.empty((count, 16), np.uint8)
        partitions = np.empty(count, np.int32)
        _split(self.arena, self.starts, count, offsets, groups, ids, partitions)
        binary = pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(groups)]
        )
        try:
            names = binary.cast(pa.large_string()).cast(pa.string())
        except pa.ArrowInvalid:
            names = pa.array([value.decode("utf-8", "replace") for value in binary.to_pylist()], pa.string())
        return names, uuid_texts(ids), pa.array(partitions)


def uuid_texts(ids: np.ndarray) -> pa.Array:
    """Kafka's text of uuids: URL-safe base64 without padding.

    Args:
        ids: uint8 of shape (n, 16).
    Returns:
        string column of n texts of 22 characters.
    Source: Kafka Uuid.toString.
    """
    padded = np.zeros((len(ids), 18), np.uint8)
    padded[:, :16] = ids
    texts = np.frombuffer(base64.urlsafe_b64encode(padded.tobytes()), np.uint8).reshape(len(ids), 24)[:, :22]
    offsets = np.arange(len(ids) + 1, dtype=np.int32) * 22
    return pa.StringArray.from_buffers(len(ids), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(texts)))


def _longer(array: np.ndarray, size: int) -> np.ndarray:
    longer = np.empty(size, array.dtype)
    longer[: len(array)] = array
    return longer


@inlined
def hash_of(data, at, size):
    """A 64-bit hash of `size` bytes."""
    value = np.uint64(0x9E3779B97F4A7C15) ^ np.uint64(size)
    end = at + size
    if size < 8:
        while at < end:
            value = (value ^ np.uint64(data[at])) * np.uint64(0x94D049BB133111EB)
            value ^= value >> np.uint64(31)
            at += 1
    else:
        # The last word overlaps the one before it, so that no byte is left over.
        while at < end - 8:
            value = (value ^ np.uint64(int64_at(data, at))) * np.uint64(0xBF58476D1CE4E5B9)
            value ^= value >> np.uint64(29)
            at += 8
        value = (value ^ np.uint64(int64_at(data, end - 8))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(32))


@inlined
def _same(arena, kept, data, at, size):
    byte = 0
    if size < 8:
        while byte < size and arena[kept + byte] == data[at + byte]:
            byte += 1
        return byte == size
    while byte + 8 < size:
        if int64_at(arena, kept + byte) != int64_at(data, at + byte):
            return False
        byte += 8
    # The last word may overlap the one before it.
    return int64_at(arena, kept + size - 8) == int64_at(data, at + size - 8)


@inlined
def number_of(data, at, size, slots, hashes, starts, arena, count):
    """The number of the key data[at:at+size], giving out the next one to a new key; -1: no room, grow."""
    return number_of_hashed(hash_of(data, at, size), data, at, size, slots, hashes, starts, arena, count)


@inlined
def ask_for_slot(value, slots):
    """Begin to load where the number of a key with this hash would be."""
    prefetch(slots, np.int64(value & np.uint64(len(slots) - 1)))


@inlined
def ask_for_key(value, slots, hashes, starts):
    """Begin to load what is known of the key that is there; `ask_for_slot` some time before."""
    number = slots[np.int64(value & np.uint64(len(slots) - 1))]
    if number >= 0:
        prefetch(hashes, number)
        prefetch(starts, number)


@inlined
def ask_for_bytes(value, slots, starts, arena):
    """Begin to load the bytes of that key; `ask_for_key` some time before."""
    number = slots[np.int64(value & np.uint64(len(slots) - 1))]
    if number >= 0:
        prefetch(arena, starts[number])
        prefetch(arena, starts[number + 1] - 1)


@inlined
def number_of_hashed(value, data, at, size, slots, hashes, starts, arena, count):
    """As `number_of`, for a key whose hash is known."""
    mask = len(slots) - 1
    slot = np.int64(value & np.uint64(mask))
    while slots[slot] >= 0:
        number = slots[slot]
        kept = starts[number]
        if hashes[number] == value and starts[number + 1] - kept == size and _same(arena, kept, data, at, size):
            return np.int64(number)
        slot = (slot + 1) & mask
    number = count[0]
    if number >= len(hashes) or starts[number] + size > len(arena) or 2 * number >= len(slots):
        return np.int64(-1)
    start = starts[number]
    for byte in range(size):
        arena[start + byte] = data[at + byte]
    hashes[number] = value
    starts[number + 1] = start + size
    slots[slot] = np.int32(number)
    count[0] = number + 1
    return np.int64(number)


@kernel
def _hash_all(arena, starts, hashes, count):
    for number in range(count):
        hashes[number] = hash_of(arena, starts[number], starts[number + 1] - starts[number])


@kernel
def _place_again(slots, hashes, count):
    mask = len(slots) - 1
    for number in range(count):
        slot = np.int64(hashes[number] & np.uint64(mask))
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = np.int32(number)


@allocating_kernel
def _split(arena, starts, count, offsets, groups, ids, partitions):
    for number in range(count):
        at = starts[number]
        size = np.int64(int16_at(arena, at))
        groups[offsets[number] : offsets[number + 1]] = arena[at + 2 : at + 2 + size]
        ids[number] = arena[at + 2 + size : at + 18 + size]
        partitions[number] = int32_at(arena, at + 18 + size)


def state_partitions_of(table: KeyTable, state_partitions: int) -> np.ndarray:
    """Where the coordinator keeps each share-partition: |hash("group:topicId:partition")| mod `state_partitions`.

    Returns:
        int64, entry n for number n.
    Source: Kafka SharePartitionKey.asCoordinatorKey, Utils.abs, ShareCoordinatorService.partitionFor.
    """
    alphabet = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", np.uint8)
    hashes = np.empty(len(table), np.int64)
    _java_hashes(table.arena, table.starts, hashes, alphabet)
    return hashes % state_partitions


@kernel
def _java_hashes(arena, starts, hashes, alphabet):
    for number in range(len(hashes)):
        at = starts[number]
        end = at + 2 + np.int64(int16_at(arena, at))
        value = _hash_utf8(arena, at + 2, end)
        value = value * np.uint32(31) + np.uint32(58)
        bits, held = np.uint32(0), 0
        for byte in range(end, end + 16):
            bits = (bits << np.uint32(8)) | np.uint32(arena[byte])
            held += 8
            while held >= 6:
                held -= 6
                value = value * np.uint32(31) + np.uint32(alphabet[(bits >> np.uint32(held)) & np.uint32(63)])
        # 128 bits are 21 characters of 6 bits and one of 2.
        value = value * np.uint32(31) + np.uint32(alphabet[(bits << np.uint32(4)) & np.uint32(63)])
        value = value * np.uint32(31) + np.uint32(58)
        value = _hash_decimal(value, np.int64(int32_at(arena, end + 16)))
        signed = np.int64(np.int32(value))
        hashes[number] = 0 if signed == -(2**31) else abs(signed)


@kernel
def _hash_decimal(value, number):
    if number < 0:
        value = value * np.uint32(31) + np.uint32(45)
        number = -number
    power = np.int64(1)
    while number // power >= 10:
        power *= 10
    while power > 0:
        value = value * np.uint32(31) + np.uint32(48 + (number // power) % 10)
        power //= 10
    return value


@kernel
def _hash_utf8(data, at, end):
    """Java's String.hashCode over the UTF-16 units of well-formed UTF-8."""
    value = np.uint32(0)
    while at < end:
        lead = np.uint32(data[at])
        size = 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
        code = lead if size == 1 else lead & np.uint32(0xFF >> (size + 1))
        for byte in range(at + 1, min(at + size, end)):
            code = (code << np.uint32(6)) | (np.uint32(data[byte]) & np.uint32(63))
        at += size
        if code >= 0x10000:
            value = value * np.uint32(31) + (np.uint32(0xD7C0) + (code >> np.uint32(10)))
            code = np.uint32(0xDC00) | (code & np.uint32(0x3FF))
        value = value * np.uint32(31) + code
    return value
