"""Folds the decoded records of one share-partition, for `groupBy("group_id", "topic_id", "partition").applyInArrow`."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.errors import InputError
from share_state.fold.dialect import CONTROL_DIALECT, STATE_DIALECT, Dialect
from share_state.fold.draft.control_chains import fold_control, is_suspect
from share_state.fold.state_chains import NO_OFFSET, Chains
from share_state.fold.state_replay import LAYOUTS
from share_state.fold.states import (
    CONTROL_RECORDS,
    KEY,
    control_state_table,
    existing_chains,
    read_batch_lists,
    state_table,
)
from share_state.kafka.control_records import CONTROL_RECORD, ControlRecords
from share_state.kafka.state_records import STATE_BATCH, STATE_RECORD, StateRecords
from share_state.schema.declarations import table, table_schema

FOLD_GROUP_SCHEMA = ", ".join(
    f"`{column.name}` {column.type}" for column in table("share_partition_state")[1]
)
"""The columns of `share_partition_state` in Spark's DDL."""

_TIMES = ("timestamp", "create_time", "write_time")


def fold_group(records: pa.Table) -> pa.Table:
    """Fold the decoded records of one share-partition into its state.

    Unlike a log, the records do not show the log start offset and the end offset of the topic-partition.
    Missing records, and records with an unreadable key, do not mark the state as suspect.

    Args:
        records: columns of `decoded_records`, in any order.
    Returns:
        Its row of `share_partition_state`; no row if it has no state.
    Raises:
        InputError: if a column is missing, or the records are of several share-partitions.
    Source: Kafka ShareCoordinatorShard.replay; KIP-932 draft, recovery.
    """
    if missing := [
        name for name in table_schema("decoded_records").names if name not in records.column_names
    ]:
        raise InputError(
            f"fold_group: no column {', '.join(missing)}; give those of decoded_records, see share_state.read"
        )
    records = records.filter(pc.field("kind") != "skipped")
    if not len(records):
        return table_schema("share_partition_state").empty_table()
    has_control = pc.any(pc.equal(records["dialect"], CONTROL_RECORDS)).as_py()
    by = ("group_id", "topic" if has_control else "topic_id", "partition")
    if mixed := [name for name in ("dialect", *by) if len(pc.unique(records[name])) > 1]:
        raise InputError(
            f"fold_group: records of several values of {mixed[0]} in a group; group by {', '.join(by)}"
        )
    if records["group_id"][0].as_py() is None:
        return table_schema("share_partition_state").empty_table()
    records = records.sort_by("offset").combine_chunks()
    key = {
        name: records[name].combine_chunks()[:1].cast(pa.int32() if name == "partition" else pa.string())
        for name in KEY
    }
    if has_control:
        return _fold_control(records, key)
    rows, batches = _rows(records, STATE_RECORD, STATE_DIALECT)
    rows["layout"] = _codes(records["layout"], LAYOUTS)
    rows["max_offset"] = (
        np.maximum.reduceat(np.append(batches["last"], -1), rows["batches"]) if len(batches) else -1
    )
    rows["max_offset"][rows["batch_count"] == 0] = -1
    chains = Chains()
    chains.apply(StateRecords(rows, batches), 1)
    live = existing_chains(chains)
    suspect = live.chains["suspect_offset"] != NO_OFFSET
    key = {name: column[: len(live.chains)] for name, column in key.items()}
    number = records["state_partition"][0].as_py()
    return state_table(live, key, number, suspect, pa.nulls(len(live.chains), pa.int64()))


def _fold_control(records: pa.Table, key: dict[str, pa.Array]) -> pa.Table:
    rows, tuples = _rows(records, CONTROL_RECORD, CONTROL_DIALECT)
    rows["epoch"] = records["snapshot_epoch"].fill_null(0).to_numpy()
    folded = fold_control(ControlRecords(rows, tuples), 1)
    live = existing_chains(Chains(folded.chains, folded.ends, folded.batches))
    key = {name: column[: len(live.chains)] for name, column in key.items()}
    suspect = is_suspect(live.chains)
    starts, topic_ends = live.chains["start_offset"].copy(), pa.nulls(len(live.chains), pa.int64())
    return control_state_table(live, key, starts, suspect, topic_ends)


def _rows(records: pa.Table, dtype: np.dtype, dialect: Dialect) -> tuple[np.ndarray, np.ndarray]:
    """The records as rows of the fold, and their STATE_BATCH rows."""
    rows = np.zeros(len(records), dtype)
    for name in {*(dtype.names or ())} & {*records.column_names} - {"kind", "layout", "fault"}:
        column = (
            records[name].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
            if name in _TIMES
            else records[name]
        )
        values = column.fill_null(0 if name in _TIMES else -1).to_numpy()
        rows[name] = values // 1000 if name in _TIMES else values
    rows["kind"] = _codes(records["kind"], pa.array(dialect.kinds))
    for text in records["fault"].unique().drop_null().to_pylist():
        bits = sum(dialect.faults[name] for name in text.split(","))
        rows["fault"][pc.call_function("equal", [records["fault"], text]).fill_null(False).to_numpy()] = bits
    lists = records["state_batches"].combine_chunks()
    counts = lists.value_lengths().fill_null(0).to_numpy()
    batches = np.zeros(len(lists.flatten()), STATE_BATCH)
    read_batch_lists(lists, batches)
    first, count = ("batches", "batch_count") if dtype == STATE_RECORD else ("tuples", "tuple_count")
    rows[first], rows[count] = np.cumsum(counts) - counts, counts
    return rows, batches


def _codes(texts: pa.ChunkedArray, names: pa.Array) -> np.ndarray:
    return pc.call_function("index_in", [texts], pc.SetLookupOptions(names)).to_numpy()
