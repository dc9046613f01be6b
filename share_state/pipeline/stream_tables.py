"""The tables of a stream: each micro-batch merges what changed, then commits the versions that belong together.

`StreamTables` commits findings, in_flight, share_partition_state and cutoff, then `runs`, as every run does.
A stream has one row of `runs`, which each micro-batch replaces. Imports no Spark.
"""

import json
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from threading import Lock
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from share_state.delta.commits import held_signals, standing
from share_state.delta.committed import CommittedTables
from share_state.delta.merge import DELETED, without_deleted
from share_state.delta.warehouse import Warehouse
from share_state.delta.warehouse_place import DEAD_LETTER_TABLES
from share_state.errors import NothingCommittedError, ShareStateError, WarehouseError
from share_state.fold.checkpoint import CHECKPOINT_TABLE
from share_state.fold.dead_letters.archiving import RANGES
from share_state.fold.dead_letters.matching import LETTERS, LOST
from share_state.fold.history import (
    GROUP_OUTCOMES,
    HISTORY_TABLE,
    LOG_TIME,
    OUTCOME_COLUMNS,
    add_group_outcomes,
)
from share_state.fold.states import compute_lags, in_large_pieces, key_texts
from share_state.pipeline.dead_letter_checks import StreamLetters
from share_state.pipeline.mixed_logs import PlacedKeys, mixed_reasons
from share_state.pipeline.result import DEAD_LETTERS_NOTE, RunResult, mark_unsafe, run_row
from share_state.pipeline.stream_changes import (
    COMPLETE,
    KEYS,
    LogChanges,
    UnwrittenChanges,
    in_flight_changes,
)
from share_state.pipeline.stream_findings import (
    IS_OF_LETTERS,
    KnownGroups,
    judged_history,
    merge_findings,
    named_rows,
    noted_starts,
    noted_tails,
    of_run,
    shown_times,
)
from share_state.pipeline.stream_fold import StreamFold
from share_state.pipeline.stream_run import (
    ARCHIVING_OPTION,
    BATCH_OPTION,
    COMMAND,
    COMPLETE_OPTION,
    COUNTED_OPTION,
    PLACED_OPTION,
    QUERY_OPTION,
    STARTS_OPTION,
    StreamRun,
    known_latest,
    latest,
    placed_after,
)
from share_state.pipeline.stream_state import CARRIED_LOGS
from share_state.pipeline.task import CUTOFF, FINDINGS, IN_FLIGHT, STATE
from share_state.rules.findings import cap_findings
from share_state.schema.declarations import table_schema
from share_state.sources.topics import Topics

_LOG = logging.getLogger("share_state")

_COMPARED = ["rule", "severity", "group_id", "topic_id", "topic", "partition", "message"]

_TABLES = (FINDINGS, IN_FLIGHT, STATE, CUTOFF)
_STATE_TABLES = (CHECKPOINT_TABLE, CARRIED_LOGS)
_TABLES_AT_ONCE = 4
"""Tables that are merged side by side: more take more memory and CPU, and not less time."""
_FILES_AT_ONCE = 2
"""Files of a table that are written side by side: most rows of a micro-batch are those of one table."""
_ROWS_A_PIECE = 1 << 17
"""Changed rows of `share_partition_state` from which those of `in_flight` are made at once, at least."""
RESTS_WHILE_BEHIND = 4
"""Times as long as the tables took, for which they wait while there is more to read: fewer rows are made twice."""
_KEPT_SECONDS = 600.0
"""How long the files of replaced rows are kept for readers."""
_SHORTENED_EVERY = 120.0
"""Seconds between two times that old entries of the logs are deleted."""


class OpenWarehouse(Protocol):
    """Opens the warehouse of a stream."""

    def __call__(self, root: str, *, deletes_replaced: bool) -> Warehouse:
        """Arguments as for `Warehouse`."""
        ...


class StreamTables:
    """Merges micro-batches into the tables of a warehouse; a context manager.

    Size: one method per step of a micro-batch; all share the commit that is under way.

    Attributes:
        root: folder or address of the warehouse.
        run: what is committed.
        findings: the rows of that table.
        outcomes: the rows of `group_outcomes`.
        limits: by which verdicts are judged.
        at_once: how many tables are merged side by side.
        committed: seconds since 1970, when this process last committed; None before.
    """

    def __init__(
        self,
        warehouse: str,
        run: StreamRun,
        fold: StreamFold = StreamFold(),  # noqa: B008  frozen
        *,
        options: Mapping[str, str] | None = None,
        facts: Callable[[], Mapping[str, str]] = dict,
        topics: Callable[[], Topics] = Topics,
        letters: StreamLetters | None = None,
        keeps_state: bool = False,
        groups: Callable[[], KnownGroups] = KnownGroups,
        open_warehouse: OpenWarehouse = Warehouse,
    ) -> None:
        """Begin or resume a stream.

        Args:
            warehouse: folder of the tables; the caller holds its lock.
            run: what the stream has committed; with no batch, its first micro-batch replaces all tables.
            fold: the fold of the stream.
            options: for the `runs` row.
            facts: what is known of the cluster now, for the `runs` row.
            topics: the names and end offsets of topics that are known now.
            letters: the dead letters; None for none.
            keeps_state: whether the changes hold the state, which no checkpoint of Spark has.
            groups: the share groups that are known now.
            open_warehouse: makes what writes the tables.
        """
        self._groups = groups
        self.run = run
        self._tables = (*_TABLES, *_STATE_TABLES) if keeps_state else _TABLES
        self._fold, self.limits = fold, fold.limits
        self.at_once = _TABLES_AT_ONCE
        self._options, self._facts = dict(options or {}), facts
        self._topics = topics
        self._started, self.root = datetime.now(UTC), warehouse
        self._warehouse, self._letters = open_warehouse(warehouse, deletes_replaced=True), letters
        self.committed: float | None = None
        # The rows of an earlier process may have other ends.
        self._known = Topics()
        self._committed_at = deque[tuple[float, dict[str, int]]]()
        self._cleaned_at = self._shortened_at = time.monotonic()
        self.findings = table_schema(FINDINGS).empty_table()
        self.outcomes = table_schema(GROUP_OUTCOMES).empty_table()
        self._writing, self._is_closed = Lock(), False

    def __enter__(self) -> "StreamTables":
        self._warehouse.__enter__()
        if self.run.batch >= 0:
            self._note_standing()
        if self.run.batch < 0 and self.run.begun_from is None:
            for table in self._tables:
                self._begin_table(table)
            self._begin_history()
            self._begin_letters(None)
            self._begin_outcomes(None)
            return self
        committed = CommittedTables(self.root)
        for table in (*self._tables, HISTORY_TABLE) if self.run.batch >= 0 else self._tables:
            # A killed run may have written them: this stream, whose micro-batch is repeated, or another.
            self._warehouse.restore(table, committed.versions[table])
        self.findings = found = committed.read(FINDINGS)
        if self.run.batch < 0:
            self._begin_history()
            # A stream does not judge groups, so findings about them would never change.
            self.findings = found.filter(pc.field("state_partition").is_valid() | IS_OF_LETTERS)
        self._begin_letters(committed)
        self._begin_outcomes(committed)
        if len(self.findings) < len(found):
            self._replace(FINDINGS, self.findings)
        return self

    def _begin_table(self, table: str) -> None:
        self._warehouse.replace(table, [])

    def _begin_outcomes(self, committed: CommittedTables | None) -> None:
        """Continue with the committed table of what became of deliveries, or create it."""
        if committed is None or not committed.holds(GROUP_OUTCOMES):
            self._begin_table(GROUP_OUTCOMES)
            return
        self.outcomes = committed.read(GROUP_OUTCOMES)
        self._warehouse.restore(GROUP_OUTCOMES, committed.versions[GROUP_OUTCOMES])

    def _begin_letters(self, committed: CommittedTables | None) -> None:
        """Continue with the committed tables of dead letters, or create them."""
        if self._letters is None:
            self.findings = self.findings.filter(~IS_OF_LETTERS)
            self.run = replace(self.run, complete={})
            return
        for table in DEAD_LETTER_TABLES:
            if committed is None or not committed.holds(table):
                self._begin_table(table)
                continue
            self._letters.tables[table] = committed.read(table)
            # A micro-batch that was killed may have written it.
            self._warehouse.restore(table, committed.versions[table])
        if (
            committed is not None
            and not committed.holds(RANGES)
            and (noted_from := committed.log_time) is not None
        ):
            # No range was noted before.
            self.run = replace(self.run, complete=dict.fromkeys(self.run.progress, (noted_from, noted_from)))

    def __exit__(self, *failed: Any) -> None:
        # Spark calls `write` in a thread of its own, which a signal does not end.
        with self._writing:
            self._is_closed = True
        self._warehouse.__exit__(*failed)

    def write(self, batch: int, changes: Sequence[LogChanges], outcomes: pa.Table | None = None) -> None:
        """Merge a micro-batch and commit it; a batch that is committed already changes nothing.

        Args:
            batch: its number.
            changes: what it changed.
            outcomes: `group_outcomes` after it; by default that before it, and what the changes show.
        Raises:
            WarehouseError: if a table is gone or another run has written it, or the stream has ended.
        """
        with self._writing:
            if self._is_closed:
                raise WarehouseError(
                    f"{self.root}: the stream has ended; its next run repeats micro-batch {batch}"
                )
            if batch > self.run.batch:
                self._write(batch, changes, outcomes)

    def _write(self, batch: int, changes: Sequence[LogChanges], outcomes: pa.Table | None) -> None:
        changes = _combined(changes)
        topics, before = self._topics(), self.run
        stale = self._stale_rows(changes, topics)
        summaries = {change.log: change.summary for change in changes if change.summary}
        complete = _complete_times(before.complete, summaries) if self._letters else {}
        of_letters = self._match_letters(changes, topics, complete)
        if not changes and not len(stale) and of_letters is None:
            return
        archiving, newest = shown_times(changes, before.archiving, before.log_time)
        every = merge_findings(
            self.findings,
            changes,
            archiving=archiving,
            newest=newest,
            topics=topics,
            run_id=before.query,
            severities=self._fold.severities,
            of_letters=of_letters,
        )
        if every is not None:
            self._warehouse.merge(FINDINGS, without_deleted(every), (), before.query, batch)
            self.findings = every
        merged = {
            table: [named_rows(change.tables[table], topics) for change in changes if table in change.tables]
            for table in (*self._tables[1:], HISTORY_TABLE)
        }
        merged[IN_FLIGHT] = [*merged[STATE], *self._states_elsewhere(changes)]
        placed = placed_after(before.placed, summaries)
        merged[CUTOFF] = self._settled_cutoffs(merged[CUTOFF], placed)
        merged[STATE].append(stale)
        merged[HISTORY_TABLE] += [
            named_rows(rows, topics) for rows in self._initial_history(merged[HISTORY_TABLE])
        ]
        merged[HISTORY_TABLE] = self._judged(merged[HISTORY_TABLE], stale)
        if outcomes is None:
            new = [change.tables[GROUP_OUTCOMES] for change in changes if GROUP_OUTCOMES in change.tables]
            outcomes = add_group_outcomes(self.outcomes, pa.concat_tables(new)) if new else self.outcomes
        if not outcomes.equals(self.outcomes):
            merged[GROUP_OUTCOMES] = [outcomes]
            self.outcomes = outcomes
        self._warehouse.files_at_once = min(self.at_once, _FILES_AT_ONCE)
        with ThreadPoolExecutor(self.at_once) as threads:
            deque(threads.map(lambda merge: self._merge(merge[0], batch, merge[1]), merged.items()), maxlen=0)

        run = before.with_logs(summaries)
        self.run = replace(
            run,
            batch=batch,
            records=before.records + sum(summary["records"] for summary in summaries.values()),
            archiving=archiving,
            log_time=None if newest < 0 else newest,
            complete=complete,
            placed=placed,
            share_partitions=latest(before.share_partitions, summaries, "share_partitions"),
            counted=known_latest(before.counted, summaries, "state_partitions"),
            notes=noted_starts(noted_tails(self._notes(), changes), run.unshown_starts),
        )
        self._commit_run()
        self.committed = time.time()
        self._clean()

    def _notes(self) -> tuple[str, ...]:
        """The notes of the stream, and those of the last match of dead letters."""
        own = tuple(note for note in self.run.notes if not note.startswith(DEAD_LETTERS_NOTE))
        return own if self._letters is None else own + self._letters.notes

    @property
    def letters(self) -> dict[str, pa.Table]:
        """The tables of dead letters, and the findings about them, as of the last match; empty without any."""
        if self._letters is None:
            return {}
        tables = {name: self._letters.tables[name] for name in (LETTERS, LOST)}
        return tables | {FINDINGS: self.findings.filter(IS_OF_LETTERS)}

    def match_letters(self) -> None:
        """Read the dead letters now, match and commit them: a stream that ends has no later micro-batch.

        Raises:
            ShareStateError: if they cannot be read.
        """
        if self._letters is None or self.run.batch < 0:
            return
        found = self._changed_letters(self._topics(), self.run.complete)
        if found is None and self._notes() == self.run.notes:
            return
        if found is not None:
            self.findings = self._with_letters(found)
            self._replace(FINDINGS, self.findings)
        self.run = replace(self.run, notes=self._notes())
        self._commit_run()

    def _match_letters(
        self, changes: Sequence[LogChanges], topics: Topics, complete: Mapping[str, tuple[int | None, int]]
    ) -> pa.Table | None:
        """Note what a micro-batch shows of ARCHIVING, and match the dead letters if they are due.

        Returns:
            The findings about them; None if nothing changed.
        """
        if self._letters is None:
            return None
        noted = [named_rows(one.tables[RANGES], topics) for one in changes if RANGES in one.tables]
        if noted and self._letters.note(noted):
            self._replace(RANGES, self._letters.noted)
        if not self._letters.is_due:
            return None
        try:
            return self._changed_letters(topics, complete)
        except ShareStateError as error:
            _LOG.warning("the dead letters stay as they were read last: %s", error)
            return None

    def _changed_letters(
        self, topics: Topics, complete: Mapping[str, tuple[int | None, int]]
    ) -> pa.Table | None:
        """Match the dead letters, write their tables, and return the findings about them.

        None if all are as before.
        """
        letters = self._letters
        if letters is None:
            return None
        before = letters.tables | {RANGES: letters.noted}
        by_number: dict[int | None, tuple[int | None, int]] = {
            int(log.rpartition("-")[2]): times for log, times in complete.items()
        }
        found = letters.match(topics.names, by_number)
        changed = [name for name, rows in letters.tables.items() if not rows.equals(before[name])]
        for name in changed:
            self._replace(name, letters.tables[name])
        known = self.findings.filter(IS_OF_LETTERS).select(_COMPARED)
        return found if changed or not known.equals(found.select(_COMPARED)) else None

    def _with_letters(self, found: pa.Table) -> pa.Table:
        """The findings, with `found` in place of those about dead letters."""
        others = self.findings.filter(~IS_OF_LETTERS)
        return cap_findings(pa.concat_tables([others, of_run(found, self.run.query)]).combine_chunks())

    def _replace(self, table: str, rows: pa.Table) -> None:
        self._warehouse.replace(table, [rows])

    def _stale_rows(self, changes: Sequence[LogChanges], topics: Topics) -> pa.Table:
        """Rows of `share_partition_state` that did not change, but whose topic has another end or name now."""
        none, before = without_deleted(table_schema(STATE).empty_table()), self._known
        self._known = topics
        if topics.ends.equals(before.ends) and topics.names.equals(before.names):
            return none
        earlier = CommittedTables(self.root).read(STATE) if self._has_earlier_rows else None
        rows = none.drop_columns(DELETED) if earlier is None else earlier
        now, old = named_rows(rows.combine_chunks(), topics), rows
        columns = ("topic", "topic_end_offset")
        is_same = [pc.equal(pc.fill_null(now[one].cast(pa.string()), ""), pc.fill_null(old[one].cast(pa.string()), ""))
                   for one in columns]  # fmt: skip
        changed = [one.tables[STATE] for one in changes if STATE in one.tables]
        return _not_in(changed, without_deleted(now.filter(pc.invert(pc.and_(*is_same)))))

    def _states_elsewhere(self, changes: Sequence[LogChanges]) -> list[pa.Table]:
        """Unchanged rows of `share_partition_state`, of share-partitions whose row in another log goes.

        Their rows of `in_flight` stay, which have no log partition.
        """
        changed = [one.tables[STATE] for one in changes if STATE in one.tables]
        recounted = [
            one.tables[STATE] for one in changes if STATE in one.tables and one.summary["is_recounted"]
        ]
        gone = pa.concat_tables(rows.filter(pc.field(DELETED)) for rows in recounted) if recounted else ()
        if not len(gone) or not self._has_earlier_rows:
            return []
        rows = CommittedTables(self.root).read(STATE)
        rows = rows.filter(pc.is_in(key_texts(rows), key_texts(gone).combine_chunks()))
        return [without_deleted(_not_in(changed, rows))]

    def _settled_cutoffs(
        self, changed: Sequence[pa.Table], placed: Mapping[str, PlacedKeys]
    ) -> list[pa.Table]:
        """Changed rows of `cutoff`, in which none is safe if the logs hold records of each other."""
        if not (reasons := mixed_reasons(placed)):
            return [*changed]
        rows = pa.concat_tables([table_schema(CUTOFF).empty_table(), *changed])
        if not mixed_reasons(self.run.placed) and self._has_earlier_rows:
            others = CommittedTables(self.root).read(CUTOFF)
            is_changed = pc.is_in(others["partition"], rows["partition"].combine_chunks())
            rows = pa.concat_tables([rows, others.filter(pc.invert(is_changed))])
        return [mark_unsafe(rows, reasons)]

    @property
    def _has_earlier_rows(self) -> bool:
        return self.run.batch >= 0 or self.run.begun_from is not None

    def _clean(self) -> None:
        """Delete files that only versions older than `_KEPT_SECONDS` name, and old entries of the logs."""
        now = time.monotonic()
        self._committed_at.append((now, dict(self._warehouse.versions)))
        self._warehouse.delete_replaced(_KEPT_SECONDS)
        is_due = now - self._cleaned_at >= _KEPT_SECONDS
        if not is_due and now - self._shortened_at < _SHORTENED_EVERY:
            return
        self._shortened_at = now
        self._cleaned_at = now if is_due else self._cleaned_at
        while len(self._committed_at) > 1 and now - self._committed_at[1][0] >= _KEPT_SECONDS:
            # The one before those of the last minutes was still read when they began.
            self._committed_at.popleft()
        for table in [*self._warehouse.versions]:
            kept = {versions[table] for _, versions in self._committed_at if table in versions}
            self._warehouse.clean(table, kept, is_log_alone=not is_due)

    def _begin_history(self) -> None:
        """Create `share_partition_history`, or remove the rows of earlier streams; those of audits stay."""
        try:
            kept = (
                CommittedTables(self.root).runs.filter(pc.field("command") != COMMAND)["run_id"].to_pylist()
            )
        except NothingCommittedError:
            kept = []
        self._warehouse.append(HISTORY_TABLE, [], self._warehouse.run_ids(HISTORY_TABLE) - {*kept})

    def _initial_history(self, changed: Sequence[pa.Table]) -> Iterator[pa.Table]:
        """Rows of `share_partition_history` for what another run left and the first micro-batch does not change."""
        numbers = [int(log.rpartition("-")[2]) for log in self.run.progress] if self.run.batch < 0 else []
        for number in numbers:
            if (state := self._fold.initial(number)) is not None:
                unwritten = UnwrittenChanges(state)
                unwritten.judged = self._fold.judged(state, number)
                yield _not_in(changed, unwritten.rows().tables[HISTORY_TABLE])

    def _judged(self, changed: Sequence[pa.Table], stale: pa.Table) -> list[pa.Table]:
        """Changed rows of `share_partition_history`: of the fold, and of topics with a new end."""
        own, clock = list[pa.Table](), int(time.time() * 1000)
        if changed:
            rows = pa.concat_tables(changed)
            # As in an audit, durations end at the newest record of all logs.
            groups = self._groups()
            newest = max(pc.max(rows[LOG_TIME]).as_py() or 0, self.run.log_time or 0, groups.newest_time)
            judged = judged_history(
                rows.drop_columns(DELETED),
                time_ms=min(clock, newest),
                run_id=self.run.query,
                limits=self.limits,
                groups=groups,
            )
            for name in OUTCOME_COLUMNS:
                # They are counts since the stream began, not since its reader looked last.
                place = judged.schema.get_field_index(name)
                judged = judged.set_column(place, name, pa.nulls(len(judged), pa.int64()))
            place = judged.schema.get_field_index("reason")
            reasons = pc.replace_substring(judged["reason"], "since the last audit", "since the stream began")
            judged = judged.set_column(place, "reason", reasons)
            own.append(judged.append_column(DELETED, rows[DELETED]))
        if len(stale):
            lags = compute_lags(stale["topic_end_offset"], stale["start_offset"], stale[COMPLETE])
            rows = CommittedTables(self.root).read(HISTORY_TABLE, pc.field("run_id") == self.run.query)
            rows = _not_in(own, without_deleted(rows))
            keys = key_texts(stale, "state_partition").combine_chunks()
            rows = rows.filter(pc.is_in(key_texts(rows, "state_partition"), keys))
            place = pc.index_in(key_texts(rows, "state_partition"), keys)
            for name, values in (
                ("lag", lags),
                ("topic_end_offset", stale["topic_end_offset"].combine_chunks()),
            ):
                index = rows.schema.get_field_index(name)
                rows = rows.set_column(index, rows.schema.field(name), values.take(place))
            own.append(rows)
        return own

    def _merge(self, table: str, batch: int, parts: Sequence[pa.Table]) -> None:
        if not parts:
            return
        if table == IN_FLIGHT:
            parts = list(map(in_flight_changes, in_large_pieces(parts, _ROWS_A_PIECE)))
        rows = pa.concat_tables(parts)
        if DELETED not in rows.column_names:
            rows = without_deleted(rows)
        self._warehouse.merge(table, rows, KEYS[table], self.run.query, batch)

    def result(self) -> RunResult:
        """The result of what is committed."""
        return self.run.result(self.findings, sum(self.run.share_partitions.values()))

    def _commit_run(self) -> None:
        run = self.run
        options = {**self._options, **self._facts(), QUERY_OPTION: run.query, BATCH_OPTION: str(run.batch)}
        options |= {ARCHIVING_OPTION: json.dumps(run.archiving)} if run.archiving else {}
        options |= {COMPLETE_OPTION: json.dumps(run.complete)} if run.complete else {}
        options |= {PLACED_OPTION: json.dumps(run.placed)} if run.placed else {}
        options |= {COUNTED_OPTION: json.dumps(run.counted)} if run.counted else {}
        options |= {STARTS_OPTION: json.dumps(run.unshown_starts)} if run.unshown_starts else {}
        with held_signals():
            self._warehouse.commit_run(run_row(self.result(), COMMAND, run.inputs, options, self._started))
            self._note_standing()

    def _note_standing(self) -> None:
        standing[self._warehouse.root] = f"{self.root} holds the stream up to micro-batch {self.run.batch}"


def _complete_times(
    before: Mapping[str, tuple[int | None, int]], summaries: Mapping[str, Mapping[str, Any]]
) -> dict[str, tuple[int | None, int]]:
    """`StreamRun.complete` after a micro-batch: since the first one after which no record was missing."""
    times = dict(before)
    for log, one in summaries.items():
        if one["complete"] is None:
            continue
        since, newest = one["complete"]
        known = None if one["forgets_times"] else before.get(log, (None, 0))[0]
        times[log] = (since if since is None or known is None else known, newest)
    return times


def _combined(changes: Sequence[LogChanges]) -> list[LogChanges]:
    """One LogChanges per log partition: a micro-batch may both fold its records and judge it by the clock."""
    by_log = dict[str, LogChanges]()
    for one in sorted(changes, key=lambda one: len(one.tables), reverse=True):
        if not one.log or one.log not in by_log:
            by_log[one.log or f"problems {len(by_log)}"] = one
            continue
        first = by_log[one.log]
        settled = first.tables[FINDINGS].filter(pc.field("settled"))
        deleted = first.tables[HISTORY_TABLE].filter(pc.field(DELETED))
        tables = {
            FINDINGS: pa.concat_tables([settled, one.tables[FINDINGS]], promote_options="permissive"),
            HISTORY_TABLE: pa.concat_tables([deleted, one.tables[HISTORY_TABLE]]),
        }
        by_log[one.log] = replace(first, tables=first.tables | tables)
    return list(by_log.values())


def _not_in(others: Sequence[pa.Table], rows: pa.Table) -> pa.Table:
    """The rows of share-partitions that none of the other tables holds."""
    for other in others:
        seen = key_texts(other, "state_partition").combine_chunks()
        rows = rows.filter(pc.invert(pc.is_in(key_texts(rows, "state_partition"), seen)))
    return rows
