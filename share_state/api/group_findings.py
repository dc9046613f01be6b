"""Findings of the rules over groups where the state comes out of Spark's tasks: judged there, once asked for."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from share_state.declarations import table_schema
from share_state.group_side import GroupSide
from share_state.rules.groups_stated import STATE_COLUMNS
from share_state.task import FINDINGS, STATE
from share_state.work import Work

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def group_findings(states: "DataFrame", side: GroupSide, work: Work) -> "DataFrame":
    """Hold the group side against the folded state, in one task.

    Args:
        states: lazy, the columns of schemas/tables/share_partition_state.yaml.
        side: the group side; it travels to the task.
        work: what was read of the state side.
    Returns:
        A lazy DataFrame with the columns of schemas/tables/findings.yaml.
    """
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415  Spark only where it is used

    found, of_states = table_schema(FINDINGS), table_schema(STATE)
    empty = pa.schema([of_states.field(name) for name in STATE_COLUMNS]).empty_table()

    def judged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = [pa.Table.from_batches([batch]).cast(empty.schema) for batch in batches]
        yield from side.judge(pa.concat_tables([empty, *rows]), work).cast(found).to_batches()

    return states.select(*STATE_COLUMNS).coalesce(1).mapInArrow(judged, from_arrow_schema(found))
