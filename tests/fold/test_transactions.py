"""Transactions in the state topic: read_committed decides which records are state, and what the next audit reads."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from share_state.cli.main import run
from share_state.delta.committed import CommittedTables
from share_state.fold.state_log import FoldedLog, decode_log, fold_log
from share_state.kafka.transactions import MARKER, ControlType, Transactions
from share_state.pipeline.stream_fold import StreamFold
from share_state.rules.findings import judge
from share_state.sources.as_of import Window
from share_state.sources.discovery import find_logs
from share_state.sources.log_partition import LogPartition
from share_state.sources.partition_count import PartitionCount
from share_state.sources.resume_point import ResumeStatus, resume
from tests.fold.nights import Auditor
from tests.fold.transaction_logs import (
    ABORT,
    COMMIT,
    KEYS,
    Step,
    batches_of,
    counted,
    marker,
    steps,
    written,
)
from tests.kafka.batches import NOW, Batch, consecutive
from tests.log_writer import snapshot, write_log_folder
from tests.present import present
from tests.profiles import nightly
from tests.sources.formats.printed import dump_text

K0, K1, _ = KEYS


def log_of(folder: Path, batches: list[Batch]) -> LogPartition:
    write_log_folder(folder, 0, batches)
    (log,) = find_logs([str(folder)])
    return log


def visible(log: LogPartition, window: Window | None = None) -> list[int]:
    return [at for records, _ in decode_log(log, window or Window()) for at in records.rows["offset"].tolist()]


def findings(folded: FoldedLog, code: str) -> list[dict]:
    rows = judge(folded, records=folded.record_breaches).to_pylist()
    return [row for row in rows if row["rule"] == code]


@given(told=steps)
def test_records_of_committed_transactions_count_and_no_others(told: list[Step], tmp_path_factory):
    log, expected = log_of(tmp_path_factory.mktemp("log"), batches_of(told)), counted(told)
    assert visible(log) == expected.offsets
    for chunk in (1, 1 << 20):
        folded = fold_log(log, chunk=chunk)
        assert folded.observations.open_records == (
            -1 if expected.stable_end is None else expected.stable_end,
            len(expected.opened),
        )
        assert folded.observations.counts.aborted[1] == len(expected.aborted)
        assert folded.cutoff["last_stable_offset"].to_pylist() == [expected.stable_end]
        # No record after the last stable offset may be deleted: it may become the only one of its share-partition.
        cutoff = folded.cutoff["cutoff_offset"][0].as_py()
        assert expected.stable_end is None or (cutoff or 0) <= expected.stable_end


@given(told=steps)
def test_each_prefix_of_a_log_counts_as_if_it_had_ended_there(told: list[Step], tmp_path_factory):
    log, end = log_of(tmp_path_factory.mktemp("log"), batches_of(told)), 0
    for number, step in enumerate(told, 1):
        end += max(step.records, 1)
        assert visible(log, Window(until_offset=end)) == counted(told[:number]).offsets


@given(told=steps)
def test_no_transaction_is_lost_from_one_audit_to_the_next(told: list[Step], tmp_path_factory):
    auditor, batches = Auditor(), batches_of(told)
    for number in range(1, len(told) + 1):
        log = log_of(tmp_path_factory.mktemp("night"), batches[:number])
        auditor.audit(log)
        once = fold_log(log)
        assert auditor.last.states.equals(once.states)
        assert auditor.last.in_flight.equals(once.in_flight)
        assert auditor.last.cutoff.drop_columns(["reason"]).equals(once.cutoff.drop_columns(["reason"]))
        assert auditor.last.observations.open_records == once.observations.open_records
        assert auditor.last.observations.counts.aborted == once.observations.counts.aborted


@given(told=steps)
def test_a_stream_goes_up_to_the_last_stable_offset(told: list[Step], tmp_path_factory):
    """As a consumer with read_committed, which gets nothing after it."""
    state, stream, batches = None, StreamFold(state_partitions=1), batches_of(told)
    for number in range(1, len(told) + 1):
        log, status = log_of(tmp_path_factory.mktemp("grown"), batches[:number]), None
        if state is not None:
            log, status = resume(log, state.mark)
        if status in (None, ResumeStatus.GROWN):
            state = present(stream.fold_log(state, log, status, PartitionCount(1))).log.checkpoint
        expected = counted(told[:number])
        stable = [at for at in expected.offsets if expected.stable_end is None or at < expected.stable_end]
        assert (0 if state is None else int(state.chains.chains["exists"].sum())) == len({at % 3 for at in stable})


def test_an_open_transaction_limits_the_cutoff(tmp_path: Path):
    log = log_of(
        tmp_path,
        [
            written(-1, snapshot(K0)),
            written(7, snapshot(K1)),
            written(-1, snapshot(K0, snapshot_epoch=1)),
        ],
    )
    folded = fold_log(log)
    (row,) = folded.cutoff.to_pylist()
    assert (row["cutoff_offset"], row["last_stable_offset"], row["next_cutoff_offset"]) == (1, 1, 2)
    assert row["limited_by_group"] is None
    (told,) = findings(folded, "TRANSACTIONAL_BATCH")
    assert told["message"].endswith("1 record of open transactions, from offset 1 on, are left out")
    assert dict(told["evidence"]) == {"batches": "1", "open_records": "1"}


def test_a_marker_counts_from_its_own_time_on(tmp_path: Path):
    log = log_of(
        tmp_path,
        [
            written(7, snapshot(K0), timestamp=NOW),
            marker(7, COMMIT, timestamp=NOW + 10),
            written(-1, snapshot(K1), timestamp=NOW + 20),
        ],
    )
    assert visible(log, Window(until_time_ms=NOW + 9)) == []
    assert visible(log, Window(until_time_ms=NOW + 10)) == [0]


def test_a_fold_selects_the_markers_of_a_moment_once_whatever_the_number_of_chunks():
    markers = np.zeros(100_000, MARKER)
    markers["offset"], markers["type"] = np.arange(len(markers)), ControlType.COMMIT
    transactions = Transactions(markers, markers[:0])
    first = transactions.until(50_000, None)
    assert len(first.ends) == 50_000
    assert all(transactions.until(50_000, None) is first for _ in range(1000))
    assert len(transactions.until(10, None).ends) == 10
    assert transactions.until(None, None) is transactions


@pytest.mark.parametrize(
    ("key", "unknown"),
    [
        (b"\0\0\0\x09", "type 9, which brokers up to 4.4 skip, and cannot recover after a crash"),
        (b"\0\0\0", "a key of 3 bytes instead of 4, which no broker can load"),
        (b"\xff\xff\0\1", "version -1 of the key, which no broker can load"),
        (b"\0\1\0\1", "version 1 of the key, which brokers up to 4.4 read as version 0"),
    ],
)
def test_an_unknown_control_record_ends_no_transaction_and_is_named(tmp_path: Path, key: bytes, unknown: str):
    log = log_of(tmp_path, [written(-1, snapshot(K1)), written(7, snapshot(K0)), marker(7, COMMIT, key=key)])
    folded = fold_log(log)
    assert visible(log) == [0]
    (told,) = findings(folded, "CONTROL_RECORD_UNKNOWN")
    assert (told["severity"], told["offset"]) == ("error", 2)
    assert told["message"] == f"control record of producer 7: {unknown}"
    assert folded.suspect.tolist() == [True]
    assert folded.cutoff["safe"].to_pylist() == [False]


def test_what_the_dump_tool_prints_of_a_log_counts_as_its_segments_do(tmp_path: Path):
    told = [Step(3, 2), Step(4, 1), Step(3, 0, COMMIT), Step(4, 0, ABORT), Step(3, 1), Step(-1, 3)]
    batches = consecutive(batches_of(told))
    expected = fold_log(log_of(tmp_path / "log", batches))
    (tmp_path / "dump.txt").write_text(dump_text(batches), encoding="utf-8")
    for source in ("log", "dump.txt"):
        lake = str(tmp_path / f"{source}-w")
        assert run(["reconstruct", str(tmp_path / source), "--out", lake, "--quiet"]) in (0, 1)
    tables = [CommittedTables(str(tmp_path / f"{source}-w")) for source in ("log", "dump.txt")]
    for name in ("share_partition_state", "in_flight", "cutoff"):
        first, second = (one.read(name) for one in tables)
        assert first.equals(second)
    assert tables[1].run["records"] == expected.record_count == len(counted(told).offsets)


@nightly("two audits")
def test_the_audit_of_the_next_night_commits_what_was_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    told = [Step(-1, 3), Step(3, 2), Step(-1, 3), Step(3, 0, COMMIT), Step(-1, 1)]
    batches, lake = consecutive(batches_of(told)), tmp_path / "lake"
    segment = tmp_path / "logs/__share_group_state-0/00000000000000000000.log"
    for number in (3, 5):
        segment.parent.mkdir(parents=True, exist_ok=True)
        segment.write_bytes(b"".join(one.written() for one in batches[:number]))
        assert run(["audit", str(tmp_path / "logs"), "--out", str(lake), "--quiet"]) in (0, 1)
    assert run(["reconstruct", str(tmp_path / "logs"), "--out", str(tmp_path / "once"), "--quiet"]) in (0, 1)
    night, once = CommittedTables(str(lake)), CommittedTables(str(tmp_path / "once"))
    for name in ("share_partition_state", "in_flight", "cutoff"):
        assert night.read(name).equals(once.read(name))
    rows = night.read("findings").select(["rule", "offset", "message"]).to_pylist()
    assert rows == once.read("findings").select(["rule", "offset", "message"]).to_pylist()
    assert dict(night.run["progress"]) == {"__share_group_state-0": 10}
