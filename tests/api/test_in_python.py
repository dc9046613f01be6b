"""`import share_state`, as a notebook uses it."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import share_state
from share_state.errors import InputError, ShareStateError
from share_state.schema.declarations import table_schema
from tests.profiles import nightly
from tests.truth import DATA, cases
from tests.warehouses import arrow

DLQ = DATA / "4.4.0/dlq"
TOPICS = DLQ / "topics.json"
untyped: Any = share_state
"""As a notebook calls it: nothing checks the types of arguments before it runs."""
ONE: dict[str, Any] = {"group": "dq-off", "topic": "t0", "partition": 0, "topics": TOPICS}


def _sorted(table: pa.Table) -> list[dict]:
    def known(row: dict) -> str:
        return repr({name: sorted(value) if name == "evidence" and value else value for name, value in row.items()})

    return sorted(table.to_pylist(), key=known)


def test_the_import_loads_neither_spark_nor_matplotlib_nor_kernels():
    heavy = "{'pyspark', 'matplotlib', 'numba', 'pyarrow', 'deltalake'}"
    code = f"import sys, share_state; dir(share_state); print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_name_it_promises_is_there_and_documented():
    for name in set(share_state.__all__) - {"__version__"}:
        assert (getattr(share_state, name).__doc__ or "").strip(), name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = share_state.nothing


def test_with_a_session_the_tables_are_those_without_one(spark: SparkSession):
    tables = share_state.reconstruct(DLQ, topics=TOPICS)
    frames = share_state.reconstruct(DLQ, topics=TOPICS, spark=spark)
    for name in ("share_partition_state", "in_flight", "findings", "cutoff"):
        here, there = getattr(tables, name), getattr(frames, name).toArrow()
        assert there.column_names == here.column_names == table_schema(name).names
        assert _sorted(there) == _sorted(here), name
    assert arrow(share_state.cutoff([DLQ])).equals(tables.cutoff)
    assert repr(tables).endswith("share_group_partitions: 48 rows)")
    assert "cutoff: DataFrame[" in repr(frames)


@nightly("writes a warehouse with Spark, as others do")
def test_a_warehouse_holds_what_comes_back(spark: SparkSession, tmp_path: Path):
    folder = tmp_path / "lake"
    frames = share_state.reconstruct(DATA / "4.4.0/happy", spark=spark, warehouse=folder, rules={"SPSO_STALL": "off"})
    assert _sorted(frames.in_flight.toArrow()) == _sorted(share_state.reconstruct(DATA / "4.4.0/happy").in_flight)
    assert (folder / "runs" / "_delta_log").is_dir()


def test_a_warehouse_is_written_without_a_session_too(tmp_path: Path):
    written = share_state.reconstruct(DLQ, topics=TOPICS, warehouse=tmp_path / "lake")
    folded = share_state.reconstruct(DLQ, topics=TOPICS)
    for name in ("share_partition_state", "in_flight", "cutoff", "share_groups"):
        assert _sorted(getattr(written, name)) == _sorted(getattr(folded, name)), name
    assert (tmp_path / "lake/runs/_delta_log").is_dir()


def test_records_are_read_as_a_dataframe(spark: SparkSession):
    records = share_state.read(str(DLQ), spark)
    assert records.columns == table_schema("decoded_records").names
    assert untyped.read(spark, DLQ).columns == records.columns, "the older order"
    assert records.count() == sum(row["log_end_offset"] for row in arrow(share_state.cutoff(DLQ)).to_pylist())


@pytest.mark.parametrize("case", [c for c in cases() if c.is_as_of and "codec-gzip" in c.name], ids=lambda c: c.name)
def test_as_of_offsets_give_the_truth_of_that_moment(case):
    offsets = {number: row["nextOffset"] for number, row in case.partitions.items()}
    states = share_state.reconstruct(case.folder, as_of=offsets).share_partition_state.to_pylist()
    found = {(row["group_id"], row["topic_id"], row["partition"]): row["start_offset"] for row in states}
    assert found == {key: row["start_offset"] for key, row in case.rows.items()}


def test_as_of_a_moment_is_the_last_row_of_the_timeline_until_then():
    timeline = arrow(share_state.timeline(DLQ, **ONE))
    moment = timeline["timestamp"][9].as_py()
    assert len(arrow(share_state.timeline(DLQ, **ONE, as_of=moment))) == 10
    states = share_state.reconstruct(DLQ, topics=TOPICS, as_of=moment).share_partition_state.to_pylist()
    (state,) = [r for r in states if (r["group_id"], r["topic"], r["partition"]) == ("dq-off", "t0", 0)]
    after = timeline.slice(9, 1).to_pylist()[0]
    shared = set(after) & set(state) - {"suspect"}
    assert {name: state[name] for name in shared} == {name: after[name] for name in shared}
    naive = (moment + timedelta(milliseconds=1)).astimezone(UTC).replace(tzinfo=None)
    assert len(arrow(share_state.timeline(DLQ, **ONE, as_of=naive.isoformat()))) == 10


def test_a_timeline_is_the_same_with_a_session(spark: SparkSession):
    there = share_state.timeline(DLQ, **ONE, spark=spark).toArrow().sort_by("offset")
    assert there.to_pylist() == arrow(share_state.timeline(DLQ, **ONE)).to_pylist()


def test_an_offset_is_explained_in_a_sentence_and_a_row_a_record():
    told = share_state.explain(DLQ, "dq-off", "t0", 0, 0, topics=TOPICS, delivery_limit=3)
    assert "its dead-letter write has not finished, and SPSO cannot pass it" in str(told)
    assert told.records["standing"].to_pylist()[1:4] == [
        "no start yet -> AVAILABLE (1)",
        "AVAILABLE (1) -> AVAILABLE (2)",
        "AVAILABLE (2) -> ARCHIVING (3)",
    ]
    assert told.records["offset"].to_pylist() == [record["offset"] for record in told.facts["records"]]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: untyped.cutoff("nowhere"), "nowhere"),
        (lambda: untyped.cutoff(DLQ, dialect="avro"), "dialect='avro': give one of auto"),
        (lambda: untyped.cutoff(DLQ, as_of={7: 3}), "log partition 7 is not in the input"),
        (lambda: untyped.cutoff(DLQ, as_of={0: "3"}), "give a log partition and an offset"),
        (lambda: untyped.cutoff(DLQ, as_of={0: -3}), "give a log partition and an offset"),
        (lambda: untyped.cutoff(DLQ, as_of=7), "as_of=7: give a datetime"),
        (lambda: untyped.cutoff(DLQ, as_of="last night"), "as_of='last night': give a datetime"),
        (lambda: untyped.reconstruct(DLQ, rules={"NO_RULE": "off"}), "NO_RULE"),
        (lambda: untyped.timeline(DLQ, group="dq-auto", partition=9), "partition 9 of group dq-auto: not found"),
        (lambda: untyped.explain(DLQ, "nobody", "t0", 0, 0), "group nobody: not found; the nearest"),
        (lambda: untyped.reconstruct(DLQ, topics="missing.json"), "missing.json: cannot be read .*a JSON file of"),
        (lambda: untyped.reconstruct(5), "input=5: give a path, several paths, or a DataFrame"),
        (lambda: untyped.reconstruct([5]), r"input=\[5\]: give a path"),
        (lambda: untyped.reconstruct([]), r"input=\[\]: give a path"),
        (lambda: untyped.explain(DLQ, "dq-off", "t0", 0, -1), "^offset=-1: give an offset from 0 on"),
        (lambda: untyped.reconstruct(DLQ, groups=5), "groups=5: give a path"),
        (lambda: untyped.reconstruct(DLQ, rules=["x"]), r"rules=\['x'\]: give a dictionary as in"),
        (lambda: untyped.reconstruct(DLQ, columns={"key": 3}), "columns={'key': 3}: give a valid string"),
        (lambda: untyped.reconstruct(DLQ, topics=5), "topics=5: give the path of a JSON file, topic ids"),
        (lambda: untyped.reconstruct(DLQ, group_partitions="x"), "group_partitions='x': give a whole number"),
        (lambda: untyped.reconstruct(DLQ, warehouse=4), "warehouse=4: give a path"),
        (lambda: untyped.reconstruct(DLQ, spark=4), "spark=4: give a SparkSession"),
        (lambda: untyped.timeline(DLQ, group=5), "group=5: give text"),
        (lambda: untyped.explain(DLQ, "g", "t", 0, "x"), "offset='x': give a whole number"),
        (lambda: untyped.explain(DLQ, "g", "t", True, 1), "partition=True: give a whole number"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_line(call, told: str):
    with pytest.raises(ShareStateError, match=told) as raised:
        call()
    assert len(str(raised.value).splitlines()) == 1


def test_calls_take_their_arguments_by_position_and_by_the_documented_name(spark: SparkSession):
    assert arrow(share_state.cutoff(input=DLQ, spark=None)).equals(share_state.cutoff(DLQ, None))
    frames = share_state.reconstruct(DLQ, spark)
    assert frames.cutoff.columns == share_state.reconstruct(input=DLQ).cutoff.column_names
    assert len(arrow(share_state.timeline(DLQ, "dq-off", "t0", 0, topics=TOPICS)))


@pytest.mark.parametrize(
    "call", [share_state.cutoff, share_state.timeline, share_state.reconstruct, share_state.repair]
)
def test_an_unknown_argument_names_the_call(call):
    with pytest.raises(TypeError, match=rf"{call.__name__}\(\) got an unexpected keyword argument 'foo'"):
        call(DLQ, foo=1)


def test_an_input_without_a_record_batch_is_refused(tmp_path: Path):
    (tmp_path / "__share_group_state-0").mkdir()
    (tmp_path / "__share_group_state-0" / "00000000000000000000.log").write_bytes(b"no batch at all" * 9)
    with pytest.raises(InputError, match="nothing in it is a record batch"):
        share_state.reconstruct(tmp_path)


def test_moments_are_utc():
    late = datetime(2026, 11, 21, 4, 49, 55, 861000, tzinfo=UTC)
    whole = len(arrow(share_state.timeline(DLQ, **ONE)))
    assert len(arrow(share_state.timeline(DLQ, **ONE, as_of=late))) == whole
    here = late.astimezone(timezone(timedelta(hours=5)))
    assert len(arrow(share_state.timeline(DLQ, **ONE, as_of=here))) == whole


@nightly("reads three topics; test_dead_letter_topics matches them")
def test_dead_letters_are_matched_without_a_warehouse(tmp_path: Path, spark: SparkSession):
    export = DATA / "4.4.0/dead-letters"
    state, letters = export / "__share_group_state-2", sorted(export.glob("dlq.all-*"))
    in_memory = share_state.reconstruct(state, topics=export / "topics.json", dead_letters=letters)
    lake = tmp_path / "lake"
    written = share_state.reconstruct(state, topics=export / "topics.json", dead_letters=letters, warehouse=lake)
    for name in ("dead_letters", "lost_dead_letters", "share_partition_state"):
        assert _sorted(getattr(in_memory, name)) == _sorted(getattr(written, name)), name
    assert len(in_memory.dead_letters)
    assert share_state.reconstruct(state).dead_letters is None
    with pytest.raises(ShareStateError, match=r"dead_letters: .* give warehouse=, too"):
        share_state.reconstruct(state, spark=spark, dead_letters=letters)


def test_topics_may_be_a_dictionary_of_names():
    named = share_state.reconstruct(DLQ, topics={"We0ABtXRQ0uVly26I_w1Mw": "letters"}, groups=())
    assert "letters" in named.share_partition_state["topic"].to_pylist()
    with pytest.raises(ShareStateError, match=r"topics={3: 'x'}: give topic ids and names"):
        untyped.reconstruct(DLQ, topics={3: "x"})


def test_control_records_are_folded_as_the_arguments_say(tmp_path: Path):
    with pytest.raises(ShareStateError, match="mode='lax': give one of strict, best-effort"):
        share_state.reconstruct(DLQ, mode="lax")
    with pytest.raises(ShareStateError, match="ignore_uncheckpointed='yes': give True or False"):
        untyped.cutoff(DLQ, ignore_uncheckpointed="yes")
    with pytest.raises(ShareStateError, match=r"nowhere\.json.*JSON file"):
        share_state.cutoff(DLQ, subscriptions=tmp_path / "nowhere.json")
    with pytest.raises(ShareStateError, match=r"limits={'groups': {'app': {'delivery_count': 99}}}: give at most 25"):
        share_state.reconstruct(DLQ, limits={"groups": {"app": {"delivery_count": 99}}})
