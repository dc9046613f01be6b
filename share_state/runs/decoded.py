"""Decoded records, and the Delta table of them."""

from collections.abc import Iterator
from functools import partial

import pyarrow as pa

from share_state.runs.tasks import Tasks
from share_state.table_files import FILES, TableFiles
from share_state.task import ROWS_A_BATCH
from share_state.warehouse import Warehouse
from share_state.warehouse_place import check_place
from share_state.wire.log_folder import LogPartition
from share_state.work import Work

TABLE = "decoded_records"


def decoded(work: Work, log: LogPartition) -> Iterator[pa.RecordBatch]:
    """Every record of one log partition: columns of schemas/tables/decoded_records.yaml."""
    for table in work.decode(log):
        yield from table.combine_chunks().to_batches(max_chunksize=ROWS_A_BATCH)


def write_decoded(tasks: Tasks, work: Work, folder: str) -> int:
    """Write the decoded records as one Delta table, in place of an earlier one.

    Returns:
        How many records there are.
    Raises:
        WarehouseError: if the folder holds something else.
    """
    check_place(folder, tables=("_delta_log",))
    with Warehouse(folder.rstrip("/"), {TABLE: ""}) as tables:
        written = tasks.over_logs(work, partial(_written, work, tables.files), FILES).to_pylist()
        tables.replace(TABLE, written)
    return sum(file["rows"] for file in written)


def _written(work: Work, files: TableFiles, log: LogPartition) -> Iterator[pa.RecordBatch]:
    if written := files.write(TABLE, decoded(work, log)):
        yield pa.RecordBatch.from_pylist(written, schema=FILES)
