"""The tables that a call returns, and those that it writes to a warehouse and reads back."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from share_state.errors import SetupError
from share_state.pipeline.executor import Executor
from share_state.pipeline.local_executor import LocalExecutor
from share_state.pipeline.plan import FoldPlan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_LOG = logging.getLogger("share_state")


@dataclass(frozen=True, slots=True, repr=False)
class Tables:
    """The tables of a fold: Arrow tables, or Spark DataFrames if a session was given.

    Attributes:
        share_partition_state: one row per live share-partition.
        in_flight: one row per range of offsets; the ranges cover SPSO to SPEO without gaps.
        findings: one row per violation of a rule.
        cutoff: one row per log partition.
        share_groups: one row per share group; this table and those below are None if the input has no group
            side.
        share_group_members: one row per member.
        share_group_partitions: one row per share-partition that a group lists.
        sticky_claim: one row per partition that a member of a classic consumer group claims; None if there is
            no claim.
        effective_previous_assignment: one row per claimed partition, with its owner; None if there is no
            claim.
        dead_letters: one row per record of the dead-letter topics; None if none are given.
        lost_dead_letters: one row per range of offsets that went through ARCHIVING and have no dead letter.
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
    dead_letters: Any = None
    lost_dead_letters: Any = None

    def __repr__(self) -> str:
        tables = {one.name: getattr(self, one.name) for one in fields(self)}
        sizes = (
            f"{name}: {len(t):,} rows" if isinstance(t, pa.Table) else f"{name}: {t}"
            for name, t in tables.items()
            if t is not None
        )
        return f"Tables({', '.join(sizes)})"


def write_tables(
    spark: "SparkSession | None",
    plan: FoldPlan,
    warehouse: str,
    inputs: Sequence[str],
    options: Mapping[str, str] | None = None,
    schema: str | None = None,
) -> Tables:
    """Fold logs into a warehouse.

    Args:
        spark: a session with Delta; None to fold in this process.
        plan: the log partitions, and how to fold them.
        warehouse: folder of the tables.
        inputs, options: as given, for the table `runs`.
        schema: `catalog.schema` of the tables, if `warehouse` is its location.
    Returns:
        DataFrames of the Delta versions that this run wrote; Arrow tables without a session.
    Raises:
        WarehouseError: if the folder holds something else, or cannot be written.
    """
    from share_state.delta.warehouse_place import warehouse_lock  # noqa: PLC0415
    from share_state.pipeline.reconstruct import audit_note, run_reconstruct  # noqa: PLC0415  Delta is slow to import

    texts = {**(options or {}), "judge": plan.judging}
    if (note := audit_note(warehouse)) is not None:
        _LOG.warning("%s", note)
    with warehouse_lock(warehouse, "reconstruct"):
        run_reconstruct(executor_of(spark, schema), plan, warehouse, inputs=tuple(inputs), options=texts)
    return _committed(spark, warehouse)


def check_writable(session: "SparkSession | None", warehouse: str) -> tuple[str, str | None]:
    """Refuse a warehouse that cannot be written, before the logs are read.

    Returns:
        Its folder or address; the schema, if `warehouse` is `catalog.schema`.
    Raises:
        SetupError: if the session has no Delta, which it needs to read a warehouse in a folder.
        WarehouseError: if the folder holds something else.
    """
    if session is None:
        from share_state.delta.warehouse_place import check_warehouse_path  # noqa: PLC0415

        check_warehouse_path(warehouse)
        return warehouse, None
    from share_state.spark.choice import ExecutorChoice, open_place  # noqa: PLC0415  imports Spark
    from share_state.spark.delta_writer import missing_support  # noqa: PLC0415

    if "://" not in warehouse and (missing := missing_support(session, warehouse)) is not None:
        raise SetupError(f"{missing}; open it with share_state.session()")
    with open_place(ExecutorChoice(), warehouse) as (choice, place):
        return place, choice.schema


def executor_of(spark: "SparkSession | None", schema: str | None = None) -> Executor[Any]:
    """The executor of a session; threads of this process without one."""
    if spark is None:
        return LocalExecutor()
    from share_state.spark.spark_executor import SparkExecutor  # noqa: PLC0415  imports Spark

    return SparkExecutor(spark, schema)


def _committed(spark: "SparkSession | None", warehouse: str) -> Tables:
    from share_state.delta.committed import CommittedTables  # noqa: PLC0415

    tables = CommittedTables(warehouse)
    names = [one.name for one in fields(Tables) if tables.holds(one.name)]
    if spark is None:
        return Tables(**{name: tables.read(name) for name in names})
    from share_state.spark.spark_executor import committed_frame  # noqa: PLC0415

    return Tables(**{name: committed_frame(spark, tables, name) for name in names})
