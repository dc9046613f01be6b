"""Decoded control records of the KIP-932 draft as a table: what the log says, before anything is folded."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from share_state.fold.control_log import decode_control_log
from share_state.fold.control_states import DIALECT
from share_state.fold.states import batch_lists, declared, fault_names, times
from share_state.wire.control_records import (
    UNREADABLE,
    ControlFault,
    ControlKind,
    ControlRecords,
    GroupTable,
)
from share_state.wire.log_folder import LogPartition, Window

_KINDS = pa.array(["checkpoint", "delta", "skipped"])


def decoded_control_tables(log: LogPartition, window: Window) -> Iterator[pa.Table]:
    """The control records of a topic-partition, a table a chunk; user data and other control records are left out.

    Returns:
        Columns of schemas/tables/decoded_records.yaml, in log order.
    """
    for records, groups in decode_control_log(log, window):
        yield _table(records, groups, log)


def _table(records: ControlRecords, groups: GroupTable, log: LogPartition) -> pa.Table:
    rows, count = records.rows, len(records.rows)
    groupless = rows["group"] < 0
    valueless = groupless | (rows["fault"] & UNREADABLE != 0)
    no_checkpoint = valueless | (rows["kind"] != ControlKind.CHECKPOINT)
    no_delta = valueless | (rows["kind"] != ControlKind.DELTA)
    columns = {
        "dialect": pa.repeat(DIALECT, count),
        "group_id": groups.names().take(pa.array(rows["group"].copy(), mask=groupless)),
        "topic": pa.repeat(log.topic, count),
        "partition": pa.repeat(pa.scalar(log.partition, pa.int32()), count),
        "offset": pa.array(rows["offset"].copy()),
        "timestamp": times(rows["timestamp"]),
        "kind": _KINDS.take(pa.array(rows["kind"].copy())),
        "snapshot_epoch": pa.array(rows["epoch"].copy(), mask=valueless),
        "start_offset": pa.array(rows["start_offset"].copy(), mask=no_checkpoint),
        "end_offset": pa.array(rows["end_offset"].copy(), mask=no_checkpoint),
        "back_offset": pa.array(rows["back_offset"].copy(), mask=no_delta),
        "state_batches": batch_lists(np.concatenate(([0], np.cumsum(rows["tuple_count"]))), records.tuples),
        "fault": fault_names(rows["fault"], ControlFault),
    }
    return declared("decoded_records", columns)
