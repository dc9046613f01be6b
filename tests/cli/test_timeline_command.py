"""`share-state reconstruct --timeline`: the table beside the others."""

from pathlib import Path

import pyarrow as pa

from share_state.fold.fold_options import SharePartitionFilter
from share_state.fold.timeline import timeline_tables
from share_state.schema.declarations import table_schema
from share_state.sources.discovery import find_logs
from tests.cli.commands import Command
from tests.fold.control_records.logs import at, checkpoint, delta, log_of
from tests.profiles import nightly
from tests.truth import DATA
from tests.warehouses import WrittenTables

CHAOS = DATA / "4.3.1/chaos"
ORDER = [("state_partition", "ascending"), ("offset", "ascending")]


def _expected(chosen: SharePartitionFilter) -> pa.Table:
    tables = [table for log in find_logs([str(CHAOS)]) for table in timeline_tables(log, None, chosen)]
    return pa.concat_tables(tables).sort_by(ORDER)


def test_the_timeline_of_a_group_is_written_and_committed(share_state: Command, tmp_path: Path):
    out = tmp_path / "lake"
    assert share_state("reconstruct", CHAOS, "--out", out, "--timeline", "--group", "g1").code == 0
    tables = WrittenTables(out)
    found, expected = tables.read("timeline").sort_by(ORDER), _expected(SharePartitionFilter("g1"))
    assert (found.column_names, found.schema.types) == (table_schema("timeline").names, table_schema("timeline").types)
    assert len(found) > 100
    # The fold alone does not know the names that the group side tells.
    known = [name for name in found.column_names if name not in ("topic", "topic_end_offset")]
    assert found.select(known).to_pylist() == expected.select(known).to_pylist()
    assert None not in found["topic"].to_pylist()
    latest = {(row["topic_id"], row["partition"]): row for row in found.to_pylist()}
    states = {
        (row["topic_id"], row["partition"]): row
        for row in tables.read("share_partition_state").to_pylist()
        if row["group_id"] == "g1"
    }
    assert states
    for key, row in states.items():
        assert {name: value for name, value in row.items() if name in found.column_names}.items() <= latest[key].items()
        assert {row[name] for name in row.keys() - latest[key].keys()} == {None}


@nightly("two runs")
def test_a_run_without_a_timeline_shows_none_and_may_follow_one_with_it(cli: Command, tmp_path: Path):
    out = tmp_path / "lake"
    options = ("reconstruct", DATA / "4.2.1/happy", "--out", out)
    assert cli(*options, "--timeline").code == 0
    assert len(WrittenTables(out).read("timeline")) > 0
    assert cli(*options).code == 0
    assert len(WrittenTables(out).read("timeline")) == 0


def test_a_choice_without_a_timeline_is_refused(cli: Command, tmp_path: Path):
    said = cli("reconstruct", CHAOS, "--out", tmp_path / "lake", "--group", "g1")
    assert (said.code, said.err) == (
        2, "share-state: --group g1: selects what --timeline writes; give --timeline too\n",
    )  # fmt: skip
    assert not (tmp_path / "lake").exists()


def test_the_timeline_of_control_records_is_written_too(cli: Command, tmp_path: Path):
    records = {0: checkpoint("a", 1, 0, 0), 1: delta("a", 1, 0, [(0, 3, 0, 1)]), 2: delta("a", 1, 1, [(0, 1, 2, 1)])}
    log_of(tmp_path / "broker", at(records), topic="orders")
    out = tmp_path / "lake"
    assert cli("reconstruct", tmp_path / "broker", "--out", out, "--timeline", "--group", "a").code == 0
    rows = WrittenTables(out).read("timeline").sort_by("offset").to_pylist()
    assert [(row["kind"], row["start_offset"], row["end_offset"]) for row in rows] == [
        ("checkpoint", 0, 0), ("delta", 0, 4), ("delta", 2, 4)
    ]  # fmt: skip
