"""What a fold gives.

Tables that a call leaves in a warehouse, and reads back.

Findings of the rules over groups where the state comes out of Spark's tasks: judged there, once asked for.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from share_state.errors import SetupError
from share_state.pipeline.groups import GroupSide
from share_state.pipeline.plan import Work
from share_state.pipeline.task import FINDINGS, STATE
from share_state.rules.group_context import STATE_COLUMNS
from share_state.schema.declarations import table_schema
from share_state.sources.as_of import AsOf

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from share_state.pipeline.executor import Tasks


RESULTS = ("share_partition_state", "in_flight", "findings", "cutoff")


@dataclass(frozen=True, slots=True, repr=False)
class Tables:
    """What a fold gives: Arrow tables, or Spark DataFrames where a session was given.

    Attributes:
        share_partition_state: one row a live share-partition.
        in_flight: one row a range of offsets between SPSO and SPEO; they tile it.
        findings: one row a broken rule.
        cutoff: one row a log partition.
        share_groups: one row a share group; None, as those below, where the input has no group side.
        share_group_members: one row a member.
        share_group_partitions: one row a share-partition that a group lists.
        sticky_claim: one row a partition that a member of a classic consumer group claims; None where none does.
        effective_previous_assignment: one row such a partition, with who had it; None where there is no claim.
    """

    share_partition_state: Any
    in_flight: Any
    findings: Any
    cutoff: Any
    share_groups: Any = None
    share_group_members: Any = None
    share_group_partitions: Any = None
    sticky_claim: Any = None
    effective_previous_assignment: Any = None

    def __repr__(self) -> str:
        tables = {one.name: getattr(self, one.name) for one in fields(self)}
        sizes = (
            f"{name}: {len(t):,} rows" if isinstance(t, pa.Table) else f"{name}: {t}"
            for name, t in tables.items()
            if t is not None
        )
        return f"Tables({', '.join(sizes)})"


def written(
    spark: "SparkSession | None",
    work: Work,
    warehouse: str,
    inputs: Sequence[str],
    as_of: AsOf | None = None,
    rules: Mapping[str, str] | None = None,
) -> Tables:
    """Fold logs into a warehouse.

    Args:
        spark: a session with Delta; without one the logs are folded here.
        work: the log partitions, and how they are folded.
        warehouse: folder of the tables.
        inputs: what the person named, for the table `runs`.
        as_of: the moment that is meant, for the table `runs`.
        rules: rule -> severity or "off", for the table `runs`.
    Returns:
        DataFrames of the Delta versions that this run wrote, or their rows in Arrow where there is no session.
    Raises:
        WarehouseError: if the folder holds something else, or cannot be written.
    """
    from share_state.delta.warehouse import locked  # noqa: PLC0415
    from share_state.pipeline.reconstruct import run_reconstruct as job  # noqa: PLC0415  Delta is slow to import

    options = {"as_of": str(as_of or ""), "rules": ",".join(f"{k}={v}" for k, v in (rules or {}).items())}
    with locked(warehouse, "reconstruct"):
        job(_tasks(spark), work, warehouse, inputs=tuple(inputs), options=options)
    return _committed(spark, warehouse)


def check_writable(session: "SparkSession | None", warehouse: str) -> None:
    """Refuse what cannot be written before rows are read, which may take long.

    Raises:
        SetupError: if the session knows no Delta, which reads a warehouse in a folder back.
        WarehouseError: if the folder holds something else.
    """
    from share_state.delta.warehouse import check_place  # noqa: PLC0415

    in_folder = session is not None and "://" not in warehouse
    if in_folder and "io.delta" not in (session.conf.get("spark.sql.extensions", "") or ""):
        raise SetupError("this Spark session has no Delta; open it with share_state.session()")
    check_place(warehouse)


def _tasks(spark: "SparkSession | None") -> "Tasks":
    if spark is None:
        from share_state.pipeline.executor import TasksHere  # noqa: PLC0415

        return TasksHere()
    from share_state.spark.executor import SparkTasks  # noqa: PLC0415  Spark only where it is used

    return SparkTasks(spark)


def _committed(spark: "SparkSession | None", warehouse: str) -> Tables:
    from share_state.delta.reader import CommittedTables  # noqa: PLC0415

    tables = CommittedTables(warehouse)
    names = [one.name for one in fields(Tables) if tables.holds(one.name)]
    if spark is None:
        return Tables(**{name: tables.read(name) for name in names})
    from share_state.spark.executor import committed_frame  # noqa: PLC0415

    return Tables(**{name: committed_frame(spark, tables, name) for name in names})


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
