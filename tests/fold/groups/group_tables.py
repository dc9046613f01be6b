"""Both topics of a fixture as rows, with the columns of Spark's Kafka source."""

import base64
import json
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

from share_state.sources.discovery import find_group_logs, find_logs
from share_state.sources.log_partition import LogPartition
from tests.sources.formats.tables import table_of


def rows_of(logs: Iterable[LogPartition]) -> pa.Table:
    """Records of a topic as Spark's Kafka source gives them."""
    tables = []
    for log in logs:
        table = table_of([log])
        named = pa.array([log.topic] * len(table), pa.string())
        tables.append(table.set_column(table.column_names.index("topic"), "topic", named))
    return pa.concat_tables(tables)


def both_topics(scenario: Path) -> tuple[list[LogPartition], list[LogPartition], pa.Table]:
    """State logs and group logs of a fixture, and the records of both with those of a topic that is of no use here."""
    state = [log for log in find_logs([str(scenario)]) if log.size]
    groups = find_group_logs([str(scenario)])
    other = rows_of(groups[:1])
    other = other.set_column(2, "topic", pa.array(["orders"] * len(other), pa.string()))
    return state, groups, pa.concat_tables([rows_of(state), other, rows_of(groups)])


def json_lines(table: pa.Table, path: Path) -> Path:
    """Rows as Spark writes them to JSON: bytes in base64, times as ISO 8601."""
    with path.open("w", encoding="utf-8") as file:
        for row in table.to_pylist():
            told = {name: row[name] for name in ("topic", "partition", "offset")}
            told |= {
                part: None if row[part] is None else base64.b64encode(row[part]).decode() for part in ("key", "value")
            }
            file.write(json.dumps(told | {"timestamp": row["timestamp"].isoformat()}) + "\n")
    return path
