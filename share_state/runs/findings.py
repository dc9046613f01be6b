"""The findings of a run as files: those of the tasks, and those that the driver has."""

from collections.abc import Iterable

import pyarrow as pa

from share_state.outcome import Outcome
from share_state.runs.tasks import Tasks
from share_state.table_files import File, TableFiles
from share_state.task import FINDINGS


def write_findings(tasks: Tasks, outcome: Outcome, files: TableFiles, others: Iterable[pa.Table]) -> list[File]:
    """Write the findings of a run.

    Args:
        tasks: that finish what others have set aside.
        outcome: of the run, with what its tasks found set aside.
        files: where to.
        others: findings of the run that the driver made.
    """
    run_id = outcome.run_id

    def of_the_run(rows: pa.Table) -> pa.Table:
        place = rows.schema.get_field_index("run_id")
        return rows.set_column(place, "run_id", pa.repeat(run_id, len(rows)))

    mine = (batch for table in others for batch in of_the_run(table).to_batches())
    return tasks.finish(files, outcome.files_of(FINDINGS), of_the_run) + files.write(FINDINGS, mine)
