"""Builds the tables `timeline` and `decoded_records`: the records of a log with and without the states after them."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from share_state.fold.dialect import LogReader, dialect_of
from share_state.fold.fold_options import FoldOptions, SharePartitionFilter
from share_state.fold.states import RecordStates, batch_lists, declared_table, fault_names, to_timestamps
from share_state.schema.declarations import table_schema
from share_state.sources.as_of import Window
from share_state.sources.log_partition import LogPartition

TIMELINE = "timeline"


def timeline_tables(
    log: LogPartition,
    window: Window | None = None,
    key_filter: SharePartitionFilter | None = None,
    options: FoldOptions | None = None,
) -> Iterator[pa.Table]:
    """The table `timeline` of a log, in pieces.

    Args:
        log: a log partition from `find_logs` or `find_topic_logs`.
        window: selects records; all by default.
        key_filter: selects share-partitions; all by default.
        options: names of topics; the mode of control records.
    Returns:
        Columns of schemas/tables/timeline.yaml, one row per readable record. The state is null after a
        tombstone and before the first checkpoint. The rows of one share-partition are in log order.
    Raises:
        InputError: if a segment cannot be read.
    Source: Kafka ShareCoordinatorShard.replay; KIP-932 draft, recovery.
    """
    key_filter, dialect = key_filter or SharePartitionFilter(), dialect_of(log)
    reader = dialect.open(log, window or Window(), options or FoldOptions())
    if not reader.may_match(key_filter):
        return
    kinds, selected = pa.array(dialect.kinds), np.zeros(0, bool)
    for records in reader.chunks():
        if len(reader) > len(selected):
            selected = reader.selected(key_filter)
        for states in reader.replay(records, selected):
            yield _table(reader, states, reader.view(states.rows, records).numbers, kinds)


def _table(reader: LogReader, states: RecordStates, numbers: np.ndarray, kinds: pa.Array) -> pa.Table:
    exists, rows = states.chains["exists"], states.rows
    after = reader.state_table(states.existing())
    columns = reader.key_columns(numbers)
    if not exists.all():
        after = after.take(pa.array(np.cumsum(exists) - 1, mask=~exists))
    columns = {
        name: after[name].combine_chunks()
        for name in table_schema(TIMELINE).names
        if name in after.column_names and name not in columns
    } | columns
    columns |= {
        "state_partition": pa.repeat(pa.scalar(reader.state_partition, pa.int32()), len(rows)),
        "offset": pa.array(rows["offset"].copy()),
        "timestamp": to_timestamps(rows["timestamp"]),
        "kind": kinds.take(pa.array(rows["kind"].copy())),
    }
    return declared_table(TIMELINE, columns)


def decoded_tables(
    log: LogPartition, window: Window, options: FoldOptions | None = None
) -> Iterator[pa.Table]:
    """The records of a log, one table per chunk; for an ordinary topic only its control records.

    Args:
        log, window, options: as for `timeline_tables`.
    Returns:
        Columns of schemas/tables/decoded_records.yaml, in log order.
    Raises:
        InputError: if a segment cannot be read.
    """
    dialect = dialect_of(log)
    reader, kinds = dialect.open(log, window, options or FoldOptions()), pa.array(dialect.kinds)
    for records in reader.chunks():
        rows, count = records.rows, len(records.rows)
        view = reader.view(rows, records)
        # Ranges are stored in record order, so their counts give the end of each list.
        ends = np.concatenate(([0], np.cumsum(view.range_counts)))
        columns = reader.key_columns(view.numbers) | {
            "state_partition": pa.repeat(pa.scalar(reader.state_partition, pa.int32()), count),
            "offset": pa.array(rows["offset"].copy(), mask=np.full(count, not log.has_offsets)),
            "timestamp": to_timestamps(np.where(log.has_times, rows["timestamp"], 0)),
            "kind": kinds.take(pa.array(rows["kind"].copy())),
            "state_batches": batch_lists(ends, view.ranges),
            "fault": fault_names(rows["fault"], dialect.faults),
        }
        yield declared_table("decoded_records", columns | reader.value_columns(rows))
