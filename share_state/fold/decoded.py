"""The table `decoded_records`: the records of a log before any fold."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from share_state.fold.dialect import dialect_of
from share_state.fold.options import FoldOptions
from share_state.fold.states import batch_lists, declared_table, fault_names, to_timestamps
from share_state.sources.as_of import Window
from share_state.sources.discovery import LogPartition


def decoded_tables(log: LogPartition, window: Window, options: FoldOptions | None = None) -> Iterator[pa.Table]:
    """The records of a log, one table per chunk; of an ordinary topic only its control records.

    Args:
        log: a log partition from `find_logs` or `find_topic_logs`.
        window: which records count.
        options: names of topics.
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
