"""`share-state diff`: between two points of an export, and between the warehouses made as of them."""

import re
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import share_state
from share_state.fold.state_log import fold_log
from share_state.kafka.state_records import StateRecords
from share_state.report.audit_text import OUTCOMES
from share_state.report.diff import compare_states
from share_state.schema.declarations import table_schema
from share_state.sources.as_of import TIME_FORMS, Window, to_epoch_ms
from share_state.sources.discovery import find_logs
from share_state.sources.topics import Topics
from tests.cli.commands import Command
from tests.fold.decoded_logs import decoded
from tests.fold.record_context_model import outcomes
from tests.profiles import nightly
from tests.truth import DATA

CHAOS = DATA / "4.3.1/chaos"
EARLIER, LATER = "2026-11-21T03:07:05Z", "2026-11-21T03:07:24Z"
POINTS = ("--as-of-time", EARLIER, "--and-as-of-time", LATER)


def _window(moment: str) -> Window:
    return Window(until_time_ms=to_epoch_ms(moment))


def _starts(moment: str) -> dict[tuple, int | None]:
    rows = share_state.reconstruct(CHAOS, as_of=moment).share_partition_state.to_pylist()
    return {(row["group_id"], row["topic_id"], row["partition"]): _known(row["start_offset"]) for row in rows}


def _known(offset: int) -> int | None:
    return offset if offset >= 0 else None


def test_every_share_partition_whose_start_moved_is_told(cli: Command):
    found = cli("diff", CHAOS, *POINTS, "--json").json
    before, after = _starts(EARLIER), _starts(LATER)
    told = {(row["group_id"], row["topic_id"], row["partition"]): row for row in found["changed"]}
    assert found["differing"] == len(told) > 0
    assert found["share_partitions"] == len({*before, *after})
    for key in {*before, *after}:
        moved = before.get(key) != after.get(key)
        assert moved == ("start_offset" in told[key]["scalars"] if key in told else False)
        if moved:
            assert told[key]["scalars"]["start_offset"] == [before.get(key), after.get(key)]
            change = "changed" if key in before and key in after else "appeared" if key in after else "disappeared"
            assert told[key]["change"] == change


@nightly("two runs")
def test_warehouses_made_as_of_two_points_differ_as_the_export_does(cli: Command, tmp_path: Path):
    for name, point in (("a", EARLIER), ("b", LATER)):
        said = cli("reconstruct", CHAOS, "--out", tmp_path / name, "--as-of-time", point, "--fail-on", "off")
        assert said.code == 0
    found = cli("diff", tmp_path / "a", tmp_path / "b", "--json").json
    of_export = cli("diff", CHAOS, *POINTS, "--json").json
    # Only the records between the two points show what became of deliveries.
    assert {row["deliveries"] for row in found["changed"]} == {None}
    assert found == of_export | {"changed": [row | {"deliveries": None} for row in of_export["changed"]]}
    same = cli("diff", tmp_path / "a", tmp_path / "a")
    assert same.out == f"no difference in {len(_starts(EARLIER))} share-partitions\n"


def test_the_table_says_what_moved(cli: Command):
    said = cli("diff", CHAOS, *POINTS, "--group", "g0", "--topics", CHAOS / "topics.json")
    found = cli("diff", CHAOS, *POINTS, "--group", "g0", "--topics", CHAOS / "topics.json", "--json").json
    assert {row["group_id"] for row in found["changed"]} == {"g0"}
    header, *rows = said.table
    assert header == ["GROUP", "TOPIC", "PARTITION", "CHANGE", "SPSO", "SPEO", "EPOCHS", "RECORDS"]
    assert [row[:3] for row in rows] == [["g0", row["topic"] or row["topic_id"], str(row["partition"])]
                                         for row in found["changed"]]  # fmt: skip
    assert said.lines[-1] == f"{found['differing']} of {found['share_partitions']} share-partitions differ"


def test_what_became_of_deliveries_between_two_points_is_counted(cli: Command):
    """Offset by offset, over the records of the log between the points; those given up are not finished."""
    first, last = ([fold_log(log, _window(point)) for log in find_logs([str(CHAOS)])] for point in (EARLIER, LATER))
    expected: dict[tuple, dict[str, int]] = {}
    for before, after in zip(first, last, strict=True):
        records, keys = decoded(CHAOS / after.log.name)
        begin, end = before.next_offset, after.next_offset
        rows = records.rows[(records.rows["offset"] < end)]
        counts = outcomes(StateRecords(rows, records.batches), keys, 5, begin)
        columns = after.key_columns(np.arange(len(after.keys)), Topics())
        names = zip(*(columns[name].to_pylist() for name in ("group_id", "topic_id", "partition")), strict=True)
        expected |= {key: {name: counts[place][name] for name in OUTCOMES} for place, key in enumerate(names)}
    found = cli("diff", CHAOS, *POINTS, "--json").json["changed"]
    assert len(found) > 20
    for row in found:
        if row["change"] != "disappeared":
            assert row["deliveries"] == expected[row["group_id"], row["topic_id"], row["partition"]]
        assert not [one for one in row["ranges"] if one["change"] == "finished" and "ARCHIVED" in one["after"]]
    said = cli("diff", CHAOS, *POINTS)
    assert re.search(r"\d+ acknowledged, \d+ rejected, \d+ released", said.out)


def test_the_later_point_is_the_end_where_none_is_given(cli: Command):
    to_the_end = cli("diff", CHAOS, "--as-of-time", EARLIER, "--json").json
    newest = cli("diff", CHAOS, "--as-of-time", EARLIER, "--and-as-of-time", "-0s", "--json").json
    assert to_the_end == newest
    whole = share_state.reconstruct(CHAOS)
    middle = whole.cutoff["log_end_offset"][0].as_py() // 2
    by_offset = cli("diff", CHAOS, "--as-of-offset", f"0={middle}", "--json").json
    before = share_state.reconstruct(CHAOS, as_of={0: middle})
    states = before.share_partition_state.to_pylist() + whole.share_partition_state.to_pylist()
    known = {(row["group_id"], row["topic_id"], row["partition"]) for row in states if row["state_partition"] == 0}
    assert {(row["group_id"], row["topic_id"], row["partition"]) for row in by_offset["changed"]} <= known
    assert by_offset["changed"]


def test_share_partitions_are_in_the_order_of_show():
    schema = table_schema("share_partition_state")
    keys = [("g", "a", "t9", 2), ("g", "a", "t9", 10), ("g", "b", "t1", 0), ("g", None, "t0", 0), ("h", "a", "t9", 0)]
    rows = [
        {field.name: "" if pa.types.is_string(field.type) else -1 if pa.types.is_integer(field.type) else None
         for field in schema} | dict(zip(("group_id", "topic", "topic_id", "partition"), key, strict=True))
        for key in reversed(keys)
    ]  # fmt: skip
    states, in_flight = pa.Table.from_pylist(rows, schema), table_schema("in_flight").empty_table()
    none = table_schema("share_partition_history").empty_table()
    changed = compare_states((states.slice(0, 0), in_flight, none), (states, in_flight, none))["changed"]
    assert [(row["group_id"], row["topic"], row["topic_id"], row["partition"]) for row in changed] == keys


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            (CHAOS,),
            "diff: give two warehouses or exports, one warehouse, or an export and --as-of-offset or --as-of-time",
        ),
        (
            (CHAOS, "--and-as-of-time", LATER),
            "diff: give the earlier point of the export too: --as-of-offset or --as-of-time",
        ),
        (
            (CHAOS, "--as-of-time", LATER, "--and-as-of-time", EARLIER),
            "diff: __share_group_state-0: the later point is before the earlier one; exchange the two",
        ),
        (
            (CHAOS, "--as-of-offset", "1=9", "--and-as-of-offset", "1=8"),
            "diff: __share_group_state-1: the later point is before the earlier one; exchange the two",
        ),
        ((CHAOS, "--as-of-time", "noon"), f"--as-of-time noon: give a time as in {TIME_FORMS}"),
    ],
)
def test_a_call_that_names_no_two_points_is_refused(cli: Command, arguments: tuple, said: str):
    found = cli("diff", *arguments)
    assert (found.code, found.out, found.err) == (2, "", f"share-state: {said}\n")


def test_the_points_of_these_tests_lie_within_the_log():
    stamps = [datetime.fromisoformat(point) for point in (EARLIER, LATER)]
    assert stamps == sorted(stamps)
    assert 0 < len(_starts(EARLIER)) < len(_starts(LATER))
