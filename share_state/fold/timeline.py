"""The table `timeline`: the state of share-partitions after every record."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from share_state.fold.dialect import LogReader, dialect_of
from share_state.fold.options import FoldOptions, SharePartitionFilter
from share_state.fold.states import RecordStates, declared_table, to_timestamps
from share_state.schema.declarations import table_schema
from share_state.sources.as_of import AsOfPoint, Window, as_of_window
from share_state.sources.discovery import LogPartition

TIMELINE = "timeline"


def timeline_tables(
    log: LogPartition,
    window: Window | None = None,
    chosen: SharePartitionFilter | None = None,
    options: FoldOptions | None = None,
    *,
    as_of: AsOfPoint | None = None,
) -> Iterator[pa.Table]:
    """The table `timeline` of a log, in pieces.

    Args:
        log: a log partition from `find_logs` or `find_topic_logs`.
        window: which records count; all of them by default.
        chosen: the share-partitions; all of them by default.
        options: names of topics; the mode of control records.
        as_of: in place of a window: an offset, a time or its ISO 8601 text; later records do not count.
    Returns:
        Columns of schemas/tables/timeline.yaml, one row per readable record. The state is null after a tombstone and
        before the first checkpoint. The rows of one share-partition are in log order.
    Raises:
        InputError: if a segment cannot be read.
    Source: Kafka ShareCoordinatorShard.replay; KIP-932 draft, recovery.
    """
    chosen, dialect = chosen or SharePartitionFilter(), dialect_of(log)
    reader = dialect.open(log, window or as_of_window(as_of), options or FoldOptions())
    if not reader.may_match(chosen):
        return
    kinds, selected = pa.array(dialect.kinds), np.zeros(0, bool)
    for records in reader.chunks():
        if len(reader) > len(selected):
            selected = reader.selected(chosen)
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
