"""Wrong inputs on object stores: one line that says what, where and the mend, exit code 2, and no credentials."""

import shutil
import socket
from pathlib import Path

import pyarrow.fs as pafs
import pytest
from deltalake import write_deltalake

from share_state.errors import InputError
from share_state.fold.state_log import fold_log
from share_state.sources.discovery import find_logs
from share_state.stores.object_stores import delta_storage_options, parse_address
from tests.cli.commands import run_cli
from tests.sources.formats.tables import found, table_of
from tests.sources.object_stores.s3 import BUCKET, KEY_ID, SECRET, checking_who_asks, cutting, put
from tests.truth import DATA

HAPPY = DATA / "4.3.1/happy"


@pytest.fixture(scope="module")
def happy(s3_address: str) -> str:
    """The address of a copy of 4.3.1/happy."""
    return put(s3_address, HAPPY, "refusals/happy")


@pytest.fixture(scope="module")
def delta(s3_address: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a Delta table of records."""
    local = tmp_path_factory.mktemp("delta") / "bronze"
    write_deltalake(str(local), table_of(find_logs([str(HAPPY)])))
    return put(s3_address, local, "refusals/bronze")


@pytest.fixture
def refused(capfd: pytest.CaptureFixture[str]):
    def said(*arguments: object) -> str:
        done = run_cli(capfd, *arguments)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith("share-state: ")
        assert done.err.count("\n") == 1
        assert SECRET not in done.err
        assert KEY_ID not in done.err
        return done.err

    return said


@pytest.mark.parametrize("form", ["auto", "segments", "table", "dump-log", "console-json"])
@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("s3://no-such-bucket/exports", "s3://no-such-bucket/exports: no such bucket; check its name"),
        (f"s3://{BUCKET}/nothing/here", f"s3://{BUCKET}/nothing/here: no such file or folder; give "),
        (f"s3://{BUCKET}/nothing-*/here", f"s3://{BUCKET}/nothing-*/here: no such file or folder; give "),
    ],
)
def test_what_is_not_there(s3: str, refused, form: str, address: str, told: str):
    assert told in refused("cutoff", address, "--format", form)


def test_a_folder_without_logs(s3: str, happy: str, refused):
    address = put(s3, HAPPY / "topics.json", "refusals/empty/x/topics.json").removesuffix("/x/topics.json")
    assert f"{address}: no log segments here" in refused("cutoff", address, "--format", "segments")


@pytest.mark.parametrize("command", ["cutoff", "decode"])
def test_credentials_that_do_not_let_in(s3: str, happy: str, refused, command: str):
    with checking_who_asks(s3):
        assert f"{happy}: the store denies access; set AWS_ACCESS_KEY_ID and" in refused(command, happy)


def test_a_delta_table_that_we_are_not_let_into(s3: str, delta: str, refused):
    assert len(found(delta)) == 3
    with checking_who_asks(s3):
        assert f"{delta}: the store denies access; set AWS_ACCESS_KEY_ID and" in refused("cutoff", delta)


@pytest.mark.parametrize("address", ["s3://me:secret@exports/x", "s3://exports/x?secret_key=secret", "x3://a:secret@b"])
@pytest.mark.parametrize(
    "command", [("cutoff",), ("show",), ("groups",), ("repair",), ("why", "g0"), ("diff",), ("audit", "--out", "w")]
)
def test_credentials_in_an_address_are_not_taken(refused, command: tuple[str, ...], address: str):
    said = refused(*command, address)
    assert "an address must not contain credentials" in said
    assert "secret_key" not in said
    assert ":secret" not in said


def test_no_server(s3: str, refused, monkeypatch: pytest.MonkeyPatch):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    assert "the store cannot be reached, or closed the connection" in refused("cutoff", f"s3://{BUCKET}/x")


def test_a_cut_connection(s3: str, happy: str, monkeypatch: pytest.MonkeyPatch):
    log = find_logs([happy])[0]
    assert log.size > 4000
    with cutting(s3, after=2000) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way)
        with pytest.raises(InputError, match=f"^{log.segments[0].path}: the store cannot be reached, or closed"):
            fold_log(log)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3)
    assert fold_log(log).record_count > 0


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("ftp://host/exports", "ftp://host/exports: ftp:// cannot be read; give a path, s3://"),
        ("s3:///exports", "no bucket; give an address such as s3://bucket/folder"),
        ("abfss://container/exports", "give abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/folder"),
    ],
)
def test_addresses_that_name_no_store(refused, address: str, told: str):
    assert told in refused("cutoff", address)


@pytest.mark.skipif(shutil.which("hdfs") is not None, reason="Hadoop is installed")
def test_hdfs_without_hadoop(refused, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    for name in ("HADOOP_HOME", "JAVA_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    said = refused("cutoff", "hdfs://namenode:8020/exports")
    assert "hdfs://namenode:8020/exports: Hadoop's client library is missing; set HADOOP_HOME" in said


@pytest.mark.parametrize(
    ("address", "kind", "inner"),
    [
        ("s3://bucket/a/b", pafs.S3FileSystem, "bucket"),
        ("s3a://bucket/a/b", pafs.S3FileSystem, "bucket"),
        ("gs://bucket/a/b", pafs.GcsFileSystem, "bucket"),
        ("abfss://container@account.dfs.core.windows.net/a/b", pafs.AzureFileSystem, "container"),
    ],
)
def test_each_kind_of_store_has_its_file_system(
    address: str, kind: type[pafs.FileSystem], inner: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "c2VjcmV0")
    store, rest = parse_address(address)
    assert isinstance(store.file_system, kind)
    assert store.file_system is store.file_system
    assert (store.root, rest) == (inner, "/a/b")


def test_one_set_of_variables_is_for_both_libraries(monkeypatch: pytest.MonkeyPatch):
    for name in ("AWS_REGION", "AWS_ALLOW_HTTP", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-north-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store:9000")
    options = delta_storage_options("s3://bucket/table") or {}
    assert options["AWS_REGION"] == "eu-north-1"
    assert options["AWS_ENDPOINT_URL"] == "http://store:9000"
    assert options["AWS_ALLOW_HTTP"] == "true"
    assert delta_storage_options("/lake/table") is None
    assert parse_address("s3://bucket/table")[0].file_system.region == "eu-north-1"
