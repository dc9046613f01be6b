"""The stream in the command's own process: its tables are those of a reconstruct, and its metrics need no tables."""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from share_state.cli.main import run
from share_state.delta.committed import CommittedTables
from share_state.delta.warehouse import Warehouse
from share_state.errors import InputError
from share_state.fold.checkpoint import CHECKPOINT_TABLE, checkpoint_share_partitions
from share_state.fold.history import OUTCOME_COLUMNS
from share_state.fold.limits import Limits
from share_state.kafka.primitives import partition_for
from share_state.kafka.state_records import RECORD_BUFFERS
from share_state.pipeline import local_stream
from share_state.pipeline.audit import OF_STREAM
from share_state.pipeline.growing_segments import GrowingSegments
from share_state.pipeline.live_log import LiveLog
from share_state.pipeline.local_stream import LocalStream
from share_state.pipeline.resume import VACUUMED
from share_state.pipeline.state_file import SavedStream
from share_state.pipeline.stream_changes import LogChanges, UnwrittenChanges
from share_state.pipeline.stream_files import GrowingFolder
from share_state.pipeline.stream_findings import KnownGroups
from share_state.pipeline.stream_fold import StreamFold
from share_state.pipeline.stream_run import StreamRun
from share_state.pipeline.stream_state import CarriedState, checkpoint_of, state_bytes
from share_state.pipeline.stream_tables import StreamTables
from share_state.report.stream_metrics import LiveStream, StreamMetrics
from share_state.sources.log_partition import STATE_TOPIC
from share_state.sources.new_records import LogFacts, NewRecords, Read
from share_state.sources.resume_point import ResumePoint
from share_state.sources.topics import Topics
from tests.kafka.batches import NOW
from tests.log_writer import batch, snapshot, write_log_folder
from tests.pipeline.test_stream_tables import SCENARIOS, _given, pieces, reconstructed, tables_in
from tests.present import present
from tests.profiles import by_profile, nightly, some_of
from tests.sources.formats.tables import found, table_of, write
from tests.sources.kafka_cluster.broker import free_ports
from tests.truth import DATA

TOPIC = "MmskRbHCTvP4WReRuBpdnw"

ALONE = ("share_partition_state", "in_flight", "cutoff", "findings")


def _stream(folder: Path, *more: str) -> int:
    return run(["stream", str(folder / "in"), "--out", str(folder / "lake"), "--once", "--quiet", *more])


def _write(parts: Iterator[pa.Table] | list[pa.Table], folder: Path, first: int = 0) -> None:
    for number, part in enumerate(parts, first):
        os.utime(write(part, folder / f"in/{number:04}.parquet"), (number + 1, number + 1))


@nightly("two streams; the test above goes on from an audit")
@pytest.mark.parametrize("scenario", by_profile(["4.3.1/prune"], SCENARIOS))
def test_a_stream_that_is_begun_again_goes_on_from_its_tables(scenario: str, tmp_path: Path):
    records = table_of(found(DATA / scenario))
    parts = list(pieces(records, max(20, len(records) // 10)))
    for begin in (0, len(parts) // 2):
        _write(parts[begin : begin + len(parts) // 2 if begin == 0 else None], tmp_path, begin)
        assert _stream(tmp_path, "--max-files", "1") in (0, 1)
    assert tables_in(tmp_path / "lake") == reconstructed(records, tmp_path)
    tables = CommittedTables(str(tmp_path / "lake"))
    assert (len(tables.runs), tables.run["records"]) == (1, len(records))
    # The counters of what became of deliveries go on, too.
    assert run(["audit", str(tmp_path / "whole.parquet"), "--out", str(tmp_path / "audit"), "--quiet"]) in (0, 1)
    counted = tables.read("group_outcomes")
    assert counted.equals(CommittedTables(str(tmp_path / "audit")).read("group_outcomes"))
    assert sum(counted["acknowledged_records"].to_pylist())


def test_ends_of_topics_that_grew_while_no_stream_ran_are_in_the_tables(tmp_path: Path):
    records, topics = table_of(found(DATA / "4.4.0/happy")), tmp_path / "topics.json"
    _write([records], tmp_path)
    given = json.loads((DATA / "4.4.0/happy/topics.json").read_text("utf-8"))
    for growth in (0, 1000):
        for partition in (partition for topic in given for partition in topic["partitions"]):
            partition["highWatermark"] += growth
        topics.write_text(json.dumps(given), "utf-8")
        assert _stream(tmp_path, "--topics", str(topics)) in (0, 1)
    assert tables_in(tmp_path / "lake") == reconstructed(records, tmp_path, topics=str(topics))


def test_a_stream_goes_on_from_an_audit(tmp_path: Path):
    records = table_of(found(DATA / "4.4.0/dlq"))
    parts = list(pieces(records, 40))
    begin = str(write(pa.concat_tables(parts[:3]), tmp_path / "begin.parquet"))
    assert run(["audit", begin, "--out", str(tmp_path / "lake"), "--quiet"]) in (0, 1)
    _write(parts[3:], tmp_path)
    assert _stream(tmp_path) in (0, 1)
    assert tables_in(tmp_path / "lake") == reconstructed(records, tmp_path)
    tables = CommittedTables(str(tmp_path / "lake"))
    assert tables.run["records"] == sum(map(len, parts[3:]))
    assert run(["audit", str(tmp_path / "whole.parquet"), "--out", str(tmp_path / "audit"), "--quiet"]) in (0, 1)
    counted = CommittedTables(str(tmp_path / "audit")).read("group_outcomes")
    assert tables.read("group_outcomes").equals(counted)


@pytest.mark.parametrize("begins_with_an_audit", some_of([True, False], 1))
def test_an_audit_after_a_stream_has_the_tables_of_an_audit_alone(
    begins_with_an_audit: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    logs, lake = str(tmp_path / "in"), str(tmp_path / "lake")
    _grow(DATA / "4.4.0/chaos", tmp_path / "in", 0.5)
    if begins_with_an_audit:
        assert run(["audit", logs, "--out", lake, "--quiet"]) in (0, 1)
    _grow(DATA / "4.4.0/chaos", tmp_path / "in", 1.0)
    assert _stream(tmp_path) in (0, 1)
    for table in ALONE:
        # As a stream does after some minutes.
        place = DeltaTable(f"{lake}/{table}")
        place.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    capsys.readouterr()
    assert run(["audit", logs, "--out", lake, "--quiet"]) in (0, 1)
    assert (VACUUMED if begins_with_an_audit else OF_STREAM) in capsys.readouterr().out
    assert run(["audit", logs, "--out", str(tmp_path / "alone"), "--quiet"]) in (0, 1)
    assert of_states(tmp_path / "lake") == of_states(tmp_path / "alone")


def of_states(lake: Path) -> dict[str, list[str]]:
    """What only the state topic says."""
    tables = CommittedTables(str(lake))
    rows = {name: tables.read(name).to_pylist() for name in ALONE}
    rows["findings"] = [row for row in rows["findings"] if row["state_partition"] is not None]
    left_out = {"run_id", "topic", "topic_end_offset", "limited_by_topic"}
    return {name: sorted(str({key: row[key] for key in row if key not in left_out}) for row in of_table)
            for name, of_table in rows.items()}  # fmt: skip


def _grow(source: Path, target: Path, share: float) -> None:
    """Copy a data folder in which only a part of each segment is written yet."""
    # A stream compares the states neither with groups nor with the logs of other topics.
    shutil.copytree(
        source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("topics.json", "__consumer_offsets*")
    )
    for segment in target.rglob("*.log"):
        os.truncate(segment, int(segment.stat().st_size * share))


@pytest.mark.parametrize("scenario", by_profile(["4.4.0/chaos"], SCENARIOS))
def test_segments_that_grow_are_read_where_they_ended(scenario: str, tmp_path: Path):
    for share in (0.3, 0.31, 0.8, 1.0):
        _grow(DATA / scenario, tmp_path / "in", share)
        assert _stream(tmp_path) in (0, 1)
        truth = ["reconstruct", str(tmp_path / "in"), "--out", str(tmp_path / "truth"), "--quiet"]
        assert run(truth) in (0, 1)
        assert of_states(tmp_path / "lake") == of_states(tmp_path / "truth")


def test_state_partitions_that_the_segments_lack_are_found(tmp_path: Path):
    """As a reconstruct does; a stream also has the state of those that were there before."""
    *others, last = sorted((DATA / "4.4.0/chaos").glob("__share_group_state-*"))

    def streamed() -> list[tuple[int, str]]:
        assert _stream(tmp_path) in (0, 1)
        rows = CommittedTables(str(tmp_path / "lake")).read("findings", pc.field("rule") == "STATE_PARTITION_MISSING")
        return [(row["state_partition"], row["message"]) for row in rows.to_pylist()]

    shutil.copytree(last, tmp_path / "in" / last.name)
    numbers = [int(log.name.rpartition("-")[2]) for log in others]
    assert [number for number, _ in streamed()] == numbers != []
    truth = ["reconstruct", str(tmp_path / "in"), "--out", str(tmp_path / "truth"), "--quiet"]
    assert run(truth) == 1
    assert of_states(tmp_path / "lake") == of_states(tmp_path / "truth")
    for log in others:
        shutil.copytree(log, tmp_path / "in" / log.name)
    assert streamed() == []
    before = of_states(tmp_path / "lake")
    # As where a broker hands a partition to another one.
    shutil.rmtree(tmp_path / "in" / others[0].name)
    kept = "no longer in the input; its share-partitions keep the state that was read last"
    assert streamed() == streamed() == [(numbers[0], kept)]
    assert of_states(tmp_path / "lake")["share_partition_state"] == before["share_partition_state"]
    shutil.copytree(others[0], tmp_path / "in" / others[0].name)
    assert streamed() == []
    assert of_states(tmp_path / "lake") == before


def test_a_number_of_state_partitions_that_is_only_inferred_leaves_no_state_out(tmp_path: Path):
    """The last folder is missing, and a few keys do not show that there were three."""
    keys = [("g", TOPIC, number) for number in range(40)]
    homes = [[key for key in keys if partition_for(":".join(map(str, key)), 3) == home][:4] for home in range(3)]
    for number, own in enumerate(homes[:2]):
        write_log_folder(tmp_path / "in", number, [batch([snapshot(key)]) for key in own])
    truth = ["reconstruct", str(tmp_path / "in"), "--out", str(tmp_path / "truth"), "--quiet"]
    assert (_stream(tmp_path), run(truth)) == (1, 1)
    assert of_states(tmp_path / "lake") == of_states(tmp_path / "truth")
    found = CommittedTables(str(tmp_path / "lake")).read("findings").to_pylist()
    wrong = [row["message"] for row in found if row["rule"] == "WRONG_PARTITION"]
    assert wrong
    assert all(text.endswith(" of the 2 in the input, or the input lacks state partitions") for text in wrong)
    assert len(CommittedTables(str(tmp_path / "lake")).read("share_partition_state")) == 8
    # The logs that were there have not grown.
    write_log_folder(tmp_path / "in", 2, [batch([snapshot(key)]) for key in homes[2]])
    assert _stream(tmp_path) == 0
    assert not len(CommittedTables(str(tmp_path / "lake")).read("findings"))


def test_a_copy_that_ends_before_its_high_watermark_is_noted_until_it_has_grown(tmp_path: Path):
    """As by a reconstruct, also of the folder of one log alone."""
    place = write_log_folder(tmp_path / "in", 0, [batch([snapshot(("g", TOPIC, one))]) for one in range(2)])
    place.with_name("replication-offset-checkpoint").write_text("0\n1\n__share_group_state 0 3\n")
    for folder in (tmp_path / "in", place):
        for command in (
            ["reconstruct", "--out", f"{tmp_path / 'truth'}"],
            ["stream", "--once", "--out", f"{folder}.lake"],
        ):
            assert run([*command, str(folder), "--quiet"]) == 0
        expected, noted = (_tails(lake) for lake in (tmp_path / "truth", Path(f"{folder}.lake")))
        assert noted == expected
        assert [note.partition(": ")[0] for note in noted] == ["tail of __share_group_state-0"]
    # The high watermark alone may change, too.
    place.with_name("replication-offset-checkpoint").write_text("0\n1\n__share_group_state 0 2\n")
    assert run(["stream", str(place), "--out", f"{place}.lake", "--once", "--quiet"]) == 0
    assert _tails(Path(f"{place}.lake")) == []


def _tails(lake: Path) -> list[str]:
    return [note for note in CommittedTables(str(lake)).run["notes"] if note.startswith("tail of ")]


def test_the_clock_does_not_state_the_number_of_state_partitions(tmp_path: Path):
    """The keys show that the inferred number is too small, also a minute later."""
    for number, most in ((0, 9), (1, 1)):
        own = [one for one in range(200) if partition_for(f"g:{TOPIC}:{one}", 3) == number][:most]
        write_log_folder(tmp_path / "in", number, [batch([snapshot(("g", TOPIC, one))]) for one in own])
    source, begun = GrowingSegments(str(tmp_path / "in")), SavedStream((str(tmp_path / "in"),))
    stream = LocalStream(source, StreamFold(), begun, StreamRun("s"), None, trigger=0.0, once=True, is_shown=True)
    stream.run()
    before = present(stream.shown).findings
    stream._judge(NOW)
    assert before["rule"].to_pylist() == ["STATE_PARTITION_MISSING"]
    assert present(stream.shown).findings.equals(before)


def _append(source: Path, target: Path, share: float) -> None:
    """Copy the first part of each log, across its segments, as a broker writes them."""
    for log in source.glob("__share_group_state-*"):
        segments = sorted(log.glob("*.log"))
        left = int(sum(segment.stat().st_size for segment in segments) * share)
        shutil.copytree(log, target / log.name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.log"))
        for segment in segments:
            data = segment.read_bytes()[:left]
            left -= len(data)
            if data:
                (target / log.name / segment.name).write_bytes(data)


@nightly("an audit and two streams; Parquet goes on from an audit in every run")
@pytest.mark.parametrize("scenario", ["4.3.1/prune", "4.4.0/chaos"])
def test_segments_go_on_from_an_audit_where_it_ended(scenario: str, tmp_path: Path):
    def audit(name: str) -> CommittedTables:
        assert run(["audit", str(tmp_path / "in"), "--out", str(tmp_path / name), "--quiet"]) in (0, 1)
        return CommittedTables(str(tmp_path / name))

    _append(DATA / scenario, tmp_path / "in", 0.5)
    read, audited = audit("lake").run["records"], audit("audits")
    for share in (0.8, 1.0):
        _append(DATA / scenario, tmp_path / "in", share)
        assert _stream(tmp_path) in (0, 1)
        audited = audit("audits")
    tables, whole = CommittedTables(str(tmp_path / "lake")), audit("whole")
    assert of_states(tmp_path / "lake") == of_states(tmp_path / "whole")
    assert tables.run["records"] == whole.run["records"] - read > 0
    # Counters keep what share-partitions counted that are deleted since, which one audit of all does not know.
    assert tables.read("group_outcomes").equals(audited.read("group_outcomes"))


def test_what_became_of_deliveries_is_the_same_in_any_parts():
    records, fold = table_of(found(DATA / "4.4.0/chaos")), StreamFold()
    number = records["partition"][0].as_py()
    own = records.filter(pa.array(records["partition"].to_numpy() == number))
    whole = present(fold.fold(None, number, _given(own), LogFacts(0))).log
    log = LiveLog(None, UnwrittenChanges(None))
    for begin in range(0, len(own), 37):
        log.take(present(fold.fold(log.state, number, _given(own.slice(begin, 37)), LogFacts(0))))
        # As after a restart.
        log.state = checkpoint_of(state_bytes(f"{STATE_TOPIC}-{number}", present(log.state)))
    latest = present(log.latest).log
    counted = present(latest.all_outcomes)
    for name in (*OUTCOME_COLUMNS.values(), "failing_since", "failing_until"):
        seen = dict(zip(latest.keys.binary().to_pylist(), counted[name].tolist(), strict=True))
        keys = whole.keys.binary().take(pa.array(whole.numbers)).to_pylist()
        assert [seen[key] for key in keys] == present(whole.outcomes)[name].tolist(), name
    assert np.array(present(whole.outcomes)["acknowledged"]).any()
    # Neither 0 nor -1 is an offset from which SPSO went back.
    for name in ("rewound_from", "rewound_to"):
        seen = dict(zip(latest.keys.binary().to_pylist(), np.maximum(counted[name], 0).tolist(), strict=True))
        assert [seen[key] for key in keys] == np.maximum(present(whole.outcomes)[name], 0).tolist(), name
    assert np.array(present(whole.outcomes)["rewound_from"] > 0).any()


def test_only_rows_that_changed_are_carried_to_the_tables():
    records, fold = table_of(found(DATA / "4.4.0/chaos")), StreamFold()
    number = records["partition"][0].as_py()
    own = records.filter(pa.array(records["partition"].to_numpy() == number))
    name, log = f"__share_group_state-{number}", LiveLog(None, UnwrittenChanges(None))
    held, counts = dict[bytes, dict[str, Any]](), list[int]()
    carried = CarriedState(name, None)
    for begin in range(0, len(own), 37):
        log.take(present(fold.fold(log.state, number, _given(own.slice(begin, 37)), LogFacts(0))))
        state = present(log.state)
        rows = carried.changes(state)[CHECKPOINT_TABLE].to_pylist()
        counts.append(len(rows))
        for row in rows:
            if row.pop("deleted"):
                del held[row["key"]]
            else:
                held[row["key"]] = row
        whole = pa.concat_tables(checkpoint_share_partitions(name, state)).to_pylist()
        assert held == {row["key"]: row for row in whole}
    assert max(counts[1:]) < len(held)


def test_without_metrics_records_are_read_when_they_are_written(tmp_path: Path):
    reads = list[float]()

    class Counted(GrowingFolder):
        def read(self, marks: Mapping[int, ResumePoint]) -> Read:
            reads.append(time.monotonic())
            if reads[-1] - reads[0] > 1.0:
                raise InputError("enough")
            return super().read(marks)

    _write(list(pieces(table_of(found(DATA / "4.4.0/chaos")), 2000)), tmp_path)
    source, begun = Counted(str(tmp_path / "in"), 1000), SavedStream((str(tmp_path),))
    with StreamTables(str(tmp_path / "lake"), StreamRun("a-stream"), keeps_state=True) as tables:
        stream = LocalStream(source, StreamFold(), begun, tables.run, tables, trigger=0.9)
        with pytest.raises(InputError, match="enough"):
            stream.run()
    # At 0 s, 0.9 s, and once more: the trigger is the pace of both.
    assert len(reads) <= 3


def test_what_is_written_next_is_read_while_the_tables_must_wait(tmp_path: Path):
    reads, writes = list[float](), list[tuple[float, float]]()
    records = table_of(found(DATA / "4.4.0/chaos"))
    number = records["partition"][0].as_py()
    parts = iter(pieces(records.filter(pc.field("partition") == number), 40))

    class Slow(GrowingFolder):
        def read(self, marks: Mapping[int, ResumePoint]) -> Read:
            if len(reads) == 4:
                raise InputError("enough")
            reads.append(time.monotonic())
            time.sleep(0.2)
            return Read([NewRecords(number, _given(next(parts)))])

    class SlowTables(StreamTables):
        def write(self, batch: int, changes: Sequence[LogChanges], outcomes: pa.Table | None = None) -> None:
            began = time.monotonic()
            time.sleep(0.3)
            super().write(batch, changes, outcomes)
            writes.append((began, time.monotonic()))

    source, begun = Slow(str(tmp_path), 1000), SavedStream((str(tmp_path),))
    with SlowTables(str(tmp_path / "lake"), StreamRun("a-stream"), keeps_state=True) as tables:
        stream = LocalStream(source, StreamFold(), begun, tables.run, tables, trigger=0.0)
        with pytest.raises(InputError, match="enough"):
            stream.run()
    assert len(writes) == len(reads) == 4
    for read, (began, ended), (next_began, _) in zip(reads[1:], writes, writes[1:], strict=False):
        # Writing takes at most half of the time, and reading none of it.
        allowed = ended + (ended - began)
        assert next_began >= allowed
        assert ended < read < allowed


def test_tables_follow_limits_that_change_while_a_stream_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(local_stream, "_JUDGED_EVERY", 0.05)
    records, deadline = table_of(found(DATA / "4.4.0/dlq")), time.monotonic() + 60.0
    _write([records], tmp_path)

    class Ended(GrowingFolder):
        def read(self, marks: Mapping[int, ResumePoint]) -> Read:
            if tables.run.batch > 0 or time.monotonic() > deadline:
                raise InputError("enough")
            return super().read(marks)

    begun = SavedStream((str(tmp_path / "in"),))
    with StreamTables(str(tmp_path / "lake"), StreamRun("a-stream"), keeps_state=True) as tables:
        source, fold = Ended(str(tmp_path / "in"), 1000), StreamFold(Limits(delivery_count=2))
        stream = LocalStream(
            source, fold, begun, tables.run, tables, trigger=0.0, limits=partial(Limits, delivery_count=4)
        )
        with pytest.raises(InputError, match="enough"):
            stream.run()
    reconstructed(records, tmp_path, limits={"delivery_count": 4})
    (of_stream, expected) = (
        CommittedTables(str(tmp_path / name)).read("findings", pc.field("rule") == "POISON_RECORDS")["message"]
        for name in ("lake", "whole")
    )
    assert sorted(of_stream.to_pylist()) == sorted(expected.to_pylist()) != []


@pytest.mark.skipif(sys.platform != "linux", reason="priorities of threads are Linux's")
def test_tables_give_way_to_reads_and_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    _write([table_of(found(DATA / "4.4.0/dlq"))], tmp_path)
    own, seen = os.getpriority(os.PRIO_PROCESS, 0), dict[str, int]()

    def noted(name: str, do: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            seen[name] = os.getpriority(os.PRIO_PROCESS, 0)
            return do(*args, **options)

        return call

    monkeypatch.setattr(Warehouse, "merge", noted("tables", Warehouse.merge))
    monkeypatch.setattr(GrowingFolder, "read", noted("reads", GrowingFolder.read))
    _stream(tmp_path, "--prometheus-port", str(*free_ports(1)))
    assert seen == {"reads": own, "tables": min(own + 10, 19)}
    shutil.rmtree(tmp_path / "lake")
    _stream(tmp_path)
    assert seen == {"reads": own, "tables": own}


def test_no_read_begins_while_metrics_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(local_stream, "_PATIENCE", 0.8)
    _write([table_of(found(DATA / "4.4.0/dlq"))], tmp_path)
    reads, must_end = list[float](), Event()

    class Noted(GrowingFolder):
        def read(self, marks: Mapping[int, ResumePoint]) -> Read:
            if must_end.is_set():
                raise InputError("enough")
            reads.append(time.monotonic())
            return super().read(marks)

    source, begun = Noted(str(tmp_path / "in"), 1000), SavedStream((str(tmp_path / "in"),))
    stream = LocalStream(source, StreamFold(), begun, StreamRun("a-stream"), None, trigger=0.0, is_shown=True)
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(stream.run)
        _until(lambda: len(reads) > 1)
        with stream.answering():
            # One may have begun.
            time.sleep(0.1)
            before, began = len(reads), time.monotonic()
            # An answer that never ends does not end the stream.
            _until(lambda: len(reads) > before)
            assert time.monotonic() - began > 0.5
        before = len(reads)
        _until(lambda: len(reads) > before + 2)
        must_end.set()
        with pytest.raises(InputError, match="enough"):
            running.result(60)


def test_an_answer_holds_what_was_there_when_it_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # Without an answer that waits, the next read would begin after a minute.
    for name in ("_LONGEST_PAUSE", "_SHORTEST_PAUSE"):
        monkeypatch.setattr(local_stream, name, 60.0)
    records = table_of(found(DATA / "4.4.0/dlq"))
    _write([records.slice(0, 100)], tmp_path)
    must_end = Event()

    class Ended(GrowingFolder):
        def read(self, marks: Mapping[int, ResumePoint]) -> Read:
            if must_end.is_set():
                raise InputError("enough")
            return super().read(marks)

    begun = SavedStream((str(tmp_path / "in"),))
    source, run_before = Ended(str(tmp_path / "in"), 1000), StreamRun("a-stream")
    stream = LocalStream(source, StreamFold(), begun, run_before, None, trigger=600.0, is_shown=True)
    shown = LiveStream(stream, None, Topics, Limits, KnownGroups)
    metrics = StreamMetrics(shown, 10)
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(stream.run)
        _until(lambda: b"records_total 100.0" in metrics.text(None)[0])
        _write([records.slice(100, 50)], tmp_path, 1)
        _until(lambda: b"records_total 150.0" in metrics.text(None)[0])
        must_end.set()
        stream.await_read()
        with pytest.raises(InputError, match="enough"):
            running.result(60)


def _until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_stream_that_has_caught_up_frees_its_record_buffers(tmp_path: Path):
    _write([table_of(found(DATA / "4.4.0/dlq"))], tmp_path)
    released = list[int]()

    class Ended(GrowingFolder):
        def read(self, marks: Mapping[int, ResumePoint]) -> Read:
            if released:
                raise InputError("enough")
            return super().read(marks)

    def release() -> None:
        buffer = RECORD_BUFFERS.acquire()
        released.append(buffer.capacity)

    source, run = Ended(str(tmp_path / "in"), 1000), StreamRun("a-stream")
    begun = SavedStream((str(tmp_path / "in"),))
    stream = LocalStream(source, StreamFold(), begun, run, None, trigger=0.0, release=release)
    with pytest.raises(InputError, match="enough"):
        stream.run()
    assert stream.logs
    assert released == [0]


def test_a_stream_that_ends_before_the_end_of_its_log_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    class Silent(GrowingFolder):
        """As a cluster whose broker delivers nothing of a log for some seconds."""

        def read(self, marks: Mapping[int, ResumePoint]) -> Read:
            return replace(super().read(marks), behind=2, has_more=False)

    source, begun = Silent(str(tmp_path), 1000), SavedStream((str(tmp_path),))
    with StreamTables(str(tmp_path / "lake"), StreamRun("a-stream"), keeps_state=True) as tables:
        LocalStream(source, StreamFold(), begun, tables.run, tables, trigger=0.1, once=True).run()
    assert "left unread: 2 records, which" in caplog.text
