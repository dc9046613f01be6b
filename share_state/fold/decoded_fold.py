"""Folds records that are decoded already, as columns of `decoded_records`, whatever source they come from.

Such records are no log: those of other share-partitions may be elsewhere, so neither the log start nor a gap is
known. They are folded and judged like those of a log with `holds_all` off.

Source: Kafka ShareCoordinatorShard.replay; KIP-932 draft, recovery.
"""

import base64
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from enum import IntEnum
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.errors import InputError
from share_state.fold.draft.control_log import ControlLogFold
from share_state.fold.fold_options import FoldOptions
from share_state.fold.groups.group_tables import add_topic_names
from share_state.fold.log_stats import Folded
from share_state.fold.state_log import LogFold
from share_state.fold.state_replay import LAYOUTS
from share_state.fold.states import CONTROL_RECORDS, read_batch_lists
from share_state.kafka.buffers import RecordBuffer, write_rows
from share_state.kafka.control_records import (
    CHECKPOINT_TYPE,
    CONTROL_RECORD,
    DELTA_TYPE,
    ControlFault,
    ControlKind,
    ControlRecords,
)
from share_state.kafka.share_partition_keys import KeyTable
from share_state.kafka.state_records import (
    STATE_BATCH,
    STATE_RECORD,
    UNREADABLE_FAULTS,
    Fault,
    Kind,
    StateRecords,
)
from share_state.schema.declarations import table_schema
from share_state.sources.as_of import Window
from share_state.sources.log_partition import STATE_TOPIC, LogPartition, Segment
from share_state.sources.record_tables import NO_TIME
from share_state.sources.topics import Topics

LABEL = "the records"
"""How errors name records that no file or topic holds."""

_TIMES = {"timestamp": NO_TIME, "create_time": 0, "write_time": 0}
"""Columns with times -> what the fold takes for none."""
_UNKNOWN = -1
_OF_CONTROL = ("topic", "partition")
_OF_STATE = ("state_partition",)
_UUID_PADDING = "=="


def check_decoded(call: str, columns: Sequence[str]) -> None:
    """Refuse columns that are not those of decoded records.

    Raises:
        InputError: naming what is missing.
    """
    if missing := [name for name in table_schema("decoded_records").names if name not in columns]:
        raise InputError(
            f"{call}: no column {', '.join(missing)}; give those of decoded_records, see share_state.read"
        )


def partial_log(partition: int | None, topic: str = STATE_TOPIC) -> LogPartition:
    """A log partition of which only some records are given."""
    return LogPartition(topic, partition, (Segment(LABEL, 0, 0),), 0, holds_all=False)


def by_log(tables: Iterable[pa.Table]) -> Iterator[tuple[LogPartition, Iterator[pa.Table]]]:
    """Cut decoded records where the log changes.

    Args:
        tables: columns of `decoded_records`; the records of a log follow each other, by offset.
    Yields:
        Each log, and its records, to be read before the next log; records that are there twice are given once.
    Raises:
        InputError: if a record has no offset.
    """
    pieces = ((log, part) for table in tables for log, part in _cut(declared_records(table)))
    current = next(pieces, None)
    while current is not None:
        log, first = current

        def records(log: LogPartition = log, first: pa.Table = first) -> Iterator[pa.Table]:
            nonlocal current
            yield first
            current = next(pieces, None)
            while current is not None and current[0] == log:
                yield current[1]
                current = next(pieces, None)

        of_log = _without_repeats(records())
        yield log, of_log
        # What was not read is of no use.
        for _ in of_log:
            pass


def sorted_by_log(records: pa.Table) -> pa.Table:
    """Decoded records in any order, as `by_log` takes them."""
    records = declared_records(records)
    offsets = records["offset"].to_numpy()
    if len(_log_bounds(records)) <= 2 and (offsets[1:] >= offsets[:-1]).all():
        return records
    is_control = pc.equal(records["dialect"], CONTROL_RECORDS)
    keys = {"_topic": pc.if_else(is_control, records["topic"], pa.scalar(None, pa.string()))}
    keys["_number"] = pc.if_else(is_control, records["partition"], records["state_partition"])
    keyed = records
    for name, column in keys.items():
        keyed = keyed.append_column(name, column)
    order = pc.sort_indices(keyed, [(name, "ascending") for name in ("dialect", *keys, "offset")])
    return records.take(order)


def declared_records(records: pa.Table) -> pa.Table:
    """The columns of `decoded_records` in their types; other libraries have texts and lists of their own.

    Raises:
        InputError: if a type does not fit, or a record has no offset.
    """
    schema = table_schema("decoded_records")
    try:
        if not records.schema.equals(schema):
            records = records.select(schema.names).cast(schema)
        records = records.combine_chunks()
    except pa.ArrowException as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"decoded records: {reason}; give the column types of decoded_records") from None
    if records["offset"].null_count:
        raise InputError(f"{LABEL}: a record has no offset, so its place in the log is not known")
    return records


def fold_decoded(
    log: LogPartition, tables: Iterable[pa.Table], options: FoldOptions | None = None
) -> tuple[Folded, Topics]:
    """Fold the records of one log.

    Args:
        log: from `by_log`.
        tables: its records, in offset order.
        options: how to fold them.
    Returns:
        The fold, without what only record batches show; the names of topics that the records hold.
    """
    options = options or FoldOptions()
    names = dict[str, str]()
    if log.topic != STATE_TOPIC:
        of_topic = ControlLogFold(log, Window())
        numbers = _KeyNumbers(of_topic.groups, ["group_id"])
        for records in tables:
            of_topic.take_decoded(_control_records(records, numbers))
        return of_topic.finish(options.control, options.limits), Topics()
    fold = LogFold(log, Window(), options)
    numbers = _KeyNumbers(fold.chain_fold.keys, ["group_id", "topic_id", "partition"])
    try:
        for records in tables:
            names |= _names_in(records)
            fold.take_decoded(_append_state_records(records, numbers, fold.chain_fold.buffer))
    except BaseException:
        fold.chain_fold.release_buffers()
        raise
    fold.options = replace(fold.options, topics=add_topic_names(options.topics, names))
    return fold.finish(), fold.options.topics


def _without_repeats(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Leave out records that equal the one before them, as sinks that write at least once leave them."""
    before: pa.Table | None = None
    for records in tables:
        joined = records if before is None else pa.concat_tables([before, records])
        offsets, before = joined["offset"].to_numpy(), records.slice(len(records) - 1)
        again = np.flatnonzero(offsets[1:] == offsets[:-1]) + 1
        kept = records
        if len(again):
            pairs = (joined.take(pa.array(rows)).to_pylist() for rows in (again, again - 1))
            repeats = [row for row, one, other in zip(again.tolist(), *pairs, strict=True) if one == other]
            is_kept = np.ones(len(joined), bool)
            is_kept[repeats] = False
            kept = records.filter(pa.array(is_kept[len(joined) - len(records) :])).combine_chunks()
        if len(kept):
            yield kept


def _cut(records: pa.Table) -> Iterator[tuple[LogPartition, pa.Table]]:
    for begin, end in pairwise(_log_bounds(records).tolist()):
        own = records.slice(begin, end - begin)
        names = _OF_CONTROL if own["dialect"][0].as_py() == CONTROL_RECORDS else _OF_STATE
        yield partial_log(*(own[name][0].as_py() for name in reversed(names))), own


def _log_bounds(records: pa.Table) -> np.ndarray:
    """As `_bounds`, of adjacent records of one log."""
    bounds = _bounds(records, ["dialect"])
    of_logs = [bounds[:1]]
    for begin, end in pairwise(bounds.tolist()):
        part = records.slice(begin, end - begin)
        is_control = part["dialect"][0].as_py() == CONTROL_RECORDS
        of_logs.append(begin + _bounds(part, _OF_CONTROL if is_control else _OF_STATE)[1:])
    return np.concatenate(of_logs)


def _bounds(rows: pa.Table, names: Sequence[str]) -> np.ndarray:
    """Adjacent rows with the same values of some columns: group n has those from bounds[n] to bounds[n + 1]."""
    is_new = np.zeros(len(rows), np.bool_)
    is_new[:1] = True
    for name in names:
        codes = _codes(rows[name])[0]
        is_new[1:] |= codes[1:] != codes[:-1]
    return np.append(np.flatnonzero(is_new), len(rows))


def _codes(column: pa.ChunkedArray) -> tuple[np.ndarray, pa.Array]:
    """A number for each value, null included, and the values."""
    encoded: Any = pc.call_function(
        "dictionary_encode", [column.combine_chunks()], pc.DictionaryEncodeOptions(null_encoding="encode")
    )
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary


def _names_in(records: pa.Table) -> dict[str, str]:
    if records["topic"].null_count == len(records):
        return {}
    named = records.select(["topic_id", "topic"]).filter(
        pc.field("topic").is_valid() & pc.field("topic_id").is_valid()
    )
    if not len(named):
        return {}
    distinct = named.group_by(["topic_id", "topic"], use_threads=False).aggregate([])
    return dict(zip(distinct["topic_id"].to_pylist(), distinct["topic"].to_pylist(), strict=True))


class _KeyNumbers:
    """Numbers of share-partitions in a KeyTable, by the columns that name them."""

    def __init__(self, keys: KeyTable, names: Sequence[str]) -> None:
        self._keys = keys
        self._names = names
        self._known = dict[tuple[Any, ...], int]()

    def of(self, records: pa.Table) -> np.ndarray:
        """int32, one per record; -1 if its key is not known."""
        code = np.zeros(len(records), np.int64)
        columns = [_codes(records[name]) for name in self._names]
        for codes, values in columns:
            code = code * max(1, len(values)) + codes
        _, first, place = np.unique(code, return_index=True, return_inverse=True)
        texts = [values.take(pa.array(codes[first])).to_pylist() for codes, values in columns]
        numbers = np.fromiter(map(self._number, zip(*texts, strict=True)), np.int32, len(first))
        return numbers[place.reshape(-1)]

    def _number(self, key: tuple[Any, ...]) -> int:
        if key not in self._known:
            is_known = None not in key
            self._known[key] = self._keys._add(_key_bytes(*key)) if is_known else _UNKNOWN
        return self._known[key]


def _key_bytes(group: str, topic_id: str | None = None, partition: int = 0) -> bytes:
    """The key of a share-partition without its type; the group alone in the log of a topic."""
    name = group.encode("utf-8", "surrogatepass")
    if topic_id is None:
        return name
    try:
        identity = base64.urlsafe_b64decode(topic_id + _UUID_PADDING)
    except ValueError:
        identity = b""
    if len(identity) != 16:
        raise InputError(
            f"decoded records: topic_id {topic_id!r} is not an id of Kafka's (22 characters of base64)"
        )
    return len(name).to_bytes(2, "big") + name + identity + partition.to_bytes(4, "big", signed=True)


def _append_state_records(records: pa.Table, numbers: _KeyNumbers, buffer: RecordBuffer) -> StateRecords:
    """Append decoded records of the state topic to the buffer of a fold."""
    rows, batches = _rows(records, STATE_RECORD, Kind, Fault, ("batches", "batch_count"))
    rows["key"] = numbers.of(records)
    rows["layout"] = _places(records["layout"], LAYOUTS)
    rows["type"] = rows["kind"] == Kind.UPDATE
    rows["value_version"] = np.where(rows["fault"] & Fault.VALUE_VERSION, _UNKNOWN, 0)
    if len(batches):
        rows["max_offset"] = np.maximum.reduceat(np.append(batches["last"], -1), rows["batches"])
    rows["max_offset"][rows["batch_count"] == 0] = -1
    faults = int(np.bitwise_or.reduce(rows["fault"], initial=0))
    rows["batches"] += buffer.batch_count
    into, all_batches = buffer.extend(len(rows), len(batches))
    write_rows(rows, into)
    write_rows(batches, all_batches[buffer.batch_count :])
    buffer.batch_count += len(batches)
    own_numbers = buffer.keys[buffer.row_count - len(rows) :]
    own_numbers[:] = rows["key"]
    is_snapshot = (
        (rows["key"] >= 0) & (rows["kind"] != Kind.UPDATE) & (rows["fault"] & UNREADABLE_FAULTS == 0)
    )
    last = int(rows["offset"][is_snapshot].max(initial=-1))
    buffer.last_snapshot_record = max(buffer.last_snapshot_record, last)
    return StateRecords(into, buffer.batches, faults, numbers=own_numbers, last_snapshot_record=last)


def _control_records(records: pa.Table, numbers: _KeyNumbers) -> ControlRecords:
    rows, tuples = _rows(records, CONTROL_RECORD, ControlKind, ControlFault, ("tuples", "tuple_count"))
    rows["group"] = numbers.of(records)
    rows["epoch"] = records["snapshot_epoch"].fill_null(0).to_numpy()
    kinds = {ControlKind.CHECKPOINT: CHECKPOINT_TYPE, ControlKind.DELTA: DELTA_TYPE}
    rows["type"] = np.select([rows["kind"] == kind for kind in kinds], list(kinds.values()), _UNKNOWN)
    return ControlRecords(rows, tuples)


def _rows(
    records: pa.Table, dtype: np.dtype, kinds: type[IntEnum], faults: type[IntEnum], ranges: tuple[str, str]
) -> tuple[np.ndarray, np.ndarray]:
    """The records as rows of the fold, and their STATE_BATCH rows; `ranges` are the fields that point to those."""
    rows = np.zeros(len(records), dtype)
    fields = {*(dtype.names or ())} & {*records.column_names}
    for name in fields - {"kind", "layout", "fault"}:
        if name in _TIMES:
            micros = records[name].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
            known = micros.is_valid().to_numpy()
            rows[name] = np.where(known, micros.fill_null(0).to_numpy() // 1000, _TIMES[name])
        else:
            nothing = 0 if name.endswith("_epoch") else _UNKNOWN
            rows[name] = records[name].fill_null(nothing).to_numpy()
    rows["kind"] = _places(records["kind"], pa.array([kind.name.lower() for kind in kinds]))
    for text in records["fault"].unique().drop_null().to_pylist():
        bits = sum(faults[name] for name in text.split(","))
        rows["fault"][pc.call_function("equal", [records["fault"], text]).fill_null(False).to_numpy()] = bits
    lists = records["state_batches"].combine_chunks()
    counts = lists.value_lengths().fill_null(0).to_numpy()
    batches = np.zeros(len(lists.flatten()), STATE_BATCH)
    read_batch_lists(lists, batches)
    first, count = ranges
    rows[first], rows[count] = np.cumsum(counts) - counts, counts
    return rows, batches


def _places(texts: pa.ChunkedArray, names: pa.Array) -> np.ndarray:
    """The place of each text among names.

    Raises:
        InputError: if it is none of them.
    """
    places = pc.call_function("index_in", [texts], pc.SetLookupOptions(names))
    if places.null_count:
        odd = texts.filter(places.is_null())[0].as_py()
        known = ", ".join(name for name in names.to_pylist() if name)
        raise InputError(f"decoded records: {odd!r} is none of {known}")
    return places.to_numpy()
