"""`share-state stream --no-tables`: its metrics are those of the states, after a kill and with clients that hang."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from socket import create_connection
from urllib.request import urlopen

import pyarrow as pa
import pytest

from share_state.cli.main import run
from share_state.delta.committed import CommittedTables
from tests.pipeline.test_stream_tables import pieces
from tests.processes import die_with_parent
from tests.report.test_stream_metrics import scraped
from tests.sources.formats.tables import found, table_of, write
from tests.sources.kafka_cluster.broker import free_ports
from tests.truth import DATA

_PATIENCE = 60.0


@contextmanager
def exporter(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """An exporter over a growing folder, which is killed at the end."""
    command = [sys.executable, "-m", "share_state", "stream", str(folder / "in"), "--no-tables", "--trigger", "200ms"]
    command += ["--prometheus-port", str(port), "--checkpoint", str(folder / "state")]
    with subprocess.Popen(command, preexec_fn=die_with_parent) as process:  # noqa: PLW1509
        try:
            yield process
        finally:
            process.kill()


def _metrics_of(port: int, records: int) -> dict[str, dict[str, float]]:
    """What is scraped once so many records are folded."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        assert time.monotonic() < deadline
        try:
            seen = scraped(port)
        except OSError:
            seen = {}
        if seen.get("stream_records_total") == {"": records} and "share_partitions" in seen:
            return seen
        time.sleep(0.2)


def _await_state(folder: Path) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not (folder / "state/share_state_stream").is_file():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_metrics_are_those_of_the_states_after_a_kill_and_while_clients_hang(tmp_path: Path):
    records, (port,) = table_of(found(DATA / "4.4.0/chaos")), free_ports(1)
    parts = list(pieces(records, 400))
    write(parts[0], tmp_path / "in/a.parquet")
    with exporter(tmp_path, port):
        _metrics_of(port, len(parts[0]))
        _await_state(tmp_path)
    # What was read is not read again.
    os.truncate(tmp_path / "in/a.parquet", 0)
    write(pa.concat_tables(parts[1:]), tmp_path / "in/b.parquet")
    with exporter(tmp_path, port), ExitStack() as hanging:
        seen = _metrics_of(port, len(records))
        for _ in range(20):
            client = hanging.enter_context(create_connection(("127.0.0.1", port)))
            client.sendall(b"GET /metrics HTTP/1.1\r\n")
        with urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
            assert answer.read() == b"ok\n"
        assert scraped(port)["share_partitions"] == seen["share_partitions"]
    whole = str(write(records, tmp_path / "whole.parquet"))
    assert run(["reconstruct", whole, "--out", str(tmp_path / "truth"), "--judge", "all", "--quiet"]) in (0, 1)
    in_flight = dict[str, float]()
    for row in CommittedTables(str(tmp_path / "truth")).read("in_flight").to_pylist():
        in_flight[row["group_id"]] = in_flight.get(row["group_id"], 0) + row["record_count"]
    assert seen["group_in_flight_records"] == in_flight
    live = len(CommittedTables(str(tmp_path / "truth")).read("share_partition_state", columns=["partition"]))
    assert seen["share_partitions"] == {"": live}
    assert "stream_micro_batch" not in seen


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--prometheus-port", "9", "--out", "lake"], "--out lake: --no-tables writes none; leave one of the two out"),
        ([], "--no-tables: shows nothing without --prometheus-port; give a port"),
        (
            ["--prometheus-port", "9", "--dead-letters", "x"],
            "--dead-letters: a stream without tables does not match",
        ),
        (["--prometheus-port", "9", "--master", "local[1]"], "--no-tables: a stream on Spark writes tables; leave"),
    ],
)
def test_options_that_do_not_go_with_no_tables_are_refused(
    options: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    assert run(["stream", "in", "--no-tables", *options]) == 2
    assert message in capfd.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_state_of_other_inputs_or_that_is_damaged_is_not_used(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    (tmp_path / "other").mkdir()
    write(table_of(found(DATA / "4.3.1/happy")), tmp_path / "in/a.parquet")
    (port,) = free_ports(1)
    stream = ["stream", "--no-tables", "--once", "--prometheus-port", str(port), "--checkpoint", str(tmp_path / "cp")]
    assert run([*stream, str(tmp_path / "in")]) == 0
    assert run([*stream, str(tmp_path / "other")]) == 2
    assert f"cp: belongs to a stream of {tmp_path / 'in'}; give another --checkpoint" in capfd.readouterr().err
    state = tmp_path / "cp/share_state_stream"
    state.write_bytes(state.read_bytes()[:-40])
    assert run([*stream, str(tmp_path / "in")]) == 0
    assert "its state cannot be read" in capfd.readouterr().err
