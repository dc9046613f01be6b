"""Rows that lack what only a whole run can tell: set aside where they are made, finished once it is known."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

import pyarrow as pa

from share_state.table_files import File, TableFiles, asking, filesystem_of

Finished = Callable[[pa.Table], pa.Table]
"""The rows of a table from those of a draft."""


def write_draft(files: TableFiles, table: str, batches: Iterable[pa.RecordBatch]) -> list[File]:
    """Set rows aside in the folder of their table; no commit names them, so they go with the attempt.

    Args:
        files: of the attempt.
        table: its name.
        batches: of the rows, all of one schema, which need not be the table's.
    Returns:
        What was written; no file where there is no row.
    Raises:
        WarehouseError: if a store says no.
    """
    rows = (batch for batch in batches if batch.num_rows)
    first, count = next(rows, None), 0
    if first is None:
        return []
    name, sink = files.new_file(table, "arrows")
    with asking(files.folder(table)), sink:
        with pa.ipc.new_stream(sink, first.schema) as stream:
            for batch in chain((first,), rows):
                stream.write_batch(batch)
                count += batch.num_rows
        size = sink.tell()
    return [{"table": table, "path": name, "size": size, "rows": count, "stats": None}]


def finish_drafts(files: TableFiles, drafts: Sequence[File], finished: Finished) -> list[File]:
    """Write the rows of drafts of one table as files of that table.

    Args:
        files: of the attempt that wrote them.
        drafts: of `write_draft`.
        finished: what becomes of their rows, some thousand at a time.
    Raises:
        WarehouseError: if a store says no.
    """
    if not drafts:
        return []
    ready = (finished(rows) for draft in drafts for rows in _rows(files, draft))
    return files.write(drafts[0]["table"], (batch for table in ready for batch in table.to_batches()))


def _rows(files: TableFiles, draft: File) -> Iterator[pa.Table]:
    place = f"{files.folder(draft['table'])}/{draft['path']}"
    with asking(place):
        filesystem, path = filesystem_of(place)
        with filesystem.open_input_stream(path) as source, pa.ipc.open_stream(source) as stream:
            for batch in stream:
                yield pa.Table.from_batches([batch])
