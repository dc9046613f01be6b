"""Tasks of a run that Spark's workers do."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession

from share_state.drafts import Finished, finish_drafts
from share_state.spark.numbered_tasks import in_tasks
from share_state.spark.plan import fold_all, over_logs
from share_state.table_files import FILES, File, TableFiles
from share_state.task import Made, Wanted
from share_state.work import Work

FEW_ROWS = 128 << 10
"""Finished here, since starting tasks takes longer."""


@dataclass(frozen=True, slots=True)
class SparkTasks:
    """Runs what is asked of every log partition in Spark's tasks; as `share_state.runs.tasks.Tasks`.

    Attributes:
        spark: a session.
    """

    spark: SparkSession

    def fold(self, work: Work, wanted: Wanted) -> pa.Table:
        """Fold and judge every log partition: rows of `wanted.schema`."""
        return fold_all(self.spark, work, wanted).toArrow()

    def over_logs(self, work: Work, made: Made, schema: pa.Schema) -> pa.Table:
        """What is made of every log partition of some work: batches of `schema` for each."""
        return over_logs(self.spark, work, made, schema).toArrow()

    def finish(self, files: TableFiles, drafts: Sequence[File], finished: Finished) -> list[File]:
        """Write what tasks set aside as files of its table, in tasks again where there is much of it."""
        if sum(draft["rows"] for draft in drafts) <= FEW_ROWS:
            return finish_drafts(files, drafts, finished)
        count = min(len(drafts), self.spark.sparkContext.defaultParallelism)

        def run(number: int) -> Iterator[pa.RecordBatch]:
            yield pa.RecordBatch.from_pylist(finish_drafts(files, drafts[number::count], finished), schema=FILES)

        return in_tasks(self.spark, count, run, FILES).toArrow().to_pylist()
