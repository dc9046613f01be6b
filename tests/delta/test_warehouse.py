"""Commits of rows to Delta tables: what Delta's own readers then see, and what goes."""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from share_state.delta import warehouse
from share_state.delta.committed import CommittedTables
from share_state.delta.reader import open_table
from share_state.delta.staging import Staging
from share_state.delta.warehouse import Warehouse
from share_state.errors import DiskFullError, InputError, WarehouseError
from share_state.schema.declarations import table_schema
from tests.profiles import some_of


def runs(*names: str) -> pa.Table:
    rows = [{"run_id": name, "records": n, "finished": datetime(2026, 11, 21, 2, n, tzinfo=UTC)}
            for n, name in enumerate(names)]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=table_schema("runs"))


def added(root: Path, rows: pa.Table, gone: set[str]) -> dict[str, int]:
    with Warehouse(str(root)) as tables:
        tables.append("runs", [rows], gone)
        return tables.versions


def seen(root: Path) -> list[str]:
    return sorted(DeltaTable(str(root / "runs")).to_pyarrow_table()["run_id"].to_pylist())


def parquet(root: Path, table: str) -> set[str]:
    return {file.name for file in (root / table).glob("*.parquet")}


def test_rows_are_added_beside_others_and_take_the_place_of_their_own_run(tmp_path: Path):
    assert added(tmp_path, runs("a"), {"a"}) == {"runs": 0}
    assert added(tmp_path, runs("b"), {"b"}) == {"runs": 1}
    assert added(tmp_path, runs("a"), {"a"}) == {"runs": 2}
    assert seen(tmp_path) == ["a", "b"]


def test_rows_that_share_a_file_with_those_of_a_run_that_goes_stay(tmp_path: Path):
    added(tmp_path, runs("a", "b", "c"), set())
    assert Warehouse(str(tmp_path)).run_ids("runs") == {"a", "b", "c"}
    added(tmp_path, runs("d"), {"b", "d"})
    assert seen(tmp_path) == ["a", "c", "d"]


def test_rows_take_the_place_of_all_others_and_may_be_none(tmp_path: Path):
    with Warehouse(str(tmp_path)) as tables:
        tables.replace("runs", [runs("a"), runs("b")])
        assert tables.versions == {"runs": 0}
        tables.replace("runs", [runs("c")])
        assert tables.versions == {"runs": 1}
    assert seen(tmp_path) == ["c"]
    with Warehouse(str(tmp_path)) as tables:
        tables.replace("runs", [])
    assert seen(tmp_path) == []


def test_statistics_are_those_of_the_rows(tmp_path: Path):
    added(tmp_path, runs("b", "a"), set())
    (file,) = pa.table(DeltaTable(str(tmp_path / "runs")).get_add_actions(flatten=True)).to_pylist()
    assert (file["num_records"], file["min.run_id"], file["max.run_id"]) == (2, "a", "b")
    assert (file["min.records"], file["max.records"], file["null_count.records"]) == (0, 1, 0)
    assert (file["min.command"], file["null_count.command"]) == (None, 2)


def test_what_is_staged_goes_and_what_others_staged_stays(tmp_path: Path):
    other = Staging(str(tmp_path))
    other.write("findings", _finding().to_batches())
    with Warehouse(str(tmp_path)) as tables:
        staged = [*tables.staging.write("runs", runs("a").to_batches()), *tables.staging.write("findings", [])]
        tables.append("runs", (rows for file in staged for rows in tables.staging.read(file)), set())
    assert {file.name for file in tmp_path.iterdir()} == {"runs", Path(other.folder).name}
    assert seen(tmp_path) == ["a"]


@pytest.mark.parametrize("is_there", [True, False], ids=["a table", "no table"])
def test_an_error_of_the_rows_stays_what_it_is_and_nothing_changes(tmp_path: Path, is_there: bool):
    """delta-rs would report it as an error of Delta."""

    def rows() -> Iterator[pa.Table]:
        yield runs("b")
        raise DiskFullError("no space left")

    if is_there:
        added(tmp_path, runs("a"), set())
    with pytest.raises(DiskFullError, match="no space left"), Warehouse(str(tmp_path)) as tables:
        tables.append("runs", rows(), set())
    assert (seen(tmp_path) == ["a"]) if is_there else not [*tmp_path.iterdir()]


@pytest.mark.parametrize("was_there", [True, False])
def test_a_run_that_fails_leaves_no_folder(tmp_path: Path, was_there: bool):
    root = tmp_path if was_there else tmp_path / "new" / "warehouse"
    with pytest.raises(ZeroDivisionError), Warehouse(str(root)) as tables:
        tables.staging.write("findings", _finding().to_batches())
        tables.replace("findings", [_finding()])
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_a_later_run_that_fails_deletes_the_tables_that_it_created(tmp_path: Path):
    first = Warehouse(str(tmp_path))
    first.replace("findings", [])
    first.commit_run(runs("a").to_pylist()[0])
    with pytest.raises(InputError), Warehouse(str(tmp_path)) as second:
        second.replace("findings", [_finding()])
        second.replace("dead_letters", [])
        raise InputError("broken")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["findings", "runs"]


def test_of_two_first_runs_one_commits_and_its_tables_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """As in an object store, which has no lock."""
    first, overtaken = (
        Warehouse(str(tmp_path)),
        "another run committed here meanwhile, and this one did not; run it again",
    )
    with pytest.raises(WarehouseError, match=overtaken), Warehouse(str(tmp_path)) as second:
        first.replace("findings", [_finding()])
        with monkeypatch.context() as before:
            before.setattr(second, "_table", lambda _: None)
            second.replace("findings", [])
    with pytest.raises(WarehouseError, match=overtaken), Warehouse(str(tmp_path)) as second:
        second.replace("in_flight", [])
        first.replace("in_flight", [])
        first.commit_run(runs("a").to_pylist()[0])
        second.commit_run(runs("b").to_pylist()[0])
    committed = CommittedTables(str(tmp_path))
    assert committed.versions == {"findings": 0, "in_flight": 1}
    assert [len(committed.read(table)) for table in committed.versions] == [1, 0]


@pytest.mark.parametrize(
    "theirs", [pa.table({"run_id": pa.array([1])}), pa.table({"colour": ["red"]})], ids=["another type", "a stranger"]
)
def test_a_table_with_other_columns_is_in_the_way(tmp_path: Path, theirs: pa.Table):
    write_deltalake(str(tmp_path / "runs"), theirs)
    with pytest.raises(WarehouseError, match="another table is here"):
        added(tmp_path, runs("a"), set())
    assert DeltaTable(str(tmp_path / "runs")).to_pyarrow_table() == theirs
    assert len(parquet(tmp_path, "runs")) == 1


def test_a_table_of_an_earlier_version_gains_the_columns_it_lacks(tmp_path: Path):
    write_deltalake(str(tmp_path / "runs"), runs("a").select(["run_id", "records"]))
    added(tmp_path, runs("b"), {"b"})
    table = DeltaTable(str(tmp_path / "runs"))
    assert {field.name for field in table.schema().fields} == set(table_schema("runs").names)
    assert seen(tmp_path) == ["a", "b"]


def test_a_table_is_opened_once_however_often_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with Warehouse(str(tmp_path)) as tables:
        tables.replace("findings", [_finding()])
        tables.commit_run(runs("a").to_pylist()[0])
    opened = Counter[str]()

    def counted(place: str) -> DeltaTable | None:
        opened[Path(place).name] += 1
        return open_table(place)

    monkeypatch.setattr("share_state.delta.committed.open_table", counted)
    committed = CommittedTables(str(tmp_path))
    assert not committed.lack_files()
    assert [len(committed.read("findings")) for _ in range(2)] == [1, 1]
    assert committed.files("findings")
    assert opened == {"runs": 1, "findings": 1}


def test_a_run_opens_a_table_once_and_then_reads_what_others_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    added(tmp_path, runs("a"), set())
    opened = Counter[str]()

    def counted(place: str) -> DeltaTable | None:
        opened[Path(place).name] += 1
        return open_table(place)

    monkeypatch.setattr(warehouse, "open_table", counted)
    with Warehouse(str(tmp_path)) as tables:
        for name in "bc":
            tables.append("runs", [runs(name)], {name})
        assert tables.run_ids("runs") == {"a", "b", "c"}
        assert opened == {"runs": 1}
        rows = runs("d")
        write_deltalake(str(tmp_path / "runs"), rows, mode="append")
        with pytest.raises(WarehouseError, match="another run committed here meanwhile"):
            tables.append("runs", [runs("e")], set())
    assert seen(tmp_path) == ["a", "b", "c", "d"]


def test_a_table_that_was_deleted_and_made_again_is_opened_again(tmp_path: Path):
    with Warehouse(str(tmp_path)) as tables:
        for _ in range(3):
            tables.replace("findings", [_finding()])
        shutil.rmtree(tmp_path / "findings")
        assert tables.run_ids("findings") == set()
        tables.replace("findings", [_finding()])
        assert tables.versions["findings"] == 0
    assert len(DeltaTable(str(tmp_path / "findings")).to_pyarrow_table()) == 1


@pytest.mark.parametrize("made", some_of(["before checkpoints were this frequent", "here"], 1))
def test_whoever_opens_a_table_reads_few_entries_of_its_log(tmp_path: Path, made: str):
    if made != "here":
        write_deltalake(str(tmp_path / "runs"), runs("0"))
    for night in range(25):
        added(tmp_path, runs(str(night)), {str(night)})
    log = tmp_path / "runs/_delta_log"
    latest = json.loads((log / "_last_checkpoint").read_text())["version"]
    assert len([file for file in log.glob("*.json") if int(file.stem) > latest]) < 10
    assert DeltaTable(str(tmp_path / "runs")).metadata().configuration == warehouse.PROPERTIES


def _finding() -> pa.Table:
    row = {"rule": "TORN_TAIL", "severity": "warning", "message": "a file ends inside a batch", "run_id": "a"}
    return pa.Table.from_pylist([row], schema=table_schema("findings"))
