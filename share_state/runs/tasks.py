"""What a run needs of the place where its tasks are: this process, or Spark's workers."""

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from share_state.drafts import Finished
from share_state.table_files import File, TableFiles
from share_state.task import Made, Wanted
from share_state.work import Work


class Tasks(Protocol):
    """Runs what is asked of every log partition."""

    def fold(self, work: Work, wanted: Wanted) -> pa.Table:
        """Fold and judge every log partition.

        Returns:
            Rows of `wanted.schema`.
        Raises:
            InputError: if a segment cannot be read.
        """
        ...

    def over_logs(self, work: Work, made: Made, schema: pa.Schema) -> pa.Table:
        """What is made of every log partition of some work: batches of `schema` for each."""
        ...

    def finish(self, files: TableFiles, drafts: Sequence[File], finished: Finished) -> list[File]:
        """Write what tasks set aside as files of its table, as `share_state.drafts.finish_drafts`."""
        ...
