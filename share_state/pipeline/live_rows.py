"""Rows of a log partition, as metrics of a stream read them: made anew for share-partitions that changed."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.delta.committed import IN_FLIGHT_COUNTS
from share_state.fold.history import PREVIOUS_START
from share_state.fold.log_stats import NO_PREVIOUS_START
from share_state.fold.state_log import FoldedLog
from share_state.fold.states import KEY, row_texts, state_names, window_tiles
from share_state.pipeline.stream_changes import KeyColumns, RowsOf, present_numbers
from share_state.pipeline.stream_state import changed_since, numbers_in, places_kept, taken


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
        states: rows of `share_partition_state` without state_batches, one per share-partition.
        history: rows of `history_pieces` with COMPLETE, one per share-partition.
        in_flight_counts: `CommittedTables.in_flight_counts` of the log partition.
    """

    def __init__(self, shown: ShownLog, before: "LiveRows | None" = None) -> None:
        """Make the rows.

        Args:
            shown: the log partition.
            before: its rows some time ago; rows of share-partitions that did not change since are taken from there.
        """
        self.shown = shown
        self.numbers = present_numbers(shown.folded)
        self._names = KeyColumns(shown.folded.keys, encoded=True)
        self._limits = np.zeros(len(shown.folded.keys), np.int64)
        self._limits[shown.folded.numbers] = shown.folded.limits_of("delivery_count")
        if before is not None and before.shown.times_read_anew != shown.times_read_anew:
            before = None
        keys = shown.folded.keys
        place = None if before is None else numbers_in(before._folded.keys, keys)
        has_same_keys = place is not None and np.array_equal(place, np.arange(len(keys)))
        if before is not None and has_same_keys:
            self._names = before._names
        changed, row_before = self._compare(before, place)
        is_new, row_before = changed[self.numbers], row_before[self.numbers]
        new, starts = self.rows(self.numbers[is_new]), shown.starts[self.numbers]
        states, history = new.states_alone, new.history(starts[is_new])
        if before is not None and not is_new.all():
            states = _updated(before.states, states, row_before, is_new)
            history = _updated(before.history, history, row_before, is_new)
        # It changes without a record of the share-partition, when the clock judges all of them.
        previous = pa.array(starts, mask=starts == NO_PREVIOUS_START)
        place = history.schema.get_field_index(PREVIOUS_START)
        self.states, self.history = states, history.set_column(place, PREVIOUS_START, previous)
        if before is not None and has_same_keys:
            replaced, counted = before._count(before._of(changed), -1), self._count(self._of(changed))
            sums = _sums(pa.concat_tables([before._records, replaced, counted]))
            self._records = sums.filter(pc.field("record_count") != 0)
        else:
            self._records = self._count(self.numbers)
        self.in_flight_counts = self._in_flight_counts()

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

    def states_of(self, numbers: np.ndarray) -> pa.Table:
        """The rows of `states` of some share-partitions."""
        return self._rows_of(self.states, numbers)

    def history_of(self, numbers: np.ndarray) -> pa.Table:
        """The rows of `history` of some share-partitions."""
        return self._rows_of(self.history, numbers)

    def _rows_of(self, rows: pa.Table, numbers: np.ndarray) -> pa.Table:
        if len(numbers) == len(self.numbers):
            return rows
        return rows.take(pa.array(np.searchsorted(self.numbers, numbers)))

    def _compare(self, before: "LiveRows | None", place: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Whether each share-partition of the log changed (bool), and its row before (int64, -1 for none).

        Args:
            before: the rows some time ago.
            place: `numbers_in` of the keys then and now.
        """
        folded = self._folded
        changed, row_before = np.ones(len(folded.keys), bool), np.full(len(folded.keys), -1)
        if before is None or place is None:
            return changed, row_before
        stays = place[before.numbers] >= 0
        row_before[place[before.numbers[stays]]] = np.flatnonzero(stays)
        if before._folded.last_lost_offset != folded.last_lost_offset:
            return changed, row_before
        changed, (was, now) = (
            changed_since(before._folded.all_chains, folded.all_chains, place),
            places_kept(place),
        )
        # Limits of groups may be others than before; the log itself shows some.
        changed[now] |= before._limits[was] != self._limits[now]
        is_present = np.zeros(len(folded.keys), bool)
        is_present[self.numbers] = True
        # With another number of state partitions, one without a new record may belong to another log.
        return changed | ((row_before >= 0) != is_present), row_before

    def _of(self, is_meant: np.ndarray) -> np.ndarray:
        """The live share-partitions among those that are meant (bool by number)."""
        return self.numbers[is_meant[self.numbers]]

    def _count(self, numbers: np.ndarray, sign: int = 1) -> pa.Table:
        """Records in flight of some share-partitions: code, which is group, delivery count and state, and record_count.

        Args:
            numbers: the share-partitions.
            sign: of the amounts.
        """
        ends, ranges = window_tiles(taken(self._folded.all_chains, numbers))
        groups = self._names.take(numbers)["group_id"].indices.to_numpy(zero_copy_only=False)
        codes = np.repeat(groups.astype(np.int64) << 32, np.diff(ends))
        codes += (ranges["count"].astype(np.int64) << 8) + ranges["state"]
        return _sums(pa.table({"code": codes, "record_count": sign * (ranges["last"] - ranges["first"] + 1)}))

    def _in_flight_counts(self) -> pa.Table:
        found = self._records["code"].to_numpy()
        state = found.astype(np.int8)
        count = ((found - state) >> 8).astype(np.int16)
        group = (found - state - (count.astype(np.int64) << 8)) >> 32
        columns = (
            self._names.take(np.zeros(0, np.int64))["group_id"].dictionary.take(pa.array(group)),
            pa.array(state),
            state_names(state),
            pa.array(count),
        )
        return pa.table([*columns, self._records["record_count"]], [*IN_FLIGHT_COUNTS, "record_count"])


def _updated(before: pa.Table, new: pa.Table, row_before: np.ndarray, is_new: np.ndarray) -> pa.Table:
    """Rows of a table, one per share-partition.

    Args:
        before: its rows some time ago.
        new: the rows of share-partitions that changed.
        row_before: int64, row in `before`, one per share-partition.
        is_new: bool, whether a share-partition changed.
    """
    if np.array_equal(row_before, np.arange(len(before))):
        # As long as no share-partition comes or goes.
        meant = pa.array(is_new)
        columns = {
            name: _replaced(before[name], meant, new[name]) for name in before.column_names if name not in KEY
        }
        return pa.table({name: columns.get(name, before[name]) for name in before.column_names})
    place = row_before.copy()
    place[is_new] = len(before) + np.arange(len(new))
    return pa.concat_tables([before, new]).combine_chunks().take(pa.array(place))


def _replaced(column: pa.ChunkedArray, meant: pa.Array, new: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """A column with new values in the rows that are meant (boolean); one that is null in all rows stays."""
    if column.null_count == len(column) and new.null_count == len(new):
        return column
    return pc.replace_with_mask(column.combine_chunks(), meant, new.combine_chunks())


def _sums(rows: pa.Table) -> pa.Table:
    """The sums of record_count by code; one column, as to group by three takes twice as long."""
    sums = rows.group_by("code", use_threads=False).aggregate([("record_count", "sum")])
    return sums.rename_columns(["code", "record_count"])
