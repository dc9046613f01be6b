"""What makes rows of different tables, or of different nights, be about the same share-partition."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

KEY = ("dialect", "group_id", "topic_id", "topic", "partition")
"""Columns of schemas/tables/share_partition_key.yaml."""

IDENTITY = ("dialect", "group_id", "topic_key", "partition")
"""The key without what may become known later: the name of a topic that has an id."""


def identified(rows: pa.Table) -> pa.Table:
    """Rows with the column `topic_key`: the topic's id, or its name where it has none."""
    return rows.append_column("topic_key", pc.coalesce(rows["topic_id"], rows["topic"]))


def looked_up(rows: pa.Table, known: pa.Table | None, columns: dict[str, pa.DataType]) -> pa.Table:
    """Rows with columns of another table beside them.

    Args:
        rows: one row a share-partition, with the columns of IDENTITY.
        known: at most one row a share-partition, with these and `columns`; None, or no row, where nothing is known.
        columns: name -> type of the columns to look up.
    Returns:
        The rows, in any order; null where nothing is known.
    """
    if known is None or not known.num_rows:
        for name, kind in columns.items():
            rows = rows.append_column(name, pa.nulls(rows.num_rows, kind))
        return rows
    return rows.join(known.select([*IDENTITY, *columns]), keys=list(IDENTITY), join_type="left outer")


def may_be_among(wanted: pa.Table) -> pc.Expression:
    """A filter that a reader can use: true at least for the rows of these share-partitions.

    Args:
        wanted: with the columns `group_id` and `partition`.
    """
    groups, partitions = wanted["group_id"].unique(), wanted["partition"].unique()
    return pc.field("group_id").isin(groups) & pc.field("partition").isin(partitions)


def placed(rows: pa.Table) -> pa.Table:
    """Rows with the column `place`: their numbers from 0 on."""
    return rows.append_column("place", pa.array(np.arange(rows.num_rows)))


def among(rows: pa.Table, wanted: pa.Table) -> pa.Table:
    """The rows of these share-partitions.

    Args:
        rows: with the columns of KEY.
        wanted: with the columns of IDENTITY and `place`, a number.
    Returns:
        Those rows with the column `place`, in any order.
    """
    return identified(rows).join(wanted.select([*IDENTITY, "place"]), keys=list(IDENTITY), join_type="inner")
