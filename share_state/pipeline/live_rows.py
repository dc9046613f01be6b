"""Rows of a log partition, as metrics of a stream read them: made anew for share-partitions that changed."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.delta.committed import IN_FLIGHT_COUNTS
from share_state.fold.history import PREVIOUS_START
from share_state.fold.log_stats import NO_PREVIOUS_START
from share_state.fold.state_log import FoldedLog
from share_state.fold.states import row_texts, state_names, window_tiles
from share_state.pipeline.stream_changes import KeyColumns, RowsOf, present_numbers
from share_state.pipeline.stream_state import changed_since, numbers_in, taken


@dataclass(frozen=True, slots=True)
class ShownLog:
    """A log partition as metrics show it; nothing changes it.

    Attributes:
        folded: its latest fold.
        starts: from `earlier_starts`, of some minutes ago at most.
        times_read_anew: how often it was read from its start.
    """

    folded: FoldedLog
    starts: np.ndarray
    times_read_anew: int = 0


class LiveRows:
    """The rows of the live share-partitions of a log partition.

    Attributes:
        shown: the log partition.
        numbers: int64, the share-partitions, ascending.
        history: rows of `history_pieces` with COMPLETE, one per share-partition.
    """

    def __init__(self, shown: ShownLog, before: "LiveRows | None" = None) -> None:
        """Make the rows.

        Args:
            shown: the log partition.
            before: its rows some time ago.
        """
        self.shown = shown
        self.numbers = present_numbers(shown.folded)
        self._names = KeyColumns(shown.folded.keys, encoded=True)
        self._limits = shown.folded.limits_of("delivery_count")
        if before is not None and self._has_keys_of(before):
            self._names = before._names
        self.history = self._history(before)

    @classmethod
    def following(cls, before: "LiveRows | None", shown: ShownLog) -> "LiveRows":
        """The rows of a log partition; those of before if it has not changed since.

        Args:
            before: its rows some time ago; None if there are none.
            shown: the log partition.
        """
        is_same = before is not None and before.shown.folded is shown.folded
        if before is not None and is_same and np.array_equal(before.shown.starts, shown.starts):
            return before
        return cls(shown, before)

    @property
    def _folded(self) -> FoldedLog:
        return self.shown.folded

    def of(self, share_partitions: pa.Table) -> np.ndarray:
        """The numbers of some share-partitions, given by IDENTITY_COLUMNS."""
        topics = share_partitions["topic_key"]
        texts = row_texts([share_partitions["group_id"], topics, share_partitions["partition"]])
        return self.numbers[pc.is_in(self._names.texts, texts).to_numpy(zero_copy_only=False)[self.numbers]]

    def rows(self, numbers: np.ndarray | None = None) -> RowsOf:
        """The rows of some share-partitions, by default of all."""
        return RowsOf(self._folded, self.numbers if numbers is None else numbers, self._names)

    def history_of(self, numbers: np.ndarray) -> pa.Table:
        """The rows of `history` of some share-partitions."""
        if len(numbers) == len(self.numbers):
            return self.history
        return self.history.take(pa.array(np.searchsorted(self.numbers, numbers)))

    @cached_property
    def in_flight_counts(self) -> pa.Table:
        """`CommittedTables.in_flight_counts` of the log partition, from numbers alone."""
        ends, ranges = window_tiles(taken(self._folded.all_chains, self.numbers))
        groups = self._names.take(self.numbers)["group_id"]
        # One number for group, count and state: to group by three columns takes twice as long.
        codes = np.repeat(groups.indices.to_numpy(zero_copy_only=False).astype(np.int64) << 32, np.diff(ends))
        codes += (ranges["count"].astype(np.int64) << 8) + ranges["state"]
        amounts = pa.table({"code": codes, "record_count": ranges["last"] - ranges["first"] + 1})
        sums = amounts.group_by("code", use_threads=False).aggregate([("record_count", "sum")])
        found = sums["code"].to_numpy()
        state = found.astype(np.int8)
        count = ((found - state) >> 8).astype(np.int16)
        group = (found - state - (count.astype(np.int64) << 8)) >> 32
        columns = (
            groups.dictionary.take(pa.array(group)),
            pa.array(state),
            state_names(state),
            pa.array(count),
        )
        return pa.table([*columns, sums["record_count_sum"]], [*IN_FLIGHT_COUNTS, "record_count"])

    def _has_keys_of(self, before: "LiveRows") -> bool:
        keys, others = before._folded.keys, self._folded.keys
        return len(keys) == len(others) and bool((numbers_in(keys, others) == np.arange(len(keys))).all())

    def _history(self, before: "LiveRows | None") -> pa.Table:
        folded, starts = self._folded, self.shown.starts[self.numbers]
        changed, row_before = np.ones(len(folded.keys), bool), np.full(len(folded.keys), -1)
        if before is not None and before.shown.times_read_anew == self.shown.times_read_anew:
            place = numbers_in(before._folded.keys, folded.keys)
            changed = changed_since(before._folded.all_chains, folded.all_chains, place)
            stays = place[before.numbers] >= 0
            row_before[place[before.numbers[stays]]] = np.flatnonzero(stays)
            changed |= row_before < 0
            kept = self.numbers[~changed[self.numbers]]
            # Limits of groups may be others than before; the log itself shows some.
            rows = np.searchsorted(folded.numbers, kept)
            rows_before = np.searchsorted(before._folded.numbers, before.numbers[row_before[kept]])
            changed[kept] = self._limits[rows] != before._limits[rows_before]
        is_new = changed[self.numbers]
        rows = self.rows(self.numbers[is_new]).history(starts[is_new])
        if before is not None and not is_new.all():
            place = row_before[self.numbers]
            place[is_new] = len(before.history) + np.arange(len(rows))
            rows = pa.concat_tables([before.history, rows]).take(pa.array(place)).combine_chunks()
        # It changes without a record of the share-partition, when the clock judges all of them.
        previous = pa.array(starts, mask=starts == NO_PREVIOUS_START)
        return rows.set_column(rows.schema.get_field_index(PREVIOUS_START), PREVIOUS_START, previous)
