"""A warehouse on an object store: written, read and continued as a local one is."""

from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow.fs import FileSelector
from pyspark.sql import SparkSession

import share_state
from share_state.delta.committed import CommittedTables
from share_state.delta.staging import Staging
from share_state.delta.warehouse import Warehouse
from share_state.errors import WarehouseError
from share_state.pipeline.task import RESULTS
from tests.cli.commands import Command, run_cli
from tests.profiles import by_profile, nightly
from tests.sources.object_stores.s3 import BUCKET, checking_who_asks, client, counting, cutting, put
from tests.truth import DATA

CHAOS, HAPPY = DATA / "4.3.1/chaos", DATA / "4.3.1/happy"
PLACED = (*RESULTS, "cutoff")


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Command:
    """Runs a command that needs no Spark."""
    return partial(run_cli, capfd)


@pytest.fixture
def share_state_command(s3_spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> Command:
    """Runs a command whose tasks are let in."""
    return partial(run_cli, capfd)


def rows(warehouse: str) -> dict[str, list[dict]]:
    tables = CommittedTables(warehouse)
    return {name: sorted(tables.read(name).to_pylist(), key=repr) for name in PLACED}


def _below(folder: str) -> FileSelector:
    return FileSelector(folder, recursive=True)


@nightly("a run in Spark over a store; test_s3_forms has one without")
def test_a_run_leaves_the_tables_that_it_leaves_in_a_folder(share_state_command: Command, tmp_path: Path):
    there, here = f"s3://{BUCKET}/lakes/one", str(tmp_path / "w")
    for place in (there, *by_profile((), (there,))):
        assert share_state_command("reconstruct", CHAOS, "--out", place).code == 0
    share_state.reconstruct(str(CHAOS), warehouse=here)
    assert rows(there) == rows(here)
    assert share_state_command("show", there).out == share_state_command("show", here).out
    assert len(CommittedTables(there).runs) == 1


@nightly("seven audits over a store")
def test_nights_go_on_where_the_last_one_stopped(s3: str, cli: Command, tmp_path: Path):
    there, here = f"s3://{BUCKET}/lakes/nights", str(tmp_path / "w")
    for place in (there, here):
        first = cli("audit", HAPPY / "__share_group_state-0", "--out", f"{place}/", "--json")
        second = cli("audit", HAPPY, "--out", place, "--json")
        assert (first.code, second.code) == (0, 0), second.err
        assert cli("audit", HAPPY, "--out", place).code == 0
    assert rows(there) == rows(here)
    assert [run["notes"] for run in CommittedTables(there).runs.to_pylist()] == [
        run["notes"] for run in CommittedTables(here).runs.to_pylist()
    ]


@nightly("Spark over a store")
def test_a_notebook_gets_the_tables_back(s3_spark: SparkSession, tmp_path: Path):
    there = f"s3://{BUCKET}/lakes/notebook"
    given = share_state.reconstruct(str(CHAOS), spark=s3_spark, warehouse=there)
    plain = share_state.reconstruct(str(CHAOS))
    for name in ("share_partition_state", "in_flight"):
        assert getattr(given, name).count() == len(getattr(plain, name))
    states = given.share_partition_state.toPandas()
    assert sorted(states["start_offset"]) == sorted(plain.share_partition_state["start_offset"].to_pylist())


def test_decoded_records_are_written_there(s3: str, cli: Command):
    said = cli("decode", HAPPY, "--out", f"s3://{BUCKET}/decoded/happy")
    assert said.code == 0
    files = client(s3).get_file_info(_below(f"{BUCKET}/decoded/happy"))
    assert any(file.base_name.endswith(".parquet") for file in files)


def test_decoded_records_may_be_all_that_a_bucket_holds(
    s3: str, cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    client(s3).create_dir("decoded-alone")
    assert cli("decode", HAPPY, "--out", "s3://decoded-alone").code == 0
    files = client(s3).get_file_info(_below("decoded-alone"))
    assert any(file.base_name.endswith(".parquet") for file in files)
    assert not [*tmp_path.iterdir()]


@nightly("two runs over a store")
def test_a_run_that_was_overtaken_does_not_commit(s3: str, cli: Command):
    there = f"s3://{BUCKET}/lakes/two"
    assert cli("reconstruct", HAPPY, "--out", there).code == 0
    with pytest.raises(WarehouseError, match="another run committed here meanwhile"), Warehouse(there) as late:
        runs = CommittedTables(there).runs
        late.staging.write("runs", runs.to_batches())
        assert cli("reconstruct", CHAOS, "--out", there).code == 0
        late.append("runs", [runs], set())
    assert len(CommittedTables(there).runs) == 2
    left = client(s3).get_file_info(_below(f"{BUCKET}/lakes/two"))
    assert not [file for file in left if late.staging.attempt in file.path]


def test_staged_rows_are_written_and_read_in_one_request_each(s3: str, monkeypatch: pytest.MonkeyPatch):
    states = share_state.reconstruct(str(CHAOS)).share_partition_state
    staging = Staging(f"s3://{BUCKET}/lakes/staged")
    with counting(s3) as (address, requests):
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        (file,) = staging.write("share_partition_state", states.to_batches(max_chunksize=5))
        assert requests() == 1
        assert pa.concat_tables(staging.read(file)).equals(states)
        # The size of the file, and its bytes.
        assert requests() == 3


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("s3://nobody-s/lake", "no such bucket"),
        (f"s3://{BUCKET}/a-file", "a file is here"),
        (f"s3://{BUCKET}/strange", "holds something else (letter.txt)"),
        ("s3://", "no bucket"),
        ("s4://bucket/lake", "s4:// cannot be read"),
    ],
)
def test_a_place_that_is_none_is_told_before_any_work(s3: str, cli: Command, place: str, words: str, tmp_path: Path):
    note = tmp_path / "letter.txt"
    note.write_text("hello")
    put(s3, note, "a-file")
    put(s3, note, "strange/letter.txt")
    for command in ("reconstruct", "audit"):
        said = cli(command, HAPPY, "--out", place)
        assert (said.code, said.out) == (2, "")
        assert words in said.err
        assert len(said.err.splitlines()) == 1


def test_a_store_that_refuses_is_told(s3: str, cli: Command):
    with checking_who_asks(s3):
        for said in (cli("reconstruct", HAPPY, "--out", f"s3://{BUCKET}/lakes/x"), cli("show", f"s3://{BUCKET}/l")):
            assert (said.code, said.out) == (2, "")
            assert "the store denies access" in said.err
            assert len(said.err.splitlines()) == 1


def test_a_store_that_goes_away_leaves_one_line(s3: str, cli: Command, monkeypatch: pytest.MonkeyPatch):
    with cutting(s3, 0) as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        said = cli("show", f"s3://{BUCKET}/lakes/one")
    assert (said.code, said.out) == (2, "")
    assert "cannot be reached" in said.err


def test_where_no_run_was_committed_is_told(s3: str, cli: Command):
    said = cli("show", f"s3://{BUCKET}/nothing/here")
    assert said.code == 2
    assert (
        f"no warehouse here; make one with `share-state reconstruct INPUT --out s3://{BUCKET}/nothing/here`" in said.err
    )
