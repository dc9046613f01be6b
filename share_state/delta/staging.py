"""Rows that the tasks of a run stage in Arrow files below its output, until a commit writes them to Delta tables."""

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pyarrow as pa
from pyarrow.fs import LocalFileSystem

from share_state.delta.reader import open_filesystem, warehouse_errors

STAGED_SCHEMA = pa.schema([("table", pa.string()), ("path", pa.string()), ("rows", pa.int64())])
"""A staged file: the table that its rows are for, its name, and their number."""

StagedFile = Mapping[str, Any]
"""The fields of STAGED_SCHEMA."""

STAGING_PREFIX = ".staged-"
"""Begins the name of a run's folder, which is hidden, so that readers of tables skip it."""

_READ_BYTES = 4 << 20
"""Without a buffer, each column of each batch is a request to an object store."""


@dataclass(frozen=True, slots=True)
class Staging:
    """A folder for the rows of one run; travels to tasks.

    Attributes:
        root: the output of the run, a folder or an address.
        attempt: part of the folder's name.
    """

    root: str
    attempt: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def folder(self) -> str:
        """Path or address of the folder."""
        return f"{self.root}/{STAGING_PREFIX}{self.attempt}"

    def write(self, table: str, batches: Iterable[pa.RecordBatch]) -> list[StagedFile]:
        """Write rows to a file.

        Args:
            table: the table that they are for.
            batches: batches of one schema, which may differ from the table's.
        Returns:
            The file; none if there is no row.
        Raises:
            WarehouseError: if it cannot be written.
        """
        rows = (batch for batch in batches if batch.num_rows)
        first = next(rows, None)
        name = f"{table}-{uuid.uuid4().hex}.arrows"
        count = 0
        if first is None:
            return []
        with warehouse_errors(self.folder):
            filesystem, folder = open_filesystem(self.folder)
            if isinstance(filesystem, LocalFileSystem):
                filesystem.create_dir(folder, recursive=True)
            sink = filesystem.open_output_stream(f"{folder}/{name}")
            with sink, pa.ipc.new_stream(sink, first.schema) as stream:
                for batch in chain((first,), rows):
                    stream.write_batch(batch)
                    count += batch.num_rows
        return [{"table": table, "path": name, "rows": count}]

    def read(self, file: StagedFile, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """The rows of a file as they were staged, some thousand at a time; by default all columns.

        Raises:
            WarehouseError: if it cannot be read.
        """
        with warehouse_errors(self.folder):
            filesystem, folder = open_filesystem(self.folder)
            staged = filesystem.open_input_stream(f"{folder}/{file['path']}", buffer_size=_READ_BYTES)
            with staged as source, pa.ipc.open_stream(source) as rows:
                for batch in rows:
                    yield pa.Table.from_batches([batch if columns is None else batch.select(list(columns))])
