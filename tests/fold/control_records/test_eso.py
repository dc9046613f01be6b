"""SCO and ESO: the spec's example of three groups and two partitions, with every number it gives."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from share_state.errors import InputError
from share_state.fold.dialect import verify_cutoff
from share_state.fold.draft.control_log import FoldedControlLog, fold_control_log
from share_state.fold.fold_options import FoldOptions
from share_state.fold.limits import Limits
from share_state.sources.as_of import Window
from share_state.sources.share_snapshots import ShareSnapshotEntry, read_share_snapshot_file, write_share_snapshot_file
from tests.fold.control_records.logs import at, checkpoint, control_options, delta, log_of, user_data
from tests.fold.control_records.test_worked_example import CORRECTED, findings, records
from tests.kafka.batches import NOW, Record

T0 = {
    50: checkpoint("G3", 65535, 0, 0),
    100: checkpoint("G1", 1, 0, 0),
    150: delta("G1", 1, 100, [(0, 9, 2, 1)]),
    200: delta("G3", 65535, 50, [(0, 1, 2, 1)]),
    250: checkpoint("G2", 7, 20, 20),
    260: delta("G1", 1, 150, [(10, 11, 0, 1)]),
    300: delta("G2", 7, 250, [(20, 22, 2, 1)]),
    350: delta("G2", 7, 300, [(23, 23, 4, 2)]),
    400: checkpoint("G1", 2, 10, 12, [(10, 11, 0, 1)]),
    450: delta("G1", 2, 400, [(10, 10, 2, 2)]),
    500: checkpoint("G3", 0, 2, 2),
}
T1 = {
    10: checkpoint("G2", 1, 0, 0),
    20: delta("G2", 1, 10, [(0, 0, 2, 1)]),
    60: checkpoint("G3", 4, 0, 0),
    80: checkpoint("G1", 3, 0, 0),
    90: delta("G1", 3, 80, [(0, 0, 2, 1)]),
    120: checkpoint("G2", 2, 1, 1),
    130: delta("G2", 2, 120, [(1, 1, 2, 1)]),
}


NOW_TIME = datetime.fromtimestamp(NOW / 1000, UTC)


def proof(result: Any) -> Any:
    """The proof of the cutoff of a fold."""
    return verify_cutoff(result, Window(), FoldOptions(control=result.options))


def folded(folder: Path, found: Mapping[int, Record], *, start: int | None = 0, **options: Any) -> FoldedControlLog:
    """The records folded, in a log that begins at offset 0 (with user data) unless another start is noted."""
    log = log_of(folder, [user_data(0), *at(dict(found))], start=start or None)
    return fold_control_log(log, options=control_options(**options))


def by_group(result: FoldedControlLog, column: str) -> dict[str, Any]:
    """One column of the table of checkpoints."""
    return {row["group_id"]: row[column] for row in result.checkpoints.to_pylist()}


def test_the_first_partition_of_the_example(tmp_path: Path):
    result = folded(tmp_path, T0)
    assert by_group(result, "checkpoint_offset") == {"G1": 400, "G2": 250, "G3": 500}
    assert by_group(result, "checkpoint_epoch") == {"G1": 2, "G2": 7, "G3": 0}
    assert by_group(result, "redundant_retained") == {"G1": 1, "G2": 0, "G3": 0}
    assert by_group(result, "record_count") == {"G1": 5, "G2": 3, "G3": 3}
    (row,) = result.cutoff.to_pylist()
    assert row == {
        "dialect": "control_records", "topic": "T", "partition": 0, "cutoff_offset": 250, "log_start_offset": 0,
        "log_end_offset": 501, "redundant_records": 4, "live_share_partitions": 3, "limited_by_group": "G2",
        "limited_by_topic_id": None, "limited_by_partition": 0, "safe": True, "reason": None,
        "redundant_bytes": None, "next_cutoff_offset": 400, "pinned_records": 4, "pinned_bytes": None,
        "last_stable_offset": None,
        "limited_since": NOW_TIME, "ignored": [], "skipped_records": 0, "unflagged_records": 1,
    }  # fmt: skip
    assert result.record_count - result.redundant_records == 7
    assert findings(result) == {}
    assert proof(result).differing == ()


def test_the_second_partition_of_the_example(tmp_path: Path):
    result = folded(tmp_path, T1)
    assert by_group(result, "checkpoint_offset") == {"G1": 80, "G2": 120, "G3": 60}
    assert by_group(result, "redundant_retained") == {"G1": 0, "G2": 0, "G3": 0}
    assert (result.earliest.offset, result.redundant_records, result.record_count) == (60, 2, 7)
    assert findings(result) == {}


def test_cleaning_below_the_cutoff_changes_no_state_and_finds_no_broken_chain(tmp_path: Path):
    """D-23, D-41, D-42: the record at the cutoff is kept, and an older delta may name what was cleaned."""
    whole = folded(tmp_path / "whole", T0)
    cleaned = folded(tmp_path / "cleaned", {offset: record for offset, record in T0.items() if offset >= 250})
    assert cleaned.states.sort_by("group_id").equals(whole.states.sort_by("group_id"))
    in_order = [("group_id", "ascending"), ("first_offset", "ascending")]
    assert cleaned.in_flight.sort_by(in_order).equals(whole.in_flight.sort_by(in_order))
    assert findings(cleaned) == {}
    too_far = folded(tmp_path / "far", {offset: record for offset, record in T0.items() if offset > 250})
    assert too_far.states.num_rows == 2


def test_the_proof_fails_for_a_cutoff_that_is_too_far(tmp_path: Path):
    result = folded(tmp_path, T0)
    position = result.cutoff.schema.get_field_index("cutoff_offset")
    result.cutoff = result.cutoff.set_column(position, "cutoff_offset", pa.array([251]))
    assert proof(result).differing == ("G2:T:0",)


def test_a_group_without_checkpoint_blocks_cleaning(tmp_path: Path):
    """D-43."""
    result = folded(tmp_path, T1 | {70: delta("G4", 1, 65, [(0, 0, 2, 1)])})
    assert (result.earliest.offset, result.earliest.blocked_by) == (None, ("G4",))
    (row,) = result.cutoff.to_pylist()
    assert (row["cutoff_offset"], row["redundant_records"], row["limited_by_group"], row["safe"]) == (
        None, 0, "G4", False,
    )  # fmt: skip
    assert "G4" in row["reason"]
    assert [row["offset"] for row in findings(result)["ORPHAN_DELTA"]] == [70]
    assert "G4" not in result.states["group_id"].to_pylist()
    assert verify_cutoff(result, Window(), FoldOptions(control=result.options)) is None
    lenient = fold_control_log(result.log, options=control_options(ignore_uncheckpointed=True))
    assert (lenient.earliest.offset, lenient.earliest.blocked_by, lenient.redundant_records) == (60, ("G4",), 2)


def test_ignored_groups_without_a_checkpoint_are_named_if_no_group_has_one(tmp_path: Path):
    options = control_options(ignore_uncheckpointed=True)
    result = fold_control_log(folded(tmp_path, {7: delta("G4", 1, 5, [(0, 0, 2, 1)])}).log, options=options)
    (row,) = result.cutoff.to_pylist()
    assert (row["cutoff_offset"], row["limited_by_group"]) == (None, "G4")
    assert "no checkpoint of group G4" in row["reason"]


def test_a_subscribed_group_that_never_wrote_blocks_cleaning(tmp_path: Path):
    result = folded(tmp_path, T1, subscriptions={"T": ["G1", "G2", "G3", "G9"]})
    assert (result.earliest.offset, result.earliest.blocked_by) == (None, ("G9",))


def test_only_groups_with_a_subscription_count(tmp_path: Path):
    """D-44."""
    result = folded(tmp_path, T0, subscriptions={"T": ["G1", "G3"], "other": ["G2"]})
    assert (result.earliest.offset, result.earliest.limited_by) == (400, "G1")
    assert result.cutoff["ignored"].to_pylist() == [[{"group_id": "G2", "lost_records": 3}]]
    assert result.redundant_records == 8
    assert result.states.num_rows == 3
    assert proof(result).differing == ()


def test_a_topic_without_subscriptions_has_no_cutoff(tmp_path: Path):
    """The draft's minimum over no group: nothing is cleaned, and nothing is wrong."""
    (row,) = folded(tmp_path, T0, subscriptions={}).cutoff.to_pylist()
    assert (row["cutoff_offset"], row["redundant_records"], row["safe"]) == (None, 0, True)
    assert row["reason"] == "no group subscribes to the topic, so there is no earliest share offset"
    assert row["ignored"] == [{"group_id": f"G{number}", "lost_records": 0} for number in (1, 2, 3)]


def test_retention_beyond_a_checkpoint_loses_the_state(tmp_path: Path):
    """D-46: the log start is 300, G2's checkpoint was at 250."""
    result = folded(tmp_path, T0, start=300)
    assert result.states["group_id"].to_pylist() == ["G1", "G3"]
    (finding,) = findings(result)["BASE_LOST"]
    assert (finding["group_id"], finding["severity"]) == ("G2", "error")
    assert (result.earliest.offset, result.earliest.blocked_by) == (None, ("G2",))


def test_a_cutoff_of_zero_is_a_cutoff(tmp_path: Path):
    """C-48."""
    result = fold_control_log(log_of(tmp_path, at({0: checkpoint("G1", 1, 0, 0)})))
    assert (result.earliest.offset, result.redundant_records) == (0, 0)


def test_a_long_chain_is_named_with_its_length(tmp_path: Path):
    """D-45: the worked example has 7 deltas behind its checkpoint."""
    result = fold_control_log(log_of(tmp_path, at(records(CORRECTED))))
    assert "LONG_CHAIN" not in findings(result)
    short, long = (control_options(limits=Limits(chain_length=length)) for length in (5, 7))
    (found,) = findings(fold_control_log(result.log, options=short))["LONG_CHAIN"]
    assert found["evidence"]["records"] == "7"
    assert "LONG_CHAIN" not in findings(fold_control_log(result.log, options=long))


def test_a_chain_beyond_the_default_length_is_a_warning(tmp_path: Path):
    deltas = {number: delta("G1", 1, number - 1, [(number, number, 0, 1)]) for number in range(1, 503)}
    found = findings(fold_control_log(log_of(tmp_path, at({0: checkpoint("G1", 1, 1, 1)} | deltas))))
    assert [(row["severity"], row["evidence"]["records"]) for row in found["LONG_CHAIN"]] == [("warning", "502")]


def test_the_share_snapshot_file_of_the_example(tmp_path: Path):
    """D-37."""
    result, file = folded(tmp_path, T0), tmp_path / "share.snapshot"
    write_share_snapshot_file(file, result.index_entries)
    assert file.read_text() == "0\n3\nG1 400 2 450\nG2 250 7 350\nG3 500 0 500\n"
    assert read_share_snapshot_file(file) == sorted(result.index_entries, key=lambda entry: entry.group)
    assert findings(fold_control_log(result.log, options=control_options(index=read_share_snapshot_file(file)))) == {}


@pytest.mark.parametrize(
    ("index", "groups"),
    [
        (
            [
                ShareSnapshotEntry("G1", 100, 1, 260),
                ShareSnapshotEntry("G2", 250, 7, 350),
                ShareSnapshotEntry("G3", 500, 0, 500),
            ],
            [],
        ),
        ([ShareSnapshotEntry("G1", 400, 2, 450), ShareSnapshotEntry("G2", 250, 7, 350)], ["G3"]),
        (
            [ShareSnapshotEntry(f"G{n}", at, epoch, at) for n, at, epoch in [(1, 400, 2), (2, 250, 8), (3, 500, 0)]],
            ["G2"],
        ),
        (
            [
                ShareSnapshotEntry(f"G{n}", at, epoch, at)
                for n, at, epoch in [(1, 400, 2), (2, 250, 7), (3, 500, 0), (8, 1, 1)]
            ],
            ["G8"],
        ),
    ],
    ids=["older checkpoint", "missing group", "other epoch", "unknown group"],
)
def test_an_index_that_the_log_contradicts_is_found_and_changes_nothing(
    tmp_path: Path, index: list[ShareSnapshotEntry], groups: list[str | None]
):
    """D-38."""
    plain, told = folded(tmp_path, T0), folded(tmp_path, T0, index=index)
    found = findings(told).get("STALE_INDEX", [])
    assert [row["group_id"] for row in found] == groups
    for table in ("states", "in_flight", "cutoff"):
        assert getattr(told, table).equals(getattr(plain, table))


def test_an_index_that_the_log_has_outgrown_is_in_order(tmp_path: Path):
    """G1 and G2 have newer deltas, G3 a newer checkpoint."""
    entries = [
        ShareSnapshotEntry("G1", 400, 2, 400),
        ShareSnapshotEntry("G2", 250, 7, 300),
        ShareSnapshotEntry("G3", 50, 65535, 200),
    ]
    assert findings(folded(tmp_path, T0, index=entries)) == {}


@pytest.mark.parametrize(("written_up_to", "is_found"), [(90, False), (120, True)])
def test_a_group_that_began_after_the_index_was_written_is_in_order(tmp_path: Path, written_up_to: int, is_found: bool):
    log = {80: checkpoint("G1", 3, 0, 0), 90: delta("G1", 3, 80, [(0, 0, 2, 1)]), 110: checkpoint("new", 1, 0, 0),
           120: delta("G1", 3, 90, [(1, 1, 2, 1)])}  # fmt: skip
    found = findings(folded(tmp_path, log, index=[ShareSnapshotEntry("G1", 80, 3, written_up_to)]))
    assert [row["group_id"] for row in found.get("STALE_INDEX", [])] == ["new"] * is_found


def test_group_ids_with_spaces_survive_the_share_snapshot_file(tmp_path: Path):
    entries = [
        ShareSnapshotEntry("a b 1", 5, 65535, 9),
        ShareSnapshotEntry(" ", 1, 0, 1),
        ShareSnapshotEntry("ü", 2, 0, 2),
        ShareSnapshotEntry("line\nbreak\r\\n", 1, 1, 1),
    ]
    write_share_snapshot_file(tmp_path / "f", entries)
    assert sorted(read_share_snapshot_file(tmp_path / "f"), key=repr) == sorted(entries, key=repr)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not a share snapshot file"),
        ("1\n0\n", "not a share snapshot file"),
        ("0\n2\nG1 1 1 1\n", "says 2, and 1 entries follow"),
        ("0\n1\nG1 1 1\n", "line 3"),
        ("0\n1\nG1 1 x 1\n", "line 3"),
    ],
)
def test_a_file_that_is_no_share_snapshot_file_is_refused(tmp_path: Path, text: str, says: str):
    (tmp_path / "f").write_text(text)
    with pytest.raises(InputError, match=says):
        read_share_snapshot_file(tmp_path / "f")
