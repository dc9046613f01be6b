"""Merges changed rows into a Delta table file by file: files that hold none of the changed keys stay as they are.

Rows that changed together go into a file of their own, so share-partitions that change often leave the files of
those that rest.
"""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.delta.merge import key_runs, not_deleted
from share_state.delta.parquet_files import TEXTS, write_group
from share_state.delta.reader import list_files, needs_scan, open_dataset

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

_LEAST_BYTES = 4 << 20
_MOST_LARGE, _MOST_SMALL = 24, 8
"""A large file has a 24th of the rows, or 4 MB in memory; of smaller ones, no more than 8 stay."""

_PLAIN_FEATURES = {"appendOnly", "invariants", "changeDataFeed", "deletionVectors", "timestampNtz", "v2Checkpoint",
                   "domainMetadata", "clustering"}  # fmt: skip
"""Writer features that do not change what a commit of files must hold; others are left to delta-rs."""
_CHECKED = "delta.constraints."


def is_plain(table: "DeltaTable") -> bool:
    """Whether files can be added to a table as they are: no feature of it asks for more."""
    protocol, metadata = table.protocol(), table.metadata()
    return not (
        needs_scan(table)
        or metadata.partition_columns
        or {*(protocol.writer_features or ())} - _PLAIN_FEATURES
        or any(name.startswith(_CHECKED) for name in metadata.configuration)
    )


@dataclass(frozen=True, slots=True)
class _File:
    """The rows of a file, and the `key_runs` of them, in a table with a key."""

    rows: pa.Table
    keys: pa.Array = field(default_factory=lambda: pa.array([], pa.binary()))
    counts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass(slots=True)
class TableFiles:
    """The files of one table; their rows stay in memory, which costs less than to read them for each merge.

    Attributes:
        table: its name.
        place: its folder.
    """

    table: str
    place: str
    _files: dict[str, _File] = field(default_factory=dict)

    def merge(
        self,
        existing: "DeltaTable",
        rows: pa.Table,
        key: Sequence[str],
        properties: "CommitProperties",
        at_once: int = 1,
    ) -> list[str]:
        """Commit changed rows: they replace those with the same key.

        Args:
            existing: the latest version of the table; `is_plain`.
            rows: columns of the table, and DELETED.
            key: names of columns, the same at each call; empty to replace all rows.
            properties: of the commit.
            at_once: how many files are written side by side.
        Returns:
            The paths of files that are replaced.
        """
        from deltalake.transaction import RemoveAction  # noqa: PLC0415  slow to import

        schema = pa.schema(existing.schema())
        listed = {file["path"]: file for file in list_files(existing)}
        new = encoded(not_deleted(rows), schema)
        width = new.nbytes / max(1, len(new)) or 1.0
        large = max(
            _LEAST_BYTES, width * sum(file["num_records"] or 0 for file in listed.values()) / _MOST_LARGE
        )
        pooled, separate = list[pa.Table](), list[_File]()
        gone = [*listed]
        if key:
            pooled, separate, gone = self._replaced(listed, rows, key, schema, large / width)
        joined = _parts(_joined([new, *pooled]), large)
        written = [
            *(_File(piece, *key_runs(piece, key)) if key else _File(piece) for piece in joined),
            *separate,
        ]
        with ThreadPoolExecutor(at_once) as threads:
            actions: list[Any] = [*threads.map(lambda file: write_group(self.place, file.rows), written)]
        paths = [action.path for action in actions]
        now = int(time.time() * 1000)
        actions += [RemoveAction(path, True, now, listed[path]["size_bytes"], {}) for path in gone]
        existing.create_write_transaction(actions, "append", existing.schema(), commit_properties=properties)
        for path in gone:
            self._files.pop(path, None)
        if key:
            self._files |= dict(zip(paths, written, strict=True))
        return gone

    def _replaced(
        self,
        listed: Mapping[str, Mapping[str, Any]],
        rows: pa.Table,
        key: Sequence[str],
        schema: pa.Schema,
        large: float,
    ) -> tuple[list[pa.Table], list[_File], list[str]]:
        """Rows to write again with the changed ones; those to write to files of their own; and the paths of both."""
        for path in self._files.keys() - listed.keys():
            # Another program, such as OPTIMIZE, has replaced it.
            del self._files[path]
        changed = key_runs(rows, key)[0].unique()
        pooled, separate = list[pa.Table](), list[_File]()
        gone, small = list[str](), list[str]()
        for path in listed:
            if path not in self._files:
                read = open_dataset(self.table, [f"{self.place}/{path}"], encoded=True).to_table()
                held = encoded(read, schema)
                self._files[path] = _File(held, *key_runs(held, key))
            file = self._files[path]
            stays = pc.invert(pc.is_in(file.keys, changed)).to_numpy(zero_copy_only=False)
            if stays.all():
                if len(file.rows) < large / 2:
                    small.append(path)
                continue
            left = file.rows.filter(pa.array(np.repeat(stays, file.counts)))
            if len(left) >= large / 2:
                separate.append(_File(left, file.keys.filter(pa.array(stays)), file.counts[stays]))
            else:
                pooled.append(left)
            gone.append(path)
        if len(small) > _MOST_SMALL:
            pooled += [self._files[path].rows for path in small]
            gone += small
        return pooled, separate, gone


def encoded(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows with the columns of a table in its order, texts as dictionaries; columns that they lack are null."""
    columns = list[pa.ChunkedArray]()
    for one in schema:
        kind = TEXTS if pa.types.is_string(one.type) else one.type
        column = rows[one.name] if one.name in rows.column_names else pa.nulls(len(rows), one.type)
        if kind == TEXTS and not pa.types.is_dictionary(column.type):
            column = column.cast(pa.string()).dictionary_encode()
        columns.append(column if column.type == kind else column.cast(kind))
    return pa.table(columns, schema.names)


def _joined(pieces: Sequence[pa.Table]) -> pa.Table:
    """Rows with one dictionary for each column of texts, which holds no more texts than there are rows."""
    whole = pa.concat_tables(pieces).unify_dictionaries()
    for place, column in enumerate(whole.columns):
        if column.type == TEXTS and column.num_chunks and len(column.chunk(0).dictionary) > len(whole):
            # Of rows that are gone.
            fresh = column.cast(pa.string()).combine_chunks().dictionary_encode()
            whole = whole.set_column(place, whole.column_names[place], fresh)
    return whole


def _parts(rows: pa.Table, most_bytes: float) -> list[pa.Table]:
    """Rows in equal parts of about so many bytes, each in one piece of its own memory; none for no row."""
    count = min(len(rows), max(1, round(rows.nbytes / most_bytes)))
    if count == 1:
        return [rows.combine_chunks()]
    bounds = [len(rows) * number // max(1, count) for number in range(count + 1)]
    return [_copied(rows.slice(begin, end - begin)) for begin, end in pairwise(bounds)]


def _copied(rows: pa.Table) -> pa.Table:
    """Rows in one piece, which is no slice of others."""
    # What is in one piece stays a slice; two pieces become one by copying bytes, which `take` does not.
    return pa.concat_tables([rows.slice(0, 1), rows.slice(1)]).combine_chunks()
