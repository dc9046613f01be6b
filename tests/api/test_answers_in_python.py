"""`share_state.open`, `audit`, `why`, `diff` and `decode`: what a notebook gets is what the commands print."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import share_state
from share_state.errors import ShareStateError
from share_state.incidents.incident_text import incident_lines
from tests.cli.commands import Command, run_cli
from tests.fold.groups.group_tables import both_topics
from tests.profiles import nightly
from tests.truth import DATA
from tests.warehouses import arrow

DLQ = DATA / "4.4.0/dlq"
CHAOS = DATA / "4.3.1/chaos"
EARLIER = "2026-11-21T03:07:40Z"
untyped: Any = share_state


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Command:
    return partial(run_cli, capfd)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The warehouse of two nights: the second finds nothing new."""
    folder = tmp_path_factory.mktemp("nights") / "lake"
    for _ in range(2):
        report = share_state.audit(DLQ, folder, settings={"cluster": "test"}, limits={"stall_minutes": 1})
    assert report.cluster == "test"
    assert repr(report).startswith(f"AuditReport({folder}: {report.live:,} share-partitions: ")
    assert report.run["options"]["limits.stall_minutes"] == "1.0"
    return folder


def test_an_opened_warehouse_has_the_tables_of_its_last_run(lake: Path):
    opened = share_state.open(lake)
    assert opened.in_flight.equals(opened.table("in_flight"))
    assert {"runs", "share_partition_history", "in_flight"} <= set(opened.names) <= set(dir(opened))
    own = opened.table("in_flight", group="dq-off", topic="t0", partition=0)
    assert own.num_rows == sum(
        (row["group_id"], row["topic"], row["partition"]) == ("dq-off", "t0", 0) for row in opened.in_flight.to_pylist()
    )
    previous = opened.previous
    assert previous is not None
    assert previous.run["run_id"] != opened.run["run_id"]
    assert previous.previous is None
    assert f"run {opened.run['run_id']} (audit)" in repr(opened)
    shown = opened._repr_html_()
    assert "<td>dq-off</td>" in shown
    assert f"<td>{opened.committed.versions['in_flight']:,}</td>" in shown


def test_the_lag_of_an_opened_warehouse_is_that_of_show(lake: Path, cli: Command):
    shown = {
        (row["group_id"], row["topic_id"], row["partition"]): row["lag"]
        for row in cli("show", lake, "--json").json["share_partitions"]
    }
    rows = share_state.open(lake).lag.to_pylist()
    assert {(row["group_id"], row["topic_id"], row["partition"]): row["lag"] for row in rows} == shown
    assert all((row["lag"] is None) == (row["reason"] is not None) for row in rows)


def test_a_diff_of_a_warehouse_is_that_of_its_last_two_runs(lake: Path):
    of_opened, of_call = share_state.open(lake).diff(), share_state.diff(lake)
    assert of_opened.facts == of_call.facts
    assert repr(of_opened) == f"0 of {of_opened.compared} share-partitions differ, 0 offsets in another state"


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda opened: opened.table("nothing"), "has no table 'nothing'; it has"),
        (lambda opened: opened.table("cutoff", group="dq-off"), "cutoff: its rows are not about single"),
        (lambda opened: opened.table("in_flight", group="nobody"), "group nobody: not found"),
        (lambda opened: opened.previous.diff(), "has one run of audit"),
        (lambda _: share_state.open("nowhere"), "nowhere: no warehouse here"),
        (lambda _: untyped.open(3), "warehouse=3: give a path"),
    ],
)
def test_what_a_warehouse_does_not_hold_is_named(lake: Path, use, said: str):
    with pytest.raises(ShareStateError, match=said):
        use(share_state.open(lake))
    with pytest.raises(AttributeError, match="no attribute or table 'nothing'"):
        _ = share_state.open(lake).nothing


def test_why_says_what_the_command_says(cli: Command, lake: Path):
    found = share_state.why(DLQ, "dq-off")
    assert json.loads(cli("why", "dq-off", DLQ, "--json").out) == json.loads(
        json.dumps(found.to_json() | {"html": None}, default=_as_printed)
    )
    assert repr(found).splitlines() == list(incident_lines(found))
    assert found.trouble == "NO_MEMBERS"
    assert "NO_MEMBERS" in found._repr_html_()
    of_lake = share_state.why(lake, "dq-off")
    assert of_lake.cause == found.cause
    assert of_lake.story == found.story


def _as_printed(value: Any) -> Any:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def test_a_diff_of_two_moments_has_a_row_for_each_change(cli: Command):
    found = share_state.diff(CHAOS, as_of=EARLIER, group="g3")
    printed = cli("diff", CHAOS, "--as-of-time", EARLIER, "--group", "g3", "--json").json
    assert len(found.share_partitions) == printed["differing"] == len(printed["changed"])
    assert found.compared == printed["share_partitions"]
    for row, one in zip(found.share_partitions.to_pylist(), printed["changed"], strict=True):
        before, after = one["scalars"].get("start_offset", (None, None))
        assert (row["start_offset_before"], row["start_offset_after"]) == (before, after)
        assert row["acknowledged"] == one["deliveries"]["acknowledged"]
    assert len(found.ranges) == sum(len(one["ranges"]) for one in printed["changed"])
    assert repr(found).startswith(f"{printed['differing']} of {printed['share_partitions']} share-partitions differ")


def test_decoded_records_are_the_lines_of_the_command(cli: Command):
    found = share_state.decode(DLQ, "dq-off", "t0", 0, most=5, topics=DLQ / "topics.json").to_pylist()
    lines = [
        json.loads(line)
        for line in cli(
            "decode", DLQ, "--group", "dq-off", "--topic", "t0", "--partition", 0, "--most", 5
        ).out.splitlines()
    ]
    assert [(row["offset"], row["kind"], row["batch"]) for row in found] == [
        (line["offset"], line["kind"], line["batch"]) for line in lines
    ]
    assert found[1]["state_batches"][0]["state"] == lines[1]["state_batches"][0]["state"]
    whole = arrow(share_state.read(DLQ))
    assert len(whole) == len(share_state.decode(DLQ))


def test_a_warehouse_stands_for_its_logs_in_calls_that_read_logs(lake: Path):
    place = ("dq-off", "t0", 0)
    topics = DLQ / "topics.json"
    assert str(share_state.explain(lake, *place)) == str(share_state.explain(DLQ, *place, topics=topics))
    assert arrow(share_state.timeline(lake, *place)).equals(arrow(share_state.timeline(DLQ, *place, topics=topics)))
    assert arrow(share_state.cutoff(lake)).equals(arrow(share_state.cutoff(DLQ)))
    with pytest.raises(ShareStateError, match="is a warehouse, which keeps the options of its run"):
        share_state.timeline(lake, *place, topics=topics)


@pytest.fixture(scope="module")
def records() -> pa.Table:
    """Both topics of CHAOS as rows, in no order."""
    rows = both_topics(CHAOS)[2]
    return rows.take(pa.array(range(len(rows) - 1, -1, -1)))


@pytest.mark.parametrize(
    "form", [lambda rows: rows, pa.Table.to_pandas, pl.from_arrow], ids=["arrow", "pandas", "polars"]
)
def test_rows_in_memory_fold_as_their_log(records: pa.Table, form):
    found, expected = share_state.reconstruct(form(records)), share_state.reconstruct(CHAOS)
    assert found.in_flight.equals(expected.in_flight)
    assert found.share_groups.select(["group_id", "group_epoch"]).equals(
        expected.share_groups.select(["group_id", "group_epoch"])
    )
    assert str(share_state.explain(form(records), "g3", "t0", 2, 470)) == str(
        share_state.explain(CHAOS, "g3", "t0", 2, 470)
    )


@nightly("several runs")
def test_a_question_about_rows_in_memory_needs_no_file(records: pa.Table):
    found = share_state.why(records, "g3")
    assert found.commands == ()
    of_frame = share_state.why(records.to_pandas(), "g3")
    assert of_frame.cause == found.cause
    assert of_frame.story == found.story == share_state.why(CHAOS, "g3").story
    with pytest.raises(ShareStateError, match="input holds records, of which no later audit can resume"):
        untyped.audit(records, "lake")
    with pytest.raises(ShareStateError, match="repair takes paths only"):
        untyped.repair(records)


def test_rows_of_text_and_of_other_columns_are_read_by_their_names(records: pa.Table):
    in_hex = pl.DataFrame(pl.from_arrow(records)).with_columns(
        pl.col("key").bin.encode("base64").alias("k"), pl.col("value").bin.encode("base64")
    )
    found = share_state.reconstruct(in_hex.drop("key"), columns={"key": "k"})
    assert found.in_flight.equals(share_state.reconstruct(records).in_flight)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (pd.DataFrame({"key": [b"k"]}), r"the DataFrame: no column value .*; give columns={'value': NAME}"),
        (pl.DataFrame({"key": ["k"]}).lazy(), "input is a LazyFrame: give an Arrow table, a DataFrame of pandas"),
        (pl.Series([1]), "input: Arrow cannot read this Series"),
        ({"key": ["k"]}, "input is a dict: give an Arrow table"),
        (
            pa.table({"key": [b"k"], "value": [b"v"], "partition": [0], "offset": [-1]}),
            "the DataFrame: row 0: offset is -1",
        ),
        (
            pa.table({"key": ["?"], "value": ["v"], "partition": [0], "offset": [1]}),
            "a key or value is text but neither base64 nor hexadecimal",
        ),
        (
            pa.table({"key": [b"k"], "value": [b"v"], "partition": [0], "offset": [1], "topic": ["orders"]}),
            r"the DataFrame: no records of __share_group_state in this table \(found rows of orders\)",
        ),
        (
            pa.table({"key": [b"k"], "value": [b"v"], "partition": [1.5], "offset": [1]}),
            "column partition is double, not an integer",
        ),
    ],
)
def test_rows_that_are_no_records_are_refused_in_one_line(rows: Any, said: str):
    with pytest.raises(ShareStateError, match=said) as raised:
        untyped.reconstruct(rows)
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: untyped.audit(DLQ), "audit: give input and warehouse, or config"),
        (
            lambda: untyped.audit(DLQ, "x", settings={"fail_onn": "x"}),
            r"settings\['fail_onn'\]: no such key; did you mean fail_on",
        ),
        (lambda: untyped.audit(DLQ, "x", topics={"a": "b"}), "topics={'a': 'b'}: give a path, which later audits"),
        (lambda: untyped.audit(config="nowhere.yaml"), "nowhere.yaml: no such file"),
        (lambda: untyped.diff(DLQ), "diff: give two exports or warehouses, one warehouse, or an export and as_of"),
        (lambda: untyped.diff(DLQ, and_as_of=EARLIER), "give the earlier point of the export, too: as_of"),
        (lambda: untyped.diff(DLQ, DLQ, as_of=EARLIER), "as_of is a point of one export; leave out other"),
        (lambda: untyped.decode(DLQ, most=0), "most=0: give a number from 1 on"),
        (lambda: untyped.why(DLQ, "nobody"), "group nobody: not found"),
        (lambda: untyped.why(DLQ, "dq-off", clock="sun"), "clock sun: give one of log, wall"),
    ],
)
def test_a_question_that_cannot_be_answered_is_refused_in_one_line(call, said: str):
    with pytest.raises(ShareStateError, match=said) as raised:
        call()
    assert len(str(raised.value).splitlines()) == 1
