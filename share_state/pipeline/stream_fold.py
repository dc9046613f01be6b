"""The fold of a stream: a log partition is folded micro-batch by micro-batch, and only what changed goes to the tables.

`StreamFold` is the fold of the job with its state as bytes in between: `initial`, then `step` by `step`.
Records at or below the last offset folded are skipped, so a micro-batch may be repeated. Imports no Spark.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.delta.merge import DELETED, without_deleted
from share_state.delta.reader import open_filesystem, warehouse_errors
from share_state.fold.checkpoint import (
    FoldCheckpoint,
    checkpoint_row,
    checkpoint_share_partitions,
    restore_checkpoint,
    resume_point_of,
)
from share_state.fold.dead_letters.archiving import EVERY_GROUP, RANGES
from share_state.fold.fold_options import FoldOptions
from share_state.fold.history import HISTORY_TABLE, history_pieces
from share_state.fold.limits import Limits
from share_state.fold.log_stats import dictionary_encoded
from share_state.fold.state_chains import NO_OFFSET, Chains
from share_state.fold.state_log import FoldedLog, fold_log
from share_state.fold.states import in_flight_table, key_columns, state_table, window_tiles
from share_state.kafka.buffers import range_rows
from share_state.kafka.record_batches import Chunk
from share_state.kafka.share_partition_keys import KeyTable
from share_state.pipeline.task import CUTOFF, FINDINGS, IN_FLIGHT, STATE
from share_state.rules.findings import RecordRules, judge
from share_state.schema.declarations import table_schema
from share_state.sources.log_partition import STATE_TOPIC, LogPartition
from share_state.sources.partition_count import PartitionCount
from share_state.sources.record_tables import rows_in_chunks, rows_of_batches
from share_state.sources.resume_point import ResumeStatus
from share_state.sources.topics import Topics

KEYS = {
    STATE: ("group_id", "topic_id", "partition", "state_partition"),
    IN_FLIGHT: ("group_id", "topic_id", "partition"),
    CUTOFF: ("topic", "partition"),
    HISTORY_TABLE: ("group_id", "topic_id", "partition", "state_partition", "run_id"),
}
"""The columns by which changed rows replace those of a table; in in_flight, all rows of a share-partition."""

COMPLETE = "delivery_complete_count"
"""Column of changed rows of `share_partition_history`, from which the driver computes the lag."""

PACKED = pa.schema(
    [
        ("state_partition", pa.int32()),  # -1 for a problem
        ("log_start_offset", pa.int64()),
        ("topic_id", pa.string()),
        ("state_partitions", pa.int32()),
        ("problem", pa.string()),
        ("rows", pa.binary()),
    ]
)
"""Records of one log partition that one task has read; `rows` is an Arrow stream of key, value, offset,
timestamp."""

EMPTY_ROWS = pa.schema(
    [("key", pa.binary()), ("value", pa.binary()), ("offset", pa.int64()), ("timestamp", pa.int64())]
).empty_table()

_ROWS_A_PART = 1 << 16
_LOG = b"log"


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Records of one log partition that a stream has read; a `RecordSource`.

    Attributes:
        rows: key and value (binary), offset (int64) and timestamp (int64, ms), in offset order.
    """

    rows: pa.Table

    form: str = "stream"
    has_offsets: bool = True
    has_times: bool = True
    has_sizes: bool = False

    def chunks(self, log: LogPartition, chunk: int, *, merge: bool) -> Iterator[Chunk]:
        """The records in offset order, each offset once."""
        del log, merge
        batches = self.rows.combine_chunks().to_batches(max_chunksize=_ROWS_A_PART)
        yield from rows_in_chunks(rows_of_batches(batches), chunk)


@dataclass(frozen=True, slots=True)
class LogFacts:
    """Facts about a log partition that a source knows, besides its records; None if unknown.

    Attributes:
        log_start_offset: offset of its first record.
        topic_id: the id of its topic.
        state_partitions: number of partitions of the topic.
    """

    log_start_offset: int | None = None
    topic_id: str | None = None
    state_partitions: int | None = None


def packed_batch(partition: int, facts: LogFacts, rows: pa.Table | None) -> pa.RecordBatch:
    """One row of PACKED: records of a log partition, or only what is known of it."""
    packed = None if rows is None else to_ipc(rows)
    given = (partition, facts.log_start_offset, facts.topic_id, facts.state_partitions, None, packed)
    columns = [pa.array([value], one.type) for value, one in zip(given, PACKED, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=PACKED)


@dataclass(slots=True)
class LogChanges:
    """The changes of a micro-batch to one log partition.

    Attributes:
        log: its name.
        tables: table -> rows to insert or to replace by KEYS, and with DELETED those to delete; for findings,
            all that are new, and those that a later micro-batch replaces.
        summary: partition, records, next_offset, share_partitions, newest_time, archiving, is_read_anew, and
            complete, as in RunResult.complete_times; empty if there are only `problems`.
        problems: what cannot be read at all in the input.
    """

    log: str
    tables: dict[str, pa.Table] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def to_bytes(self) -> bytes:
        """The changes as one value."""
        parts = {name: to_ipc(table) for name, table in self.tables.items()}
        sizes = {name: len(part) for name, part in parts.items()}
        head = {"log": self.log, "summary": self.summary, "problems": self.problems, "sizes": sizes}
        return b"\n".join((json.dumps(head).encode(), b"".join(parts.values())))

    @classmethod
    def of(cls, data: bytes) -> "LogChanges":
        """Read what `to_bytes` wrote."""
        head, _, rest = data.partition(b"\n")
        given = json.loads(head)
        view = memoryview(rest)
        tables = {}
        for name, size in given["sizes"].items():
            tables[name], view = from_ipc(view[:size]), view[size:]
        return cls(given["log"], tables, given["summary"], given["problems"])


def to_ipc(table: pa.Table, compression: str = "lz4") -> bytes:
    """A table as an Arrow stream; Spark copies it several times, so it is compressed."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)
    ) as stream:
        stream.write_table(table)
    return sink.getvalue().to_pybytes()


def from_ipc(data: bytes | memoryview) -> pa.Table:
    """Read what `to_ipc` wrote."""
    with pa.ipc.open_stream(pa.py_buffer(data)) as stream:
        return stream.read_all()


def state_bytes(name: str, checkpoint: FoldCheckpoint) -> bytes:
    """The state of a fold as one value."""
    cells = checkpoint.extent.cells
    if len(cells) > 1:
        # A consumer returns no batches, so there are no bytes to count by cell.
        whole = cells[-1:].copy()
        whole["first"] = max(int(cells["first"][0]), checkpoint.mark.log_start_offset)
        whole["bytes"] = cells["bytes"].sum()
        checkpoint.extent.cells = whole
    rows = pa.concat_tables(checkpoint_share_partitions(name, checkpoint))
    # Spark pickles it byte by byte.
    return to_ipc(rows.replace_schema_metadata({_LOG: checkpoint_row(name, checkpoint)["carried"]}), "zstd")


def checkpoint_of(state: bytes) -> FoldCheckpoint | None:
    """Read what `state_bytes` wrote; None if another release wrote it in another format."""
    rows = from_ipc(state)
    log = (rows.schema.metadata or {})[_LOG].decode()
    return None if resume_point_of(log) is None else restore_checkpoint(log, rows)


@dataclass(frozen=True, slots=True)
class StreamFold:
    """Folds one log partition of `__share_group_state` micro-batch by micro-batch.

    Plain data that travels to tasks.

    Attributes:
        limits, severities, state_partitions: as in FoldPlan.
        initial_states: folder with the initial state of log partitions, each in a file that is named by its
            number.
        has_dead_letters: collect `archiving_ranges`.
    """

    limits: Limits = field(default_factory=Limits)
    severities: Mapping[str, str] = field(default_factory=dict)
    state_partitions: int | None = None
    initial_states: str | None = None
    has_dead_letters: bool = False

    def initial(self, partition: int) -> bytes | None:
        """The state of a log partition before the first record that the stream reads: from an earlier run, if any.

        Raises:
            WarehouseError: if an object store refuses.
        """
        if self.initial_states is None:
            return None
        place = f"{self.initial_states}/{partition}"
        with warehouse_errors(place):
            filesystem, path = open_filesystem(place)
            if not filesystem.get_file_info(path).is_file:
                return None
            with filesystem.open_input_stream(path) as stored:
                return stored.read()

    def step(
        self,
        state: bytes | None,
        partition: int,
        rows: pa.Table,
        facts: LogFacts,
        *,
        now: int | None = None,
        is_by_clock: bool = False,
    ) -> tuple[bytes | None, LogChanges | None]:
        """Fold the records of a micro-batch.

        Args:
            state: the state after the previous micro-batch, or `initial`.
            partition: number of the log partition.
            rows: key, value, offset and timestamp (ms), in any order.
            facts: what the source knows of the log.
            now: ms, up to which durations are measured; by default the time of the last record.
            is_by_clock: judge every share-partition, even if there is no new record.
        Returns:
            The state after it, and what it changed; None for both if it holds nothing new.
        """
        restore = None if state is None else partial(checkpoint_of, state)
        before = restore and restore()
        mark = before.mark if before else None
        start = facts.log_start_offset
        status = None if before is None else ResumeStatus.GROWN
        if mark is not None and facts.topic_id and mark.topic_id and facts.topic_id != mark.topic_id:
            status = ResumeStatus.RECREATED
        elif mark is not None and start is not None and start > mark.next_offset:
            status = ResumeStatus.CLEANED
        if mark is not None and status == ResumeStatus.GROWN:
            rows = rows.filter(pc.field("offset") >= mark.next_offset)
            start = mark.log_start_offset if start is None else start
        rows = rows.sort_by("offset").combine_chunks()
        if start is None:
            start = rows["offset"][0].as_py() if len(rows) else 0
        # The broker may have deleted what was read first, and records after it that were not.
        rows = rows.filter(pc.field("offset") >= start).combine_chunks()
        has_moved = mark is None or mark.log_start_offset != start
        if not (len(rows) or has_moved or is_by_clock):
            return None, None
        is_recorded = facts.log_start_offset is not None
        log = LogPartition(
            STATE_TOPIC, partition, (), start, is_recorded, facts.topic_id, source=MicroBatch(rows)
        )
        options = FoldOptions(
            limits=self.limits,
            partition_count=PartitionCount(self.state_partitions or facts.state_partitions),
            restore=None if before is None else cast("Callable[[], FoldCheckpoint]", restore),
            resume_status=status,
            judge=RecordRules(self.severities),
            judged_at=now,
            archiving_groups=EVERY_GROUP if self.has_dead_letters else None,
        )
        folded = fold_log(log, options=options)
        changes = LogChanges(log.name, _changed_rows(folded, before, status, is_by_clock=is_by_clock))
        changes.tables[CUTOFF] = folded.cutoff
        changes.tables[FINDINGS] = judge(
            folded,
            self.severities,
            Topics(),
            folded.record_breaches,
            with_unproven=True,
            # Without a clock, durations end at the newest record of all logs, which StreamTables knows.
            clock=now,
        )
        if folded.archiving_ranges is not None and len(folded.archiving_ranges):
            changes.tables[RANGES] = folded.archiving_ranges
        changes.summary = {
            "partition": partition,
            "records": folded.record_count,
            "next_offset": folded.next_offset,
            "share_partitions": len(folded.numbers),
            "newest_time": folded.newest_time,
            "archiving": folded.archiving if folded.archiving[1] >= 0 else None,
            "complete": (folded.complete_since, folded.newest_time),
            "is_read_anew": status != ResumeStatus.GROWN,
        }
        return None if folded.checkpoint is None else state_bytes(log.name, folded.checkpoint), changes

    def judge_at(self, state: bytes, partition: int, now: int | None = None) -> LogChanges:
        """The findings and verdicts of a state at a time (`step`): long waits are found without a new record."""
        _, changes = self.step(state, partition, EMPTY_ROWS, LogFacts(), now=now, is_by_clock=True)
        assert changes is not None
        changes.tables = {name: changes.tables[name] for name in (FINDINGS, HISTORY_TABLE)}
        changes.summary |= {"newest_time": -1, "complete": None}
        return changes


def _changed_rows(
    folded: FoldedLog, before: FoldCheckpoint | None, status: ResumeStatus | None, *, is_by_clock: bool
) -> dict[str, pa.Table]:
    """The rows of `share_partition_state`, `in_flight` and `share_partition_history` that differ from those before.

    Keys that belong to another log partition, where the coordinator looks for them, are left out.
    """
    keys, chains = folded.keys, folded.all_chains
    old_keys, old = (before.keys, before.chains) if before else (KeyTable(), Chains())
    place = pc.index_in(old_keys.binary(), keys.binary()).fill_null(-1).to_numpy(zero_copy_only=False)
    known = np.zeros(len(keys), bool)
    known[place[place >= 0]] = True
    last = np.full(len(keys), NO_OFFSET)
    rows_before = np.zeros(len(keys), old.chains.dtype)
    rows_before[place[place >= 0]] = old.chains[place >= 0]
    for name in ("last_offset", "suspect_offset"):
        last = np.maximum(
            last, np.where(chains.chains[name] != rows_before[name], chains.chains[name], NO_OFFSET)
        )
    changed = ~known | (last != NO_OFFSET)
    if before is None or status != ResumeStatus.GROWN or before.last_lost_offset != folded.last_lost_offset:
        changed[:] = True
    is_here = np.ones(len(keys), bool)
    is_here[folded.observations.misplaced[0]] = False
    exists = chains.chains["exists"] & is_here
    live = np.flatnonzero(changed & exists)
    selected, key = _taken(chains, live), key_columns(keys, live, Topics())
    suspect = folded.suspect[np.searchsorted(folded.numbers, live)]
    ends = pa.nulls(len(live), pa.int64())
    states = state_table(selected, key, folded.log.partition, suspect, ends)
    ranges = in_flight_table(dictionary_encoded(key), *window_tiles(selected))
    existed = old.chains["exists"] & np.append(is_here, True)[place]
    gone = key_columns(old_keys, np.flatnonzero(existed & ~np.append(exists, False)[place]), Topics())
    # The rows of these share-partitions are replaced, maybe by none.
    replaced = np.flatnonzero(existed & np.append(changed, True)[place])
    gone["state_partition"] = pa.repeat(pa.scalar(folded.log.partition, pa.int32()), len(gone["group_id"]))
    return {
        STATE: _with_gone(states, gone),
        IN_FLIGHT: _with_gone(ranges, key_columns(old_keys, replaced, Topics())),
        HISTORY_TABLE: _history_rows(folded, np.flatnonzero(exists) if is_by_clock else live, gone),
    }


def _history_rows(folded: FoldedLog, live: np.ndarray, gone: dict[str, pa.Array]) -> pa.Table:
    """Rows of `history_pieces` of some numbers, with COMPLETE and DELETED."""
    # A stream does not know when its reader looked last.
    rows = pa.concat_tables(history_pieces(replace(folded, outcomes=None)))
    declared = table_schema(HISTORY_TABLE)
    rows = rows.cast(pa.schema([*declared, *(one for one in rows.schema if one.name not in declared.names)]))
    rows = rows.append_column(COMPLETE, pa.array(folded.chains.chains["delivery_complete_count"].copy()))
    if len(live) < len(rows):
        rows = rows.take(pa.array(np.searchsorted(folded.numbers, live)))
    return _with_gone(rows, gone)


def _taken(chains: Chains, numbers: np.ndarray) -> Chains:
    """Some share-partitions, by their numbers."""
    sizes = np.diff(chains.ends)[numbers]
    ends = np.concatenate(([0], np.cumsum(sizes)))
    return Chains(chains.chains[numbers], ends, chains.batches[range_rows(chains.ends[numbers], sizes)])


def _with_gone(rows: pa.Table, removed: dict[str, pa.Array]) -> pa.Table:
    """Changed rows of a table with those to delete after them, of which only keys are known."""
    count, kept = len(removed["group_id"]), without_deleted(rows)
    columns = {one.name: removed.get(one.name, pa.nulls(count)).cast(one.type) for one in kept.schema}
    return pa.concat_tables([kept, pa.table(columns | {DELETED: pa.repeat(True, count)}, schema=kept.schema)])
