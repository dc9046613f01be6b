"""A log that is folded in micro-batches leaves the tables of one reconstruct, whatever is repeated or killed."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from share_state.cli.main import run as command
from share_state.delta.reader import CommittedTables
from share_state.pipeline.stream import LogChanges, LogFacts, StreamFold
from share_state.pipeline.stream_tables import StreamRun, StreamTables, last_stream_run
from tests.profiles import by_profile
from tests.sources.formats.tables import found, table_of, write
from tests.truth import DATA

TABLES = ("share_partition_state", "in_flight", "findings", "cutoff")
SCENARIOS = by_profile(
    ["4.3.1/happy", "4.3.1/prune", "4.4.0/chaos", "4.4.0/dlq", "4.3.1/fuzz"],
    sorted(f"{path.parent.name}/{path.name}" for path in DATA.glob("*/*") if path.is_dir()),
)


class Stream:
    """A stream without Spark: the states of the log partitions are in a dictionary."""

    def __init__(self, lake: Path) -> None:
        self.lake, self.states, self.fold = str(lake), dict[int, bytes](), StreamFold()

    def fold_rows(self, records: pa.Table) -> list[LogChanges]:
        """Fold a micro-batch."""
        changes, numbers = [], records["partition"].unique().to_pylist()
        for number in numbers:
            own = records.filter(pc.field("partition") == number)
            state, changed = self.fold.step(self.states.get(number), number, _given(own), LogFacts())
            if changed is not None:
                changes.append(changed)
            if state is not None:
                self.states[number] = state
        return changes

    def write(self, batches: Sequence[list[LogChanges]], first: int = 0) -> None:
        """Write micro-batches in one process."""
        run = last_stream_run(self.lake) or StreamRun("a-stream")
        with StreamTables(self.lake, run) as tables:
            for number, changes in enumerate(batches, first):
                tables.write(number, changes)


def _given(records: pa.Table) -> pa.Table:
    times = records["timestamp"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    return pa.table({"key": records["key"], "value": records["value"], "offset": records["offset"], "timestamp": times})


def tables_in(lake: Path | str) -> dict[str, list[str]]:
    """The tables that a warehouse has committed."""
    tables = CommittedTables(str(lake))
    return {name: sorted(str(row | {"run_id": ""}) for row in tables.read(name).to_pylist()) for name in TABLES}


def reconstructed(records: pa.Table, folder: Path) -> dict[str, list[str]]:
    """The tables of a reconstruct of the same records."""
    write(records, folder / "whole.parquet")
    assert command(["reconstruct", str(folder / "whole.parquet"), "--out", str(folder / "whole"), "--quiet"]) in (0, 1)
    return tables_in(folder / "whole")


def pieces(records: pa.Table, size: int) -> Iterator[pa.Table]:
    """The records as they are appended to their logs: some of each partition at a time."""
    logs = [records.filter(pc.field("partition") == number) for number in records["partition"].unique().to_pylist()]
    for begin in range(0, max(map(len, logs)), size):
        yield pa.concat_tables([log.slice(begin, size) for log in logs])


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_micro_batches_leave_the_tables_of_a_reconstruct(scenario: str, tmp_path: Path):
    records = table_of(found(DATA / scenario))
    stream = Stream(tmp_path / "lake")
    stream.write([stream.fold_rows(part) for part in pieces(records, max(20, len(records) // 24))])
    assert tables_in(stream.lake) == reconstructed(records, tmp_path)


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


def test_a_record_at_or_below_the_last_offset_is_skipped(tmp_path: Path):
    records = table_of(found(DATA / "4.3.1/happy"))
    stream = Stream(tmp_path / "lake")
    parts = list(pieces(records, 9))
    stream.write([stream.fold_rows(pa.concat_tables([*parts[max(0, n - 2) : n + 1]][::-1])) for n in range(len(parts))])
    assert tables_in(stream.lake) == reconstructed(records, tmp_path)
    assert last_stream_run(stream.lake).records == len(records)
