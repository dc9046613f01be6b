"""Decoded records as a table: what the log says, before anything is folded."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from share_state.fold.log import decode_log
from share_state.fold.states import batch_lists, declared, fault_names, key_columns, times
from share_state.fold.topics import Topics
from share_state.wire.keys import KeyTable
from share_state.wire.log_folder import LogPartition, Window
from share_state.wire.share_group_state import UNREADABLE, Fault, Kind, StateRecords

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
