"""Logs that real brokers wrote, folded and held against what Kafka's own coordinator classes make of them."""

import shutil
from collections import Counter, defaultdict
from collections.abc import Set as AbstractSet
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from share_state.fold.fold_options import FoldOptions
from share_state.fold.state_log import FoldedLog, fold_log
from share_state.fold.states import in_flight_of
from share_state.rules.findings import judge
from share_state.sources.as_of import Window
from share_state.sources.discovery import find_logs
from share_state.sources.partition_count import PartitionCount
from tests.golden.plain_log import Record, read_folder
from tests.present import present
from tests.profiles import some_of
from tests.truth import DATA, Case, Key, cases, expected_in_flight, expected_states, scenarios

ALL = pytest.mark.parametrize("case", cases(), ids=lambda case: case.name)
SOME = pytest.mark.parametrize("case", some_of(cases(), 10), ids=lambda case: case.name)
WHOLE = pytest.mark.parametrize("case", [case for case in cases() if not case.is_as_of], ids=lambda case: case.name)
LIVE_COPIES = pytest.mark.parametrize(
    "scenario",
    [path for path in scenarios() if (path / "live-copy-mid").exists()],
    ids=lambda path: f"{path.parent.name}/{path.name}",
)

KEY = ("group_id", "topic_id", "partition")
FENCING = {"max_leader_epoch", "max_state_epoch"}
UNREADABLE = {
    "TORN_TAIL", "CRC_MISMATCH", "MAGIC_UNSUPPORTED", "BATCH_MALFORMED", "OFFSET_GAP", "DUPLICATE_OFFSET_CONFLICT",
    "UNKNOWN_RECORD_TYPE", "UNKNOWN_TAG", "LAYOUT_MIXED", "KEY_MALFORMED", "VALUE_MALFORMED", "VALUE_VERSION_UNKNOWN",
    "UPDATE_TOMBSTONE", "WRONG_PARTITION", "INVERTED_RANGE", "TRANSACTIONAL_BATCH",
}  # fmt: skip
"""Rules about bytes and records that a released broker cannot break."""


@cache
def folded(case: Case) -> dict[int, FoldedLog]:
    """State partition -> its folded log."""
    logs = {present(log.partition): log for log in find_logs([str(case.folder)])}
    ends = {number: row["nextOffset"] for number, row in case.partitions.items()} if case.is_as_of else {}
    return {number: fold_log(log, Window(until_offset=ends.get(number))) for number, log in logs.items()}


@cache
def records(case: Case) -> dict[int, list[Record]]:
    """State partition -> the records that a broker would load, by the plain reader."""
    return {
        number: [
            record
            for record in read_folder(case.folder / f"__share_group_state-{number}", row["logStartOffset"])
            if not case.is_as_of or record.offset < row["nextOffset"]
        ]
        for number, row in case.partitions.items()
    }


def keyed(rows: list[dict]) -> dict[Key, dict]:
    """Rows by share-partition, each once."""
    by_key = {tuple(row[name] for name in KEY): row for row in rows}
    assert len(by_key) == len(rows), "a share-partition has more than one row"
    return by_key


def states_of(logs: dict[int, FoldedLog]) -> dict[Key, dict]:
    """Rows of share_partition_state over all state partitions."""
    return keyed([row for log in logs.values() for row in log.states.to_pylist()])


def differences(
    expected: dict[Key, dict], found: dict[Key, dict], leave_out: AbstractSet[str] = frozenset()
) -> list[str]:
    """One line a value that differs, in words."""
    lines = [f"{key}: no row" for key in expected.keys() - found.keys()]
    lines += [f"{key}: a row too many" for key in found.keys() - expected.keys()]
    for key in expected.keys() & found.keys():
        columns = (expected[key].keys() | found[key].keys()) - leave_out
        lines += [
            f"{key} {column}: expected {expected[key].get(column)}, found {found[key].get(column)}"
            for column in sorted(columns)
            if column not in expected[key] or column not in found[key] or expected[key][column] != found[key][column]
        ]
    return lines


def codes(findings: pa.Table, severity: str | None = None) -> Counter:
    """How often each rule is broken."""
    return Counter(row["rule"] for row in findings.to_pylist() if severity in (None, row["severity"]))


def test_every_release_and_scenario_is_here():
    by_release = {release.name: {path.name for path in release.iterdir()} for release in DATA.glob("4.*")}
    anywhere = {"happy", "chaos", "fuzz"}
    codecs = {"codec-gzip", "codec-snappy", "codec-lz4", "codec-zstd"}
    assert by_release == {
        "4.0.2": anywhere,
        "4.1.2": anywhere,
        "4.2.1": anywhere,
        "4.3.1": anywhere | codecs | {"crash", "fifty", "prune", "pruneraw"},
        "4.4.0": anywhere | {"dead-letters", "dlq", "fifty", "happy-sharev1", "prune"},
    }


NO_TRUTH = {"updates_since_snapshot", "redundant_retained", "unfinished_offsets", "deltas_per_1000_offsets"}
"""Columns that no truth has; the last three are null in this dialect."""


@ALL
def test_the_states_are_what_kafka_folds(case: Case):
    assert not differences(case.rows, states_of(folded(case)), leave_out=NO_TRUTH)[:20]


@SOME
def test_a_deleted_share_partition_has_no_row(case: Case):
    assert not case.deleted & states_of(folded(case)).keys()
    assert not case.deleted & {
        tuple(row[name] for name in KEY) for log in folded(case).values() for row in log.in_flight.to_pylist()
    }


@SOME
def test_the_plain_reader_meets_the_records_that_kafka_meets(case: Case):
    for number, truth in case.partitions.items():
        kinds = Counter(record.kind for record in records(case)[number])
        assert (kinds["snapshot"], kinds["update"], kinds["tombstone"]) == (
            truth["snapshots"],
            truth["updates"],
            truth["tombstones"],
        )


@SOME
def test_the_updates_since_the_snapshot_are_counted(case: Case):
    # No truth column says it, so the plain reader counts: nUpdates of the truth counts all updates of the log.
    counts: dict[Key, int] = defaultdict(int)
    for log in records(case).values():
        for record in log:
            counts[record.key] = counts[record.key] + 1 if record.kind == "update" else 0
    found = states_of(folded(case))
    assert {key: row["updates_since_snapshot"] for key, row in found.items()} == {key: counts[key] for key in found}


COSTS = ("redundant_bytes", "next_cutoff_offset", "pinned_records", "pinned_bytes", "limited_since")


@ALL
def test_the_cutoff_is_where_kafka_prunes(case: Case):
    logs = folded(case)
    assert logs.keys() == case.partitions.keys()
    for number, truth in case.partitions.items():
        (found,) = logs[number].cutoff.to_pylist()
        holders = sorted(
            (
                row
                for row in case.rows.values()
                if row["state_partition"] == number and row["snapshot_offset"] is not None
            ),
            key=lambda row: row["snapshot_offset"],
        )
        held_by: dict[str, Any] = holders[0] if holders else dict.fromkeys(KEY)
        cutoff = truth["lastRedundantOffset"]
        # Those of a batch that begins below the log start are loaded, but no longer there to be deleted.
        offsets = [record.offset for record in records(case)[number] if record.offset >= truth["logStartOffset"]]
        if len(holders) > 1:
            assert found["next_cutoff_offset"] == holders[1]["snapshot_offset"]
            pinned = range(max(cutoff or 0, truth["logStartOffset"]), found["next_cutoff_offset"])
            assert found["pinned_records"] == sum(offset in pinned for offset in offsets)
        size = sum(segment.size for segment in logs[number].log.segments)
        # 4.0 does not record when a snapshot was written.
        assert found["limited_since"] == held_by.get("write_time")
        assert 0 <= found["redundant_bytes"] + found["pinned_bytes"] <= size
        assert {name: value for name, value in found.items() if name not in COSTS} == {
            "dialect": "share_group_state",
            "topic": "__share_group_state",
            "partition": number,
            "cutoff_offset": cutoff,
            "last_stable_offset": None,
            "log_start_offset": truth["logStartOffset"],
            "log_end_offset": truth["nextOffset"],
            "redundant_records": sum(offset < (cutoff or 0) for offset in offsets),
            "live_share_partitions": truth["liveKeys"],
            "limited_by_group": held_by["group_id"],
            "limited_by_topic_id": held_by["topic_id"],
            "limited_by_partition": held_by["partition"],
            "safe": True,
            "reason": None,
            **dict.fromkeys(("ignored", "skipped_records", "unflagged_records")),
        }


@SOME
def test_the_in_flight_rows_tile_the_window(case: Case):
    found: dict[Key, list[dict]] = defaultdict(list)
    for log in folded(case).values():
        in_flight = log.in_flight
        assert in_flight_of(log.states).cast(in_flight.schema).equals(in_flight)
        for row in in_flight.to_pylist():
            assert (row.pop("dialect"), row.pop("topic")) == ("share_group_state", None)
            found[tuple(row.pop(name) for name in KEY)].append(row)
    expected = {key: expected_in_flight(row) for key, row in case.rows.items()}
    assert found == {key: rows for key, rows in expected.items() if rows}


@WHOLE
def test_nothing_a_broker_wrote_is_unreadable(case: Case):
    logs = find_logs([str(case.folder)])
    for log in logs:
        findings = judge(fold_log(log, options=FoldOptions(partition_count=PartitionCount(len(logs)))))
        assert not codes(findings).keys() & UNREADABLE


@pytest.mark.parametrize(
    "case",
    [
        case
        for case in cases()
        if case.begin == "" and case.scenario.name in ("happy", "happy-sharev1", "chaos", "prune", "dlq")
    ],
    ids=lambda case: case.name,
)
def test_an_ordinary_workload_breaks_no_grave_rule(case: Case):
    for log in folded(case).values():
        assert not codes(judge(log), "error")


@LIVE_COPIES
def test_a_copy_of_a_log_in_mid_write_agrees_with_the_archive_as_of_its_end(scenario: Path):
    archive = {log.partition: log for log in find_logs([str(scenario / "archive-unpruned")])}
    copies = find_logs([str(scenario / "live-copy-mid")])
    assert {log.partition for log in copies} == archive.keys()
    for log in copies:
        copy = fold_log(log)
        whole = fold_log(archive[log.partition], Window(until_offset=copy.next_offset))
        assert 0 < copy.next_offset < fold_log(archive[log.partition]).next_offset
        # Records that pruning took away may have held the greatest epochs.
        assert not differences(states_of({0: whole}), states_of({0: copy}), leave_out=FENCING)[:20]
        assert copy.cutoff["cutoff_offset"] == whole.cutoff["cutoff_offset"]


@LIVE_COPIES
def test_a_copy_of_a_log_in_mid_write_has_no_grave_finding(scenario: Path):
    found = Counter()
    for log in find_logs([str(scenario / "live-copy-mid")]):
        found += codes(judge(fold_log(log)), "error")
    assert found == {} if scenario.name == "prune" else not found.keys() & UNREADABLE
    # Random RPCs wrote pruneraw: start offsets go back and terminal states are left in its whole history, too.


def same_tables(found: FoldedLog, expected: FoldedLog) -> None:
    """Assert that two folds tell the same."""
    assert found.states == expected.states
    assert found.in_flight == expected.in_flight
    assert found.cutoff == expected.cutoff
    assert judge(found) == judge(expected)


@pytest.mark.parametrize("name", some_of(["4.0.2/happy", "4.3.1/chaos", "4.3.1/pruneraw", "4.4.0/fifty"], 2))
@pytest.mark.parametrize("given", ["list", "glob", "files", "each twice"])
def test_inputs_given_apart_equal_their_folder(name: str, given: str):
    scenario = DATA / name
    folders = sorted(str(path) for path in scenario.glob("__share_group_state-*"))
    inputs = {
        "list": folders[::-1],
        "glob": [str(scenario / "__share_group_state-*")],
        "files": sorted(str(path) for path in scenario.glob("__share_group_state-*/*.log")),
        "each twice": [str(scenario), *folders],
    }[given]
    apart, together = find_logs(inputs), find_logs([str(scenario)])
    assert [log.partition for log in apart] == [log.partition for log in together]
    for found, expected in zip(apart, together, strict=True):
        same_tables(fold_log(found), fold_log(expected))


@pytest.mark.parametrize(
    "folder", sorted(DATA.glob("4.3.1/*/__share_group_state-1")), ids=lambda path: path.parent.name
)
def test_a_log_folder_itself_is_an_input(folder: Path):
    (found,) = find_logs([str(folder)])
    assert found.partition == 1
    same_tables(fold_log(found), fold_log(find_logs([str(folder.parent)])[1]))


@pytest.mark.parametrize("folder", sorted(DATA.glob("*/happy/__share_group_state-0")), ids=lambda path: path.parts[-3])
def test_a_single_file_is_an_input(folder: Path, tmp_path: Path):
    (file,) = folder.glob("*.log")
    (found,) = find_logs([str(file)])
    expected = fold_log(find_logs([str(folder)])[0])
    same_tables(fold_log(found), expected)
    # Away from its folder nothing says which state partition it is.
    moved = shutil.copy(file, tmp_path / file.name)
    (nameless,) = find_logs([str(moved)])
    assert nameless.partition is None
    assert fold_log(nameless).states.drop(["state_partition"]) == expected.states.drop(["state_partition"])
    assert set(fold_log(nameless).states["state_partition"].to_pylist()) == {None}


@pytest.mark.parametrize("name", ["4.0.2/chaos", "4.3.1/chaos", "4.3.1/pruneraw", "4.3.1/codec-snappy", "4.4.0/dlq"])
def test_a_replica_repeats_the_log_without_a_trace(name: str, tmp_path: Path):
    scenario, replica = DATA / name, tmp_path / "broker-2"
    shutil.copytree(scenario, replica, ignore=shutil.ignore_patterns("archive-*", "live-*", "killed-*"))
    for found in find_logs([str(scenario), str(replica)]):
        assert found.has_replicas
        expected = fold_log(find_logs([str(scenario / f"__share_group_state-{found.partition}")])[0])
        same_tables(fold_log(found), expected)
        assert codes(judge(fold_log(found)))["DUPLICATE_OFFSET_CONFLICT"] == 0


def test_a_replica_that_lags_adds_nothing(tmp_path: Path):
    scenario, replica = DATA / "4.1.2/fuzz", tmp_path / "broker-2"
    shutil.copytree(scenario, replica)
    for folder in replica.glob("__share_group_state-*"):
        sorted(folder.glob("*.log"))[-1].unlink()
    found = states_of({present(log.partition): fold_log(log) for log in find_logs([str(replica), str(scenario)])})
    assert not differences(expected_states(scenario / "truth.jsonl"), found, leave_out=NO_TRUTH)


def test_a_folder_is_searched_deeper_only_where_it_holds_no_log():
    assert {log.size for log in find_logs([str(DATA / "4.3.1/crash")])} == {
        log.size for log in find_logs([str(DATA / "4.3.1/crash/crash-copy")])
    }
    assert all(
        "archive" not in segment.path for log in find_logs([str(DATA / "4.3.1/prune")]) for segment in log.segments
    )


@pytest.mark.parametrize("name", ["4.2.1/chaos", "4.3.1/fifty"])
def test_as_of_a_time_equals_as_of_the_offset_that_follows(name: str):
    (case,) = [case for case in cases() if case.name == name]
    compared = 0
    for log in find_logs([str(case.folder)]):
        stamps = [record.timestamp for record in records(case)[present(log.partition)]]
        middle = len(stamps) // 2
        # Only where the clock did not step back does a time name one offset.
        if not stamps or max(stamps[: middle + 1]) >= min(stamps[middle + 1 :], default=0):
            continue
        until = records(case)[present(log.partition)][middle + 1].offset
        by_time = fold_log(log, Window(until_time_ms=stamps[middle]))
        assert by_time.states == fold_log(log, Window(until_offset=until)).states
        compared += 1
    assert compared


@pytest.mark.parametrize("name", ["4.3.1/fifty", "4.3.1/codec-zstd", "4.4.0/fifty"])
def test_as_of_an_offset_inside_a_batch_leaves_out_the_rest_of_it(name: str):
    (case,) = [case for case in cases() if case.name == name]
    compared = 0
    for log in find_logs([str(case.folder)]):
        read = records(case)[present(log.partition)]
        inside = [record.offset for record in read if record.batch[0] < record.offset]
        if not inside:
            continue
        until = inside[len(inside) // 2]
        cut = fold_log(log, Window(until_offset=until))
        latest = {record.key: record.offset for record in read if record.offset < until}
        assert cut.next_offset == until
        assert {key: row["last_offset"] for key, row in states_of({0: cut}).items()}.items() <= latest.items()
        assert cut.record_count == sum(record.offset < until for record in read)
        compared += 1
    assert compared
