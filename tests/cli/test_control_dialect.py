"""The commands on the KIP-932 draft's own dialect: control records amid a topic's user data."""

import json
from pathlib import Path

import pytest

import share_state
from tests.cli.commands import run_cli
from tests.fold.control_records.logs import at, checkpoint, delta, log_of, user_data

WORKED_EXAMPLE = {
    130: checkpoint("G1", 1, 100, 100),
    131: delta("G1", 1, 130, [(100, 109, 2, 1)]),
    132: delta("G1", 1, 131, [(110, 110, 0, 1)]),
    133: delta("G1", 1, 132, [(111, 118, 0, 0), (119, 119, 2, 1)]),
    134: delta("G1", 1, 133, [(111, 112, 0, 1)]),
    135: delta("G1", 1, 134, [(113, 118, 2, 1)]),
    136: delta("G1", 1, 135, [(110, 110, 2, 2)]),
    137: delta("G1", 1, 136, [(111, 112, 2, 2)]),
}


@pytest.fixture
def broker(tmp_path: Path) -> Path:
    """A broker's log folder with one topic that holds the worked example and user data."""
    log_of(tmp_path / "broker", [*at(WORKED_EXAMPLE), user_data(100, 20), user_data(140, 3)], topic="orders")
    return tmp_path / "broker"


def _state(capfd, broker: Path, out: Path, *options: str) -> dict:
    assert run_cli(capfd, "reconstruct", broker, "--out", out, *options).code == 0
    (state,) = run_cli(capfd, "show", out, "--json").json["share_partitions"]
    return state


def test_the_worked_example_ends_where_the_draft_says(capfd, tmp_path: Path, broker: Path):
    state = _state(capfd, broker, tmp_path / "w")
    assert (state["dialect"], state["group_id"], state["topic"], state["topic_id"]) == (
        "control_records", "G1", "orders", None,
    )  # fmt: skip
    assert (state["start_offset"], state["end_offset"], state["snapshot_epoch"], state["snapshot_offset"]) == (
        120, 120, 1, 130,
    )  # fmt: skip


def test_as_of_an_offset_is_the_state_before_it(capfd, tmp_path: Path, broker: Path):
    state = _state(capfd, broker, tmp_path / "w", "--as-of-offset", "orders-0=136")
    assert (state["start_offset"], state["end_offset"]) == (110, 120)
    ranges = [tuple(batch.values()) for batch in state["state_batches"]]
    assert ranges == [(110, 112, 0, 1), (113, 119, 2, 1)]


@pytest.mark.parametrize(("end", "lag"), [(134, 9), (136, 3), (138, 0)])
def test_the_lag_is_what_is_unfinished_up_to_the_last_record_of_user_data(capfd, tmp_path: Path, end: int, lag: int):
    """Of offsets 110 to 119: 119 is finished at 134, 113 to 119 are at 136, all are at 138, after user data to 120."""
    log_of(tmp_path / "broker", [user_data(100, 20), *at(WORKED_EXAMPLE)][: end - 129], topic="orders")
    assert run_cli(capfd, "audit", tmp_path / "broker", "--out", tmp_path / "w", "--limit", "export_age=0").code < 2
    header, row = run_cli(capfd, "show", tmp_path / "w").table[:2]
    assert row[header.index("LAG")] == str(lag)
    opened = share_state.open(tmp_path / "w")
    (of_python,) = opened.lag.to_pylist()
    assert (of_python["lag"], of_python["reason"], of_python["topic_end_offset"]) == (lag, None, end)
    assert opened.share_partition_history["lag"].to_pylist() == [lag]


def test_user_data_that_no_record_mentions_is_behind(capfd, tmp_path: Path, broker: Path):
    state = _state(capfd, broker, tmp_path / "w")
    assert (state["start_offset"], state["lag"], state["unfinished_offsets"]) == (120, 23, 23)


def test_a_broken_chain_is_an_error_and_best_effort_folds_on(capfd, tmp_path: Path):
    records = {offset: record for offset, record in WORKED_EXAMPLE.items() if offset != 134}
    log_of(tmp_path / "broker", at(records), topic="orders")
    ends = {}
    for mode in ("strict", "best-effort"):
        said = run_cli(capfd, "reconstruct", tmp_path / "broker", "--out", tmp_path / mode, "--mode", mode, "--json")
        assert said.code == 1
        assert "BROKEN_CHAIN" in {found["rule"] for found in said.json["findings"]}
        (state,) = run_cli(capfd, "show", tmp_path / mode, "--json").json["share_partitions"]
        ends[mode] = (state["start_offset"], state["suspect"])
    assert ends == {"strict": (110, True), "best-effort": (120, True)}


def test_the_cutoff_is_proved(capfd, broker: Path):
    said = run_cli(capfd, "cutoff", broker, "--verify", "--json")
    assert said.code == 0
    assert (said.json["cutoff"][0]["cutoff_offset"], said.json["compared"], said.json["differing"]) == (130, 1, [])


def test_user_data_is_never_named_for_deletion(capfd, tmp_path: Path, broker: Path):
    said = run_cli(capfd, "cutoff", broker, "--delete-records", tmp_path / "offsets.json")
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "user data" in said.err
    assert not (tmp_path / "offsets.json").exists()


def test_groups_without_a_subscription_hold_nothing_back(capfd, tmp_path: Path):
    log_of(tmp_path / "broker", at({10: checkpoint("old", 1, 0, 0), 50: checkpoint("new", 1, 5, 5)}), topic="orders")
    subscriptions = tmp_path / "subscriptions.json"
    subscriptions.write_text(json.dumps({"orders": ["new"]}))
    assert run_cli(capfd, "cutoff", tmp_path / "broker", "--json").json["cutoff"][0]["cutoff_offset"] == 10
    listed = run_cli(capfd, "cutoff", tmp_path / "broker", "--subscriptions", subscriptions, "--json")
    assert listed.json["cutoff"][0]["cutoff_offset"] == 50


def test_a_group_without_a_checkpoint_holds_everything_back_unless_told_otherwise(capfd, tmp_path: Path):
    log_of(
        tmp_path / "broker", at({10: checkpoint("G1", 1, 0, 0), 70: delta("G4", 1, 65, [(0, 0, 2, 1)])}), topic="orders"
    )
    (blocked,) = run_cli(capfd, "cutoff", tmp_path / "broker", "--json").json["cutoff"]
    assert (blocked["cutoff_offset"], blocked["limited_by_group"], blocked["safe"]) == (None, "G4", False)
    (lenient,) = run_cli(capfd, "cutoff", tmp_path / "broker", "--ignore-uncheckpointed", "--json").json["cutoff"]
    assert lenient["cutoff_offset"] == 10


def test_the_share_snapshot_file_is_written_and_found_stale(capfd, tmp_path: Path, broker: Path):
    folder = tmp_path / "index"
    assert run_cli(capfd, "cutoff", broker, "--index", folder).code == 0
    file = folder / "orders-0.share-snapshot"
    assert file.read_text() == "0\n1\nG1 130 1 137\n"
    assert run_cli(capfd, "cutoff", broker, "--index", folder, "--json").json["findings"] == []
    file.write_text("0\n1\nG1 131 1 137\n")
    stale = run_cli(capfd, "cutoff", broker, "--index", folder, "--json").json
    assert {found["rule"] for found in stale["findings"]} == {"STALE_INDEX"}
    assert stale["cutoff"][0]["cutoff_offset"] == 130
    assert (
        f"{folder}: the log contradicts 1 entry; --accept drops what it contradicts"
        in run_cli(capfd, "cutoff", broker, "--index", folder).lines
    )
    assert file.read_text() == "0\n1\nG1 131 1 137\n"
    past = run_cli(
        capfd, "cutoff", broker, "--index", folder, "--accept", "--as-of-offset", "orders-0=133", "--json"
    ).json
    assert (past["findings"], file.read_text()) == ([], "0\n1\nG1 131 1 137\n")
    assert run_cli(capfd, "cutoff", broker, "--index", folder, "--accept").code == 0
    assert file.read_text() == "0\n1\nG1 130 1 137\n"


def test_decode_leaves_user_data_out(capfd, broker: Path):
    records = [json.loads(line) for line in run_cli(capfd, "decode", broker).lines]
    assert [record["offset"] for record in records] == list(WORKED_EXAMPLE)
    assert [record["kind"] for record in records] == ["checkpoint", *["delta"] * 7]
    assert records[1]["back_offset"] == 130
