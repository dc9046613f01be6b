"""Numbers the share-partitions of a log: `KeyTable` is a hash table from key bytes to numbers, filled by kernels.

The numbers run from 0 in the order of first occurrence, so columns over share-partitions are plain arrays.
"""

import base64
from copy import copy

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.jit.compile import inlined, kernel
from share_state.jit.intrinsics import copy_rows, prefetch
from share_state.kafka.buffers import column_bytes
from share_state.kafka.primitives import int16_at, int32_at, int64_at

_INITIAL_KEYS = 1 << 10
_BYTES_PER_KEY = 64
_BASE64 = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_", np.uint8)


class KeyTable:
    """A hash table from key bytes (a record key without its type) to numbers, in order of first occurrence."""

    def __init__(self, capacity: int = _INITIAL_KEYS, size: int = 0) -> None:
        """Create an empty table.

        Args:
            capacity: number of keys before it grows, a power of two.
            size: additional bytes for keys.
        """
        self.slots = np.full(4 * capacity, -1, np.int32)
        self.hashes = np.empty(capacity, np.uint64)
        self.starts = np.zeros(capacity + 1, np.int64)
        self.arena = np.empty(size + capacity * _BYTES_PER_KEY, np.uint8)
        self.count = np.zeros(1, np.int64)
        self._checked, self.malformed = 0, dict[int, int]()
        # Of the first keys: to make them takes as long as a fold of thousands of records.
        self._known_columns: tuple[pa.Array, pa.Array, pa.Array] | None = None
        self._known_hashes = np.zeros(0, np.int64)

    @classmethod
    def of(cls, keys: pa.ChunkedArray) -> "KeyTable":
        """A table of distinct keys, numbered in their order.

        Args:
            keys: binary, key bytes as `binary` returns them.
        """
        count, parts = len(keys), [column_bytes(chunk) for chunk in keys.chunks]
        table = cls(max(_INITIAL_KEYS, 1 << count.bit_length()), sum(len(data) for data, _ in parts))
        row = begin = 0
        for data, ends in parts:
            table.arena[begin : begin + len(data)] = data
            table.starts[row + 1 : row + len(ends)] = begin + ends[1:]
            row, begin = row + len(ends) - 1, begin + len(data)
        table.count[0] = count
        _hash_all(table.arena, table.starts, table.hashes, count)
        _rebuild_slots(table.slots, table.hashes, count)
        return table

    def binary(self) -> pa.Array:
        """The key bytes, row n for number n."""
        count = len(self)
        offsets, data = self.starts[: count + 1].copy(), self.arena[: self.starts[count]].copy()
        return binary_texts(offsets, data).cast(pa.binary())

    def __len__(self) -> int:
        """Number of share-partitions."""
        return int(self.count[0])

    def copy(self) -> "KeyTable":
        """A table with the same keys, which grows on its own."""
        # Both are full now: the one that gets a key first makes arrays of its own.
        self.hashes = self.hashes[: len(self)]
        table = copy(self)
        table.count, table.malformed = self.count.copy(), dict(self.malformed)
        return table

    def grow(self, key_size: int) -> None:
        """Make arrays with space for more keys, one of them of `key_size` bytes; those before may be shared."""
        count = len(self)
        capacity = max(_INITIAL_KEYS, 1 << count.bit_length())
        self.hashes = _extended(self.hashes[:count], capacity)
        self.starts = _extended(self.starts[: count + 1], capacity + 1)
        self.arena = _extended(self.arena[: self.starts[count]], 2 * int(self.starts[count]) + key_size)
        self.slots = np.full(4 * capacity, -1, np.int32)
        _rebuild_slots(self.slots, self.hashes, count)

    def columns(self) -> tuple[pa.Array, pa.Array, pa.Array]:
        """The keys as Arrow columns, row n for number n: group_id string, topic_id string, partition int32.

        Bytes of a group id that are not UTF-8 become U+FFFD, as in Java; it is null for the keys that
        `merge_malformed` has replaced.
        """
        known = self._known_columns
        first = 0 if known is None else len(known[0])
        if known is None or first < len(self):
            groups, ids, partitions = self._parts(first)
            new = utf8_texts(groups), uuid_texts(ids), pa.array(partitions)
            known = new if known is None else tuple(map(pa.concat_arrays, zip(known, new, strict=True)))
            self._known_columns = known
        texts, ids, partitions = known
        if self.malformed:
            is_replaced = np.zeros(len(texts), bool)
            is_replaced[[*self.malformed]] = True
            texts = pc.if_else(pa.array(is_replaced), pa.scalar(None, pa.string()), texts)
        return texts, ids, partitions

    def coordinator_hashes(self) -> np.ndarray:
        """|hash("group:topicId:partition")| of each share-partition.

        This number modulo the partition count is its state partition.

        Returns:
            int64, row n for number n.
        Source: Kafka SharePartitionKey.asCoordinatorKey, Utils.abs, ShareCoordinatorService.partitionFor.
        """
        known = self._known_hashes
        if len(known) < len(self):
            new = np.empty(len(self) - len(known), np.int64)
            _java_hashes(self.arena, self.starts[len(known) :], new, _BASE64)
            known = self._known_hashes = np.concatenate((known, new))
        hashes = known.copy()
        for number, read_as in self.malformed.items():
            hashes[number] = hashes[read_as]
        return hashes

    def _parts(self, first: int) -> tuple[pa.LargeBinaryArray, np.ndarray, np.ndarray]:
        """The group ids, topic ids and partitions of the keys from number `first` on."""
        starts, count = self.starts[first : len(self) + 1], len(self) - first
        offsets = np.concatenate(([0], np.cumsum(np.diff(starts) - 22))).astype(np.int64)
        groups, ids = np.empty(int(offsets[-1]), np.uint8), np.empty((count, 16), np.uint8)
        partitions = np.empty(count, np.int32)
        _split(self.arena, starts, count, offsets, groups, ids.reshape(-1), partitions)
        return binary_texts(offsets, groups), ids, partitions

    def merge_malformed(self, numbers: np.ndarray) -> None:
        """Replace the number of each key whose group id is not UTF-8 by the number of the key that Java reads.

        Java replaces malformed bytes by U+FFFD, so several keys may become one.

        Args:
            numbers: key numbers, -1 for none; changed in place.
        Source: Kafka Readable.readString.
        """
        if self._checked < len(self):
            first, self._checked = self._checked, len(self)
            groups = self._parts(first)[0]
            if not _is_utf8(groups):
                for number, group in enumerate(groups.to_pylist(), first):
                    if (read := group.decode("utf-8", "replace").encode()) != group:
                        self.malformed[number] = self._add(self._with_group(number, read))
        for number, read_as in self.malformed.items():
            numbers[numbers == number] = read_as

    def _with_group(self, number: int, group: bytes) -> bytes:
        """A key with another group id."""
        end = self.starts[number + 1]
        return len(group).to_bytes(2, "big") + group + self.arena[end - 20 : end].tobytes()

    def _add(self, key: bytes) -> int:
        data = np.frombuffer(
            bytearray(key), np.uint8
        )  # of bytes it is read-only: another type, compiled anew
        while True:
            number = number_of(
                data, 0, len(data), self.slots, self.hashes, self.starts, self.arena, self.count
            )
            if number >= 0:
                return int(number)
            self.grow(len(data))


def binary_texts(offsets: np.ndarray, data: np.ndarray) -> pa.LargeBinaryArray:
    """A binary column.

    Args:
        offsets: int64, row n has the bytes offsets[n] to offsets[n + 1].
        data: uint8.
    """
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def utf8_texts(binary: pa.LargeBinaryArray) -> pa.Array:
    """A string column of UTF-8 texts; other bytes become U+FFFD, as in Java."""
    if _is_utf8(binary):
        return binary.cast(pa.large_string()).cast(pa.string())
    return pa.array([value.decode("utf-8", "replace") for value in binary.to_pylist()], pa.string())


def escaped_texts(binary: pa.LargeBinaryArray) -> pa.Array:
    r"""A string column of distinct texts: bytes that are not UTF-8 become `\xNN`.

    In texts that have such bytes, or that spell `\x` themselves, backslashes are doubled.
    """
    if _is_utf8(binary) and not pc.any(pc.match_substring(texts := utf8_texts(binary), r"\x")).as_py():
        return texts
    return pa.array(map(_escaped, binary.to_pylist()), pa.string())


def _escaped(text: bytes) -> str:
    escaped = text.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")
    return escaped if r"\x" in escaped else text.decode()


def _is_utf8(binary: pa.LargeBinaryArray) -> bool:
    try:
        binary.cast(pa.large_string())
    except pa.ArrowInvalid:
        return False
    return True


def uuid_texts(ids: np.ndarray) -> pa.Array:
    """UUIDs as Kafka prints them: URL-safe base64 without padding.

    Args:
        ids: uint8 of shape (n, 16).
    Returns:
        string column, 22 characters each.
    Source: Kafka Uuid.toString.
    """
    padded = np.zeros((len(ids), 18), np.uint8)
    padded[:, :16] = ids
    texts = np.frombuffer(base64.urlsafe_b64encode(padded.tobytes()), np.uint8).reshape(len(ids), 24)[:, :22]
    offsets = np.arange(len(ids) + 1, dtype=np.int32) * 22
    return pa.StringArray.from_buffers(
        len(ids), pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(texts))
    )


def _extended(array: np.ndarray, size: int) -> np.ndarray:
    extended = np.empty(size, array.dtype)
    extended[: len(array)] = array
    return extended


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
        # The last word overlaps the previous one and covers the remaining bytes.
        while at < end - 8:
            value = (value ^ np.uint64(int64_at(data, at))) * np.uint64(0xBF58476D1CE4E5B9)
            value ^= value >> np.uint64(29)
            at += 8
        value = (value ^ np.uint64(int64_at(data, end - 8))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(32))


@inlined
def _same(arena, start, data, at, size):
    byte = 0
    if size < 8:
        while byte < size and arena[start + byte] == data[at + byte]:
            byte += 1
        return byte == size
    while byte + 8 < size:
        if int64_at(arena, start + byte) != int64_at(data, at + byte):
            return False
        byte += 8
    # The last word may overlap the previous one.
    return int64_at(arena, start + size - 8) == int64_at(data, at + size - 8)


@inlined
def number_of(data, at, size, slots, hashes, starts, arena, count):
    """The number of the key data[at:at+size], which is added if new; -1 if the table must grow first."""
    return number_of_hashed(hash_of(data, at, size), data, at, size, slots, hashes, starts, arena, count)


@inlined
def prefetch_slot(value, slots):
    """Begin to load the slot of a key with this hash."""
    prefetch(slots, np.int64(value & np.uint64(len(slots) - 1)))


@inlined
def prefetch_key(value, slots, hashes, starts):
    """Begin to load the entry of that key; call `prefetch_slot` some time before."""
    number = slots[np.int64(value & np.uint64(len(slots) - 1))]
    if number >= 0:
        prefetch(hashes, number)
        prefetch(starts, number)


@inlined
def prefetch_key_bytes(value, slots, starts, arena):
    """Begin to load the bytes of that key; call `prefetch_key` some time before."""
    number = slots[np.int64(value & np.uint64(len(slots) - 1))]
    if number >= 0:
        prefetch(arena, starts[number])
        prefetch(arena, starts[number + 1] - 1)


@inlined
def number_of_hashed(value, data, place, size, slots, hashes, starts, arena, count):
    """Like `number_of`, for a precomputed hash."""
    mask = len(slots) - 1
    slot = np.int64(value & np.uint64(mask))
    while slots[slot] >= 0:
        number = slots[slot]
        start = starts[number]
        if (
            hashes[number] == value
            and starts[number + 1] - start == size
            and _same(arena, start, data, place, size)
        ):
            return np.int64(number)
        slot = (slot + 1) & mask
    number = count[0]
    if number >= len(hashes) or starts[number] + size > len(arena):
        return np.int64(-1)
    start = starts[number]
    for byte in range(size):
        arena[start + byte] = data[place + byte]
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
def _rebuild_slots(slots, hashes, count):
    mask = len(slots) - 1
    for number in range(count):
        slot = np.int64(hashes[number] & np.uint64(mask))
        while slots[slot] >= 0:
            slot = (slot + 1) & mask
        slots[slot] = np.int32(number)


@kernel
def _split(arena, starts, count, offsets, groups, ids, partitions):
    for number in range(count):
        at = starts[number]
        size = np.int64(int16_at(arena, at))
        copy_rows(arena, at + 2, groups, offsets[number], size)
        copy_rows(arena, at + 2 + size, ids, 16 * number, 16)
        partitions[number] = int32_at(arena, at + 18 + size)


@kernel
def _java_hashes(arena, starts, hashes, alphabet):
    for number in range(len(hashes)):
        at = starts[number]
        end = at + 2 + np.int64(int16_at(arena, at))
        value = _hash_utf8(arena, at + 2, end)
        value = value * np.uint32(31) + np.uint32(58)
        bits, bit_count = np.uint32(0), 0
        for byte in range(end, end + 16):
            bits = (bits << np.uint32(8)) | np.uint32(arena[byte])
            bit_count += 8
            while bit_count >= 6:
                bit_count -= 6
                value = value * np.uint32(31) + np.uint32(
                    alphabet[(bits >> np.uint32(bit_count)) & np.uint32(63)]
                )
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
