"""The metadata hash of a share group: how its coordinator notices that a topic of the group has changed."""

import struct
from collections.abc import Mapping, Sequence

from xxhash import xxh3_64_intdigest

from share_state.simulator.hash_order import uuid_halves

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
    return _signed(
        xxh3_64_intdigest(b"".join(struct.pack("<q", topics[name]) for name in sorted(topics, key=_utf_16)))
    )


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
    return _signed(xxh3_64_intdigest(b"".join(parts)))


def _text(text: str) -> bytes:
    """A text as hash4j puts it: its UTF-16 code units, then their number. Source: HashSink.putString."""
    units = text.encode("utf-16-le")
    return units + struct.pack("<i", len(units) // 2)


def _utf_16(text: str) -> bytes:
    """Java compares texts by UTF-16 code units."""
    return text.encode("utf-16-be")


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number
