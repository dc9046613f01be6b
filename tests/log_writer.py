"""Logs of share-group state as a broker would write them: right checksums, real codecs, several segments.

For what no broker would write, `tests/kafka/batches.py` lets every byte be set; this module says what is meant.
"""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from share_state.kafka.codec import encode
from share_state.schema.declarations import layout
from tests.kafka.batches import NOW, Batch, Record, consecutive, in_bytes

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}

_LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL = 8, 16, 32
_LZ4_BLOCK = 1 << 16
# Magic, version 1 with independent blocks of up to 64 KiB, and the checksum of these two bytes.
_LZ4_FRAME = bytes.fromhex("04224d18 6040 82")
_LZ4_PLAIN_BLOCK = 1 << 31

Key = tuple[str, str, int]
"""(group_id, topic_id, partition)"""

Range = tuple[int, int, int, int]
"""(first offset, last offset, delivery state, delivery count)"""


def snapshot(key: Key, batches: Sequence[Range] = (), *, releases: str = "4.1+", **fields: Any) -> Record:
    """A snapshot; `fields` as in schemas/records/share_snapshot_value.yaml, with quiet defaults."""
    quiet = {"snapshot_epoch": 0, "state_epoch": 0, "leader_epoch": 0, "start_offset": 0}
    if releases != "4.0":
        quiet |= {"create_timestamp": NOW, "write_timestamp": NOW}
    value = encode(layout("share_snapshot_value", releases), quiet | {"state_batches": _structs(batches)} | fields)
    return Record(_key("share_snapshot_key", key, releases), value)


def update(key: Key, batches: Sequence[Range] = (), *, releases: str = "4.1+", **fields: Any) -> Record:
    """An update; `fields` as in schemas/records/share_update_value.yaml, with quiet defaults."""
    quiet = {"snapshot_epoch": 0, "leader_epoch": -1, "start_offset": -1, "state_batches": _structs(batches)}
    value = encode(layout("share_update_value", releases), quiet | fields)
    return Record(_key("share_update_key", key, releases), value)


def tombstone(key: Key) -> Record:
    """What deletes a share-partition."""
    return Record(_key("share_snapshot_key", key, "4.1+"), None)


def batch(
    records: Sequence[Record],
    *,
    codec: str = "none",
    timestamp: int = NOW,
    log_append_time: int | None = None,
    transactional: bool = False,
    control: bool = False,
    producer: tuple[int, int, int] = (-1, -1, -1),
    leader_epoch: int = 0,
) -> Batch:
    """A record batch.

    Args:
        records: in order; their own time deltas count from `timestamp`.
        codec: one of CODECS.
        timestamp: in ms, of the first record.
        log_append_time: in ms, where the topic stamps batches itself.
        transactional: whether its records are part of a transaction.
        control: whether it marks a transaction's end and so on.
        producer: (producer id, producer epoch, base sequence).
        leader_epoch: of the log's partition.
    """
    attributes = CODECS[codec] | transactional * _TRANSACTIONAL | control * _CONTROL
    latest = max([timestamp, *(timestamp + record.time_delta for record in records)])
    if log_append_time is not None:
        attributes, latest = attributes | _LOG_APPEND_TIME, log_append_time
    body = None
    if codec == "lz4":
        body = _lz4(b"".join(record.written(number) for number, record in enumerate(records)))
    return Batch(
        records,
        attributes=attributes,
        base_timestamp=timestamp,
        max_timestamp=latest,
        producer=producer,
        leader_epoch=leader_epoch,
        body=body,
    )


def write_segment(folder: Path, batches: Sequence[Batch]) -> Path:
    """Write batches, offsets as they are, to the segment named after the first."""
    path = folder / f"{batches[0].base_offset:020}.log"
    path.write_bytes(in_bytes(batches))
    return path


def write_log_folder(
    folder: Path, partition: int, batches: Sequence[Batch], *, base_offset: int = 0, a_segment: int | None = None
) -> Path:
    """Write `__share_group_state-N` under a folder.

    Args:
        folder: the broker's log directory.
        partition: of the state topic.
        batches: at least one, in log order; each gets the offsets that follow from the ones before it.
        base_offset: of the first.
        a_segment: how many batches go to one segment; all by default.
    Returns:
        The log partition's folder.
    """
    place = folder / f"__share_group_state-{partition}"
    place.mkdir(parents=True)
    placed, step = consecutive(batches, base_offset), a_segment or len(batches)
    for first in range(0, len(placed), step):
        write_segment(place, placed[first : first + step])
    return place


def _key(record: str, key: Key, releases: str) -> bytes:
    return encode(layout(record, releases), dict(zip(("group_id", "topic_id", "partition"), key, strict=True)))


def _structs(batches: Sequence[Range]) -> list[dict[str, int]]:
    names = ("first_offset", "last_offset", "delivery_state", "delivery_count")
    return [dict(zip(names, one, strict=True)) for one in batches]


def _lz4(plain: bytes) -> bytes:
    """An lz4 frame of independent blocks: Kafka reads no others, and pyarrow's streams link theirs."""
    blocks = []
    for at in range(0, len(plain), _LZ4_BLOCK):
        block = plain[at : at + _LZ4_BLOCK]
        packed = pa.compress(block, codec="lz4_raw", asbytes=True)
        size = len(packed)
        if size >= len(block):
            packed, size = block, len(block) | _LZ4_PLAIN_BLOCK
        blocks.append(struct.pack("<I", size) + packed)
    return _LZ4_FRAME + b"".join(blocks) + struct.pack("<I", 0)
