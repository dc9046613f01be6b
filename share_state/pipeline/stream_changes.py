"""What folds of a stream change: `UnwrittenChanges` collects it for one log partition, `LogChanges` are the rows."""

import json
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.delta.merge import DELETED, not_deleted, without_deleted
from share_state.fold.checkpoint import CHECKPOINT_TABLE, FoldCheckpoint
from share_state.fold.dead_letters.archiving import RANGES
from share_state.fold.history import (
    GROUP_OUTCOMES,
    HISTORY_TABLE,
    OUTCOME_COLUMNS,
    add_group_outcomes,
    history_pieces,
)
from share_state.fold.log_stats import NO_PREVIOUS_START, Pieces, dictionary_encoded
from share_state.fold.state_chains import Chains
from share_state.fold.state_log import FoldedLog
from share_state.fold.states import (
    in_flight_of,
    in_flight_table,
    key_columns,
    row_texts,
    sizes_before,
    state_table,
    window_tiles,
)
from share_state.kafka.buffers import take_rows
from share_state.kafka.share_partition_keys import KeyTable
from share_state.pipeline.mixed_logs import placed_keys
from share_state.pipeline.stream_state import (
    CARRIED_LOGS,
    changed_since,
    from_ipc,
    ipc_buffer,
    numbers_in,
    taken,
)
from share_state.pipeline.task import CUTOFF, FINDINGS, IN_FLIGHT, STATE
from share_state.schema.declarations import table_schema
from share_state.sources.resume_point import ResumeStatus
from share_state.sources.topics import Topics

KEYS = {
    STATE: ("group_id", "topic_id", "partition", "state_partition"),
    IN_FLIGHT: ("group_id", "topic_id", "partition"),
    CUTOFF: ("topic", "partition"),
    HISTORY_TABLE: ("group_id", "topic_id", "partition", "state_partition", "run_id"),
    CHECKPOINT_TABLE: ("log", "key"),
    CARRIED_LOGS: ("log",),
    GROUP_OUTCOMES: (),
}
"""The columns by which changed rows replace those of a table; in in_flight, all rows of a share-partition.

Without any, they replace all rows.
"""

_HEAD_SIZE = 4
"""Bytes of the length before the head of changes that travel."""
COMPLETE = "delivery_complete_count"
"""Column of changed rows of `share_partition_history`, from which the driver computes the lag."""


@dataclass(slots=True)
class LogChanges:
    """The changes of a micro-batch to one log partition.

    Attributes:
        log: its name.
        tables: table -> rows to insert or to replace by KEYS, and with DELETED those to delete; for findings,
            all that are new, and those that a later micro-batch replaces.
        summary: partition, records, next_offset, share_partitions, newest_time, archiving, is_read_anew,
            placed_keys, complete, as in RunResult.complete_times, state_partitions, as
            `UnwrittenChanges.counted` after it, is_recounted, whether that is another number, and
            unshown_start, as in `StreamRun.unshown_starts`; empty if there are only `problems`.
        problems: what cannot be read at all in the input.
        of_input: all findings about the input as a whole; None if they are as before. It does not travel.
        tails: all notes on copies that end too early, where there are findings about the input.
    """

    log: str
    tables: dict[str, pa.Table] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    of_input: pa.Table | None = None
    tails: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        """The changes as one value."""
        parts = {name: ipc_buffer(table) for name, table in self.tables.items()}
        sizes = {name: len(part) for name, part in parts.items()}
        head = {"log": self.log, "summary": self.summary, "problems": self.problems, "sizes": sizes}
        text = json.dumps(head).encode()
        return b"".join((len(text).to_bytes(_HEAD_SIZE), text, *parts.values()))

    @classmethod
    def of(cls, data: bytes | pa.Buffer) -> "LogChanges":
        """Read what `to_bytes` wrote."""
        size = _HEAD_SIZE + int.from_bytes(memoryview(data)[:_HEAD_SIZE])
        given = json.loads(bytes(memoryview(data)[_HEAD_SIZE:size]))
        view = memoryview(data)[size:]
        tables = {}
        for name, size in given["sizes"].items():
            tables[name], view = from_ipc(view[:size]), view[size:]
        return cls(given["log"], tables, given["summary"], given["problems"])


@dataclass(frozen=True, slots=True)
class FoldedRecords:
    """A log partition after some new records.

    Attributes:
        log: the folded log.
        status: how the log had changed; None if there was no state of it.
        findings: the findings of these records, and those of the state after them.
        first_offset: of these records; other share-partitions have earlier ones only.
        counted: OUTCOMES rows of these records alone, one per share-partition of the log; None if unknown.
    """

    log: FoldedLog
    status: ResumeStatus | None
    findings: pa.Table
    first_offset: int
    counted: np.ndarray | None = None

    @property
    def is_read_anew(self) -> bool:
        """Whether the log was read from its start."""
        return self.status != ResumeStatus.GROWN

    def outcomes_by_key(self) -> Iterator[pa.Table]:
        """What these records show of deliveries: group_id and OUTCOME_COLUMNS, one row per share-partition."""
        if self.counted is not None:
            numbers = self.log.numbers[self.log.chains.chains["last_offset"] >= self.first_offset]
            group_ids = self.log.key_columns(numbers, Topics())["group_id"]
            counts = {
                column: pa.array(self.counted[name][numbers]) for column, name in OUTCOME_COLUMNS.items()
            }
            yield pa.table({"group_id": group_ids} | counts)

    def shown_changes(self) -> LogChanges:
        """The findings alone, and what `merge_findings` needs of the summary."""
        folded = self.log
        archiving = folded.archiving if folded.archiving[1] >= 0 else None
        summary = {
            "partition": folded.log.partition,
            "records": folded.record_count,
            "next_offset": folded.next_offset,
            "newest_time": folded.newest_time,
            "archiving": archiving,
            "is_read_anew": self.is_read_anew,
            "unshown_start": unshown_start(folded),
        }
        return LogChanges(folded.log.name, {FINDINGS: self.findings}, summary)


class UnwrittenChanges:
    """What folds of one log partition have changed since its rows were written to the tables.

    Attributes:
        lacks_before: whether the state when they were written is unknown here.
        latest: the latest fold of new records; None for none, or if another process has made it.
        judged: the latest fold since then that only judged all, by the clock; None for none.
        outcomes: the rows of `group_outcomes` of the folds; None where `count_outcomes` is not called.
        counted: number of state partitions by which the rows of the tables leave states out; None if they
            leave out none.
    """

    def __init__(self, before: FoldCheckpoint | None, counted: int | None = None) -> None:
        self.lacks_before = False
        self.counted = counted
        self._before = before
        self.latest: FoldedRecords | None = None
        self.judged: FoldedRecords | None = None
        self.outcomes: pa.Table | None = None
        self._settled, self._ranges = list[pa.Table](), list[pa.Table]()
        self._has_folds = False
        self._records = 0
        self._archiving: tuple[int, int] | None = None
        self._is_read_anew = False
        self._forgets_times = False
        self._is_by_clock = False
        self._complete_since: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there was no fold."""
        return not self._has_folds and self.judged is None

    @property
    def before(self) -> FoldCheckpoint | None:
        """The state when they were written; None if they never were."""
        assert not self.lacks_before
        return self._before

    def set_before(self, state: FoldCheckpoint | None) -> None:
        """Set the state when they were written, which `of` has not read."""
        self.lacks_before, self._before = False, state

    def add(self, one: FoldedRecords) -> None:
        """Add a fold of new records."""
        folded, since = one.log, one.log.complete_since
        if one.is_read_anew:
            self._settled = []
            self._ranges = []
            self._is_read_anew = True
        elif self._has_folds:
            self._settled += self._settled_of_latest()
            # As when each fold is written by itself (`_complete_times` of stream_tables.py).
            self._forgets_times |= self._complete_since is None
            since = since if since is None or self._complete_since is None else self._complete_since
        self._is_by_clock |= self.judged is not None
        self._has_folds = True
        self.latest = one
        self.judged = None
        self._complete_since = since
        self._records += folded.record_count
        if folded.archiving[1] >= 0 and self._archiving is None:
            self._archiving = folded.archiving
        if folded.archiving_ranges is not None and len(folded.archiving_ranges):
            self._ranges.append(folded.archiving_ranges)

    def count_outcomes(self) -> None:
        """Count what became of deliveries in the latest fold."""
        assert self.latest is not None
        if self.outcomes is None:
            self.outcomes = table_schema(GROUP_OUTCOMES).empty_table()
        for counted in self.latest.outcomes_by_key():
            self.outcomes = add_group_outcomes(self.outcomes, counted)

    def _settled_of_latest(self) -> list[pa.Table]:
        return [] if self.latest is None else [self.latest.findings.filter(pc.field("settled"))]

    def to_bytes(self) -> bytes:
        """These folds without the states, as one value; none of them only judged."""
        found, tables = [*self._settled, *self._settled_of_latest()], dict[str, pa.Table]()
        if found:
            tables[FINDINGS] = pa.concat_tables(found, promote_options="permissive")
        if self._ranges:
            tables[RANGES] = pa.concat_tables(self._ranges)
        if self.outcomes is not None:
            tables[GROUP_OUTCOMES] = self.outcomes
        kept = {
            "records": self._records,
            "archiving": self._archiving,
            "is_read_anew": self._is_read_anew,
            "forgets_times": self._forgets_times,
            "complete_since": self._complete_since,
            "counted": self.counted,
        }
        return LogChanges("", tables, kept).to_bytes()

    @classmethod
    def of(cls, data: bytes) -> "UnwrittenChanges":
        """Read what `to_bytes` wrote; to make rows, it needs `set_before`."""
        read, changes = LogChanges.of(data), cls(None)
        changes.lacks_before = True
        kept, tables = read.summary, read.tables
        changes._has_folds = True
        changes._settled = [tables[FINDINGS]] if FINDINGS in tables else []
        changes._ranges = [tables[RANGES]] if RANGES in tables else []
        changes.outcomes = tables.get(GROUP_OUTCOMES)
        changes._records = kept["records"]
        changes._archiving = (
            None if kept["archiving"] is None else (kept["archiving"][0], kept["archiving"][1])
        )
        changes._is_read_anew = kept["is_read_anew"]
        changes._forgets_times = kept["forgets_times"]
        changes._complete_since = kept["complete_since"]
        # Earlier versions did not store it.
        changes.counted = kept.get("counted")
        return changes

    def following(self, state: FoldCheckpoint | None) -> "UnwrittenChanges":
        """No changes, since a state whose rows are those of these changes."""
        shown = self.judged or self.latest
        return UnwrittenChanges(state, self.counted if shown is None else stated_count(shown.log))

    def copy(self) -> "UnwrittenChanges":
        """The same, to which more can be added."""
        other = copy(self)
        other._settled, other._ranges = [*self._settled], [*self._ranges]
        return other

    def rows(self) -> LogChanges:
        """The changed rows of the tables; there was a fold in this process."""
        shown = self.judged or self.latest
        assert shown is not None
        is_by_clock = self._is_by_clock or self.judged is not None
        changed = _changed_rows(
            shown.log, self.before, self.counted, is_all=self._is_read_anew, is_by_clock=is_by_clock
        )
        changes, folded = LogChanges(shown.log.log.name, changed), shown.log
        counted = stated_count(shown.log)
        if not self._has_folds:
            changes.tables = {HISTORY_TABLE: changed[HISTORY_TABLE], FINDINGS: shown.findings}
            if counted != self.counted:
                changes.tables |= {STATE: changed[STATE], CUTOFF: folded.cutoff}
        else:
            folded = (self.latest or shown).log
            found = [*self._settled, shown.findings]
            if shown is not self.latest:
                found += self._settled_of_latest()
            changes.tables[FINDINGS] = pa.concat_tables(found, promote_options="permissive")
            changes.tables[CUTOFF] = folded.cutoff
        if self._ranges:
            changes.tables[RANGES] = pa.concat_tables(self._ranges)
        if self.outcomes is not None:
            changes.tables[GROUP_OUTCOMES] = self.outcomes
        changes.summary = {
            "partition": folded.log.partition,
            "records": self._records,
            "next_offset": folded.next_offset,
            "share_partitions": len(folded.numbers),
            "placed_keys": placed_keys(folded),
            "newest_time": folded.newest_time,
            "archiving": self._archiving,
            "complete": (self._complete_since, folded.newest_time) if self._has_folds else None,
            "forgets_times": self._is_read_anew or self._forgets_times,
            "is_read_anew": self._is_read_anew,
            "state_partitions": counted,
            "is_recounted": counted != self.counted,
            "unshown_start": unshown_start(folded),
        }
        return changes


def _changed_rows(
    folded: FoldedLog,
    before: FoldCheckpoint | None,
    counted: int | None,
    *,
    is_all: bool,
    is_by_clock: bool,
) -> dict[str, pa.Table]:
    """The rows of `share_partition_state` and `share_partition_history` that differ from those before.

    Keys that belong to another log partition, where the coordinator looks for them, are left out; `counted`
    is the number of state partitions by which they were left out before.
    """
    keys, chains = folded.keys, folded.all_chains
    old_keys, old = (before.keys, before.chains) if before else (KeyTable(), Chains())
    place = numbers_in(old_keys, keys)
    changed = changed_since(old, chains, place)
    if before is None or is_all or before.last_lost_offset != folded.last_lost_offset:
        changed[:] = True
    is_here, was_here = _is_here(folded), _was_here(folded, counted)
    changed |= is_here != was_here
    exists = chains.chains["exists"] & is_here
    live = np.flatnonzero(changed & exists)
    existed = old.chains["exists"] & np.append(was_here, True)[place]
    gone = np.flatnonzero(existed & ~np.append(exists, False)[place])
    names = KeyColumns(keys)
    names_before = names if (place == np.arange(len(place))).all() else KeyColumns(old_keys)
    gone_keys = names_before.take(gone)
    gone_keys["state_partition"] = pa.repeat(pa.scalar(folded.log.partition, pa.int32()), len(gone))
    starts = earlier_starts(folded, before)
    rows = RowsOf(folded, live, names)
    judged = RowsOf(folded, np.flatnonzero(exists), names) if is_by_clock else rows
    return {
        STATE: _with_gone(rows.states, gone_keys),
        HISTORY_TABLE: _with_gone(judged.history(starts[judged.numbers]), gone_keys),
    }


def present_numbers(folded: FoldedLog) -> np.ndarray:
    """int64, the share-partitions that have a state, and belong to this log partition."""
    return np.flatnonzero(folded.all_chains.chains["exists"] & _is_here(folded))


def _is_here(folded: FoldedLog) -> np.ndarray:
    """bool, one per share-partition: whether its state in this log partition counts."""
    is_here = np.ones(len(folded.keys), bool)
    is_here[folded.observations.left_out] = False
    return is_here


def _was_here(folded: FoldedLog, counted: int | None) -> np.ndarray:
    """As `_is_here`, by an earlier number of state partitions; None for none that was stated."""
    if counted == stated_count(folded):
        return _is_here(folded)
    if counted is None:
        return np.ones(len(folded.keys), bool)
    return folded.keys.coordinator_hashes() % counted == folded.log.partition


def unshown_start(folded: FoldedLog) -> int | None:
    """The first offset that was read of a log; None if the broker's log is known to begin there."""
    state = folded.checkpoint
    if folded.log.shows_its_start or state is None or state.mark.shows_its_start:
        return None
    return state.mark.folded_from


def stated_count(folded: FoldedLog) -> int | None:
    """Number of state partitions by which states of a log are left out; None if unknown or only inferred."""
    count = folded.observations.count
    return None if count is None or count.is_inferred else count.number


def earlier_starts(folded: FoldedLog, before: FoldCheckpoint | None) -> np.ndarray:
    """int64, one per share-partition of a folded log: start offset in an earlier state, or NO_PREVIOUS_START."""
    starts = np.full(len(folded.keys), NO_PREVIOUS_START)
    if before is not None:
        place, chains = numbers_in(before.keys, folded.keys), before.chains.chains
        is_known = (place >= 0) & chains["exists"]
        starts[place[is_known]] = chains["start_offset"][is_known]
    return starts


def in_flight_changes(states: pa.Table) -> pa.Table:
    """The changes of `in_flight` that follow from changed rows of `share_partition_state`.

    Tasks do not send them: they would be half of the bytes, and Spark takes longest to move those.
    """
    rows = in_flight_of(not_deleted(states))
    # The rows of these share-partitions are replaced, maybe by none.
    replaced = {name: states[name].combine_chunks() for name in KEYS[IN_FLIGHT]}
    return _with_gone(rows, replaced)


class KeyColumns:
    """The key columns of a log, made once: to make them takes as long for one share-partition as for all."""

    def __init__(self, keys: KeyTable, *, encoded: bool = False) -> None:
        """Columns of keys.

        Args:
            keys: the keys of the log.
            encoded: dictionary-encode texts.
        """
        self._keys, self._encoded = keys, encoded

    def take(self, numbers: np.ndarray) -> dict[str, pa.Array]:
        """Those of some share-partitions, by their numbers."""
        places = pa.array(numbers)
        return {name: column.take(places) for name, column in self._all.items()}

    @cached_property
    def texts(self) -> pa.Array:
        """Group, id of the topic and partition of each share-partition, as `row_texts`."""
        return row_texts(
            [pa.chunked_array([self._all[name]]) for name in ("group_id", "topic_id", "partition")]
        )

    @cached_property
    def _all(self) -> dict[str, pa.Array]:
        columns = key_columns(self._keys, np.arange(len(self._keys)), Topics())
        return dictionary_encoded(columns) if self._encoded else columns


class RowsOf:
    """Rows of some share-partitions of a folded log.

    Attributes:
        numbers: int64, their numbers, ascending.
    """

    def __init__(self, folded: FoldedLog, numbers: np.ndarray, names: KeyColumns | None = None) -> None:
        """Choose share-partitions.

        Args:
            folded: the folded log.
            numbers: int64, their numbers, ascending.
            names: the key columns of the log, if they are made already.
        """
        self.numbers = numbers
        self._folded, self._chains = folded, taken(folded.all_chains, numbers)
        self._key = (names or KeyColumns(folded.keys)).take(numbers)

    @cached_property
    def states(self) -> pa.Table:
        """Rows of `share_partition_state`."""
        return self._states(with_batches=True)

    @cached_property
    def states_alone(self) -> pa.Table:
        """Rows of `share_partition_state` without state_batches, which take longer than all else."""
        return self._states(with_batches=False)

    def _states(self, *, with_batches: bool) -> pa.Table:
        folded = self._folded
        return state_table(
            self._chains,
            self._key,
            folded.log.partition,
            folded.suspect[np.searchsorted(folded.numbers, self.numbers)],
            pa.nulls(len(self.numbers), pa.int64()),
            with_batches=with_batches,
        )

    def in_flight(self) -> pa.Table:
        """Rows of `in_flight`."""
        return in_flight_table(dictionary_encoded(self._key), *window_tiles(self._chains))

    def history(self, previous_starts: np.ndarray) -> pa.Table:
        """Rows of `history_pieces`, with COMPLETE.

        Args:
            previous_starts: as in Folded, of these.
        """
        chains, states = self._chains, self.states_alone
        outcomes = self._folded.all_outcomes
        part = replace(
            self._folded,
            chains=chains,
            numbers=self.numbers,
            previous_starts=previous_starts,
            state_pieces=Pieces(
                STATE, sizes_before(chains), lambda begin, end: states.slice(begin, end - begin)
            ),
            outcomes=None if outcomes is None else take_rows(outcomes, self.numbers),
        )
        rows = pa.concat_tables(history_pieces(part))
        declared = table_schema(HISTORY_TABLE)
        rows = rows.cast(
            pa.schema([*declared, *(one for one in rows.schema if one.name not in declared.names)])
        )
        return rows.append_column(COMPLETE, pa.array(chains.chains["delivery_complete_count"].copy()))


def _with_gone(rows: pa.Table, removed: dict[str, pa.Array]) -> pa.Table:
    """Changed rows of a table with those to delete after them, of which only keys are known."""
    count, kept = len(removed["group_id"]), without_deleted(rows)
    if not count:
        return kept
    columns = {one.name: removed.get(one.name, pa.nulls(count)).cast(one.type) for one in kept.schema}
    return pa.concat_tables([kept, pa.table(columns | {DELETED: pa.repeat(True, count)}, schema=kept.schema)])
