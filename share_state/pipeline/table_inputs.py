"""Tables as inputs: Parquet files and Delta tables are read where they lie, all else is put in order by Spark first."""

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from share_state.delta.files import TableCopies
from share_state.errors import InputError
from share_state.sources.discovery import STATE_TOPIC, LogPartition
from share_state.sources.object_stores import (
    Place,
    StorePath,
    delta_options,
    head_of,
    names_below,
    place,
    places,
    refusal,
)
from share_state.sources.table_plan import TableFile, TablePlan, plan, table_files
from share_state.sources.tables import Columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


OpenSpark = Callable[[], "SparkSession"]
"""Gives a session; asked only where one is needed."""

_NOT_DATA = ("_", ".")
_PARQUET = b"PAR1"
HEAD = 1 << 20
"""Bytes of a file that are enough to tell what it is."""


def table_logs(
    inputs: Sequence[str], columns: Columns, open_spark: OpenSpark, topics: Sequence[str] = (STATE_TOPIC,)
) -> tuple[list[LogPartition], set[str]]:
    """The log partitions that tables hold, and the topics whose rows are passed over.

    Args:
        inputs: Parquet or JSON files, folders of them, Delta tables, globs; several are one table.
        columns: what their columns are called.
        open_spark: gives the session that reads JSON, and puts tables in order that few readers could stream.
        topics: those that are wanted, first the one that must be there; a table without topics is of it.
    Raises:
        InputError: if an input cannot be used as such a table.
    """
    files, by_spark = list[TableFile](), list[tuple[str, str]]()
    for given in inputs:
        for path in _places(given):
            if (path / "_delta_log").is_dir():
                listed = _of_delta(path)
                by_spark += [("delta", str(path))] if listed is None else []
                files += listed or []
                continue
            head = _beginning(path)
            if head.startswith(_PARQUET):
                files += table_files(data_files(path), path)
            elif is_json_table(head):
                by_spark.append(("json", str(path)))
            else:
                raise InputError(f"{path}: neither Parquet nor lines of JSON with a record each; give such a table")
    found = TablePlan([], set(), is_in_order=False) if by_spark else plan(files, columns, topics)
    if found.is_in_order:
        return found.logs, found.other_topics
    from share_state.spark.inputs import ordered_logs, read_tables  # noqa: PLC0415  Spark only where needed

    named = [*by_spark, *(("parquet", file.path) for file in files)]
    copies = TableCopies()
    with copies.told_by_address():
        frame = read_tables(open_spark(), [(form, copies.local(path)) for form, path in named], columns)
        return ordered_logs(frame, Columns(), inputs[0], topics)


def logs_of_frame(
    frame: "DataFrame", columns: Columns, topics: Sequence[str] = (STATE_TOPIC,)
) -> tuple[list[LogPartition], set[str]]:
    """The log partitions that a DataFrame holds, and the topics whose rows are passed over.

    Args:
        frame: with the columns of Spark's Kafka source.
        columns: what they are called.
        topics: as for `table_logs`.
    Raises:
        InputError: if it lacks a column, or has one of another type.
    """
    from share_state.spark.inputs import ordered_logs  # noqa: PLC0415

    return ordered_logs(frame, columns, "the DataFrame", topics)


def is_table(head: bytes) -> bool:
    """Whether a file that begins with these bytes is Parquet, or JSON lines of records."""
    return head.startswith(_PARQUET) or is_json_table(head)


def _beginning(path: Place) -> bytes:
    """Of a file, or of the first data file below a folder."""
    files = data_files(path)
    if not files:
        raise InputError(f"{path}: no data files here; give a folder of Parquet or JSON files, or a Delta table")
    return head_of(files[0], HEAD)


def _places(given: str) -> list[Place]:
    matches = places(given)
    if not matches:
        raise InputError(f"{given}: no such file or folder; give Parquet or JSON files, or a Delta table")
    return matches


def is_json_table(head: bytes) -> bool:
    """Whether a file begins with a JSON object on a line whose columns look like those of a record."""
    line = head.lstrip().partition(b"\n")[0]
    try:
        first = json.loads(line)
    except ValueError:
        return False
    return isinstance(first, dict) and not any(isinstance(value, dict) for value in first.values())


def data_files(path: Place) -> list[Place]:
    """The files of a table; what begins with a dot or an underscore is none. Source: Spark InMemoryFileIndex."""
    if path.is_file():
        return [path]
    return [
        file
        for file in sorted(path.rglob("*"))
        if file.is_file() and not any(part.startswith(_NOT_DATA) and "=" not in part
                                      for part in names_below(file, path))
    ]  # fmt: skip


def _of_delta(path: Place) -> list[TableFile] | None:
    """The files of a Delta table's latest version; None where only Spark can tell which of their rows count."""
    from deltalake import DeltaTable  # noqa: PLC0415  slow to import
    from deltalake.exceptions import DeltaError  # noqa: PLC0415

    try:
        table = DeltaTable(str(path), storage_options=delta_options(str(path)))
        features = {*(table.protocol().reader_features or ())}
        if features or table.protocol().min_reader_version > 1:
            return None
        if isinstance(path, StorePath):
            # delta-rs escapes the address of the table, as URLs are; a store takes names as they are.
            inside = (file.removeprefix(table.table_uri.rstrip("/")) for file in table.file_uris())
            return table_files([place(f"{path}/{name.lstrip('/')}") for name in inside], path)
        return table_files([place(file) for file in table.file_uris()], path.absolute())
    except (DeltaError, OSError) as error:
        if isinstance(path, StorePath):
            raise refusal(str(path), error) from None
        raise InputError(f"{path}: cannot be read as a Delta table ({str(error).splitlines()[0]})") from None
