"""The number of state partitions grows while a stream runs: rows go from logs in which nobody looks for them."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from share_state.delta.committed import CommittedTables
from share_state.fold.limits import Limits
from share_state.kafka.primitives import partition_for
from share_state.pipeline.live_tables import LiveTables
from share_state.pipeline.local_stream import LocalStream
from share_state.pipeline.state_file import SavedStream
from share_state.pipeline.stream_findings import KnownGroups
from share_state.pipeline.stream_fold import StreamFold
from share_state.pipeline.stream_resume import open_local_stream
from share_state.pipeline.stream_tables import StreamTables
from share_state.sources.new_records import LogFacts, NewRecords, Read
from share_state.sources.resume_point import ResumePoint
from share_state.sources.topics import Topics
from tests.kafka.batches import NOW
from tests.pipeline.test_split_keys import KEY
from tests.pipeline.test_stream_tables import Stream, _given, reconstructed, tables_in
from tests.present import present
from tests.rules.histories import AVAILABLE, snapshot
from tests.sources.formats.tables import rows

_STATES = ("share_partition_state", "in_flight")
_INPUT = "/in"
_FEW, _MORE = 2, 3


def _home(partition: int, count: int) -> int:
    return partition_for(f"{':'.join(KEY)}:{partition}", count)


MOVED = [one for one in range(60) if _home(one, _MORE) == 2][:8]
_STAYING = [one for one in range(60) if _home(one, _MORE) == _home(one, _FEW)][:4]


def _records(placed: Sequence[tuple[int, int]], first: int = 0, start: int = 0) -> pa.Table:
    """A snapshot of each share-partition; (partition, state partition), from an offset of each log on."""
    ends, tables = dict[int, int](), list[pa.Table]()
    for partition, number in placed:
        offset = ends.get(number, first)
        ends[number] = offset + 1
        one = snapshot([(start, start + 9, AVAILABLE, 1)], partition=partition, start=start)
        tables.append(rows(number, [offset], [NOW], [one.key], [one.value]))
    return pa.concat_tables(tables)


BEFORE = _records([(one, _home(one, _FEW)) for one in (*MOVED, *_STAYING)])
AFTER = _records([(one, 2) for one in MOVED], start=50)
LATER = _records([(one, _home(one, _FEW)) for one in _STAYING], first=20, start=70)


class _Source:
    """Gives each part, with the number of state partitions."""

    def __init__(self, *parts: tuple[pa.Table, int]) -> None:
        self._parts = [*parts]

    def read(self, marks: Mapping[int, ResumePoint]) -> Read:
        """The next part."""
        del marks
        if not self._parts:
            return Read()
        part, count = self._parts.pop(0)
        numbers = part["partition"].unique().to_pylist()
        own = {number: part.filter(pc.field("partition") == number) for number in numbers}
        return Read(
            [NewRecords(number, _given(rows), LogFacts(0, None, count)) for number, rows in own.items()],
            has_more=bool(self._parts),
        )

    def close(self) -> None:
        """Nothing is open."""


def _run(lake: Path, *parts: tuple[pa.Table, int], state_partitions: int | None = None) -> LocalStream:
    """Run the stream of a warehouse until it has read these parts."""
    run, states = open_local_stream(str(lake), (_INPUT,))
    fold = StreamFold(state_partitions=state_partitions)
    with StreamTables(str(lake), run, fold, keeps_state=True) as tables:
        begun = SavedStream((_INPUT,), states=states)
        stream = LocalStream(_Source(*parts), fold, begun, tables.run, tables, trigger=0.0, once=True, is_shown=True)
        stream.run()
    return stream


def _states_in(lake: Path | str) -> dict[str, list[str]]:
    return {name: rows for name, rows in tables_in(lake).items() if name in _STATES}


def _expected(folder: Path, count: int, *parts: pa.Table) -> dict[str, list[str]]:
    """The rows of a reconstruct of these records."""
    whole = reconstructed(pa.concat_tables(parts), folder, state_partitions=count)
    return {name: rows for name, rows in whole.items() if name in _STATES}


def _in_memory(stream: LocalStream) -> set[tuple[int, int]]:
    live = LiveTables(present(stream.shown), Topics(), Limits(), KnownGroups())
    states = live.read("share_partition_state", columns=["partition", "state_partition"])
    return {(row["partition"], row["state_partition"]) for row in states.to_pylist()}


@pytest.mark.parametrize("processes", [1, 2])
def test_rows_leave_logs_without_new_records_with_more_state_partitions(tmp_path: Path, processes: int):
    parts = [(BEFORE, _FEW), (AFTER, _MORE)]
    for part in [parts] if processes == 1 else [[one] for one in parts]:
        stream = _run(tmp_path / "lake", *part)
    assert _states_in(tmp_path / "lake") == _expected(tmp_path, _MORE, BEFORE, AFTER)
    homes = {(one, _home(one, _MORE)) for one in (*MOVED, *_STAYING)}
    assert _in_memory(stream) == homes
    history = CommittedTables(str(tmp_path / "lake")).read("share_partition_history").to_pylist()
    assert {(row["partition"], row["state_partition"]) for row in history} == homes
    cutoffs = CommittedTables(str(tmp_path / "lake")).read("cutoff").to_pylist()
    assert [row["reason"] is None for row in cutoffs] == [row["partition"] == 2 for row in cutoffs]


def test_a_log_that_is_read_later_takes_only_its_own_rows(tmp_path: Path):
    """As on Spark, where a log without new records is not folded; the rows of the new log are there already."""
    stream = Stream(tmp_path / "lake")
    batches = [
        stream.fold_rows(part, LogFacts(0, None, count))
        for part, count in ((BEFORE, _FEW), (AFTER, _MORE), (LATER, _MORE))
    ]
    stream.write(batches)
    assert _states_in(stream.lake) == _expected(tmp_path, _MORE, BEFORE, AFTER, LATER)


def test_a_number_that_is_stated_again_brings_states_back(tmp_path: Path):
    """A call stated too many state partitions; the next one states the right number."""
    for count in (_MORE, _FEW):
        _run(tmp_path / "lake", (BEFORE, 0), state_partitions=count)
        parts = {row["partition"] for row in CommittedTables(str(tmp_path / "lake")).read(_STATES[0]).to_pylist()}
        assert parts == {*_STAYING} | ({*MOVED} if count == _FEW else set())
    assert _states_in(tmp_path / "lake") == _expected(tmp_path, _FEW, BEFORE)
