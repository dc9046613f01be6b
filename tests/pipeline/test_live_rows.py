"""What metrics read of a stream in memory: rows that are kept from report to report equal those that are made anew."""

from collections.abc import Iterator, Mapping
from itertools import chain, cycle
from random import Random
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client import generate_latest

from share_state.delta.committed import CommittedTables
from share_state.errors import InputError
from share_state.fold.checkpoint import FoldCheckpoint
from share_state.fold.history import HISTORY_TABLE, LOG_TIME
from share_state.fold.limits import Limits
from share_state.fold.states import KEY
from share_state.pipeline import local_stream
from share_state.pipeline.live_tables import LiveTables, Shown
from share_state.pipeline.local_stream import LocalStream
from share_state.pipeline.state_file import SavedStream
from share_state.pipeline.stream_findings import KnownGroups
from share_state.pipeline.stream_fold import StreamFold
from share_state.pipeline.stream_run import StreamRun
from share_state.pipeline.stream_state import state_bytes
from share_state.pipeline.task import IN_FLIGHT, STATE
from share_state.report.audit_data import report_of
from share_state.report.prometheus import Metrics
from share_state.report.share_partitions import add_topic_key
from share_state.sources.new_records import GrownLog, LogFacts, NewRecords, Read
from share_state.sources.resume_point import ResumePoint
from share_state.sources.topics import Topics
from tests.pipeline.test_stream_tables import _given
from tests.profiles import by_profile
from tests.sources.formats.tables import found, table_of
from tests.truth import DATA, scenarios

_SCENARIOS = by_profile(
    ["4.4.0/chaos", "4.3.1/prune", "4.4.0/dlq"], [f"{path.parent.name}/{path.name}" for path in scenarios()]
)
_ABOUT_SHARE_PARTITIONS = (STATE, IN_FLIGHT, HISTORY_TABLE)
_RECORDS_OF_A_LOG = by_profile(20, 1500)
_CLOCK = (b"last_success_timestamp", b"run_duration")


class Reads:
    """A source that delivers records in a few reads of random sizes; `check` sees the stream after each.

    A topic may be deleted and created again, with other records at the same offsets.
    """

    def __init__(self, records: pa.Table, draw: Random, *, is_recreated: bool) -> None:
        logs = {
            number: _given(records.filter(pc.field("partition") == number).slice(0, _RECORDS_OF_A_LOG))
            for number in records["partition"].unique().to_pylist()
        }
        self._reads = self._parts(dict(logs), draw)
        if is_recreated:
            latest = {number: rows.take(_last_of_each(rows)) for number, rows in logs.items()}
            again: list[NewRecords | GrownLog] = [
                NewRecords(number, rows, LogFacts(0, "b")) for number, rows in latest.items()
            ]
            self._reads = chain(self._reads, [Read(again, has_more=True)])
        self.checks = 0
        self.stream: LocalStream | None = None
        self.before: LiveTables | None = None
        self._earlier = list[tuple[FoldCheckpoint, bytes]]()
        self._earlier_rows: tuple[Shown, list[str]] | None = None

    @staticmethod
    def _parts(logs: dict[int, pa.Table], draw: Random) -> Iterator[Read]:
        while any(map(len, logs.values())):
            parts = list[NewRecords | GrownLog]()
            for number in draw.sample(sorted(logs), draw.randint(1, len(logs))):
                size = draw.choice((0, 5, 30))
                parts.append(NewRecords(number, logs[number].slice(0, size), LogFacts(0, "a")))
                logs[number] = logs[number].slice(size)
            yield Read(parts, has_more=True)

    def read(self, marks: Mapping[int, ResumePoint]) -> Read:
        """The next read."""
        del marks
        assert self.stream is not None
        # Threads that answer and that write have them still.
        assert all(state_bytes("log", state) == data for state, data in self._earlier)
        states = [log.state for log in self.stream.logs.values() if log.state is not None]
        self._earlier = [(state, state_bytes("log", state)) for state in states]
        if self._earlier_rows is not None:
            assert _state_rows(self._earlier_rows[0]) == self._earlier_rows[1]
        if self.stream.shown is not None and self.stream.shown.logs:
            self._earlier_rows = self.stream.shown, _state_rows(self.stream.shown)
            self.before = self.check(self.stream, Random(self.checks), self.before)
            self.checks += 1
        if (found := next(self._reads, None)) is None:
            raise InputError("enough")
        return found

    def close(self) -> None:
        """Nothing is open."""

    @staticmethod
    def check(stream: LocalStream, draw: Random, before: LiveTables | None) -> LiveTables:
        """Compare tables that keep rows with tables that are made anew."""
        assert stream.shown is not None
        limits = Limits(groups={"g1": {"delivery_count": draw.choice((2, 3, 5))}})
        given = (stream.shown, Topics(), limits, KnownGroups({"g1": draw.randint(0, 1)}))
        kept, anew = LiveTables(*given, before), LiveTables(*given)
        for log, now in zip(kept.logs, anew.logs, strict=True):
            # The end of the log only counts for a state without its log.
            assert log.history.drop_columns(LOG_TIME).equals(now.history.drop_columns(LOG_TIME))
        for table in _ABOUT_SHARE_PARTITIONS:
            assert _rows(kept.read(table)) == _rows(anew.read(table))
        assert _rows(kept.in_flight_counts()) == _rows(CommittedTables.in_flight_counts(anew))
        _check_selection(kept, anew, draw)
        # A report costs more than all else.
        if draw.random() < 0.2:
            assert _lines(kept, limits) == _lines(anew, limits)
        return kept


def _last_of_each(rows: pa.Table) -> list[int]:
    """The places of the last record of each share-partition."""
    return sorted({key[2:]: place for place, key in enumerate(rows["key"].to_pylist())}.values())


def _check_selection(kept: LiveTables, anew: LiveTables, draw: Random) -> None:
    """The rows of some share-partitions are theirs among all rows."""
    states = add_topic_key(anew.read(STATE, columns=KEY))
    places = sorted(draw.sample(range(len(states)), min(len(states), 3)))
    selected = states.take(pa.array(places, pa.int64()))
    chosen = {tuple(row.values()) for row in selected.select(KEY).to_pylist()}
    for table in _ABOUT_SHARE_PARTITIONS:
        rows = anew.read(table).to_pylist()
        own = [row for row in rows if tuple(row[name] for name in KEY) in chosen]
        assert _rows(kept.of(selected).read(table)) == sorted(map(str, own))


def _rows(table: pa.Table) -> list[str]:
    return sorted(map(str, table.to_pylist()))


def _state_rows(shown: Shown) -> list[str]:
    """The states and ranges that a stream shows, made anew."""
    tables = LiveTables(shown, Topics(), Limits(), KnownGroups())
    return [*_rows(tables.read(STATE)), *_rows(tables.read(IN_FLIGHT))]


def _lines(tables: LiveTables, limits: Limits) -> list[bytes]:
    lines = b"".join(Metrics(report_of(tables, limits=limits), 20).texts(generate_latest)).splitlines()
    return sorted(line for line in lines if not any(name in line for name in _CLOCK))


@pytest.fixture(scope="module")
def logs() -> dict[str, pa.Table]:
    return {scenario: table_of(found(DATA / scenario)) for scenario in _SCENARIOS}


@settings(max_examples=by_profile(1, 500), deadline=None)
@given(
    scenario=st.sampled_from(_SCENARIOS),
    seed=st.integers(0, 1 << 20),
    is_recreated=st.booleans(),
    judged_every=st.sampled_from((0.0, 0.02, 60.0)),
)
@example(scenario="4.4.0/chaos", seed=1, is_recreated=True, judged_every=60.0)
@example(scenario="4.3.1/prune", seed=2, is_recreated=False, judged_every=0.02)
def test_kept_rows_are_those_that_are_made_anew(
    logs: dict[str, pa.Table], scenario: str, seed: int, is_recreated: bool, judged_every: float
):
    source = Reads(logs[scenario], Random(seed), is_recreated=is_recreated)
    limits = cycle((Limits(), Limits(delivery_count=3)))
    with patch.object(local_stream, "_JUDGED_EVERY", judged_every):
        stream = LocalStream(
            source,
            StreamFold(),
            SavedStream(("in",)),
            StreamRun("a-stream"),
            None,
            trigger=0.0,
            is_shown=True,
            limits=lambda: next(limits),
        )
        source.stream = stream
        with pytest.raises(InputError, match="enough"):
            stream.run()
    assert source.checks > 1
