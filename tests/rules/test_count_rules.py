"""The delivery complete count against the ranges it counts."""

from pathlib import Path

import pyarrow as pa
import pytest

from share_state.rules.isolation_levels import explain_counts
from share_state.schema.declarations import table_schema
from share_state.sources.group_configs import GroupConfigs
from tests.rules.histories import ACKNOWLEDGED, ARCHIVED, ARCHIVING, AVAILABLE, found, snapshot, update

CODE = "DELIVERY_COMPLETE_COUNT_MISMATCH"
HELD = [(0, 4, ACKNOWLEDGED, 1), (6, 6, ARCHIVED, 1), (7, 9, AVAILABLE, 1)]


@pytest.mark.parametrize(("start", "count"), [(0, 6), (3, 3), (5, 1), (7, 0)])
def test_a_count_of_what_is_finished_from_the_start_on_is_quiet(tmp_path: Path, start: int, count: int):
    assert found(tmp_path, snapshot(HELD, count=6), update(start=start, count=count)).codes == {}


def test_archiving_offsets_are_not_finished(tmp_path: Path):
    held = [(0, 6, ACKNOWLEDGED, 1), *HELD[2:]]
    assert found(tmp_path, snapshot(held, count=7), update([(7, 7, ARCHIVING, 1)], count=8)).codes == {CODE: 1}


@pytest.mark.parametrize(("count", "is_found"), [(5, True), (6, False), (7, False), (8, True)])
def test_offsets_in_no_batch_may_be_finished(tmp_path: Path, count: int, is_found: bool):
    # Offset 5 is in no batch: for a read_committed group it may be of an aborted transaction.
    judged = found(tmp_path, snapshot(HELD, count=count))
    assert judged.codes == ({CODE: 1} if is_found else {})


def test_a_count_beyond_the_offsets_in_no_batch_names_them(tmp_path: Path):
    (row,) = found(tmp_path, snapshot(HELD, count=8)).of(CODE)
    assert row["message"] == (
        "the delivery complete count is 8: 6 offsets from the start on are finished, and 1 more are in no state batch"
        "; a leader counts before it writes, so a later record may correct it"
    )


def test_a_count_beyond_all_that_is_in_flight_is_called_so(tmp_path: Path):
    (row,) = found(tmp_path, snapshot(HELD, count=11)).of(CODE)
    assert row["message"] == (
        "the delivery complete count is 11: more than there are offsets in flight;"
        " a read_committed group may have finished offsets of aborted transactions after them"
    )
    assert row["evidence"] == {"found": "11", "finished": "6", "in_flight": "10"}


def test_a_count_that_is_forgotten_is_found_once(tmp_path: Path):
    judged = found(tmp_path, snapshot(HELD, count=6), update(count=None), update(count=None), update(count=6))
    assert [row["offset"] for row in judged.of(CODE)] == [1]
    assert judged.of(CODE)[0]["message"] == "the delivery complete count is -1: it was known before"


def test_a_writer_that_never_counted_is_quiet(tmp_path: Path):
    assert found(tmp_path, snapshot(HELD, count=None), update(HELD, count=None)).codes == {}


def test_initialising_forgets_the_count(tmp_path: Path):
    anew = snapshot(start=-1, count=None, epoch=1, leader_epoch=0)
    assert found(tmp_path, snapshot(HELD, count=6), anew).codes == {}


def test_a_count_below_minus_1_is_found_even_without_a_start(tmp_path: Path):
    (row,) = found(tmp_path, snapshot(start=-1, count=-2)).of(CODE)
    assert row["message"] == "the delivery complete count is -2: it is below -1"


def test_a_state_whose_beginning_is_gone_may_hold_less_than_was_counted(tmp_path: Path):
    assert found(tmp_path, update(HELD[2:], count=6), update(count=6), base_offset=5).codes == {"ORPHAN_UPDATE": 1}


@pytest.mark.parametrize(
    ("level", "origin", "expected"),
    [
        ("read_committed", "metadata", None),
        ("read_uncommitted", "metadata", "the delivery complete count is 11: more than there are offsets in flight"),
        (None, "metadata", "the delivery complete count is 11: more than there are offsets in flight"),
        (
            None,
            "",
            "the delivery complete count is 11: more than there are offsets in flight;"
            " a read_committed group may have finished offsets of aborted transactions after them",
        ),
    ],
)
def test_the_isolation_level_of_a_group_explains_counts_beyond_what_is_in_flight(
    tmp_path: Path, level: str | None, origin: str, expected: str | None
):
    judged = found(tmp_path, snapshot(HELD, count=11), update([(10, 10, ARCHIVED, 1)], count=6))
    pairs = [row | {"evidence": [*row["evidence"].items()]} for row in judged.rows]
    findings, group = pa.Table.from_pylist(pairs, table_schema("findings")), judged.rows[0]["group_id"]
    configs = GroupConfigs(of_groups={group: {"share.isolation.level": level}} if level else {}, origin=origin)
    rows = [row for row in explain_counts(findings, configs).to_pylist() if row["rule"] == CODE]
    # The second count is too low, which no transaction explains.
    assert rows[-1]["message"] == judged.of(CODE)[-1]["message"]
    assert [row["message"] for row in rows[:-1]] == ([] if expected is None else [expected])
