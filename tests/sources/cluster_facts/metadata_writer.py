"""Metadata logs and snapshots as a controller would write them."""

import base64
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from share_state.kafka.codec import encode, encode_uvarint
from share_state.schema.declarations import layout, record
from tests.kafka.batches import NOW, Batch, Record, consecutive, in_bytes
from tests.log_writer import batch

NODE = 1


def uuid(number: int) -> str:
    """The topic id of a number."""
    return base64.urlsafe_b64encode(number.to_bytes(16, "big")).decode().rstrip("=")


def framed(key: int, version: int, message: bytes, frame: int = 1) -> Record:
    """A metadata record of any content."""
    return Record(None, encode_uvarint(frame) + encode_uvarint(key) + encode_uvarint(version) + message)


def message(declaration: str, version: int | None = None, /, **fields: Any) -> Record:
    """A record by the name of its declaration; of its newest version by default."""
    declared = record(declaration)
    chosen = declared.layouts[-1].version if version is None else version
    assert chosen is not None
    return framed(declared.key_type, chosen, encode(layout(declaration, f"v{chosen}"), fields))


def topic(number: int, name: str) -> Record:
    return message("topic_record", name=name, topic_id=uuid(number))


def removed(number: int) -> Record:
    return message("remove_topic_record", topic_id=uuid(number))


def partition(number: int, partition: int, leader: int = NODE, leader_epoch: int = 0, version: int = 1) -> Record:
    fields: dict[str, Any] = {"directories": [uuid(99)]} if version else {}
    return message(
        "partition_record", version, partition_id=partition, topic_id=uuid(number), replicas=[NODE], isr=[NODE],
        removing_replicas=[], adding_replicas=[], leader=leader, leader_epoch=leader_epoch, partition_epoch=0, **fields,
    )  # fmt: skip


def config(kind: int, name: str, key: str, value: str | None) -> Record:
    return message("config_record", resource_type=kind, resource_name=name, name=key, value=value)


BEGIN, END, ABORT = (message(f"{name}_transaction_record") for name in ("begin", "end", "abort"))


def write_metadata_log(
    folder: Path, batches: Sequence[Sequence[Record] | Batch], base_offset: int = 0, timestamps: Sequence[int] = ()
) -> Path:
    """Write one segment of `__cluster_metadata-0` below a folder; returns the log's folder."""
    place = folder / "__cluster_metadata-0"
    place.mkdir(parents=True, exist_ok=True)
    times = [*timestamps, *[NOW] * len(batches)]
    made = [
        one if isinstance(one, Batch) else batch(one, timestamp=time) for one, time in zip(batches, times, strict=False)
    ]
    (place / f"{base_offset:020}.log").write_bytes(in_bytes(consecutive(made, base_offset)))
    return place


def write_snapshot(
    folder: Path, end_offset: int, records: Sequence[Record], time: int = NOW, footer: bool = True
) -> Path:
    """Write a snapshot beside the segments."""
    place = folder / "__cluster_metadata-0"
    place.mkdir(parents=True, exist_ok=True)
    header = batch([Record(struct.pack(">hh", 0, 3), struct.pack(">hqb", 0, time, 0))], control=True)
    end = batch([Record(struct.pack(">hh", 0, 4), struct.pack(">hb", 0, 0))], control=True)
    made = [header, batch(records, timestamp=time), *([end] if footer else [])]
    path = place / f"{end_offset:020}-{1:010}.checkpoint"
    path.write_bytes(in_bytes(consecutive(made, 0)))
    return path
