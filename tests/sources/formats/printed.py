"""Prints records as Kafka's tools do: kafka-console-consumer with ShareGroupStateMessageFormatter, kafka-dump-log."""

import json
import struct
from collections.abc import Sequence
from typing import Any

from share_state.kafka.codec import decode
from share_state.schema.declarations import layout
from tests.kafka.batches import Batch, Record

_NAMES = {"snapshot": "share_snapshot", "update": "share_update"}
_KINDS = ("snapshot", "update")


def console_text(records: Sequence[Record], *, early: bool = False, between: str = "") -> str:
    """What the console consumer prints; the tool of 4.0 where `early`."""
    return between.join(_compact(_printed(record, early)) for record in records)


def dump_text(batches: Sequence[Batch], *, early: bool = False, name: str | None = "__share_group_state-0") -> str:
    """What the dump tool prints of one segment; `name` is its folder."""
    base = batches[0].base_offset if batches else 0
    folder = f"{name}/" if name else ""
    lines, position = [f"Dumping {folder}{base:020}.log", f"Log starting offset: {base}"], 0
    for batch in batches:
        written = batch.written()
        lines.append(_batch_line(batch, written, position))
        lines += [_record_line(batch, number, early) for number in range(len(batch.records))]
        position += len(written)
    return "\n".join(lines) + "\n"


def _batch_line(batch: Batch, written: bytes, position: int) -> str:
    transactional, control = bool(batch.attributes & 16), bool(batch.attributes & 32)
    (crc,) = struct.unpack_from(">I", written, 17)
    stamp = "LogAppendTime" if batch.attributes & 8 else "CreateTime"
    codec = ("none", "gzip", "snappy", "lz4", "zstd")[batch.attributes & 7]
    return (
        f"baseOffset: {batch.base_offset} lastOffset: {batch.next_offset - 1} count: {len(batch.records)}"
        f" baseSequence: -1 lastSequence: -1 producerId: {batch.producer[0]} producerEpoch: {batch.producer[1]}"
        f" partitionLeaderEpoch: {batch.leader_epoch} isTransactional: {str(transactional).lower()}"
        f" isControl: {str(control).lower()} deleteHorizonMs: OptionalLong.empty position: {position}"
        f" {stamp}: {batch.max_timestamp} size: {len(written)} magic: {batch.magic} compresscodec: {codec}"
        f" crc: {crc} isvalid: true"
    )


def _record_line(batch: Batch, number: int, early: bool) -> str:
    record, offset = batch.records[number], batch.base_offset + number
    stamp = "LogAppendTime" if batch.attributes & 8 else "CreateTime"
    time = batch.max_timestamp if batch.attributes & 8 else batch.base_timestamp + record.time_delta
    assert record.key is not None
    size = -1 if record.value is None else len(record.value)
    front = (
        f"| offset: {offset} {stamp}: {time} keySize: {len(record.key)} valueSize: {size} sequence: -1 headerKeys: []"
    )
    if batch.attributes & 32:
        ended = struct.unpack_from(">h", record.key, 2)[0]
        told = {0: "endTxnMarker: ABORT coordinatorEpoch: 0", 1: "endTxnMarker: COMMIT coordinatorEpoch: 0"}
        return f"{front} {told.get(ended, f'controlType: UNKNOWN({ended})')}"
    kind, version = struct.unpack_from(">h", record.key)[0], struct.unpack_from(">h", record.value or b"\0\0")[0]
    if kind not in (0, 1):
        return f"{front} key: Unknown record type {kind} at offset {offset}, skipping."
    if version != 0:
        failed = f"Found an unknown record version {version} for {kind} type"
        return f"{front} key: Error at offset {offset}, skipping. {failed}"
    printed = _printed(record, early)
    key = {"type": str(kind), "data": printed["key"]["data"]}
    if record.value is None:
        return f"{front} key: {_compact(key)} payload: <DELETE>"
    value = {"type" if early else "version": "0", "data": printed["value"]["data"]}
    return f"{front} key: {_compact(key)} payload: {_compact(value)}"


def _printed(record: Record, early: bool) -> dict[str, Any]:
    assert record.key is not None
    kind, releases = struct.unpack_from(">h", record.key)[0], "4.0" if early else "4.1+"
    name = _NAMES[_KINDS[kind]]
    key, _ = decode(layout(f"{name}_key", releases), record.key)
    data = {"groupId": key["group_id"], "topicId": key["topic_id"], "partition": key["partition"]}
    printed: dict[str, Any] = {"key": {"version" if early else "type": kind, "data": data}, "value": None}
    if record.value is not None:
        value, _ = decode(layout(f"{name}_value", releases), record.value)
        fields = {_camel(field): content for field, content in value.items() if field != "state_batches"}
        if fields.get("deliveryCompleteCount") == -1:
            del fields["deliveryCompleteCount"]
        ranges = [{_camel(field): content for field, content in one.items()} for one in value["state_batches"]]
        printed["value"] = {"version": 0, "data": {**fields, "stateBatches": ranges}}
    return printed


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(part.capitalize() for part in others)


def _compact(printed: dict[str, Any]) -> str:
    return json.dumps(printed, ensure_ascii=False, separators=(",", ":"))
