"""Folds the decoded records of one share-partition, for `groupBy("group_id", "topic_id", "partition").applyInArrow`."""

import pyarrow as pa
import pyarrow.compute as pc

from share_state.errors import InputError
from share_state.fold.decoded_fold import by_log, check_decoded, fold_decoded, sorted_by_log
from share_state.fold.states import CONTROL_RECORDS
from share_state.schema.declarations import table, table_schema

FOLD_GROUP_SCHEMA = ", ".join(
    f"`{column.name}` {column.type}" for column in table("share_partition_state")[1]
)
"""The columns of `share_partition_state` in Spark's DDL."""


def fold_group(records: pa.Table) -> pa.Table:
    """Fold the decoded records of one share-partition into its state.

    Unlike a log, the records do not show the log start offset and the end offset of the topic-partition.
    Missing records, and records with an unreadable key, do not mark the state as suspect.
    `fold_records` folds many share-partitions in one call.

    Args:
        records: columns of `decoded_records`, in any order.
    Returns:
        Its row of `share_partition_state`, one for each state partition with its records; no row if it has no state.
    Raises:
        InputError: if a column is missing, or the records are of several share-partitions.
    Source: Kafka ShareCoordinatorShard.replay; KIP-932 draft, recovery.
    """
    check_decoded("fold_group", records.column_names)
    # Arrow filters a table at ten times the cost of looking whether it must.
    if pc.any(is_skipped := pc.equal(records["kind"], "skipped")).as_py():
        records = records.filter(pc.invert(is_skipped))
    if not len(records):
        return table_schema("share_partition_state").empty_table()
    has_control = pc.any(pc.equal(records["dialect"], CONTROL_RECORDS)).as_py()
    by = ("group_id", "topic" if has_control else "topic_id", "partition")
    if mixed := [name for name in ("dialect", *by) if len(pc.unique(records[name])) > 1]:
        raise InputError(
            f"fold_group: records of several values of {mixed[0]} in a group; group by {', '.join(by)}"
        )
    folded = (fold_decoded(log, tables)[0].states for log, tables in by_log([sorted_by_log(records)]))
    return pa.concat_tables([table_schema("share_partition_state").empty_table(), *folded])
