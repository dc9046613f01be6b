"""Folds decoded records that are grouped by share-partition: those of all share-partitions of a piece in one call.

A log brings the records of its share-partitions mixed, in the order of their offsets. Records of another source, or
after a shuffle, are sorted by share-partition instead. `GroupedFold` takes them in pieces of any size, and keeps the
state of the share-partition at the end of a piece, whose records may go on in the next.

Source: Kafka ShareCoordinatorShard.replay; KIP-932 draft, recovery.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.errors import InputError
from share_state.fold.dialect import CONTROL_DIALECT, STATE_DIALECT, Dialect
from share_state.fold.draft.control_chains import fold_control, is_superseded
from share_state.fold.draft.control_chains import is_suspect as is_control_suspect
from share_state.fold.losses import is_suspect
from share_state.fold.state_chains import NO_OFFSET, Chains
from share_state.fold.state_replay import LAYOUTS
from share_state.fold.states import (
    CONTROL_RECORDS,
    KEY,
    control_state_table,
    existing_chains,
    in_flight_table,
    read_batch_lists,
    slice_chains,
    state_table,
    window_tiles,
)
from share_state.kafka.control_records import CONTROL_RECORD, ControlRecords
from share_state.kafka.state_records import STATE_BATCH, STATE_RECORD, StateRecords
from share_state.schema.declarations import table_schema

TOPIC_KEY = "topic_key"
"""A column with the id of the topic; with its name in control records, which have no id."""

SORTED_BY = ("dialect", "group_id", TOPIC_KEY, "partition", "state_partition", "offset")
"""The order of the records. A share-partition with records in several state partitions has a chain in each."""

_IDENTITY = ("dialect", "group_id", "topic_id", "topic", "partition", "state_partition")

_TIMES = ("timestamp", "create_time", "write_time")


def check_decoded(call: str, columns: Sequence[str]) -> None:
    """Refuse columns that are not those of decoded records.

    Raises:
        InputError: naming what is missing.
    """
    if missing := [name for name in table_schema("decoded_records").names if name not in columns]:
        raise InputError(
            f"{call}: no column {', '.join(missing)}; give those of decoded_records, see share_state.read"
        )


class GroupedFold:
    """Folds decoded records in the order SORTED_BY, piece by piece.

    Memory is that of a piece and of one share-partition: the state of its chain, and in the draft's dialect also its
    records since the latest checkpoint.
    """

    def __init__(self) -> None:
        """Begin without any share-partition."""
        self._open: pa.Table | None = None
        self._chains = Chains()
        self._held: pa.Table | None = None

    def take(self, records: pa.Table) -> pa.Table:
        """Fold the next records.

        Args:
            records: columns of `decoded_records`; those of a share-partition follow each other, by offset.
        Returns:
            Rows of `share_partition_state` of the share-partitions that are complete: all but the last.
        """
        records = _declared(records)
        records = records.filter((pc.field("kind") != "skipped") & pc.field("group_id").is_valid())
        done = list[pa.Table]()
        for begin, end in pairwise(_bounds(records, ["dialect"]).tolist()):
            part = records.slice(begin, end - begin).combine_chunks()
            of_state = part["dialect"][0].as_py() != CONTROL_RECORDS
            if (self._held if of_state else self._open) is not None:
                done.append(self.finish())
            done.append(self._take_states(part) if of_state else self._take_control(part))
        return pa.concat_tables([table_schema("share_partition_state").empty_table(), *done])

    def finish(self) -> pa.Table:
        """The row of the last share-partition; none if it has no state."""
        key, held = self._open, self._held
        self._open = self._held = None
        if key is not None:
            return _states(self._chains, key)
        if held is not None:
            return _control_states(held, _bounds(held, _told_apart_by(held)))
        return table_schema("share_partition_state").empty_table()

    def _take_states(self, records: pa.Table) -> pa.Table:
        bounds = _bounds(records, _told_apart_by(records))
        keys = _first_rows(records, bounds)
        before, chains = list[pa.Table](), self._chains
        if self._open is None or not _is_same(self._open, keys):
            before, chains = [self.finish()], Chains()
        _fold_states(records, bounds, chains)
        last = len(keys) - 1
        self._open, self._chains = keys.slice(last), _copied(slice_chains(chains, last, last + 1))
        return pa.concat_tables([*before, _states(slice_chains(chains, 0, last), keys.slice(0, last))])

    def _take_control(self, records: pa.Table) -> pa.Table:
        if self._held is not None:
            records = pa.concat_tables([self._held, records]).combine_chunks()
        bounds = _bounds(records, _told_apart_by(records))
        last = int(bounds[-2])
        # What a checkpoint supersedes is not read again.
        group = records.slice(last).combine_chunks()
        kept = ~is_superseded(_control_records(group, np.array([0, len(group)])), 1)
        self._held = group.filter(pa.array(kept))
        return _control_states(records.slice(0, last).combine_chunks(), bounds[:-1])


def fold_sorted(records: pa.Table) -> pa.Table:
    """Fold decoded records in any order at once; arguments and result as for `GroupedFold.take`."""
    records = _declared(records)
    keyed = records.append_column(TOPIC_KEY, pc.coalesce(records["topic_id"], records["topic"]))
    fold = GroupedFold()
    states = fold.take(keyed.sort_by([(name, "ascending") for name in SORTED_BY]))
    return pa.concat_tables([states, fold.finish()])


def _declared(records: pa.Table) -> pa.Table:
    """The columns of `decoded_records` in their types; other libraries have texts and lists of their own."""
    schema = table_schema("decoded_records")
    try:
        return records.select(schema.names).cast(schema)
    except pa.ArrowException as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"decoded records: {reason}; give the column types of decoded_records") from None


def in_flight_of_states(states: pa.Table) -> pa.Table:
    """The table `in_flight` of rows of `share_partition_state`: their ranges, and the gaps between them."""
    tables = [table_schema("in_flight").empty_table()]
    for begin, end in pairwise(_bounds(states, ["dialect"]).tolist()):
        part = states.slice(begin, end - begin).combine_chunks()
        names = ["start_offset"]
        if part["dialect"][0].as_py() == CONTROL_RECORDS:
            names.append("end_offset")
        rows = np.zeros(len(part), [(name, "i8") for name in names])
        for name in names:
            rows[name] = part[name].fill_null(NO_OFFSET).to_numpy()
        ends, batches = _ranges_of(part)
        key = {name: part[name].combine_chunks() for name in KEY}
        tables.append(in_flight_table(key, *window_tiles(Chains(rows, ends, batches))))
    schema = tables[0].schema
    return pa.concat_tables([tables[0], *(table.cast(schema) for table in tables[1:])])


def _fold_states(records: pa.Table, bounds: np.ndarray, chains: Chains) -> None:
    """Fold records of the state topic.

    Args:
        records: columns of `decoded_records`, in one chunk.
        bounds: int64, the rows of share-partition n are from bounds[n] to bounds[n + 1], by offset.
        chains: the state of the first share-partition before them, or empty; updated to that of all.
    """
    rows, batches = _rows(records, STATE_RECORD, STATE_DIALECT)
    rows["key"] = _numbers(bounds)
    rows["layout"] = _codes(records["layout"], LAYOUTS)
    rows["max_offset"] = (
        np.maximum.reduceat(np.append(batches["last"], -1), rows["batches"]) if len(batches) else -1
    )
    rows["max_offset"][rows["batch_count"] == 0] = -1
    chains.apply(StateRecords(rows, batches), len(bounds) - 1)


def _states(chains: Chains, keys: pa.Table) -> pa.Table:
    """The rows of the share-partitions that have a state."""
    live = existing_chains(chains)
    # Records alone do not show where a log starts: a state without a snapshot may lack what was before them.
    suspect = is_suspect(live.chains, NO_OFFSET, start_is_shown=False)
    keys = keys.filter(pa.array(chains.chains["exists"])).combine_chunks()
    numbers = keys["state_partition"].combine_chunks()
    return state_table(live, _key(keys), numbers, suspect, pa.nulls(len(keys), pa.int64()))


def _control_states(records: pa.Table, bounds: np.ndarray) -> pa.Table:
    if not len(records):
        return table_schema("share_partition_state").empty_table()
    folded = fold_control(_control_records(records, bounds), len(bounds) - 1)
    keys = _first_rows(records, bounds).filter(pa.array(folded.chains["exists"])).combine_chunks()
    live = existing_chains(Chains(folded.chains, folded.ends, folded.batches))
    starts, topic_ends = live.chains["start_offset"].copy(), pa.nulls(len(keys), pa.int64())
    return control_state_table(live, _key(keys), starts, is_control_suspect(live.chains), topic_ends)


def _control_records(records: pa.Table, bounds: np.ndarray) -> ControlRecords:
    rows, tuples = _rows(records, CONTROL_RECORD, CONTROL_DIALECT)
    rows["group"] = _numbers(bounds)
    rows["epoch"] = records["snapshot_epoch"].fill_null(0).to_numpy()
    return ControlRecords(rows, tuples)


def _key(keys: pa.Table) -> dict[str, pa.Array]:
    return {
        name: keys[name].combine_chunks().cast(pa.int32() if name == "partition" else pa.string())
        for name in KEY
    }


def _told_apart_by(records: pa.Table) -> list[str]:
    """The columns of _IDENTITY without the one that only names the topic, or that control records lack."""
    without = "topic_id" if records["dialect"][0].as_py() == CONTROL_RECORDS else "topic"
    return [name for name in _IDENTITY if name != without]


def _is_same(one: pa.Table, other: pa.Table) -> bool:
    """Whether the first rows are of the same share-partition."""
    return all(one[name][0].as_py() == other[name][0].as_py() for name in _told_apart_by(one))


def _bounds(rows: pa.Table, names: Sequence[str]) -> np.ndarray:
    """Adjacent rows with the same values of some columns: group n has those from bounds[n] to bounds[n + 1]."""
    is_new = np.zeros(len(rows), np.bool_)
    is_new[:1] = True
    for name in names:
        codes = pc.call_function(
            "dictionary_encode",
            [rows[name].combine_chunks()],
            pc.DictionaryEncodeOptions(null_encoding="encode"),
        )
        codes = codes.indices.to_numpy(zero_copy_only=False)
        is_new[1:] |= codes[1:] != codes[:-1]
    return np.append(np.flatnonzero(is_new), len(rows))


def _first_rows(records: pa.Table, bounds: np.ndarray) -> pa.Table:
    """The columns of _IDENTITY of each share-partition."""
    return records.select(_IDENTITY).take(pa.array(bounds[:-1]))


def _numbers(bounds: np.ndarray) -> np.ndarray:
    """The number of the share-partition of each row."""
    return np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))


def _copied(chains: Chains) -> Chains:
    """Without the memory of the share-partitions beside it."""
    return Chains(
        chains.chains.copy(), chains.ends.copy(), chains.batches.copy(), chains.last_snapshot_record
    )


def _rows(records: pa.Table, dtype: np.dtype, dialect: Dialect) -> tuple[np.ndarray, np.ndarray]:
    """The records as rows of the fold, and their STATE_BATCH rows."""
    rows = np.zeros(len(records), dtype)
    for name in {*(dtype.names or ())} & {*records.column_names} - {"kind", "layout", "fault"}:
        column = (
            records[name].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
            if name in _TIMES
            else records[name]
        )
        values = column.fill_null(0 if name in _TIMES else -1).to_numpy()
        rows[name] = values // 1000 if name in _TIMES else values
    rows["kind"] = _codes(records["kind"], pa.array(dialect.kinds))
    for text in records["fault"].unique().drop_null().to_pylist():
        bits = sum(dialect.faults[name] for name in text.split(","))
        rows["fault"][pc.call_function("equal", [records["fault"], text]).fill_null(False).to_numpy()] = bits
    ends, batches = _ranges_of(records)
    first, count = ("batches", "batch_count") if dtype == STATE_RECORD else ("tuples", "tuple_count")
    rows[first], rows[count] = ends[:-1], np.diff(ends)
    return rows, batches


def _ranges_of(rows: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """The column `state_batches` as STATE_BATCH rows: those of row n are from ends[n] to ends[n + 1]."""
    lists = rows["state_batches"].combine_chunks()
    counts = lists.value_lengths().fill_null(0).to_numpy()
    batches = np.zeros(len(lists.flatten()), STATE_BATCH)
    read_batch_lists(lists, batches)
    return np.concatenate(([0], np.cumsum(counts))), batches


def _codes(texts: pa.ChunkedArray, names: pa.Array) -> np.ndarray:
    return pc.call_function("index_in", [texts], pc.SetLookupOptions(names)).to_numpy()
