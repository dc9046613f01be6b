"""The metrics that a stream serves are those of the tables that it has committed."""

import subprocess
from pathlib import Path
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families

from share_state.delta.reader import CommittedTables
from share_state.fold.limits import Limits
from share_state.pipeline.stream_tables import StreamRun, StreamTables
from share_state.report.prometheus import StreamMetrics, StreamProgress, serve_metrics
from tests.pipeline.test_stream_tables import Stream, pieces
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


def test_a_scrape_shows_the_latest_micro_batch(tmp_path: Path):
    records = table_of(found(DATA / "4.4.0/chaos"))
    stream, (port,) = Stream(tmp_path / "lake"), free_ports(1)
    batches = [stream.fold_rows(part) for part in pieces(records, 300)]
    with StreamTables(stream.lake, StreamRun("a-stream")) as tables:
        progress = StreamProgress(1.5, 7)
        metrics = StreamMetrics(tables, lambda: progress, warehouse=stream.lake, limits=Limits(), most=2)
        stop = serve_metrics(port, metrics)
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
