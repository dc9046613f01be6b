"""Decoded records as a table: what the log says, before anything is folded.

Decoded control records of the KIP-932 draft as a table: what the log says, before anything is folded.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from share_state.fold.control_log import decode_control_log
from share_state.fold.log import decode_log
from share_state.fold.states import CONTROL_RECORDS, batch_lists, declared, fault_names, key_columns, times
from share_state.kafka.control_records import (
    UNREADABLE_CONTROL_RECORD,
    ControlFault,
    ControlKind,
    ControlRecords,
    GroupTable,
)
from share_state.kafka.share_partition_keys import KeyTable
from share_state.kafka.state_records import UNREADABLE, Fault, Kind, StateRecords
from share_state.sources.discovery import LogPartition, Window
from share_state.sources.topics import Topics

_KINDS = pa.array(["snapshot", "update", "tombstone", "skipped"])
_LAYOUTS = pa.array([None, "4.0", "4.1+"])


def decoded_tables(log: LogPartition, window: Window, topics: Topics) -> Iterator[pa.Table]:
    """The records of a log partition, a table a chunk.

    Returns:
        Columns of schemas/tables/decoded_records.yaml, in log order.
    """
    for records, keys in decode_log(log, window):
        yield _table(records, keys, log, topics)


def _table(records: StateRecords, keys: KeyTable, log: LogPartition, topics: Topics) -> pa.Table:
    rows, count = records.rows, len(records.rows)
    keyless = rows["key"] < 0
    valueless = (rows["kind"] == Kind.TOMBSTONE) | keyless | (rows["fault"] & UNREADABLE != 0)
    no_snapshot = valueless | (rows["kind"] != Kind.SNAPSHOT)
    key = key_columns(keys, np.where(keyless, 0, rows["key"]), topics) if len(keys) else {}
    columns = {
        name: pa.array(np.zeros(count), mask=np.ones(count, bool)).cast(pa.string())
        if not key
        else key[name].take(pa.array(np.arange(count), mask=keyless))
        for name in ("group_id", "topic_id", "topic", "partition")
    }
    columns |= {
        "dialect": pa.repeat("share_group_state", count),
        "state_partition": pa.repeat(pa.scalar(log.partition, pa.int32()), count),
        "offset": pa.array(rows["offset"].copy(), mask=np.full(count, not log.has_offsets)),
        "timestamp": times(np.where(log.has_times, rows["timestamp"], 0)),
        "kind": _KINDS.take(pa.array(rows["kind"].copy())),
        "layout": _LAYOUTS.take(pa.array(rows["layout"].copy())),
        "create_time": times(np.where(no_snapshot, 0, rows["create_time"])),
        "write_time": times(np.where(no_snapshot, 0, rows["write_time"])),
        "state_epoch": pa.array(rows["state_epoch"].copy(), mask=no_snapshot),
        "state_batches": batch_lists(_list_ends(rows), records.batches),
        "fault": fault_names(rows["fault"], Fault),
    }
    for name in ("snapshot_epoch", "leader_epoch", "start_offset", "delivery_complete_count"):
        columns[name] = pa.array(rows[name].copy(), mask=valueless)
    return declared("decoded_records", columns)


def _list_ends(rows: np.ndarray) -> np.ndarray:
    """Batches lie in record order, so the counts alone say where each record's end."""
    return np.concatenate(([0], np.cumsum(rows["batch_count"])))


_CONTROL_KINDS = pa.array(["checkpoint", "delta", "skipped"])


def decoded_control_tables(log: LogPartition, window: Window) -> Iterator[pa.Table]:
    """The control records of a topic-partition, a table a chunk; user data and other control records are left out.

    Returns:
        Columns of schemas/tables/decoded_records.yaml, in log order.
    """
    for records, groups in decode_control_log(log, window):
        yield _control_table(records, groups, log)


def _control_table(records: ControlRecords, groups: GroupTable, log: LogPartition) -> pa.Table:
    rows, count = records.rows, len(records.rows)
    groupless = rows["group"] < 0
    valueless = groupless | (rows["fault"] & UNREADABLE_CONTROL_RECORD != 0)
    no_checkpoint = valueless | (rows["kind"] != ControlKind.CHECKPOINT)
    no_delta = valueless | (rows["kind"] != ControlKind.DELTA)
    columns = {
        "dialect": pa.repeat(CONTROL_RECORDS, count),
        "group_id": groups.names().take(pa.array(rows["group"].copy(), mask=groupless)),
        "topic": pa.repeat(log.topic, count),
        "partition": pa.repeat(pa.scalar(log.partition, pa.int32()), count),
        "offset": pa.array(rows["offset"].copy()),
        "timestamp": times(rows["timestamp"]),
        "kind": _CONTROL_KINDS.take(pa.array(rows["kind"].copy())),
        "snapshot_epoch": pa.array(rows["epoch"].copy(), mask=valueless),
        "start_offset": pa.array(rows["start_offset"].copy(), mask=no_checkpoint),
        "end_offset": pa.array(rows["end_offset"].copy(), mask=no_checkpoint),
        "back_offset": pa.array(rows["back_offset"].copy(), mask=no_delta),
        "state_batches": batch_lists(np.concatenate(([0], np.cumsum(rows["tuple_count"]))), records.tuples),
        "fault": fault_names(rows["fault"], ControlFault),
    }
    return declared("decoded_records", columns)
