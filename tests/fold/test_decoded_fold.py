"""Records that are no log, in pieces cut anywhere, fold to what their logs fold to; the rest is unknown."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import share_state
from share_state.errors import InputError, ShareStateError
from share_state.fold.decoded_fold import by_log, fold_decoded, sorted_by_log
from share_state.fold.draft.control_log import fold_control_log
from share_state.fold.state_log import fold_log
from share_state.fold.timeline import decoded_tables
from share_state.pipeline.given_records import _OF_WHOLE_LOGS, RECORDS_ONLY
from share_state.schema.declarations import table_schema
from share_state.sources.as_of import Window
from share_state.sources.discovery import find_logs
from share_state.sources.log_partition import STATE_TOPIC, LogPartition
from share_state.sources.memory_table import find_memory_logs
from share_state.sources.record_tables import Columns
from share_state.sources.segments import read_chunks
from tests.fold import random_logs
from tests.fold.control_records import test_against_model as control_records
from tests.fold.control_records.logs import checkpoint, control, delta, log_of
from tests.fold.nights import only_log
from tests.fold.test_fold_group import LOG_FACTS, LOGS, rows
from tests.profiles import some_of
from tests.sources.formats.tables import table_of
from tests.truth import DATA, logs_alone, scenarios

RANGE = ("group_id", "topic", "partition", "first_offset", "last_offset", "state", "delivery_count", "gap")


def decoded(logs: Sequence[LogPartition]) -> pa.Table:
    tables = [table for log in logs for table in decoded_tables(log, Window())]
    return pa.concat_tables([table_schema("decoded_records").empty_table(), *tables])


def in_pieces(records: pa.Table, sizes: Sequence[int]) -> tuple[list[pa.Table], list[pa.Table]]:
    """States and ranges of the records, which are given so many at a time, again and again."""
    ordered = sorted_by_log(records)
    cuts, number = [0], 0
    while cuts[-1] < len(ordered):
        cuts.append(min(len(ordered), cuts[-1] + sizes[number % len(sizes)]))
        number += 1
    pieces = [ordered.slice(begin, end - begin) for begin, end in pairwise(cuts)]
    folded = [fold_decoded(log, tables)[0] for log, tables in by_log(pieces)]
    return (
        [table_schema("share_partition_state").empty_table(), *(one.states for one in folded)],
        [table_schema("in_flight").empty_table(), *(one.in_flight for one in folded)],
    )


def test_a_state_without_its_snapshot_is_suspect():
    records = share_state.read(DATA / "4.3.1/chaos")
    updates = records.filter(pc.field("kind") == "update")
    for kept, suspect in ((records, {False}), (updates, {True})):
        states = share_state.fold_records(kept).share_partition_state
        assert {*states["suspect"].to_pylist()} == suspect
        assert states["snapshot_offset"].null_count == (len(states) if suspect == {True} else 0)


def ranges(in_flight: Sequence[pa.Table]) -> list[tuple]:
    table = pa.concat_tables(in_flight)
    return sorted(zip(*(table[name].to_pylist() for name in RANGE), strict=True), key=str)


@pytest.mark.parametrize("scenario", some_of(LOGS, 4), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_broker_s_records_in_pieces_fold_to_the_states_of_their_logs(scenario: Path):
    logs = find_logs([str(scenario)])
    folded = [fold_log(log) for log in logs]
    states, in_flight = in_pieces(decoded(logs), [700, 1, 37])
    assert rows(states) == rows([piece for one in folded for piece in one.state_pieces])
    assert ranges(in_flight) == ranges([one.in_flight for one in folded])


SHOWN = (
    *("dialect", "topic", "partition", "cutoff_offset", "next_cutoff_offset", "log_end_offset"),
    *("limited_by_group", "limited_by_topic_id", "limited_by_partition", "limited_since", "live_share_partitions"),
)
"""Columns of `cutoff` that records alone show."""


def compare(folded: share_state.Tables, expected: share_state.Tables) -> None:
    """Hold the tables of records equal to those of their logs, but for names of topics and rules over whole logs."""
    judged = expected.findings.filter(~pc.field("rule").isin(_OF_WHOLE_LOGS))
    for name, table in (("share_partition_state", expected.share_partition_state), ("findings", judged)):
        assert rows([getattr(folded, name)], ["topic"]) == rows([table], ["topic"])
    without_topic = [
        sorted(map(repr, table.drop_columns("topic").to_pylist())) for table in (folded.in_flight, expected.in_flight)
    ]
    assert without_topic[0] == without_topic[1]
    cutoffs = [sorted(table.select(SHOWN).to_pylist(), key=repr) for table in (folded.cutoff, expected.cutoff)]
    assert cutoffs[0] == cutoffs[1]
    unknown = {*folded.cutoff.column_names} - {*SHOWN, "safe", "reason"}
    assert {name for name in unknown if folded.cutoff[name].null_count < len(folded.cutoff)} == set()
    assert {*folded.cutoff["reason"].to_pylist()} == {RECORDS_ONLY}
    assert {*folded.cutoff["safe"].to_pylist()} == {False}


@pytest.mark.parametrize("scenario", some_of(scenarios(), 3), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_records_alone_show_states_findings_and_cutoffs_of_their_logs(scenario: Path):
    source = logs_alone(scenario)
    compare(share_state.fold_records(share_state.read(source)), share_state.reconstruct(source, groups=()))
    of_topic = table_of(find_logs([str(source)]))
    compare(share_state.fold_records(of_topic), share_state.reconstruct(of_topic, groups=()))


def test_records_alone_never_show_that_the_log_begins_with_them():
    records = share_state.read(DATA / "4.3.1/chaos")
    updates = share_state.fold_records(records.filter(pc.field("kind") == "update"))
    orphans = updates.findings.filter(pc.field("rule") == "ORPHAN_UPDATE")
    assert {*orphans["severity"].to_pylist()} == {"warning"}
    assert len(orphans) == len(updates.share_partition_state) > 0
    assert not any("begins at" in message for message in orphans["message"].to_pylist())
    assert updates.cutoff["cutoff_offset"].null_count == len(updates.cutoff)


@given(log=random_logs.logs(), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=3))
def test_drawn_records_in_pieces_fold_to_the_states_of_their_log(
    tmp_path_factory: pytest.TempPathFactory, log: list[list[random_logs.Written]], sizes: list[int]
):
    folder = tmp_path_factory.mktemp("log")
    random_logs.folder_of(log, folder, codec=0)
    found = only_log(folder)
    states, in_flight = in_pieces(decoded([found]), sizes)
    expected = fold_log(found)
    assert rows(states, ["suspect"]) == rows([expected.states], ["suspect"])
    assert ranges(in_flight) == ranges([expected.in_flight])


@given(log=control_records.logs(), data=st.data(), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=3))
def test_drawn_control_records_in_pieces_fold_to_the_states_of_their_log(
    tmp_path_factory: pytest.TempPathFactory, log: dict, data: st.DataObject, sizes: list[int]
):
    if not log:
        return
    found = log_of(tmp_path_factory.mktemp("log"), control_records.batches(log, data))
    records, expected = decoded([found]), fold_control_log(found)
    states, in_flight = in_pieces(records, sizes)
    assert rows(states, LOG_FACTS) == rows([expected.states], LOG_FACTS)
    assert ranges(in_flight) == ranges([expected.in_flight])


def test_both_dialects_fold_side_by_side(tmp_path: Path):
    of_state = find_logs([str(DATA / "4.3.1/happy")])
    records = [checkpoint("g0", 1, 0, 9), delta("g0", 1, 0, [(2, 3, 2, 1)]), checkpoint("h", 1, 4, 9)]
    of_control = log_of(tmp_path, [control(0, *records)])
    states, in_flight = in_pieces(decoded([*of_state, of_control]), [11])
    expected = [*(fold_log(log).states for log in of_state), fold_control_log(of_control).states]
    assert rows(states, LOG_FACTS) == rows(expected, LOG_FACTS)
    dialects = {dialect for one in in_flight for dialect in one["dialect"].to_pylist()}
    assert dialects == {"share_group_state", "control_records"}


def test_a_share_partition_with_records_in_two_state_partitions_has_a_row_for_each():
    (log, *_) = find_logs([str(DATA / "4.3.1/happy")])
    records = decoded([log])
    moved = records.set_column(
        records.schema.get_field_index("state_partition"), "state_partition", pa.array([7] * len(records), pa.int32())
    )
    states = share_state.fold_records(pa.concat_tables([records, moved])).share_partition_state
    assert len(states) == 2 * len(fold_log(log).states) > 0
    assert set(states["state_partition"].to_pylist()) == {log.partition, 7}


@pytest.mark.parametrize("sizes", [[10_000], [1], [3, 50]])
def test_records_that_a_sink_wrote_twice_count_once(sizes: list[int]):
    logs = find_logs([str(DATA / "4.3.1/happy")])
    records = decoded(logs)
    states, _ = in_pieces(pa.concat_tables([records, records.slice(5)]), sizes)
    assert rows(states) == rows([piece for log in logs for piece in fold_log(log).state_pieces])


def test_a_record_without_an_offset_is_refused():
    records = decoded(find_logs([str(DATA / "4.3.1/happy")]))
    column = pc.if_else(pc.equal(records["kind"], "update"), None, records["offset"])
    place = records.schema.get_field_index("offset")
    with pytest.raises(InputError, match="a record has no offset, so its place in the log is not known"):
        share_state.fold_records(records.set_column(place, records.schema.field(place), column))


def test_no_records_have_no_state_and_no_range():
    folded = share_state.fold_records(table_schema("decoded_records").empty_table())
    for name in ("share_partition_state", "in_flight", "findings", "cutoff"):
        assert getattr(folded, name).equals(table_schema(name).empty_table())


@pytest.mark.parametrize("library", ["arrow", "pandas", "polars"])
def test_decoded_records_of_any_library_fold_in_python(library: str):
    source = DATA / "4.3.1/happy"
    records: Any = share_state.read(source)
    frames: dict[str, Callable[[], Any]] = {
        "arrow": lambda: records,
        "pandas": records.to_pandas,
        "polars": lambda: polars.from_arrow(records),
    }
    folded = share_state.fold_records(frames[library]())
    expected = share_state.reconstruct(source)
    assert rows([folded.share_partition_state], ["topic_end_offset"]) == rows(
        [expected.share_partition_state], ["topic_end_offset"]
    )
    assert ranges([folded.in_flight]) == ranges([expected.in_flight])


def test_records_of_the_topic_fold_in_python():
    source = DATA / "4.3.1/happy"
    folded = share_state.fold_records(table_of(find_logs([str(source)])))
    assert len(folded.share_partition_state) == len(share_state.reconstruct(source).share_partition_state) > 0


def test_rows_of_a_part_of_a_log_are_one_run_in_which_no_offset_is_missed():
    every_other = table_of(find_logs([str(DATA / "4.3.1/happy")]))[::2]
    for log in find_memory_logs(every_other, Columns(), [STATE_TOPIC])[0]:
        ways = (log, replace(log, holds_all=False))
        runs = [[len(chunk.batches) for chunk in read_chunks(way)] for way in ways]
        folded = [fold_log(way) for way in ways]
        assert runs == [[folded[1].record_count], [1]]
        assert [one.last_lost_offset == -1 for one in folded] == [False, True]


def test_what_is_no_table_of_records_is_refused():
    with pytest.raises(InputError, match="fold_records: the columns are neither those of decoded records"):
        share_state.fold_records(pa.table({"id": [1]}))
    with pytest.raises(ShareStateError, match="records is a path: give its rows"):
        share_state.fold_records(str(DATA))  # pyright: ignore[reportArgumentType]
    odd = table_schema("decoded_records").empty_table().drop_columns(["offset"])
    odd = pa.concat_tables([odd, pa.Table.from_pylist([{"kind": "snapshot"}], odd.schema)])
    with pytest.raises(InputError, match=r"decoded records: .*give the column types of decoded_records"):
        share_state.fold_records(odd.append_column("offset", pa.array(["one"])))
