"""The stream in the command's own process: reads what is new, folds it in memory, writes tables at a pace of their own.

The state of each log partition stays in memory. Tables are written in a thread, together with the state, which
is what the next process goes on from: `runs` is the only commit point. Metrics follow each read.
"""

import logging
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from threading import Event
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from share_state.errors import InputError, pluralize
from share_state.fold.checkpoint import FoldCheckpoint
from share_state.fold.history import add_group_outcomes
from share_state.fold.limits import Limits
from share_state.kafka.state_records import RECORD_BUFFERS
from share_state.pipeline.extents import tail_notes
from share_state.pipeline.live_log import LiveLog
from share_state.pipeline.live_tables import Shown
from share_state.pipeline.plan import available_cores
from share_state.pipeline.result import run_row
from share_state.pipeline.state_file import SavedStream, StateFile
from share_state.pipeline.stream_changes import FoldedRecords, LogChanges, UnwrittenChanges
from share_state.pipeline.stream_findings import (
    IS_OF_INPUT,
    input_findings,
    merge_findings,
    noted_starts,
    noted_tails,
    shown_times,
    tails_of,
)
from share_state.pipeline.stream_fold import StreamFold
from share_state.pipeline.stream_run import COMMAND, StreamProgress, StreamRun, log_starts
from share_state.pipeline.stream_state import CarriedState
from share_state.pipeline.stream_tables import RESTS_WHILE_BEHIND, StreamTables
from share_state.sources.log_partition import STATE_TOPIC
from share_state.sources.new_records import (
    GrownLog,
    Listing,
    NewRecords,
    Read,
    StreamSource,
)
from share_state.sources.partition_count import PartitionCount
from share_state.sources.topics import Topics

_LOG = logging.getLogger("share_state")

_UNREAD = "left unread: {}, which the source does not deliver now; run it again"
_JUDGED_EVERY = 60.0
"""Seconds between two times that all share-partitions are judged by the clock."""
_LONGEST_PAUSE, _SHORTEST_PAUSE = 5.0, 0.1
"""Seconds between two reads while metrics are served, unless an answer waits for one."""
_READS_A_TRIGGER = 2
_PATIENCE = 2.5
"""Seconds that an answer waits for a read, and a read for an answer."""
_LONGEST_UNSHOWN_PAUSE = 10.0
"""Seconds between two reads without metrics: what is read earlier than it is written costs a fold more."""
_GIVES_WAY_BY = 10
"""How much nicer threads that write tables are than others; 19 at most."""


class LocalStream:
    """Reads, folds and writes.

    Size: one method per step of the loop; all share the logs in memory.

    Attributes:
        logs: the log partitions, by number.
        progress: the latest read; None before the first.
        run_so_far: what this stream has read, also what is not committed yet.
        answered: `time.monotonic` when the source answered last.
        shown: what metrics show; None before the first read.
    """

    def __init__(
        self,
        source: StreamSource,
        fold: StreamFold,
        begun: SavedStream,
        run: StreamRun,
        target: StreamTables | StateFile | None,
        *,
        trigger: float,
        once: bool = False,
        is_shown: bool = False,
        limits: Callable[[], Limits] | None = None,
        release: Callable[[], object] = int,
    ) -> None:
        """Begin, with what an earlier process has left.

        Args:
            source: what is read.
            fold: how records are folded.
            begun: what the stream goes on from.
            run: what it has committed.
            target: where changes go: to tables, or the state alone to a file; None to keep them in memory.
            trigger: seconds between the starts of two writes, at least.
            once: end when what is there now is read.
            is_shown: whether metrics are served.
            limits: the limits that are known now; by default those of `fold`.
            release: called when what was there at first is read, and once a minute: to give back what it took.
        """
        tables = target if isinstance(target, StreamTables) else None
        self._file = target if isinstance(target, StateFile) else None
        self._source = source
        self._fold = fold
        self._tables = tables
        if tables is not None and is_shown:
            # One core is left for reads and answers.
            tables.at_once = min(tables.at_once, max(1, available_cores() - 1))
        self._trigger = trigger
        self._once = once
        self._is_shown = is_shown
        self._limits = limits
        self._release, self._release_at = release, 0.0
        self.logs = {
            number: LiveLog.resumed(state, run.counted.get(f"{STATE_TOPIC}-{number}"))
            for number, state in sorted(begun.states.items())
        }
        self.progress: StreamProgress | None = None
        self.answered = time.monotonic()
        self.shown: Shown | None = None
        self.run_so_far, self._started = run, datetime.now(UTC)
        self._findings = begun.findings if tables is None else tables.findings
        self._outcomes = begun.outcomes if tables is None else tables.outcomes
        self._is_saved = True
        self._carried = dict[int, CarriedState]()
        self._problems = list[str]()
        self._of_input = _about_partitions(self._findings.filter(IS_OF_INPUT))
        self._unwritten_of_input: LogChanges | None = None
        self._listing: Listing | None = None
        self._writer = ThreadPoolExecutor(1, "share-state-tables", _give_way if is_shown else None)
        self._writing: Future[tuple[float, float]] | None = None
        self._write_at, self._write_seconds = 0.0, 0.0
        self._read_seconds = 0.0
        self._judge_at = 0.0
        self._touch_at = 0.0
        self._is_undisturbed = Event()
        self._is_undisturbed.set()
        self._is_asked, self._has_read = Event(), Event()

    def await_read(self) -> None:
        """Wait for the read that runs, or for one that begins now, for some seconds at most."""
        self._has_read.clear()
        self._is_asked.set()
        self._has_read.wait(_PATIENCE)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Begin no read while metrics are made, for some seconds at most; only one thread at a time enters it."""
        self._is_undisturbed.clear()
        try:
            yield
        finally:
            self._is_undisturbed.set()

    def group_ids(self) -> frozenset[str]:
        """The share groups that have state."""
        shown = [log.latest for log in list(self.logs.values()) if log.latest is not None]
        names = (one.log.key_columns(one.log.numbers, Topics())["group_id"] for one in shown)
        return frozenset(name for column in names for name in column.unique().to_pylist() if name is not None)

    def run(self) -> None:
        """Run until what is there is read (`once`), or until it is interrupted.

        Raises:
            ShareStateError: if the stream must stop.
        """
        self._judge_at, is_caught_up = time.monotonic() + _JUDGED_EVERY, False
        try:
            if self._is_shown:
                self._judge(None if self._once else int(time.time() * 1000), keep=False)
                self._show([])
            while True:
                started, used = time.monotonic(), time.thread_time()
                read = self._read()
                self._is_asked.clear()
                self._has_read.set()
                self.progress = StreamProgress(time.monotonic() - started, read.behind)
                if read.parts and not self._is_shown:
                    self._read_seconds = self.progress.seconds
                is_judged = not self._once and started >= self._judge_at
                if is_judged:
                    self._judge_at = started + _JUDGED_EVERY
                    self._take_limits()
                    self._judge(int(time.time() * 1000))
                if not (read.has_more or is_caught_up):
                    is_caught_up = True
                    log_starts(self.run_so_far)
                self._write_if_due(read.has_more)
                if self._once and not read.has_more:
                    if read.behind:
                        _LOG.warning("%s", _UNREAD.format(pluralize(read.behind, "record")))
                    break
                if not read.has_more:
                    if started >= self._release_at:
                        self._release_at = started + _JUDGED_EVERY
                        # As large as the longest read; those that follow are short.
                        RECORD_BUFFERS.free()
                        self._release()
                    self._pause(started, time.thread_time() - used)
            self._finish_write()
            self._write()
            self._finish_write()
        finally:
            self._has_read.set()
            self._writer.shutdown()
            self._source.close()

    def _pause(self, started: float, used: float) -> None:
        """Wait until it is time for the next read, or an answer waits for it.

        Args:
            started: `time.monotonic` at the latest one.
            used: seconds of CPU time that it used.
        """
        if self._is_shown:
            # Reads between answers take a quarter of a core at most; how long they wait for one does not count.
            pause = max(min(self._trigger / _READS_A_TRIGGER, _LONGEST_PAUSE), 4 * used)
            due = started + pause
        else:
            latest = started + _LONGEST_UNSHOWN_PAUSE
            if self._writing is not None:
                wait((self._writing,), latest - time.monotonic())
                if self._writing.done():
                    self._finish_write()
            # What is written next is read while the tables must wait.
            due = min(self._write_at - self._read_seconds, latest)
        self._is_asked.wait(max(_SHORTEST_PAUSE, due - time.monotonic()))
        # A read beside an answer would make it late, and not be in it.
        self._is_undisturbed.wait(_PATIENCE)

    def _read(self) -> Read:
        """Read and fold what is new."""
        marks = {number: log.state.mark for number, log in self.logs.items() if log.state is not None}
        read = self._source.read(marks)
        if not read.is_away:
            self.answered = time.monotonic()
        self._problems += read.problems
        seen = [LogChanges("", problems=read.problems)] if read.problems else []
        new, grown = list[pa.Table](), set[int]()
        for part in read.parts:
            log = self.logs.setdefault(part.partition, LiveLog(None, UnwrittenChanges(None)))
            if (folded := self._folded(log, part)) is None:
                continue
            log.take(folded)
            grown.add(part.partition)
            seen.append(folded.shown_changes())
            new += folded.outcomes_by_key()
        seen += self._recount(read, grown)
        if (of_input := self._judge_input(read)) is not None:
            seen.append(of_input)
        if new:
            self._outcomes = add_group_outcomes(self._outcomes, pa.concat_tables(new))
        if seen:
            self._is_saved = False
            self._note(seen)
        if seen and self._is_shown:
            self._show(seen)
        return read

    def _recount(self, read: Read, grown: Collection[int]) -> list[LogChanges]:
        """Judge logs that have not grown again, if the topic has another number of partitions now."""
        if (count := self._fold.count_of(read.count)) is None:
            return []
        seen = list[LogChanges]()
        wrong = self._findings.filter(pc.field("rule") == "WRONG_PARTITION")["state_partition"].to_pylist()
        for number in self.logs.keys() - grown:
            log, before = self.logs[number], self.logs[number].count
            log.count = count
            # Of a process before, only its findings are known.
            is_other = number in wrong if before is None else not count.places_as(before)
            if is_other and log.state is not None:
                judged = self._fold.judged(log.state, number, log.count)
                log.latest = log.unwritten.judged = judged
                seen.append(judged.shown_changes())
        return seen

    def _judge_input(self, read: Read) -> LogChanges | None:
        """The findings and notes about the input as a whole; None if they are as before."""
        listing, run = read.listing, self.run_so_far
        if listing is None or not (read.parts or listing != self._listing):
            return None
        self._listing = listing
        states = {number: log.state for number, log in self.logs.items() if log.state is not None}
        found = input_findings(listing, states, self._fold.severities)
        ends = {f"{STATE_TOPIC}-{number}": state.mark.next_offset for number, state in states.items()}
        tails = tuple(tail_notes(listing.logs, ends))
        if (rows := _about_partitions(found)) == self._of_input and tails == tails_of(run.notes):
            return None
        if self._once:
            for note in tails:
                _LOG.info("%s", note)
        changes = LogChanges("", of_input=found, tails=tails)
        self._of_input, self._unwritten_of_input = rows, changes
        self.run_so_far = replace(run, notes=noted_tails(run.notes, [changes]))
        return changes

    def _note(self, seen: Sequence[LogChanges]) -> None:
        """Note what a read shows, for metrics and for a stream without tables."""
        summaries = [one.summary for one in seen if one.summary]
        archiving, newest = shown_times(seen, self.run_so_far.archiving, self.run_so_far.log_time)
        run = self.run_so_far.with_logs({one.log: one.summary for one in seen if one.summary})
        self.run_so_far = replace(
            run,
            notes=noted_starts(run.notes, run.unshown_starts),
            records=run.records + sum(one["records"] for one in summaries),
            archiving=archiving,
            log_time=None if newest < 0 else newest,
        )

    def _show(self, seen: Sequence[LogChanges]) -> None:
        """Let metrics show the present state."""
        run = self.run_so_far
        found = merge_findings(
            self._findings,
            seen,
            archiving=run.archiving,
            newest=-1 if run.log_time is None else run.log_time,
            topics=Topics(),
            run_id=run.query,
            severities=self._fold.severities,
        )
        self._findings = self._findings if found is None else found
        logs = tuple(one for log in self.logs.values() if (one := log.shown()) is not None)
        result = run.result(self._findings, sum(len(one.folded.numbers) for one in logs))
        row = run_row(result, COMMAND, run.inputs, {}, self._started)
        self.shown = Shown(
            logs, row, self._findings, self._outcomes, -1 if run.log_time is None else run.log_time
        )

    def _folded(self, log: LiveLog, part: NewRecords | GrownLog) -> FoldedRecords | None:
        if isinstance(part, NewRecords):
            count = self._fold.count_of(PartitionCount(part.facts.state_partitions))
            folded = self._fold.fold(log.state, part.partition, part.rows, part.facts)
            log.count = log.count if folded is None else count
            return folded
        try:
            folded = self._fold.fold_log(log.state, part.log, part.status, part.count)
        except InputError as error:
            # Such as a segment that the broker has deleted since it was listed: the next read lists again.
            _LOG.warning("%s; the log is read again", error)
            return None
        log.count = part.count
        return folded

    def _take_limits(self) -> None:
        """Judge by the limits that hold now."""
        if self._limits is not None:
            self._fold = replace(self._fold, limits=self._limits())
            if self._tables is not None:
                self._tables.limits = self._fold.limits

    def _judge(self, now: int | None, *, keep: bool = True) -> None:
        """Judge every share-partition up to a time (ms), so that long waits are found without a new record.

        Args:
            now: the time; None for that of the last record.
            keep: whether the tables get the findings and verdicts, too.
        """
        seen = list[LogChanges]()
        for number, log in self.logs.items():
            if log.state is None:
                continue
            judged = self._fold.judged(log.state, number, log.count, now)
            log.show_judged(judged)
            seen.append(judged.shown_changes())
            if keep:
                log.unwritten.judged = judged
        if self._is_shown:
            self._show(seen)

    def _write_if_due(self, is_behind: bool) -> None:
        """Begin to write the tables: not more often than the trigger, and at most half of the time.

        Args:
            is_behind: whether there is more to read now; then at most a fifth of the time.
        """
        if self._writing is not None and self._writing.done():
            self._finish_write()
        now = time.monotonic()
        if is_behind:
            patience = (1 - RESTS_WHILE_BEHIND) * self._write_seconds
        else:
            patience = 0.0 if self._once else self._read_seconds
        if self._writing is None and now >= self._write_at - patience:
            time.sleep(max(0, self._write_at - now))
            self._write_at = max(now, self._write_at) + self._trigger
            self._write()

    def _finish_write(self) -> None:
        """Wait for the tables that are being written, and raise what failed."""
        if self._writing is not None:
            self._write_seconds, ended = self._writing.result()
            self._write_at = max(self._write_at, ended + self._write_seconds)
            self._writing = None

    def _write(self) -> None:
        """Hand what changed to the thread that writes tables, if something changed or topics may have grown."""
        tables, now = self._tables, time.monotonic()
        if tables is None:
            self._write_state()
            return
        has_changed = bool(self._problems) or self._unwritten_of_input is not None
        has_changed |= any(not log.unwritten.is_empty for log in self.logs.values())
        # At the start, too: topics may have grown since the last process wrote their ends.
        if not has_changed and (tables.run.batch < 0 or now < self._touch_at):
            return
        self._touch_at = now + _JUDGED_EVERY
        if tables.run.batch < 0:
            # The tables of an earlier run have rows of logs that have not grown since.
            unread = {number: log for number, log in self.logs.items() if log.unwritten.is_empty}
            self._judge_unread(unread)
        others = [LogChanges("", problems=[problem]) for problem in self._problems]
        if self._unwritten_of_input is not None:
            others.append(self._unwritten_of_input)
        self._problems, self._unwritten_of_input = [], None
        unwritten = dict[int, tuple[UnwrittenChanges, FoldCheckpoint | None]]()
        for number, log in self.logs.items():
            if not log.unwritten.is_empty:
                unwritten[number] = log.unwritten, log.state
                log.unwritten = log.unwritten.following(log.state)
        batch, outcomes = tables.run.batch + 1, self._outcomes

        def write() -> tuple[float, float]:
            started = time.monotonic()
            of_logs = [self._changes(number, *one) for number, one in unwritten.items()]
            tables.write(batch, [*others, *of_logs], outcomes)
            return _taken(started)

        self._writing = self._writer.submit(write)

    def _changes(
        self,
        number: int,
        unwritten: UnwrittenChanges,
        state: FoldCheckpoint | None,
    ) -> LogChanges:
        """The changed rows of a log partition, those of its state included."""
        rows = unwritten.rows()
        if unwritten.latest is not None:
            if number not in self._carried:
                self._carried[number] = CarriedState(f"{STATE_TOPIC}-{number}", unwritten.before)
            rows.tables |= self._carried[number].changes(state, is_all=rows.summary["is_read_anew"])
        return rows

    def _judge_unread(self, logs: Mapping[int, LiveLog]) -> None:
        for number, log in logs.items():
            if log.state is not None:
                log.unwritten.judged = self._fold.judged(log.state, number, log.count)

    def _write_state(self) -> None:
        """Hand the state to the thread that writes it, if there is a file for it and something changed."""
        for log in self.logs.values():
            log.unwritten = UnwrittenChanges(log.state)
        self._problems, self._unwritten_of_input = [], None
        file, run = self._file, self.run_so_far
        if file is None or self._is_saved:
            return
        self._is_saved = True
        states = {number: log.state for number, log in self.logs.items() if log.state is not None}
        saved = SavedStream(run.inputs, run.records, states, self._findings, self._outcomes)

        def write() -> tuple[float, float]:
            started = time.monotonic()
            file.write(saved)
            return _taken(started)

        self._writing = self._writer.submit(write)


def _about_partitions(found: pa.Table) -> list[dict[str, Any]]:
    """What findings say of state partitions."""
    return found.select(["state_partition", "severity", "message"]).to_pylist()


def _give_way() -> None:
    """Let reads and metrics go before the thread that calls this, and before threads that it starts."""
    if sys.platform == "linux":
        # Elsewhere, this is the priority of the whole process.
        os.nice(_GIVES_WAY_BY)


def _taken(started: float) -> tuple[float, float]:
    """Seconds since a `time.monotonic`, and the time now."""
    now = time.monotonic()
    return now - started, now
