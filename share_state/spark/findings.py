"""The findings of a run as files: those of the tasks, and those that the driver has."""

from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql import DataFrame

from share_state.outcome import Outcome
from share_state.spark.plan import result_table, write_rows
from share_state.table_files import File, TableFiles
from share_state.task import FINDINGS


def write_findings(results: DataFrame, outcome: Outcome, files: TableFiles, others: Iterable[pa.Table]) -> list[File]:
    """Write the findings of a run.

    Args:
        results: of `fold_all`, with the tasks' findings.
        outcome: of the run.
        files: where to.
        others: findings of the run that the driver made.
    """
    run_id, told = outcome.run_id, sum(outcome.findings.values())

    def of_the_run(rows: pa.Table) -> pa.Table:
        place = rows.schema.get_field_index("run_id")
        return rows.set_column(place, "run_id", pa.array([run_id] * len(rows), pa.string()))

    mine = [of_the_run(table) for table in others]
    in_tasks = told - sum(map(len, mine))
    written = write_rows(result_table(results, FINDINGS), files, FINDINGS, of_the_run) if in_tasks else []
    return written + files.write(FINDINGS, (batch for table in mine for batch in table.to_batches()))
