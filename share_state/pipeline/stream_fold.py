"""The fold of a stream: a log partition is folded micro-batch by micro-batch, and only what changed goes to the tables.

`StreamFold` is the fold of the job with its state in between (`initial`, then `step` by `step`). Records at or
below the last offset folded are skipped, so a micro-batch may be repeated. Imports no Spark.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa

from share_state.delta.reader import open_filesystem, warehouse_errors
from share_state.fold.checkpoint import FoldCheckpoint, copy_of
from share_state.fold.continuity import fold_after
from share_state.fold.dead_letters.archiving import EVERY_GROUP
from share_state.fold.fold_options import FoldOptions
from share_state.fold.limits import Limits
from share_state.fold.outcomes import added_outcomes, blank_outcomes
from share_state.fold.state_chains import NO_OFFSET
from share_state.fold.state_log import FoldedLog, fold_log
from share_state.kafka.buffers import concat_rows, rows_at
from share_state.kafka.record_batches import Chunk
from share_state.kafka.share_partition_keys import KeyTable
from share_state.pipeline.stream_changes import FoldedRecords, UnwrittenChanges
from share_state.pipeline.stream_state import checkpoint_of, numbers_in, settled_state, to_ipc
from share_state.rules.findings import RecordRules, judge
from share_state.sources.log_partition import STATE_TOPIC, LogPartition
from share_state.sources.new_records import EMPTY_ROWS, LogFacts
from share_state.sources.partition_count import PartitionCount
from share_state.sources.record_tables import rows_in_chunks, rows_of_batches
from share_state.sources.resume_point import ResumeStatus
from share_state.sources.topics import Topics

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

_ROWS_A_PART = 1 << 16


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


def packed_batch(partition: int, facts: LogFacts, rows: pa.Table | None) -> pa.RecordBatch:
    """One row of PACKED: records of a log partition, or only what is known of it."""
    packed = None if rows is None else to_ipc(rows)
    given = (partition, facts.log_start_offset, facts.topic_id, facts.state_partitions, None, packed)
    columns = [pa.array([value], one.type) for value, one in zip(given, PACKED, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=PACKED)


@dataclass(frozen=True, slots=True)
class Step:
    """A micro-batch of a log partition.

    Attributes:
        after: the state after it, as of `settled_state`; None if the log is empty.
        unwritten: what it and earlier ones have changed, whose rows are not made yet.
        is_read_anew: whether the log was read from its start, so that each share-partition may have changed.
    """

    after: FoldCheckpoint | None
    unwritten: UnwrittenChanges
    is_read_anew: bool


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

    def count_of(self, count: PartitionCount | None) -> PartitionCount | None:
        """How many partitions the topic has, by what the source says and what the call states."""
        if not self.state_partitions:
            return count
        return (count or PartitionCount()).stated(self.state_partitions)

    def initial(self, partition: int) -> FoldCheckpoint | None:
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
                return checkpoint_of(stored.read())

    def step(
        self,
        before: FoldCheckpoint | None,
        unwritten: UnwrittenChanges,
        partition: int,
        rows: pa.Table,
        facts: LogFacts,
    ) -> Step | None:
        """Fold the records of a micro-batch.

        Args:
            before, partition, rows, facts: as for `fold`.
            unwritten: what micro-batches before have changed, whose rows are not made yet; it stays as it is.
        Returns:
            The state after it, and what has changed with it; None if it holds nothing new.
        """
        folded = self.fold(before, partition, rows, facts)
        if folded is None:
            return None
        changes, after = unwritten.copy(), folded.log.checkpoint
        changes.add(folded)
        changes.count_outcomes()
        settled = None if after is None else settled_state(folded.log.log.name, after)
        return Step(settled, changes, is_read_anew=folded.is_read_anew)

    def fold(
        self,
        before: FoldCheckpoint | None,
        partition: int,
        rows: pa.Table,
        facts: LogFacts,
        *,
        count: PartitionCount | None = None,
        now: int | None = None,
        is_by_clock: bool = False,
    ) -> FoldedRecords | None:
        """Fold the records of a micro-batch.

        Args:
            before: the state after the previous micro-batch, which stays as it is; None for none.
            partition: number of the log partition.
            rows: key, value, offset and timestamp (ms), in any order.
            facts: what the source knows of the log.
            count: how many partitions the topic has; by default as in `facts`.
            now: ms, up to which durations are measured; by default the time of the last record.
            is_by_clock: judge every share-partition, even if there is no new record.
        Returns:
            The folded log; None if the micro-batch holds nothing new.
        """
        mark = before.mark if before else None
        start = facts.log_start_offset
        status = None if before is None else ResumeStatus.GROWN
        if mark is not None and facts.topic_id and mark.topic_id and facts.topic_id != mark.topic_id:
            status = ResumeStatus.RECREATED
        elif mark is not None and start is not None and start > mark.next_offset:
            status = ResumeStatus.CLEANED
        rows = _in_order(rows)
        if mark is not None and status == ResumeStatus.GROWN:
            rows = _from_offset(rows, mark.next_offset)
            start = mark.log_start_offset if start is None else start
        if start is None:
            start = rows["offset"][0].as_py() if len(rows) else 0
        # The broker may have deleted what was read first, and records after it that were not.
        rows = _from_offset(rows, start)
        has_moved = mark is None or mark.log_start_offset != start
        if not (len(rows) or has_moved or is_by_clock):
            return None
        is_recorded = facts.log_start_offset is not None
        log = LogPartition(
            STATE_TOPIC, partition, (), start, is_recorded, facts.topic_id, source=MicroBatch(rows)
        )
        return self.fold_log(before, log, status, count or PartitionCount(facts.state_partitions), now=now)

    def fold_log(
        self,
        before: FoldCheckpoint | None,
        log: LogPartition,
        status: ResumeStatus | None,
        count: PartitionCount,
        *,
        now: int | None = None,
    ) -> FoldedRecords:
        """Fold what is new in a log partition.

        Args:
            before, now: as for `fold`.
            log: the log partition; its records before the state are skipped.
            status: how it has changed; None without a state.
            count: how many partitions the topic has, if the call did not say it.
        Raises:
            InputError: if a segment cannot be read.
        """
        options = FoldOptions(
            limits=self.limits,
            partition_count=self.count_of(count) or count,
            restore=None if before is None else partial(copy_of, before),
            resume_status=status,
            judge=RecordRules(self.severities),
            judged_at=now,
            archiving_groups=EVERY_GROUP if self.has_dead_letters else None,
            only_stable=True,
        )
        folded = _fold(log, options)
        counted = folded.all_outcomes
        folded = _with_earlier_outcomes(folded, before)
        findings = judge(
            folded,
            self.severities,
            Topics(),
            folded.record_breaches,
            with_unproven=True,
            # Without a clock, durations end at the newest record of all logs, which StreamTables knows.
            clock=now,
        )
        first_offset = NO_OFFSET
        if before is not None and status == ResumeStatus.GROWN:
            # A log that is read from its start may have any offset again.
            first_offset = before.mark.next_offset
        return FoldedRecords(folded, status, findings, first_offset, counted)

    def judged(
        self,
        state: FoldCheckpoint,
        partition: int,
        count: PartitionCount | None = None,
        now: int | None = None,
    ) -> FoldedRecords:
        """A state with the findings and verdicts of a time: long waits are found without a new record.

        Args:
            state, partition, now: as for `fold`.
            count: how many partitions the topic has, as far as known.
        """
        mark = state.mark
        start = mark.log_start_offset if mark.start_is_recorded else None
        facts = LogFacts(start, mark.topic_id)
        folded = self.fold(state, partition, EMPTY_ROWS, facts, count=count, now=now, is_by_clock=True)
        assert folded is not None
        return folded


def _with_earlier_outcomes(folded: FoldedLog, before: FoldCheckpoint | None) -> FoldedLog:
    """A folded log, and its checkpoint, with what became of deliveries since the stream began."""
    totals = folded.all_outcomes
    if totals is None:
        return folded
    is_recreated = folded.observations.resume_status == ResumeStatus.RECREATED
    if before is not None and before.outcomes is not None and not is_recreated:
        totals = added_outcomes(_moved(before.outcomes, before.keys, folded.keys), totals)
    checkpoint = folded.checkpoint
    if checkpoint is not None:
        # It may be before an open transaction, and then have keys of its own.
        is_same = checkpoint.keys is folded.keys
        of_state = totals if is_same else _moved(totals, folded.keys, checkpoint.keys)
        checkpoint = replace(checkpoint, outcomes=of_state)
    own = rows_at(totals, folded.numbers)
    return replace(folded, outcomes=own, outcomes_since=0, all_outcomes=totals, checkpoint=checkpoint)


def _moved(outcomes: np.ndarray, keys: KeyTable, others: KeyTable) -> np.ndarray:
    """OUTCOMES rows of other share-partitions: those that have one, and blank rows."""
    place = numbers_in(keys, others)
    if np.array_equal(place, np.arange(len(place))):
        # A fold adds keys behind those before; to copy fields by number takes five times as long.
        added = len(others) - len(keys)
        return concat_rows([outcomes, blank_outcomes(added)]) if added else outcomes
    rows = blank_outcomes(len(others))
    rows[place[place >= 0]] = outcomes[place >= 0]
    return rows


def _in_order(rows: pa.Table) -> pa.Table:
    """Rows in one piece, in the order of their offsets, which nearly all have already."""
    rows = rows.combine_chunks()
    is_sorted = (np.diff(rows["offset"].to_numpy()) >= 0).all()
    return rows if is_sorted else rows.sort_by("offset").combine_chunks()


def _from_offset(rows: pa.Table, offset: int) -> pa.Table:
    """Rows in the order of their offsets, without those before one."""
    return rows.slice(int(np.searchsorted(rows["offset"].to_numpy(), offset)))


def _fold(log: LogPartition, options: FoldOptions) -> FoldedLog:
    """Fold the records of a micro-batch, or segments as an audit does after an earlier one."""

    def fold(part: LogPartition, how: FoldOptions) -> FoldedLog:
        return fold_log(part, options=how)

    return fold_after(fold, log, options) if log.source is None else fold(log, options)
