"""A log that is folded in micro-batches leaves the tables of one reconstruct, whatever is repeated or killed."""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from share_state.cli.main import run as command
from share_state.config.input_spec import OPTIONS, input_spec
from share_state.delta.committed import CommittedTables
from share_state.delta.replaced_files import SHORT_LOG
from share_state.delta.warehouse import Warehouse
from share_state.delta.warehouse_place import DEAD_LETTER_TABLES
from share_state.errors import WarehouseError
from share_state.fold.checkpoint import FoldCheckpoint, checkpoint_row, checkpoint_share_partitions
from share_state.fold.history import HISTORY_TABLE
from share_state.kafka.primitives import partition_for
from share_state.pipeline import stream_tables
from share_state.pipeline.dead_letter_checks import StreamLetters
from share_state.pipeline.local_executor import LocalExecutor
from share_state.pipeline.planning import build_plan
from share_state.pipeline.reconstruct import run_reconstruct
from share_state.pipeline.stream_changes import LogChanges, UnwrittenChanges
from share_state.pipeline.stream_fold import StreamFold
from share_state.pipeline.stream_resume import INITIAL, open_stream
from share_state.pipeline.stream_run import StreamRun, last_stream_run
from share_state.pipeline.stream_tables import StreamTables
from share_state.sources.input_detection import find_dead_letters
from share_state.sources.log_partition import STATE_TOPIC
from share_state.sources.new_records import LogFacts
from share_state.sources.topics import read_topics
from share_state.spark import stored_log
from share_state.spark.streaming import pack_rows
from tests.kafka.batches import Batch, consecutive, in_bytes, log_of
from tests.pipeline.test_split_keys import KEY
from tests.present import present
from tests.profiles import by_profile, nightly, some_of
from tests.rules.histories import ARCHIVED, AVAILABLE, snapshot, tombstone, update
from tests.sources.formats.tables import found, table_of, write
from tests.streams import MemoryStore
from tests.truth import DATA

TABLES = ("share_partition_state", "in_flight", "findings", "cutoff")
SCENARIOS = by_profile(
    ["4.3.1/prune", "4.4.0/dlq", "4.3.1/fuzz"],  # tests below take chaos
    sorted(f"{path.parent.name}/{path.name}" for path in DATA.glob("4.*/*") if path.is_dir()),
)


class Stream:
    """A stream without Spark: the states of the log partitions are in memory, as Spark stores them."""

    def __init__(self, lake: Path, rows_every: int = 1) -> None:
        """Begin; of so many micro-batches, one makes rows of the tables."""
        self.lake, self.fold = str(lake), StreamFold()
        self.stores = dict[int, MemoryStore]()
        self._rows_every = rows_every
        self._steps = 0
        self._of_other = dict[int, Any]()

    def state(self, number: int) -> FoldCheckpoint | None:
        """The state of a log partition."""
        return self.log(number).state

    def log(self, number: int) -> Any:
        """What is stored of a log partition."""
        return self._stored(number).get(number, self.fold.initial)

    def fold_log(self, number: int, rows: pa.Table, facts: LogFacts) -> LogChanges | None:
        """Fold what a micro-batch has of a log partition."""
        stored = self._stored(number)
        are_rows_made = (self._steps + 1) % self._rows_every == 0
        log = stored.get(number, self.fold.initial, makes_rows=are_rows_made)
        step = self.fold.step(log.state, log.changes(self.fold.state_partitions), number, rows, facts)
        if step is None:
            return None
        self._steps += 1
        stored.update(number, step, facts.state_partitions, are_rows_made=are_rows_made)
        if self._steps % 7 == 0:
            # As if a new worker had the log partition next.
            stored_log.held.clear()
        elif self._steps % 3 == 0:
            self.change_worker()
        return step.unwritten.rows() if are_rows_made else None

    def rows_left(self) -> list[LogChanges]:
        """The rows that micro-batches have left."""
        changes = list[LogChanges]()
        for number in self.stores:
            stored, log = self._stored(number), self.log(number)
            if log.unwritten is not None and log.state is not None:
                unwritten = log.unwritten.copy()
                unwritten.judged = self.fold.judged(log.state, number, log.count)
                stored.note_rows_made(number)
                changes.append(unwritten.rows())
        return changes

    def change_worker(self) -> None:
        """Let the other of two workers go on, which holds what it had last."""
        own = dict(stored_log.held)
        stored_log.held.clear()
        stored_log.held.update(self._of_other)
        self._of_other = own

    def _stored(self, number: int) -> stored_log.StoredLog:
        return stored_log.StoredLog(cast("Any", self.stores.setdefault(number, MemoryStore())))

    def fold_rows(self, records: pa.Table, facts: LogFacts = LogFacts()) -> list[LogChanges]:  # noqa: B008  frozen
        """Fold a micro-batch."""
        changes = list[LogChanges]()
        for number in records["partition"].unique().to_pylist():
            own = records.filter(pc.field("partition") == number)
            if (changed := self.fold_log(number, _given(own), facts)) is not None:
                changes.append(changed)
        return changes

    def write(self, batches: Sequence[list[LogChanges]], first: int = 0, **more: Any) -> None:
        """Write micro-batches in one process."""
        run = last_stream_run(self.lake) or StreamRun("a-stream")
        with StreamTables(self.lake, run, self.fold, **more) as tables:
            for number, changes in enumerate(batches, first):
                tables.write(number, changes)
            tables.match_letters()


def _given(records: pa.Table) -> pa.Table:
    times = records["timestamp"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    return pa.table({"key": records["key"], "value": records["value"], "offset": records["offset"], "timestamp": times})


def tables_in(lake: Path | str) -> dict[str, list[str]]:
    """The tables that a warehouse has committed."""
    tables = CommittedTables(str(lake))
    names = [name for name in (*TABLES, *DEAD_LETTER_TABLES) if name in TABLES or tables.holds(name)]
    return {name: sorted(str(row | {"run_id": ""}) for row in tables.read(name).to_pylist()) for name in names}


def reconstructed(records: pa.Table, folder: Path, **more: Any) -> dict[str, list[str]]:
    """The tables of a reconstruct of the same records in this process."""
    source = {"path": str(write(records, folder / "whole.parquet"))}
    plan = build_plan(input_spec(OPTIONS, sources=[source], judge="all", **more), OPTIONS)
    run_reconstruct(LocalExecutor(), plan, str(folder / "whole"))
    return tables_in(folder / "whole")


def pieces(records: pa.Table, size: int) -> Iterator[pa.Table]:
    """The records as they are appended to their logs: some of each partition at a time."""
    logs = [records.filter(pc.field("partition") == number) for number in records["partition"].unique().to_pylist()]
    for begin in range(0, max(map(len, logs)), size):
        yield pa.concat_tables([log.slice(begin, size) for log in logs])


@pytest.mark.parametrize("scenario", some_of(SCENARIOS, 1))
@pytest.mark.parametrize("size", [1, 7])
def test_a_state_is_read_from_its_whole_and_its_changes(
    scenario: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(stored_log, "MOST_CHANGED", 4.0)  # the changes of small states are larger than they are
    stream, most = Stream(tmp_path / "lake"), 0
    for part in islice(pieces(table_of(found(DATA / scenario)), size), 60):
        stream.fold_rows(part)
        held = {number: _carried(stream.state(number)) for number in stream.stores}
        stream.change_worker()
        assert {number: _carried(stream.state(number)) for number in stream.stores} == held
        stored_log.held.clear()
        assert {number: _carried(stream.state(number)) for number in stream.stores} == held
        most = max(most, *(len(store.values["changed"]) for store in stream.stores.values()))
    assert most > 1


def test_a_worker_reads_what_another_of_its_machine_has_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    stream = Stream(tmp_path / "lake")
    stream.fold_rows(table_of(found(DATA / "4.3.1/prune")))
    states = {number: _carried(stream.state(number)) for number in stream.stores}
    of_spark = {number: store.values["log"][0] for number, store in stream.stores.items()}
    for store in stream.stores.values():
        store.values["log"][:] = [(b"not read",)]
    stored_log.held.clear()
    assert {number: _carried(stream.state(number)) for number in stream.stores} == states
    shutil.rmtree(tmp_path / "share_state")
    for number, store in stream.stores.items():
        store.values["log"][:] = [of_spark[number]]
    stored_log.held.clear()
    assert {number: _carried(stream.state(number)) for number in stream.stores} == states
    # What it has read from Spark, it leaves for others.
    assert len([*(tmp_path / "share_state").iterdir()]) == len(states)


def _carried(state: FoldCheckpoint | None) -> list[Any]:
    kept = present(state)
    rows = pa.concat_tables(checkpoint_share_partitions("log", kept)).to_pylist()
    return [checkpoint_row("log", kept), sorted(map(str, rows))]


@pytest.mark.parametrize("scenario", some_of(SCENARIOS, 1))
def test_micro_batches_leave_the_tables_of_a_reconstruct(scenario: str, tmp_path: Path):
    records = table_of(found(DATA / scenario))
    stream = Stream(tmp_path / "lake")
    stream.write([stream.fold_rows(part) for part in pieces(records, max(20, len(records) // 24))])
    assert tables_in(stream.lake) == reconstructed(records, tmp_path)


@pytest.mark.parametrize("scenario", some_of(SCENARIOS, 2))
@pytest.mark.parametrize("rows_every", by_profile([5], [2, 5, 10**9]))
def test_rows_that_are_made_later_leave_the_tables_of_a_reconstruct(
    scenario: str, rows_every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As those of a stream that makes rows of each micro-batch, and whose workers share no scratch folder."""
    records = table_of(found(DATA / scenario))
    sizes = max(20, len(records) // 24)
    each, stream = Stream(tmp_path / "each"), Stream(tmp_path / "lake", rows_every)
    each.write([each.fold_rows(part) for part in pieces(records, sizes)])
    stored_log.held.clear()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    batches = [stream.fold_rows(part) for part in pieces(records, sizes)]
    left = {path.name for path in (tmp_path / "share_state").iterdir()}
    assert left >= {f"{number}-whole" for number in stream.stores}
    stream.change_worker()
    stream.write([*batches, stream.rows_left()])
    assert not stream.rows_left()
    assert tables_in(stream.lake) == reconstructed(records, tmp_path)
    assert _of_run(stream.lake) == _of_run(each.lake)


def _of_run(lake: str) -> list[Any]:
    """What the rows of a stream hold beside what a reconstruct has."""
    tables, run = CommittedTables(lake), present(last_stream_run(lake))
    totals = sorted(map(str, tables.read("group_outcomes").to_pylist()))
    return [run.records, run.progress, run.archiving, run.log_time, run.share_partitions, run.placed, totals]


def test_two_contents_of_one_offset_in_a_micro_batch_are_a_conflict(tmp_path: Path):
    (records,) = pieces(table_of(found(DATA / "4.3.1/happy")).slice(0, 1), 1)
    other = records.set_column(records.schema.get_field_index("value"), "value", pa.array([b"other"], pa.binary()))
    stream = Stream(tmp_path / "lake")
    stream.write([stream.fold_rows(pa.concat_tables([records, other.cast(records.schema)]))])
    rows = CommittedTables(stream.lake).read("findings").to_pylist()
    (conflict,) = [row for row in rows if row["rule"] == "DUPLICATE_OFFSET_CONFLICT"]
    number = records["partition"][0].as_py()
    assert conflict["message"].startswith(f"__share_group_state-{number}, position ")


@pytest.mark.parametrize(("partition", "offset"), [(0, 2**63 - 1), (2**31, 0), (-1, 0), (0, -1), (None, 0), (0, None)])
def test_rows_at_a_place_that_no_log_has_are_left_out(partition: int | None, offset: int | None):
    rows = [{"key": b"k", "value": b"v", "partition": 0, "offset": 0}]
    rows.append(rows[0] | {"partition": partition, "offset": offset})
    packed = [row for batch in pack_rows(pa.Table.from_pylist(rows), "rows") for row in batch.to_pylist()]
    problems = [row["problem"] for row in packed if row["problem"] is not None]
    assert problems == ["1 rows without a partition or an offset that a log can have are left out"]
    assert [row["state_partition"] for row in packed if row["problem"] is None] == [0]


@nightly("micro-batches; the kills repeat some")
def test_a_repeated_micro_batch_changes_nothing(tmp_path: Path):
    records = table_of(found(DATA / "4.4.0/chaos"))
    stream = Stream(tmp_path / "lake")
    batches = [stream.fold_rows(part) for part in pieces(records, 200)]
    batches[1].append(LogChanges("", problems=["x.parquet: cannot be read"]))
    stream.write(batches[:3])
    before = tables_in(stream.lake)
    stream.write(batches[:3])
    assert tables_in(stream.lake) == before
    # As after a kill between the tables: a later batch is in some of them, but `runs` does not name it.
    shutil.copytree(tmp_path / "lake/runs", tmp_path / "runs")
    stream.write(batches[3:], first=3)
    after = tables_in(stream.lake)
    shutil.rmtree(tmp_path / "lake/runs")
    shutil.copytree(tmp_path / "runs", tmp_path / "lake/runs")
    stream.write(batches[3:], first=3)
    assert tables_in(stream.lake) == after
    assert sum("LOG_UNREADABLE" in row for row in after["findings"]) == 1


def test_what_a_killed_run_wrote_into_the_tables_is_undone(tmp_path: Path):
    """Such as a stream with another checkpoint, or a reconstruct: `runs` does not name what it wrote."""
    records, stream = table_of(found(DATA / "4.3.1/happy")), Stream(tmp_path / "lake")
    batches = [stream.fold_rows(part) for part in pieces(records, 8)]
    stream.write(batches[:2])
    shutil.copytree(tmp_path / "lake/runs", tmp_path / "runs")
    stream.write(batches[2:3], first=2)
    before = _history(tmp_path / "lake")
    # As if the third micro-batch had been killed before its commit, and then another run.
    shutil.rmtree(tmp_path / "lake/runs")
    shutil.copytree(tmp_path / "runs", tmp_path / "lake/runs")
    for name in (*TABLES, "share_partition_history"):
        Warehouse(stream.lake).replace(name, [])
    stream.write(batches[2:3], first=2)
    assert _history(tmp_path / "lake") == before
    stream.write(batches[3:], first=3)
    assert tables_in(stream.lake) == reconstructed(records, tmp_path)


@nightly("three runs")
def test_a_stream_does_not_go_on_with_tables_that_another_run_writes(tmp_path: Path):
    """An object store has no lock."""
    records, stream = table_of(found(DATA / "4.3.1/happy")), Stream(tmp_path / "lake")
    batches = [stream.fold_rows(part) for part in pieces(records, 8)]
    with StreamTables(stream.lake, StreamRun("a-stream"), stream.fold) as tables:
        tables.write(0, batches[0])
        DeltaTable(f"{stream.lake}/in_flight").optimize.z_order(["first_offset"])
        tables.write(1, batches[1])
        Warehouse(stream.lake).replace("in_flight", [])
        with pytest.raises(WarehouseError, match="in_flight: another writer committed here meanwhile; start the"):
            tables.write(2, batches[2])
    stream.write(batches[2:], first=2)
    assert tables_in(stream.lake) == reconstructed(records, tmp_path)


@nightly("micro-batches; the kills repeat some")
def test_a_record_at_or_below_the_last_offset_is_skipped(tmp_path: Path):
    records = table_of(found(DATA / "4.3.1/happy"))
    stream = Stream(tmp_path / "lake")
    parts = list(pieces(records, 9))
    stream.write([stream.fold_rows(pa.concat_tables([*parts[max(0, n - 2) : n + 1]][::-1])) for n in range(len(parts))])
    assert tables_in(stream.lake) == reconstructed(records, tmp_path)
    assert present(last_stream_run(stream.lake)).records == len(records)


@nightly("many micro-batches")
def test_a_stream_deletes_the_files_that_it_has_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """By default it deletes what was replaced ten minutes ago; also what a killed process has left."""
    monkeypatch.setattr(stream_tables, "_KEPT_SECONDS", 0)
    records, stream = table_of(found(DATA / "4.3.1/happy")), Stream(tmp_path / "lake")
    batches = [stream.fold_rows(part) for part in pieces(records, 5)]
    stream.write(batches[:2])
    for name in TABLES:
        (tmp_path / f"lake/{name}/left-by-a-killed-process.parquet").write_bytes(b"")
    stream.write(batches[2:], first=2)
    assert tables_in(stream.lake) == reconstructed(records, tmp_path)
    for name in (*TABLES, "runs", "share_partition_history"):
        place = f"{stream.lake}/{name}"
        assert SHORT_LOG.items() <= DeltaTable(place).metadata().configuration.items()
        # The latest version alone is left.
        named = {Path(uri).name for uri in DeltaTable(place).file_uris()}
        assert {path.name for path in Path(place).glob("*.parquet")} == named


def test_a_commit_looks_for_new_entries_of_a_log_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    stream, looks, looked = Stream(tmp_path / "lake"), list[str](), DeltaTable.update_incremental

    def look(table: DeltaTable) -> None:
        looks.append(table.table_uri)
        looked(table)

    monkeypatch.setattr(DeltaTable, "update_incremental", look)
    parts = list(pieces(table_of(found(DATA / "4.3.1/happy")), 40))[:4]
    stream.write([stream.fold_rows(part) for part in parts])
    assert 0 < len(looks) <= len([*Path(stream.lake).glob("*/_delta_log/0*.json")])


def _first_halves(records: pa.Table) -> pa.Table:
    """The first half of each log."""
    logs = [records.filter(pc.field("partition") == number) for number in records["partition"].unique().to_pylist()]
    return pa.concat_tables([log.slice(0, len(log) // 2) for log in logs])


@nightly("two runs; test_local_stream goes on from an audit")
@pytest.mark.parametrize("scenario", by_profile(["4.4.0/chaos"], SCENARIOS))
def test_a_stream_begins_with_the_state_of_an_audit(
    scenario: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
):
    """What the audit has read is no longer in the log."""
    records, lake = table_of(found(DATA / scenario)), tmp_path / "lake"
    begin = _first_halves(records)
    given = str(write(begin, tmp_path / "begin.parquet"))
    assert command(["audit", given, "--out", str(lake), "--quiet"]) in (0, 1)
    next_offsets = dict(CommittedTables(str(lake)).run["progress"])
    rest = records.filter(
        pc.greater_equal(
            records["offset"],
            pa.array([next_offsets[f"{STATE_TOPIC}-{number}"] for number in records["partition"].to_pylist()]),
        )
    )
    stream = Stream(lake)
    with caplog.at_level("INFO", "share_state"):
        run, folder = open_stream(str(lake), str(tmp_path / "checkpoint"), ("a folder",))
    assert f"{lake}: begins with the state of its audit" in caplog.text
    stream.fold = replace(stream.fold, initial_states=f"{folder}/{INITIAL}")
    with StreamTables(str(lake), run, stream.fold) as tables:
        for number, part in enumerate(pieces(rest, 300)):
            tables.write(number, stream.fold_rows(part))
    assert tables_in(lake) == reconstructed(records, tmp_path)
    assert tables.run.records == len(rest)
    capfd.readouterr()
    assert [command(call) for call in (["show", str(lake)], ["groups", str(lake)])] == [0, 0]
    group = CommittedTables(str(lake)).read("in_flight")["group_id"][0].as_py()
    assert capfd.readouterr().out.count(group) > 1
    assert command(["diff", str(tmp_path / "whole"), str(lake)]) == 0
    assert "no difference in" in capfd.readouterr().out
    anew = Stream(tmp_path / "anew")
    anew.write([anew.fold_rows(begin), anew.fold_rows(rest)])
    assert _history(lake) == _history(tmp_path / "anew")


def _history(lake: Path) -> list[str]:
    """The rows of `share_partition_history` of a stream; verdicts depend on when they are judged."""
    tables = CommittedTables(str(lake))
    rows = tables.read("share_partition_history", pc.field("run_id") == tables.run["run_id"])
    return sorted(map(str, rows.drop_columns(["run_id", "time", "verdict", "reason"]).to_pylist()))


def test_what_an_audit_found_in_the_groups_is_not_found_for_ever(tmp_path: Path):
    """A stream reads no groups."""
    folder, lake = tmp_path / "in", tmp_path / "lake"
    shutil.copytree(DATA / "4.4.0/chaos", folder)
    for path in folder.glob("__share_group_state-*/*.log"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 4])
    assert command(["audit", str(folder), "--out", str(lake), "--quiet"]) in (0, 1)
    before = CommittedTables(str(lake)).read("findings")
    assert "MISSING_SHARE_STATE" in before["rule"].to_pylist()
    stream = Stream(lake)
    run, place = open_stream(str(lake), str(tmp_path / "checkpoint"), ("a folder",))
    stream.fold = replace(stream.fold, initial_states=f"{place}/{INITIAL}")
    with StreamTables(str(lake), run, stream.fold) as tables:
        tables.write(0, [LogChanges("", problems=["x.parquet: cannot be read"])])
    rules = CommittedTables(str(lake)).read("findings")["rule"].to_pylist()
    kept = before.filter(pc.field("state_partition").is_valid())["rule"].to_pylist()
    assert sorted(rules) == sorted([*kept, "LOG_UNREADABLE"])


def test_deliveries_that_failed_in_earlier_micro_batches_count(tmp_path: Path):
    history = [
        snapshot([(3, 4, AVAILABLE, 1)]),
        update([(3, 3, ARCHIVED, 5)], count=1),
        update([(4, 4, AVAILABLE, 4)], count=1),
        snapshot(partition=1),
    ]
    log_of(tmp_path / "logs", in_bytes(consecutive([Batch([one]) for one in history])))
    records, stream = table_of(found(tmp_path / "logs")), Stream(tmp_path / "lake")
    for number in range(len(records)):
        stream.write([stream.fold_rows(records.slice(number, 1), LogFacts(0))], first=number)
    assert tables_in(stream.lake) == reconstructed(records, tmp_path)
    (poison,) = CommittedTables(stream.lake).read("findings", pc.field("rule") == "POISON_RECORDS").to_pylist()
    assert poison["severity"] == "warning"
    assert command(["audit", str(tmp_path / "whole.parquet"), "--out", str(tmp_path / "audit"), "--quiet"]) in (0, 1)
    counted = (CommittedTables(str(lake)).read("group_outcomes") for lake in (stream.lake, tmp_path / "audit"))
    assert next(counted).equals(next(counted))


@pytest.mark.parametrize("rows_every", [1, 3])
def test_what_is_delivered_or_deleted_leaves_no_rows(rows_every: int, tmp_path: Path):
    """Also where other workers folded what came before."""
    history = [
        snapshot([(3, 4, AVAILABLE, 1)]),
        snapshot([(3, 4, AVAILABLE, 1)], partition=1),
        snapshot([(3, 4, AVAILABLE, 1)], partition=2),
        update(start=5),
        tombstone(partition=1),
        update([(3, 3, ARCHIVED, 5)], partition=2),
    ]
    log_of(tmp_path / "logs", in_bytes(consecutive([Batch([one]) for one in history])))
    records, stream = table_of(found(tmp_path / "logs")), Stream(tmp_path / "lake", rows_every)
    for number in range(len(records)):
        stored_log.held.clear()
        stream.write([stream.fold_rows(records.slice(number, 1), LogFacts(0))], first=number)
    tables = CommittedTables(stream.lake)
    assert tables.read("in_flight")["partition"].unique().to_pylist() == [2]
    assert sorted(tables.read("share_partition_state")["partition"].to_pylist()) == [0, 2]
    assert tables_in(stream.lake) == reconstructed(records, tmp_path)


@nightly("two runs; test_split_keys has audits")
def test_a_key_in_two_state_partitions_has_the_state_that_the_coordinator_loads(tmp_path: Path):
    """That a key is split needs the states of all logs, which no micro-batch has; one of them is WRONG_PARTITION."""
    count = 3
    home = partition_for(f"{KEY[0]}:{KEY[1]}:0", count)
    stray, third = (home + 1) % count, (home + 2) % count
    histories = {
        stray: [snapshot([(0, 9, AVAILABLE, 1)]), update([(0, 3, ARCHIVED, 1)])],
        home: [snapshot([(50, 59, AVAILABLE, 2)], start=50), update(start=51)],
        third: [tombstone(partition=7)],
    }
    for number, own in histories.items():
        log_of(tmp_path / "logs", in_bytes(consecutive([Batch([one]) for one in own])), partition=number)
    records = table_of(found(tmp_path / "logs"))
    stream, facts = Stream(tmp_path / "lake"), LogFacts(0, None, count)
    logs = (records.filter(pc.field("partition") == number) for number in (home, stray, third))
    stream.write([stream.fold_rows(log, facts) for log in logs])
    expected = reconstructed(records, tmp_path, state_partitions=count)
    split = {row for row in expected["findings"] if "SPLIT_KEY" in row}
    assert len(split) == 2
    assert any("WRONG_PARTITION" in row for row in expected["findings"])
    assert tables_in(stream.lake) == expected | {"findings": sorted({*expected["findings"]} - split)}


@nightly("five micro-batches and runs")
def test_a_log_that_was_created_again_or_pruned_is_judged_once(tmp_path: Path):
    records, stream = table_of(found(DATA / "4.4.0/chaos")), Stream(tmp_path / "lake")
    first, second = records.slice(0, len(records) // 2), list(pieces(records, 200))
    of_first = [stream.fold_rows(part, LogFacts(0, "first")) for part in pieces(first, 200)]
    stream.write([*of_first, *(stream.fold_rows(part, LogFacts(0, "second")) for part in second)])
    anew = tables_in(stream.lake)
    begun = [
        row for row in CommittedTables(stream.lake).read("findings").to_pylist() if row["rule"] == "LOG_BEGUN_AGAIN"
    ]
    assert sorted(row["state_partition"] for row in begun) == sorted(first["partition"].unique().to_pylist())
    expected = reconstructed(records, tmp_path)
    assert {name: anew[name] for name in TABLES if name != "findings"} == {
        name: expected[name] for name in TABLES if name != "findings"
    }
    # No state needs what a broker deletes: the states stay, and what was found in the records that are gone.
    start = min(row["cutoff_offset"] for row in CommittedTables(stream.lake).read("cutoff").to_pylist())
    stream.write([stream.fold_rows(records, LogFacts(start, "second"))], first=len(of_first) + len(second))
    pruned = tables_in(stream.lake)
    assert [pruned[name] for name in TABLES[:2]] == [anew[name] for name in TABLES[:2]]
    assert len({*pruned["findings"]}) == len(pruned["findings"])


def _judged(fold: StreamFold, state: FoldCheckpoint, number: int, now: int) -> LogChanges:
    changes = UnwrittenChanges(state)
    changes.judged = fold.judged(state, number, now=now)
    return changes.rows()


def test_what_waits_too_long_is_found_by_the_clock_once(tmp_path: Path):
    records = table_of(found(DATA / "4.4.0/dlq"))
    parts, stream = list(pieces(records, 40)), Stream(tmp_path / "lake")
    batches = [stream.fold_rows(part) for part in parts[:3]]
    now = int(pc.max(records["timestamp"]).as_py().timestamp() * 1000) + 7_200_000
    judged = [_judged(stream.fold, present(stream.state(number)), number, now) for number in stream.stores]
    stream.write([*batches[:2], [*batches[2], *judged]])
    rows = CommittedTables(stream.lake).read("findings").to_pylist()
    stuck = [row for row in rows if row["rule"] == "ARCHIVING_STUCK"]
    assert stuck
    assert len({row["message"] for row in stuck}) == len(stuck)
    assert all(int(dict(row["evidence"])["milliseconds"]) > 3_600_000 for row in stuck)
    history = CommittedTables(stream.lake).read("share_partition_history").to_pylist()
    keys = [(row["group_id"], row["topic_id"], row["partition"]) for row in history]
    assert len({*keys}) == len(keys) == sum(present(last_stream_run(stream.lake)).share_partitions.values())
    assert {row["verdict"] for row in history} >= {"STOP"}


def test_states_that_belong_to_another_log_have_no_rows_by_the_clock_either(tmp_path: Path):
    """The source says the number of state partitions with records; a worker that takes over reads it."""
    stream = Stream(tmp_path / "lake")
    records = table_of(found(DATA / "4.3.1/happy"))
    by_records = stream.fold_rows(records, LogFacts(state_partitions=2))
    stored_log.held.clear()
    by_clock = list[LogChanges]()
    for number in stream.stores:
        log = stream.log(number)
        changes = log.changes(None)
        changes.judged = stream.fold.judged(present(log.state), number, log.count)
        by_clock.append(changes.rows())
    assert _of_history(by_clock) == _of_history(by_records)
    stored_log.held.clear()
    without_number = Stream(tmp_path / "anew").fold_rows(records)
    assert len(_of_history(by_clock)) < len(_of_history(without_number))


def _of_history(changes: Sequence[LogChanges]) -> set[tuple[Any, ...]]:
    rows = pa.concat_tables(one.tables[HISTORY_TABLE] for one in changes).to_pylist()
    return {(row["group_id"], row["topic_id"], row["partition"], row["state_partition"]) for row in rows}


@nightly("a stream and a run over two fixtures")
def test_the_dead_letters_of_a_stream_are_those_of_a_reconstruct(tmp_path: Path):
    real, early, late = DATA / "4.4.0/dead-letters", tmp_path / "early", tmp_path / "late"
    for folder, kept in ((early, 4), (late, 2)):
        shutil.copytree(real, folder)
        (path,) = (folder / "dlq.all-0").glob("*.log")
        path.write_bytes(path.read_bytes()[: path.stat().st_size // kept])
    shutil.rmtree(early / "dlq.all-1")
    records, names = table_of(found(real)), str(real / "topics.json")
    stream, topics = Stream(tmp_path / "lake"), read_topics(names)
    stream.fold = replace(stream.fold, has_dead_letters=True)
    batches = [stream.fold_rows(part) for part in pieces(records, max(1, len(records) // 6))]

    def letters(copy: Path, seconds: float) -> StreamLetters:
        given = [str(copy / name) for name in ("dlq.all-0", "dlq.all-1") if (copy / name).exists()]
        return StreamLetters(lambda: find_dead_letters(given, None), copied_last=True, seconds=seconds)

    # The first match is of a copy that lacks a partition; a stream that starts again takes in what is new.
    stream.write(batches[:4], topics=lambda: topics, letters=letters(early, 0.0))
    stream.write(batches[3:], first=3, topics=lambda: topics, letters=letters(late, inf))
    seen = tables_in(stream.lake)
    given = {"dead_letters": [str(late / "dlq.all-0"), str(late / "dlq.all-1")], "dead_letters_copied_last": True}
    assert seen == reconstructed(records, tmp_path, topics=names, **given)
    assert all(seen[name] for name in DEAD_LETTER_TABLES)
    assert any("DEAD_LETTER_LOST" in row for row in seen["findings"])
    notes = [CommittedTables(str(lake)).run["notes"] for lake in (stream.lake, tmp_path / "whole")]
    assert [note for note in notes[1] if note.startswith("dead letters")] == notes[0]
    # A stream without them forgets them.
    stream.write([batches[-1]], first=len(batches))
    assert "dead_letters" not in tables_in(stream.lake)
