"""The format `table`: keys and values with the columns of Spark's Kafka source, in Parquet, Delta or lines of JSON."""

import json
from collections.abc import Sequence

from share_state.delta.reader import list_foreign_files
from share_state.errors import InputError, ShareStateError
from share_state.sources.export_files import PARQUET_MAGIC, data_files, first_content
from share_state.sources.formats import ExportPaths, Format, SortedLogs, find_by_topic
from share_state.sources.log_partition import GROUP_TOPIC, STATE_TOPIC
from share_state.sources.record_tables import Columns
from share_state.sources.table_plan import TableFile, TablePlan, list_table_files, plan_table
from share_state.stores.paths import expand_paths


def find_table_logs(export_paths: ExportPaths, topics: Sequence[str] = (STATE_TOPIC,)) -> SortedLogs:
    """The log partitions of tables: Parquet files and Delta tables are read in place, all else is sorted by Spark.

    Args:
        export_paths: Parquet or JSON files, folders of them, Delta tables, globs; several are one table.
        topics: those to find; the first must be there. A table without topics is of the first.
    Raises:
        InputError: if a path cannot be read as a table of records.
        ShareStateError: if the rows must be sorted and there is no sorter.
    """
    files = list[TableFile]()
    to_sort = list[tuple[str, str]]()
    columns = Columns(**export_paths.columns)
    for name in export_paths.paths:
        paths = expand_paths(name)
        if not paths:
            raise InputError(f"{name}: no such file or folder; give Parquet or JSON files, or a Delta table")
        for path in paths:
            if (path / "_delta_log").is_dir():
                names = list_foreign_files(str(path))
                if names is None:
                    to_sort.append(("delta", str(path)))
                else:
                    files += list_table_files([path / one for one in names], path)
                continue
            data = data_files(path)
            if not data:
                raise InputError(
                    f"{path}: no data files; give a folder of Parquet or JSON files, or a Delta table"
                )
            first, head = first_content(data)
            if head.startswith(PARQUET_MAGIC):
                files += list_table_files(data, path)
            elif _is_json_table(head):
                to_sort.append(("json", str(path)))
            else:
                raise InputError(
                    f"{first}: neither Parquet nor lines of JSON with one record each; give one of these"
                )
    found = TablePlan([], set(), is_in_order=False) if to_sort else plan_table(files, columns, topics)
    if found.is_in_order:
        return found.logs, found.other_topics
    if export_paths.sorter is None:
        raise ShareStateError(
            "the rows of this table must be sorted by Spark; give spark=share_state.session()"
        )
    to_sort += [("parquet", file.path) for file in files]
    return export_paths.sorter.sort_tables(to_sort, columns, export_paths.paths[0], topics)


def _is_json_table(head: bytes) -> bool:
    """Whether a file begins with a line that is a flat JSON object, as a record is."""
    line = head.lstrip().partition(b"\n")[0]
    try:
        first = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(first, dict) and not any(isinstance(value, dict) for value in first.values())


FORMAT = Format(
    "a table of keys and values",
    lambda head: head.startswith(PARQUET_MAGIC) or _is_json_table(head),
    lambda export: find_by_topic(find_table_logs, "rows", export),
    lambda export: find_table_logs(export, (GROUP_TOPIC,))[0],
)
