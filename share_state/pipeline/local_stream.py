"""The stream in the command's own process: reads what is new, folds it in memory, writes tables at a pace of their own.

The state of each log partition stays in memory. Tables are written in a thread, together with the state, which
is what the next process goes on from: `runs` is the only commit point. Metrics follow each read.
"""

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa

from share_state.delta.merge import DELETED
from share_state.errors import InputError
from share_state.fold.checkpoint import CHECKPOINT_TABLE, FoldCheckpoint
from share_state.pipeline.stream_changes import FoldedRecords, LogChanges, UnwrittenChanges
from share_state.pipeline.stream_fold import StreamFold
from share_state.pipeline.stream_run import StreamProgress
from share_state.pipeline.stream_state import CARRIED_LOGS, settled_state, state_rows
from share_state.pipeline.stream_tables import StreamTables
from share_state.schema.declarations import table_schema
from share_state.sources.log_partition import STATE_TOPIC
from share_state.sources.new_records import EMPTY_ROWS, GrownLog, LogFacts, NewRecords, Read, StreamSource
from share_state.sources.partition_count import PartitionCount

_LOG = logging.getLogger("share_state")

_JUDGED_EVERY = 60.0
"""Seconds between two times that all share-partitions are judged by the clock."""
_LONGEST_PAUSE, _SHORTEST_PAUSE = 2.5, 0.1
"""Seconds between two reads."""
_READS_A_TRIGGER = 4


@dataclass(slots=True)
class LiveLog:
    """A log partition of the stream.

    Attributes:
        state: after the records read so far; None if the log has no record.
        unwritten: what changed since the tables were written.
        latest: the latest fold, which shows the present state; None before the first.
        count: how many partitions the topic has.
    """

    state: FoldCheckpoint | None
    unwritten: UnwrittenChanges
    latest: FoldedRecords | None = None
    count: PartitionCount = field(default_factory=PartitionCount)


class LocalStream:
    """Reads, folds and writes.

    Attributes:
        logs: the log partitions, by number.
        progress: the latest read; None before the first.
        records: data records that this process has folded.
        newest: ms, timestamp of the newest record; -1 if unknown.
    """

    def __init__(
        self,
        source: StreamSource,
        fold: StreamFold,
        states: Mapping[int, FoldCheckpoint],
        tables: StreamTables | None,
        *,
        trigger: float,
        once: bool = False,
        follow: Callable[["LocalStream"], None] | None = None,
    ) -> None:
        """Begin, with what an earlier process has left.

        Args:
            source: what is read.
            fold: how records are folded.
            states: log partition -> its state.
            tables: where changes go; None for metrics alone.
            trigger: seconds between the starts of two writes, at least.
            once: end when what is there now is read.
            follow: is called after each read that found something, and once a minute.
        """
        self._source, self._fold, self._tables = source, fold, tables
        self._trigger, self._once, self._follow = trigger, once, follow
        self.logs = {
            number: LiveLog(state, UnwrittenChanges(state)) for number, state in sorted(states.items())
        }
        self.progress: StreamProgress | None = None
        self.records = 0
        self.newest = max((state.mark.newest_time for state in states.values()), default=-1)
        self._problems = list[str]()
        self._writer = ThreadPoolExecutor(1, "share-state-tables")
        self._writing: Future[float] | None = None
        self._write_at = self._judge_at = self._touch_at = 0.0

    def run(self) -> None:
        """Run until what is there is read (`once`), or until it is interrupted.

        Raises:
            ShareStateError: if the stream must stop.
        """
        self._judge_at = self._touch_at = time.monotonic() + _JUDGED_EVERY
        try:
            if self._follow is not None:
                self.judge(None if self._once else int(time.time() * 1000), keep=False)
                self._follow(self)
            pause = min(self._trigger / _READS_A_TRIGGER, _LONGEST_PAUSE)
            while True:
                started = time.monotonic()
                read = self._read()
                self.progress = StreamProgress(time.monotonic() - started, read.behind)
                is_judged = not self._once and started >= self._judge_at
                if is_judged:
                    self._judge_at = started + _JUDGED_EVERY
                    self.judge(int(time.time() * 1000))
                if self._follow is not None and (read.parts or is_judged):
                    self._follow(self)
                self._write_if_due()
                if self._once and not read.has_more:
                    break
                if not read.has_more:
                    time.sleep(max(_SHORTEST_PAUSE, started + pause - time.monotonic()))
            self._finish_write()
            self._write()
            self._finish_write()
        finally:
            self._writer.shutdown()
            self._source.close()

    def _read(self) -> Read:
        """Read and fold what is new."""
        marks = {number: log.state.mark for number, log in self.logs.items() if log.state is not None}
        read = self._source.read(marks)
        self._problems += read.problems
        for part in read.parts:
            log = self.logs.setdefault(part.partition, LiveLog(None, UnwrittenChanges(None)))
            if (folded := self._folded(log, part)) is None:
                continue
            state = folded.log.checkpoint
            log.state = None if state is None else settled_state(folded.log.log.name, state)
            log.latest = folded
            log.unwritten.add(folded)
            self.records += folded.log.record_count
            self.newest = max(self.newest, folded.log.newest_time)
        return read

    def _folded(self, log: LiveLog, part: NewRecords | GrownLog) -> FoldedRecords | None:
        if isinstance(part, NewRecords):
            log.count = PartitionCount(part.facts.state_partitions)
            return self._fold.fold(log.state, part.partition, part.rows, part.facts)
        log.count = part.count
        try:
            return self._fold.fold_log(log.state, part.log, part.status, part.count)
        except InputError as error:
            # Such as a segment that the broker has deleted since it was listed: the next read lists again.
            _LOG.warning("%s; the log is read again", error)
            return None

    def judge(self, now: int | None, *, keep: bool = True) -> None:
        """Judge every share-partition up to a time (ms), so that long waits are found without a new record.

        Args:
            now: the time; None for that of the last record.
            keep: whether the tables get the findings and verdicts, too.
        """
        for number, log in self.logs.items():
            if log.state is None:
                continue
            mark = log.state.mark
            start = mark.log_start_offset if mark.start_is_recorded else None
            facts = LogFacts(start, mark.topic_id, log.count.number)
            judged = self._fold.fold(log.state, number, EMPTY_ROWS, facts, now=now, is_by_clock=True)
            log.latest = judged
            if keep:
                log.unwritten.judged = judged

    def _write_if_due(self) -> None:
        """Begin to write the tables: not more often than the trigger, and at most half of the time."""
        if self._tables is None:
            self._forget()
            return
        if self._writing is not None and self._writing.done():
            self._finish_write()
        now = time.monotonic()
        if self._writing is None and now >= self._write_at:
            self._write_at = now + self._trigger
            self._write()

    def _finish_write(self) -> None:
        """Wait for the tables that are being written, and raise what failed."""
        if self._writing is not None:
            took = self._writing.result()
            self._write_at = max(self._write_at, time.monotonic() + took)
            self._writing = None

    def _write(self) -> None:
        """Hand what changed to the thread that writes tables, if something changed or topics may have grown."""
        tables, now = self._tables, time.monotonic()
        if tables is None:
            return
        has_changed = bool(self._problems) or any(not log.unwritten.is_empty for log in self.logs.values())
        if not has_changed and (self._once or now < self._touch_at):
            return
        self._touch_at = now + _JUDGED_EVERY
        if tables.run.batch < 0:
            # The tables of an earlier run have rows of logs that have not grown since.
            unread = {number: log for number, log in self.logs.items() if log.unwritten.is_empty}
            self._judge_unread(unread)
        changes = [LogChanges("", problems=[problem]) for problem in self._problems]
        self._problems = []
        for number, log in self.logs.items():
            if log.unwritten.is_empty:
                continue
            rows = log.unwritten.rows()
            if log.unwritten.latest is not None:
                rows.tables |= _state_changes(number, log.state)
            changes.append(rows)
            log.unwritten = UnwrittenChanges(log.state)
        batch = tables.run.batch + 1

        def write() -> float:
            started = time.monotonic()
            tables.write(batch, changes)
            return time.monotonic() - started

        self._writing = self._writer.submit(write)

    def _judge_unread(self, logs: Mapping[int, LiveLog]) -> None:
        for number, log in logs.items():
            if log.state is not None:
                judged = self._fold.fold(log.state, number, EMPTY_ROWS, LogFacts(), is_by_clock=True)
                log.unwritten.judged = judged

    def _forget(self) -> None:
        """Forget what would be written to tables, without tables."""
        for log in self.logs.values():
            log.unwritten = UnwrittenChanges(log.state)
        self._problems = []


def _state_changes(number: int, state: FoldCheckpoint | None) -> dict[str, pa.Table]:
    """The rows of the state of a log partition that replace those before it."""
    name = f"{STATE_TOPIC}-{number}"
    if state is not None:
        return state_rows(name, state)
    gone = {}
    for table in (CHECKPOINT_TABLE, CARRIED_LOGS):
        schema = table_schema(table)
        columns = [pa.array([name if one.name == "log" else None], one.type) for one in schema]
        rows = pa.Table.from_arrays(columns, [one.name for one in schema])
        gone[table] = rows.append_column(DELETED, pa.array([True]))
    return gone
