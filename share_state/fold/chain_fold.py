"""Folds the decoded records of a log into the states of its share-partitions, beside the decoding of the next ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from share_state.fold.context_fold import ContextFold
from share_state.fold.dead_letters.archiving import ArchivingRanges
from share_state.fold.fold_options import FoldOptions
from share_state.fold.limits import Limits
from share_state.fold.losses import Losses
from share_state.fold.outcomes import blank_outcomes
from share_state.fold.state_chains import Chains
from share_state.kafka.buffers import BackgroundWorker, RecordBuffer, concat_rows
from share_state.kafka.share_partition_keys import KeyTable
from share_state.kafka.state_records import RECORD_BUFFERS, StateRecords

CHUNKS_PER_FOLD = 16
"""A fold starts when the decoded records reach this many times the chunk size, because each fold copies the
state."""


@dataclass(frozen=True, slots=True)
class FoldStart:
    """What a fold begins with.

    Attributes:
        keys, chains: every share-partition that an earlier audit saw, and their states.
        archiving: offset and timestamp (ms) of the first record with a range in state ARCHIVING, -1 for none.
        begins_at: the log start offset of the first fold, -1 if the format has no offsets.
        count_from: offset from which outcomes are counted: the end of what the last audit read of this log.
    """

    keys: KeyTable
    chains: Chains
    archiving: tuple[int, int]
    begins_at: int
    count_from: int


class ChainFold:
    """The states of the share-partitions of a log.

    Records are decoded into `buffer`, and folded when it is full.

    Attributes:
        keys, chains: every share-partition so far, and their states, which the records in `buffer` have not
            changed.
        buffer: takes the records of the next fold.
        archiving: as in FoldStart, with the records that are folded.
        archiving_ranges: collects the table `archiving_ranges`; None unless requested.
        record_breaches: breaches of the rules over single records, by rule code.
    """

    def __init__(
        self, options: FoldOptions, start: FoldStart, ranges: ArchivingRanges | None, min_fold_size: int
    ) -> None:
        """Begin.

        Args:
            options: how the log is folded.
            start: what the fold begins with.
            ranges: collects the ranges in state ARCHIVING; None for none.
            min_fold_size: bytes of decoded records from which on they are folded.
        """
        self.keys = start.keys
        self.chains = start.chains
        self.archiving = start.archiving
        self.archiving_ranges = ranges
        self.record_breaches: list[Any] = []
        self._options = options
        self._context_fold = None
        if options.judge is not None:
            self._context_fold = ContextFold(
                options.judge.broken_rules,
                log_start_offset=start.begins_at,
                limits=options.limits,
                archiving=start.archiving,
                count_from=start.count_from,
            )
        self.buffer = RECORD_BUFFERS.acquire()
        self._spare_buffer = self.buffer if options.cores == 1 else RECORD_BUFFERS.acquire()
        self._worker = BackgroundWorker(options.cores)
        self._min_fold_size = min_fold_size
        self._fold_size = max(min_fold_size, self.chains.size)
        self._folded_losses = 0
        self._latest_folded_loss = list[int]()

    @property
    def is_due(self) -> bool:
        """Whether the buffer holds enough records for a fold."""
        return self.buffer.size >= self._fold_size

    def fold(self, losses: Losses) -> None:
        """Fold the records in the buffer; with several cores, while the next ones are decoded.

        Args:
            losses: where records are missing or unreadable, up to the last record in the buffer.
        """
        buffer, key_count = self.buffer, len(self.keys)
        self._worker.wait()
        # A fold copies the state, so the next fold waits for as many bytes: the total cost stays linear for
        # any number of share-partitions. The size is read before this fold, so that findings do not depend on
        # the core count.
        self._fold_size = max(self._min_fold_size, self.chains.size)
        if not buffer.row_count:
            return
        self.buffer, self._spare_buffer = self._spare_buffer, buffer
        # Copied here, because decoding adds keys and losses while the fold runs.
        lost = list[int]()
        limit_rows = None
        if self._context_fold is not None:
            lost = self._latest_folded_loss + losses.offsets[self._folded_losses :]
            self._folded_losses = len(losses.offsets)
            self._latest_folded_loss = [max(lost)] if lost else []
            limits = self._options.limits
            limit_rows = limits.group_rows(self.keys.columns()[0]) if limits.groups else None
        if self.archiving_ranges is not None:
            self.archiving_ranges.note_keys(self.keys)
        self._worker.submit(lambda: self._fold(buffer, key_count, limit_rows, lost))

    def _fold(
        self, buffer: RecordBuffer, key_count: int, limit_rows: np.ndarray | None, lost: Sequence[int]
    ) -> None:
        records = StateRecords(
            buffer.rows, buffer.batches, numbers=buffer.keys, last_snapshot_record=buffer.last_snapshot_record
        )
        # Reading and decoding keep one core busy.
        slices = max(1, self._options.cores - 1)
        if self.archiving_ranges is not None:
            self.archiving_ranges.take(records, self.chains)
        if self._options.judge is None or self._context_fold is None:
            self.chains.apply(records, key_count, slices)
        else:
            chunk = self._context_fold.apply(records, self.chains, key_count, slices, limit_rows, lost)
            self.record_breaches += self._options.judge(chunk)
            self.archiving = self._context_fold.archiving
        buffer.clear()

    def settle(self, losses: Losses) -> None:
        """Fold all records so far; `losses` as for `fold`."""
        self.fold(losses)
        self._worker.wait()

    def finish(self, losses: Losses) -> None:
        """Fold the last records; `losses` as for `fold`."""
        self.settle(losses)
        self.release_buffers()

    def release_buffers(self) -> None:
        """Return the buffers; nothing can be folded any more."""
        RECORD_BUFFERS.release(self.buffer)
        if self._spare_buffer is not self.buffer:
            RECORD_BUFFERS.release(self._spare_buffer)

    def outcomes(self) -> np.ndarray | None:
        """OUTCOMES rows of the share-partitions; None without rules over records."""
        if self._context_fold is None:
            return None
        rows = self._context_fold.outcomes
        if len(rows) < len(self.keys):
            # The share-partitions of a log without new records are not in the fold.
            rows = concat_rows([rows, blank_outcomes(len(self.keys) - len(rows))])
        return rows

    def observed_limits(self, deliveries: dict[str, int]) -> Limits:
        """The limits with at least as many deliveries as the log shows for each group.

        No broker delivers a record more often than its limit allows. Source: Kafka
        InFlightState.tryUpdateState.

        Args:
            deliveries: those that the log is known to show, by group; gets those of this fold.
        """
        limits = self._options.limits
        counts = self.chains.batches["count"]
        over = np.flatnonzero(counts > limits.values("delivery_count").min())
        shown = [(np.searchsorted(self.chains.ends, over, "right") - 1, counts[over].astype(np.int64))]
        if self._options.judge is not None:
            shown.append(self._options.judge.shown_deliveries(self.record_breaches))
        for keys, delivered in shown:
            if not len(keys):
                continue
            rows = pa.table({"group": self.keys.columns()[0].take(pa.array(keys)), "count": delivered})
            for row in rows.group_by("group", use_threads=False).aggregate([("count", "max")]).to_pylist():
                group, count = row["group"], row["count_max"]
                if group is None:
                    continue
                if count > max(limits.of_group("delivery_count", group), deliveries.get(group, 0)):
                    deliveries[group] = count
        return limits.at_least(deliveries) if deliveries else limits
