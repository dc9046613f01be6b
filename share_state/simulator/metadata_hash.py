"""The metadata hash of a share group: how its coordinator notices that a topic of the group has changed."""

import struct
from collections.abc import Mapping, Sequence

from share_state.simulator.hash_order import uuid_halves

_UINT32, _UINT64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
_VERSION = 0
_NO_TOPIC = 0


def group_hash(topics: Mapping[str, int]) -> int:
    """The metadata hash of a group, as the record has it: signed.

    Args:
        topics: name -> `topic_hash` of every subscribed topic, 0 for one that does not exist.
    Source: Kafka Utils.computeGroupHash.
    """
    if not topics:
        return _NO_TOPIC
    return _signed(xxh3_64(b"".join(struct.pack("<q", topics[name]) for name in sorted(topics, key=_utf_16))))


def topic_hash(topic_id: str, name: str, racks: Sequence[Sequence[str]]) -> int:
    """The hash of a topic, signed.

    Args:
        topic_id: in Kafka's text form.
        racks: of each partition, the racks of its replicas; none for brokers without a rack.
    Source: Kafka Utils.computeTopicHash.
    """
    parts = [
        struct.pack("<BQQ", _VERSION, *uuid_halves(topic_id)),
        _text(name),
        struct.pack("<i", len(racks)),
    ]
    for partition, of_partition in enumerate(racks):
        parts.append(struct.pack("<i", partition))
        for rack in sorted(of_partition, key=_utf_16):
            parts.append(struct.pack("<i", len(_utf_16(rack)) // 2) + _text(rack))
    return _signed(xxh3_64(b"".join(parts)))


def _text(text: str) -> bytes:
    """A text as hash4j puts it: its UTF-16 code units, then their number. Source: HashSink.putString."""
    units = text.encode("utf-16-le")
    return units + struct.pack("<i", len(units) // 2)


def _utf_16(text: str) -> bytes:
    """Java compares texts by UTF-16 code units."""
    return text.encode("utf-16-be")


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


# XXH3 with 64 bits and no seed, as its specification has it; the inputs are a few hundred bytes.

_SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8a8"
    "fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb17"
    "0ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
_P32 = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D)
_P64 = (
    0x9E3779B185EBCA87,
    0xC2B2AE3D27D4EB4F,
    0x165667B19E3779F9,
    0x85EBCA77C2B2AE63,
    0x27D4EB2F165667C5,
)
_STRIPE, _STRIPES_A_BLOCK = 64, 16
_MIDDLE, _SHORT = 240, 128
_TINY = 16


def xxh3_64(data: bytes) -> int:
    """XXH3 of some bytes, unsigned, without a seed. Source: xxHash specification; hash4j Hashing.xxh3_64."""
    size = len(data)
    if size <= _TINY:
        return _of_tiny(data)
    if size > _MIDDLE:
        return _of_long(data)
    total = size * _P64[0]
    if size <= _SHORT:
        for number in range((size - 1) // 32 + 1):
            total += _mix(data, 16 * number, 32 * number)
            total += _mix(data, size - 16 * (number + 1), 32 * number + 16)
        return _avalanche(total)
    total = _avalanche(total + sum(_mix(data, 16 * number, 16 * number) for number in range(8)))
    total += sum(_mix(data, 16 * number, 16 * (number - 8) + 3) for number in range(8, size // 16))
    return _avalanche(total + _mix(data, size - 16, 136 - 17))


def _of_tiny(data: bytes) -> int:
    """Of at most 16 bytes."""
    size = len(data)
    if size > 8:
        low = _word(data, 0) ^ _secret(24) ^ _secret(32)
        high = _word(data, size - 8) ^ _secret(40) ^ _secret(48)
        swapped = int.from_bytes(low.to_bytes(8, "little"), "big")
        return _avalanche(size + swapped + high + _fold(low, high))
    if size > 3:
        first, last = (int.from_bytes(data[at : at + 4], "little") for at in (0, size - 4))
        mixed = (last + (first << 32)) ^ _secret(8) ^ _secret(16)
        mixed ^= _rotated(mixed, 49) ^ _rotated(mixed, 24)
        mixed = mixed * 0x9FB21C651E98DF25 & _UINT64
        mixed ^= (mixed >> 35) + size
        mixed = mixed * 0x9FB21C651E98DF25 & _UINT64
        return mixed ^ mixed >> 28
    if size:
        combined = data[0] << 16 | data[size >> 1] << 24 | data[-1] | size << 8
        return _avalanche_64(combined ^ (_secret(0) ^ _secret(4)) & _UINT32)
    return _avalanche_64(_secret(56) ^ _secret(64))


def _of_long(data: bytes) -> int:
    """Of more than 240 bytes: stripes of 64, in blocks of 16."""
    size = len(data)
    lanes = [_P32[2], *_P64[:4], _P32[1], _P64[4], _P32[0]]
    for stripe in range((size - 1) // _STRIPE):
        place = stripe % _STRIPES_A_BLOCK
        _accumulate(lanes, data, _STRIPE * stripe, 8 * place)
        if place == _STRIPES_A_BLOCK - 1:
            for lane in range(8):
                mixed = lanes[lane] ^ lanes[lane] >> 47 ^ _secret(128 + 8 * lane)
                lanes[lane] = mixed * _P32[0] & _UINT64
    _accumulate(lanes, data, size - _STRIPE, 121)
    total = size * _P64[0]
    for lane in range(0, 8, 2):
        total += _fold(lanes[lane] ^ _secret(11 + 8 * lane), lanes[lane + 1] ^ _secret(19 + 8 * lane))
    return _avalanche(total)


def _accumulate(lanes: list[int], data: bytes, at: int, secret_at: int) -> None:
    for lane in range(8):
        word = _word(data, at + 8 * lane)
        keyed = word ^ _secret(secret_at + 8 * lane)
        lanes[lane ^ 1] = lanes[lane ^ 1] + word & _UINT64
        lanes[lane] = lanes[lane] + (keyed & _UINT32) * (keyed >> 32) & _UINT64


def _word(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _secret(at: int) -> int:
    return _word(_SECRET, at)


def _mix(data: bytes, at: int, secret_at: int) -> int:
    return _fold(_word(data, at) ^ _secret(secret_at), _word(data, at + 8) ^ _secret(secret_at + 8))


def _fold(one: int, other: int) -> int:
    """The low and the high half of a product, combined."""
    product = one * other
    return product & _UINT64 ^ product >> 64


def _rotated(number: int, by: int) -> int:
    return (number << by | number >> 64 - by) & _UINT64


def _avalanche(number: int) -> int:
    number &= _UINT64
    number ^= number >> 37
    number = number * 0x165667919E3779F9 & _UINT64
    return number ^ number >> 32


def _avalanche_64(number: int) -> int:
    number ^= number >> 33
    number = number * _P64[1] & _UINT64
    number ^= number >> 29
    number = number * _P64[2] & _UINT64
    return number ^ number >> 32
