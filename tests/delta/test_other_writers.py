"""What other people do to the tables of a warehouse: kept where a run writes, else refused by name."""

from collections.abc import Callable
from datetime import timedelta
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.schema import PrimitiveType
from deltalake.table import TableFeatures

from share_state.delta.reader import read_rows
from share_state.delta.warehouse import Warehouse
from share_state.errors import WarehouseError
from share_state.schema.declarations import table, table_schema
from tests.profiles import nightly

ROW = {
    "rule": "TORN_TAIL",
    "severity": "warning",
    "message": "a file ends inside a batch",
    "offset": 7,
    "run_id": "a",
}


def write(root: Path, *runs: str, append: bool = False, offset: int = 7) -> None:
    rows = pa.Table.from_pylist([ROW | {"run_id": run, "offset": offset} for run in runs], table_schema("findings"))
    with Warehouse(str(root)) as tables:
        tables.append("findings", [rows], set(runs)) if append else tables.replace("findings", [rows])


def opened(root: Path) -> DeltaTable:
    return DeltaTable(str(root / "findings"))


def runs_of(root: Path) -> list[str]:
    return sorted(pa.table(opened(root).scan().read_all())["run_id"].to_pylist())


def test_tables_have_the_comments_and_not_null_of_their_declarations(tmp_path: Path):
    write(tmp_path, "a")
    doc, columns = table("findings")
    assert opened(tmp_path).metadata().description == doc
    stored = {one.name: (one.metadata["comment"], one.nullable) for one in opened(tmp_path).schema().fields}
    assert stored == {one.name: (one.doc, one.nullable) for one in columns}
    assert not stored["rule"][1]
    rows = pa.Table.from_pylist([ROW | {"message": None}], table_schema("findings"))
    with pytest.raises(ValueError, match="'message' with null values to non-null"), Warehouse(str(tmp_path)) as tables:
        tables.replace("findings", [rows])
    assert runs_of(tmp_path) == ["a"]


def comment(of: DeltaTable) -> None:
    of.alter.set_column_metadata("offset", {"comment": "theirs"})
    of.alter.set_table_description("theirs")


def column(of: DeltaTable) -> None:
    of.alter.add_columns([Field("mine", PrimitiveType("string"))])
    of.update({"mine": "'x'"})


def constraint(of: DeltaTable) -> None:
    of.alter.add_constraint({"known": "offset >= 0"})


def change_data_feed(of: DeltaTable) -> None:
    of.alter.set_table_properties({"delta.enableChangeDataFeed": "true"})


def optimized(of: DeltaTable) -> None:
    of.optimize.z_order(["offset"])


def vacuumed(of: DeltaTable) -> None:
    of.vacuum(retention_hours=168, dry_run=False)


@pytest.mark.parametrize("theirs", [comment, column, constraint, change_data_feed, optimized, vacuumed])
def test_runs_go_on_with_what_others_did(tmp_path: Path, theirs: Callable[[DeltaTable], None]):
    write(tmp_path, "a", "b")
    write(tmp_path, "c", append=True)
    theirs(opened(tmp_path))
    fields, before = opened(tmp_path).schema().fields, opened(tmp_path).metadata()
    write(tmp_path, "b", append=True)
    assert runs_of(tmp_path) == ["a", "b", "c"]
    if theirs is column:
        kept = pa.table(opened(tmp_path).scan(columns=["run_id", "mine"]).read_all()).to_pylist()
        assert {row["run_id"]: row["mine"] for row in kept} == {"a": "x", "b": None, "c": "x"}
    write(tmp_path, "d")
    assert runs_of(tmp_path) == ["d"]
    assert opened(tmp_path).schema().fields == fields
    assert opened(tmp_path).metadata().configuration == before.configuration
    assert opened(tmp_path).metadata().description == before.description


def test_rows_that_break_a_constraint_of_others_are_refused_and_nothing_changes(tmp_path: Path):
    write(tmp_path, "a")
    constraint(opened(tmp_path))
    for append in (False, True):
        with pytest.raises(WarehouseError, match=r"findings: cannot be written.*failed validation"):
            write(tmp_path, "b", append=append, offset=-1)
    assert runs_of(tmp_path) == ["a"]


def test_an_appended_only_table_is_refused_by_name(tmp_path: Path):
    write(tmp_path, "a")
    opened(tmp_path).alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(WarehouseError, match="append-only"):
        write(tmp_path, "b")
    assert runs_of(tmp_path) == ["a"]


def test_rows_of_many_log_partitions_are_one_file(tmp_path: Path):
    rows = pa.Table.from_pylist([ROW], table_schema("findings"))
    with Warehouse(str(tmp_path)) as tables:
        tables.replace("findings", [rows] * 69)
    assert len(opened(tmp_path).file_uris()) == len([*(tmp_path / "findings").glob("*.parquet")]) == 1
    assert runs_of(tmp_path) == ["a"] * 69


@nightly("many commits")
def test_history_is_compacted_and_what_it_replaced_stays_for_slow_readers(tmp_path: Path):
    for night in range(18):
        write_history(tmp_path, f"{night:02}")
    version = DeltaTable(str(tmp_path / "runs")).version()
    with Warehouse(str(tmp_path)) as tables:
        tables.maintain(7)
    compacted = DeltaTable(str(tmp_path / "runs"))
    assert (len(compacted.file_uris()), compacted.version()) == (1, version + 1)
    assert len(DeltaTable(str(tmp_path / "runs"), version=version).to_pyarrow_table()) == 18
    write_history(tmp_path, "18", "00", "01")
    left = pa.table(DeltaTable(str(tmp_path / "runs")).scan().read_all())["run_id"].to_pylist()
    assert sorted(left) == [f"{night:02}" for night in range(2, 19)]


def write_history(root: Path, run: str, *expired: str) -> None:
    with Warehouse(str(root)) as tables:
        tables.commit_run({"run_id": run}, expired)


def test_statistics_of_times_hold_every_row(tmp_path: Path):
    write_history(tmp_path, "a")
    (file,) = pa.table(DeltaTable(str(tmp_path / "runs")).get_add_actions(flatten=True)).to_pylist()
    (finished,) = DeltaTable(str(tmp_path / "runs")).to_pyarrow_table()["finished"].to_pylist()
    # Delta keeps milliseconds, and drops the rest.
    assert file["min.finished"] <= finished < file["max.finished"] + timedelta(milliseconds=1)


def test_a_table_of_others_stays(tmp_path: Path):
    write_deltalake(str(tmp_path / "findings"), pa.table({"rule": [1]}))
    with pytest.raises(WarehouseError, match="another table is here"):
        write(tmp_path, "a")


@pytest.mark.parametrize("reader", ["deltalake", "polars", "duckdb"])
def test_others_read_the_tables(tmp_path: Path, reader: str):
    write(tmp_path, "a", "b")
    write(tmp_path, "c", append=True)
    library, path = pytest.importorskip(reader), str(tmp_path / "findings")
    if reader == "polars":
        found = library.read_delta(path)["run_id"].to_list()
    elif reader == "duckdb":  # its own Delta extension is a download; it reads the dataset of deltalake
        rows = library.connect().register("findings", opened(tmp_path).to_pyarrow_dataset())
        found = [row[0] for row in rows.execute("SELECT run_id FROM findings").fetchall()]
    else:
        found = library.DeltaTable(path).to_pyarrow_table()["run_id"].to_pylist()
    assert sorted(found) == ["a", "b", "c"]


def test_rows_of_a_table_with_deletion_vectors_go_into_another_version(tmp_path: Path):
    """Audits keep findings so: delta-rs then reads while it writes."""
    write(tmp_path, "a", "b")
    opened(tmp_path).alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    schema, kept = table_schema("findings"), pc.field("run_id") == "b"
    new = pa.Table.from_pylist([ROW | {"run_id": "c"}], schema)
    before = read_rows(str(tmp_path / "findings"), opened(tmp_path), "findings", schema.names, kept)
    with Warehouse(str(tmp_path)) as tables:
        tables.replace("findings", chain([new], before))
    assert runs_of(tmp_path) == ["b", "c"]


@pytest.mark.parametrize("change", ["DELETE", "UPDATE"])
def test_texts_are_found_in_files_that_delta_rs_has_rewritten(tmp_path: Path, change: str):
    """Its statements leave views of texts, which Arrow does not compare with the statistics of a file."""
    write(tmp_path, "a", "b", "c")
    if change == "DELETE":
        opened(tmp_path).delete("run_id = 'a'")
    else:
        opened(tmp_path).update({"message": "'theirs'"}, predicate="run_id = 'b'")
    names = table_schema("findings").names
    (rows,) = read_rows(str(tmp_path / "findings"), opened(tmp_path), "findings", names, pc.field("run_id") == "b")
    assert rows["run_id"].to_pylist() == ["b"]
    assert rows.schema == table_schema("findings")
