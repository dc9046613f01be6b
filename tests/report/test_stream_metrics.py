"""The metrics that a stream serves are those of the tables that it has committed."""

import gzip
import inspect
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from socket import create_connection
from urllib.request import Request, urlopen

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from share_state.cli.stream import stream as stream_command
from share_state.delta.committed import CommittedTables
from share_state.fold.limits import Limits
from share_state.pipeline.stream_run import StreamProgress, StreamRun
from share_state.pipeline.stream_tables import StreamTables
from share_state.report.console import ReportError
from share_state.report.stream_metrics import CommittedStream, StreamMetrics, serve_metrics
from tests.pipeline.test_stream_tables import Stream, pieces
from tests.profiles import nightly
from tests.report.test_prometheus_rules import PROMTOOL
from tests.sources.formats.tables import found, table_of
from tests.sources.kafka_cluster.broker import free_ports
from tests.truth import DATA


def scraped(port: int) -> dict[str, dict[str, float]]:
    """Metric -> sum of its samples by group; promtool accepts what was scraped, where there is one."""
    with urlopen(f"http://127.0.0.1:{port}/metrics") as response:
        text = response.read().decode()
    if PROMTOOL is not None:
        done = subprocess.run([PROMTOOL, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    sums = dict[str, dict[str, float]]()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            of_metric = sums.setdefault(sample.name.removeprefix("share_state_"), {})
            group = sample.labels.get("group_id", "")
            of_metric[group] = of_metric.get(group, 0) + sample.value
    return sums


@nightly("a stream on Spark; the exporter's test scrapes")
def test_a_scrape_shows_the_latest_micro_batch(tmp_path: Path):
    records = table_of(found(DATA / "4.4.0/chaos"))
    stream, (port,) = Stream(tmp_path / "lake"), free_ports(1)
    batches = [stream.fold_rows(part) for part in pieces(records, 300)]
    with StreamTables(stream.lake, StreamRun("a-stream")) as tables:
        progress = StreamProgress(1.5, 7)
        metrics = StreamMetrics(CommittedStream(tables, lambda: progress, Limits(), stream.lake), 2)
        stop = serve_metrics("127.0.0.1", port, metrics)
        try:
            assert scraped(port)["stream_micro_batch"] == {"": -1}
            for number, changes in enumerate(batches):
                tables.write(number, changes)
            seen = scraped(port)
        finally:
            stop()
    rows = CommittedTables(stream.lake).read("in_flight").to_pylist()
    assert seen["stream_records_total"] == {"": len(records)}
    assert (seen["stream_behind_records"], seen["stream_micro_batch_seconds"]) == ({"": 7}, {"": 1.5})
    in_flight = dict[str, float]()
    for row in rows:
        in_flight[row["group_id"]] = in_flight.get(row["group_id"], 0) + row["record_count"]
    assert seen["group_in_flight_records"] == in_flight
    assert sum(seen["group_share_partitions"].values()) == seen["share_partitions"][""] > 2
    assert seen["share_partitions_without_series"] == {"": seen["share_partitions"][""] - 2}


@pytest.fixture
def metrics(tmp_path: Path) -> StreamMetrics:
    lake = str(tmp_path / "lake")
    tables = StreamTables(lake, StreamRun("a-stream"))
    return StreamMetrics(CommittedStream(tables, lambda: None, Limits(), lake), 2)


def is_open(address: str, port: int) -> bool:
    try:
        with closing(create_connection((address, port))):
            return True
    except ConnectionRefusedError:
        return False


DEFAULT_ADDRESS = inspect.signature(stream_command).parameters["prometheus_address"].default


@pytest.mark.parametrize(("address", "is_everywhere"), [(DEFAULT_ADDRESS, False), ("0.0.0.0", True)])
def test_metrics_are_open_on_every_interface_only_on_request(metrics: StreamMetrics, address: str, is_everywhere: bool):
    (port,) = free_ports(1)
    stop = serve_metrics(address, port, metrics)
    try:
        # On Linux, every address of 127.0.0.0/8 is this host.
        assert (is_open("127.0.0.1", port), is_open("127.0.0.2", port)) == (True, is_everywhere)
    finally:
        stop()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("no.such.host.invalid", "--prometheus-address no.such.host.invalid: unknown"),
        ("203.0.113.7", "--prometheus-address 203.0.113.7 --prometheus-port {port}: cannot be opened (Cannot assign"),
        ("a..b", "--prometheus-address a..b --prometheus-port {port}: cannot be opened (not an address)"),
    ],
)
def test_an_address_of_another_host_is_refused(metrics: StreamMetrics, address: str, message: str):
    (port,) = free_ports(1)
    with pytest.raises(ReportError) as refused:
        serve_metrics(address, port, metrics)
    assert str(refused.value).startswith(message.format(port=port))


def test_a_port_that_is_taken_is_refused(metrics: StreamMetrics):
    (port,) = free_ports(1)
    stop = serve_metrics("127.0.0.1", port, metrics)
    try:
        with pytest.raises(ReportError, match=r"cannot be opened \(Address already in use\)"):
            serve_metrics("127.0.0.1", port, metrics)
    finally:
        stop()


def test_many_clients_at_once_cost_one_report(tmp_path: Path):
    tables, reports = StreamTables(str(tmp_path / "lake"), StreamRun("a-stream")), list[float]()

    class Slow(CommittedStream):
        def report(self) -> None:
            reports.append(time.monotonic())
            time.sleep(0.3)

    metrics = StreamMetrics(Slow(tables, lambda: None, Limits(), str(tmp_path)), 2)
    with ThreadPoolExecutor(8) as clients:
        answers = [clients.submit(metrics.text, "") for _ in range(8)]
        assert len({answer.result() for answer in answers}) == 1
    assert len(reports) == 1
    time.sleep(0.4)
    metrics.text("")
    assert len(reports) == 2


def test_clients_of_two_content_types_cost_one_report(tmp_path: Path):
    tables, reports = StreamTables(str(tmp_path / "lake"), StreamRun("a-stream")), list[float]()

    class Busy(CommittedStream):
        def report(self) -> None:
            reports.append(time.thread_time())
            while time.thread_time() < reports[-1] + 0.5:
                pass

    metrics = StreamMetrics(Busy(tables, lambda: None, Limits(), str(tmp_path)), 2)
    kinds = {metrics.text(accept)[1] for accept in ("", "application/openmetrics-text; version=1.0.0", "")}
    assert (len(kinds), len(reports)) == (2, 1)


def test_metrics_are_served_as_openmetrics_and_compressed(metrics: StreamMetrics):
    (port,) = free_ports(1)
    stop = serve_metrics("127.0.0.1", port, metrics)
    try:
        headers = {"Accept": "application/openmetrics-text; version=1.0.0", "Accept-Encoding": "gzip"}
        with urlopen(Request(f"http://127.0.0.1:{port}/metrics", headers=headers)) as response:
            kind, text = response.headers["Content-Type"], gzip.decompress(response.read()).decode()
    finally:
        stop()
    assert kind.startswith("application/openmetrics-text")
    assert (text.count("# EOF\n"), text.endswith("# EOF\n")) == (1, True)
    names = {family.name for family in openmetrics.text_string_to_metric_families(text)}
    assert names == {family.name for family in metrics.collect()}
