"""`share-state plot`, as a person types it."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from share_state.cli.command import DONE, UNUSABLE
from share_state.fold.fold_options import SharePartitionFilter
from share_state.pipeline.plan import FoldPlan
from share_state.report.plots.overview import draw_plot
from share_state.sources.discovery import find_logs
from share_state.sources.kafka_client import ClientProperties
from share_state.sources.kafka_source import KafkaSource
from share_state.sources.log_partition import LogPartition
from share_state.sources.record_tables import CONSUMED
from tests.cli.commands import Command
from tests.profiles import some_of
from tests.sources.formats.tables import table_of
from tests.truth import DATA

DLQ = DATA / "4.4.0/dlq"
ONE = ("--group", "dq-off", "--topic", "t0", "--partition", "0", "--topics", str(DLQ / "topics.json"))


@pytest.mark.parametrize(
    ("what", "options", "says"),
    some_of(
        [
            ("window", ONE, "at the end the window is from 0 to 227"),
            ("offsets", ONE, "the start offset stayed at 0"),
            ("deliveries", ONE, "delivered once"),
            ("deliveries", (), "delivered once"),
            ("cutoff", (), "112 records lie before the cutoffs of 3 log partitions"),
            ("cutoff", ONE, "records lie before the cutoffs of 1 log partition"),
        ],
        3,
    ),
)
def test_each_picture_is_drawn_and_says_what_it_shows(
    cli: Command, tmp_path: Path, what: str, options: tuple[str, ...], says: str
):
    out = tmp_path / "picture.html"
    said = cli("plot", what, str(DLQ), *options, "--out", str(out))
    assert said.code == DONE, said.err
    assert says in said.out
    assert says in out.read_text(encoding="utf-8")


class _Cluster(KafkaSource):
    """A cluster that answers with the records of segments."""

    def batches(self, log: LogPartition, size: int = 0):
        (own,) = (one for one in find_logs([str(DLQ)]) if one.name == log.name)
        rows = table_of([own]).select(CONSUMED.names)
        milliseconds = rows["timestamp"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
        rows = rows.set_column(CONSUMED.get_field_index("timestamp"), "timestamp", milliseconds)
        yield from rows.cast(CONSUMED).to_batches()


@pytest.mark.parametrize("what", ["window", "offsets"])
def test_a_chart_over_time_of_a_live_cluster_is_that_of_its_segments(what: str):
    plan, chosen = FoldPlan(find_logs([str(DLQ)])), SharePartitionFilter("dq-off", "We0ABtXRQ0uVly26I_w1Mw", 0)
    source = _Cluster("kafka://broker:9092", 1000, ClientProperties())
    live = replace(plan, logs=[replace(log, segments=(), source=source) for log in plan.logs])
    assert draw_plot(what, live, chosen).says == draw_plot(what, plan, chosen).says


def test_as_of_a_moment_the_picture_ends_there(cli: Command, tmp_path: Path):
    out = str(tmp_path / "w.svg")
    said = cli("plot", "offsets", str(DLQ), *ONE, "--as-of-time", "2026-11-21T04:48:59Z", "--out", out, "--json")
    assert said.code == DONE, said.err
    assert said.json["file"] == out
    assert "before the end at 113" in said.json["says"]


def test_the_picture_of_a_stall_ends_with_the_log(cli: Command, tmp_path: Path):
    said = cli("plot", "window", str(DLQ), *ONE, "--out", str(tmp_path / "w.svg"), "--json")
    # Its own last record is of 04:49:00; other groups go on in the same log.
    assert "From 2026-11-21 04:48:55 to 2026-11-21 04:49:55 UTC" in said.json["says"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("heatmap", str(DLQ), "--out", "x.png"), "WHAT heatmap: give one of window, offsets, deliveries, cutoff"),
        (("cutoff", str(DLQ), "--out", "x.gif"), "x.gif: give a name that ends in"),
        (("window", str(DLQ), "--out", "x.png"), "48 share-partitions; choose one"),
        *(
            ((what, str(DLQ), "--group", "nobody", "--out", "x.png"), "group nobody: not found; the nearest of 9 are")
            for what in ("window", "offsets", "deliveries", "cutoff")
        ),
    ],
)
def test_what_cannot_be_drawn_is_one_line_and_leaves_no_file(
    cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], told: str
):
    monkeypatch.chdir(tmp_path)
    said = cli("plot", *arguments)
    assert said.code == UNUSABLE
    assert told in said.err
    assert len(said.err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
