"""`fold_group` over the decoded records of one share-partition gives its row of the main job."""

import random
from collections.abc import Collection, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.errors import InputError
from share_state.fold.draft.control_log import fold_control_log
from share_state.fold.fold_group import FOLD_GROUP_SCHEMA, fold_group
from share_state.fold.state_log import fold_log
from share_state.fold.timeline import decoded_tables
from share_state.schema.declarations import arrow_type, table_schema
from share_state.sources.as_of import Window
from share_state.sources.discovery import find_logs
from share_state.sources.log_partition import LogPartition
from tests.fold.control_records.logs import log_of
from tests.fold.control_records.test_against_model import batches, logs
from tests.profiles import by_profile, some_of
from tests.truth import scenarios

KEY = ("group_id", "topic_id", "partition")
LOGS = by_profile([path for path in scenarios() if path.name in ("chaos", "fuzz", "dlq", "prune")], scenarios())
"""fifty has 713 share-partitions of the kinds that fuzz has 40 of; the codecs differ in what a reader undoes."""
LOG_FACTS = frozenset(("effective_start_offset", "topic_end_offset", "redundant_retained", "unfinished_offsets"))
"""Columns of control records that rest on the log's start, end and cutoff, which records do not show."""


def groups_of(found: list[LogPartition]) -> Iterator[pa.Table]:
    """The decoded records of each share-partition, shuffled."""
    every = pa.concat_tables(table for log in found for table in decoded_tables(log, Window()))
    places: dict[tuple, list[int]] = {}
    for place, key in enumerate(zip(*(every[name].to_pylist() for name in KEY), strict=True)):
        places.setdefault(key, []).append(place)
    for own in places.values():
        random.Random(0).shuffle(own)
        yield every.take(own)


def rows(tables: list[pa.Table], without: Collection[str] = ()) -> list[dict]:
    found = [row for table in tables for row in table.to_pylist()]
    found = [{name: value for name, value in row.items() if name not in without} for row in found]
    return sorted(found, key=lambda row: [str(row[name]) for name in KEY])


@pytest.mark.parametrize("scenario", some_of(LOGS, 1), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_share_partition_of_a_real_log_folds_alike(scenario: Path):
    found = find_logs([str(scenario)])
    folded = [fold_group(records) for records in groups_of(found)]
    expected = [piece for log in found for piece in fold_log(log).state_pieces]
    assert rows(folded) == rows(expected)
    assert all(table.schema.equals(table_schema("share_partition_state")) for table in folded)


@given(log=logs(), data=st.data())
def test_control_records_fold_alike(tmp_path_factory: pytest.TempPathFactory, log: dict, data: st.DataObject):
    if not log:
        return
    found = log_of(tmp_path_factory.mktemp("log"), batches(log, data))
    folded = [fold_group(records) for records in groups_of([found])]
    assert rows(folded, LOG_FACTS) == rows([fold_control_log(found).states], LOG_FACTS)


def test_no_records_and_unreadable_ones_have_no_state(tmp_path: Path):
    empty = table_schema("decoded_records").empty_table()
    assert fold_group(empty).num_rows == 0
    skipped = pa.Table.from_pylist([{"kind": "skipped", "offset": 3}], schema=empty.schema)
    assert fold_group(skipped).num_rows == 0


def test_the_schema_is_that_of_the_table():
    declared = table_schema("share_partition_state")
    assert pa.schema(list(arrow_type(f"struct<{FOLD_GROUP_SCHEMA.replace('`', '')}>"))).equals(declared)


def test_records_without_a_column_are_refused():
    records = table_schema("decoded_records").empty_table()
    with pytest.raises(InputError, match="fold_group: no column kind, fault; give those of decoded_records"):
        fold_group(records.drop_columns(["kind", "fault"]))


@pytest.mark.parametrize(
    ("dialect", "column", "values", "by"),
    [
        ("control_records", "topic", ("a", "b"), "group_id, topic, partition"),
        ("share_group_state", "group_id", ("a", None), "group_id, topic_id, partition"),
        ("share_group_state", "topic_id", ("a", "b"), "group_id, topic_id, partition"),
        ("share_group_state", "partition", (0, 1), "group_id, topic_id, partition"),
    ],
)
def test_records_of_several_share_partitions_are_refused(dialect: str, column: str, values: tuple, by: str):
    row = {"dialect": dialect, "group_id": "g", "topic_id": "t", "partition": 0, "offset": 0, "kind": "delta"}
    two = pa.Table.from_pylist([row | {column: value} for value in values], table_schema("decoded_records"))
    with pytest.raises(
        InputError, match=f"fold_group: records of several values of {column} in a group; group by {by}$"
    ):
        fold_group(two)
