"""Checkpoints of the fold of a log partition: an audit writes them to tables, and the next audit resumes from them."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from share_state.fold.log_stats import LogCounts, LogExtent, piece_bounds
from share_state.fold.outcomes import blank_outcomes
from share_state.fold.state_chains import CHAIN, NO_OFFSET, Chains
from share_state.fold.states import RANGE_COLUMNS, batch_lists, read_batch_lists, sizes_before, slice_chains
from share_state.jit.compile import kernel
from share_state.kafka.buffers import clone_rows, column_bytes
from share_state.kafka.share_partition_keys import KeyTable
from share_state.kafka.state_records import STATE_BATCH, Layout
from share_state.schema.declarations import table_schema
from share_state.sources.resume_point import ResumePoint

_VERSION = 2
"""Version of the checkpoint; an audit that finds another version reads the log from its start."""

CHECKPOINT_TABLE = "carried_share_partitions"
"""A table of audits, and of a stream in the command's own process."""
_NAMES = table_schema(CHECKPOINT_TABLE).names
_NOT_CARRIED = ("break_offset", "begins_here")
_COLUMNS = dict(zip([name for name in CHAIN.names or () if name not in _NOT_CARRIED],
                    _NAMES[2 : _NAMES.index("batches")], strict=True))  # fmt: skip
"""Field of CHAIN -> column; the columns keep the names of the first release."""
_COUNTED = _NAMES[_NAMES.index("batches") + 1 :]
"""Fields of OUTCOMES, and columns."""

_ROWS, _SEAL = "share_partitions", "digest"
"""Keys of `carried`: the digest of the log's share-partitions, and that of everything else in it."""
_FNV_BASIS, _MIX = np.uint64(0xCBF29CE484222325), np.uint64(0xFF51AFD7ED558CCD)


@dataclass(slots=True)
class FoldCheckpoint:
    """State of the fold of a log partition.

    A fold that resumes from it has the same result as one without a stop.

    Attributes:
        mark: the last valid batch.
        keys, chains: every share-partition with records in the log, and their folded state.
        last_lost_offset: latest offset from which records of any share-partition may be missing, -1 for none.
        last_break: as in Chains, -1 for none.
        archiving_since, archiving_time: offset and timestamp (ms) of the first record with a batch in state
            ARCHIVING, -1 for none.
        outcomes: OUTCOMES rows of a stream since it began, one per share-partition; None in that of an audit.
    """

    mark: ResumePoint
    keys: KeyTable
    chains: Chains
    extent: LogExtent
    counts: LogCounts
    last_lost_offset: int
    last_break: int
    archiving_since: int
    archiving_time: int
    outcomes: np.ndarray | None = None


def checkpoint_row(name: str, checkpoint: FoldCheckpoint) -> dict[str, Any]:
    """The row of a log in the table `carried_logs`."""
    extent, counts = checkpoint.extent, checkpoint.counts
    log = {
        "form": _VERSION,
        "mark": asdict(checkpoint.mark),
        "runs": extent.runs.tolist(),
        "cells": extent.cells.tolist(),
        "layouts": list(counts.layouts.items()),
        "transactional": counts.transactional,
        "unknown_types": list(counts.unknown_types.items()),
        "unknown_tags": counts.unknown_tags,
        "records": counts.records,
        "other_records": counts.other_records,
        "foreign": counts.foreign,
        "aborted": counts.aborted,
        "deliveries": list(counts.deliveries.items()),
        "lost_at": checkpoint.last_lost_offset,
        "break_at": checkpoint.last_break,
        "archiving_since": checkpoint.archiving_since,
        "archiving_time": checkpoint.archiving_time,
        "last_snapshot_record": checkpoint.chains.last_snapshot_record,
    }
    return {"log": name, "next_offset": checkpoint.mark.next_offset, "carried": json.dumps(log)}


def with_input(carried: str, digest: Callable[[], str]) -> str:
    """Add a hash of the input to the column `carried` of `carried_logs` if records are missing."""
    log = json.loads(carried)
    return (
        carried if log["mark"]["is_sound"] else json.dumps(log | {"mark": log["mark"] | {"input": digest()}})
    )


def with_digest(carried: str, share_partitions: str) -> str:
    """Add the digest of its share-partitions (`RowDigest.text`) to the column `carried` of `carried_logs`."""
    return json.dumps(json.loads(carried) | {_ROWS: share_partitions})


def sealed(name: str, carried: str) -> str:
    """The complete column `carried` of a log, with a digest that shows whether another program changes it."""
    log = json.loads(carried)
    return json.dumps(log | {_SEAL: _seal_of(name, log)})


def is_as_written(name: str, carried: str) -> bool:
    """Whether the column `carried` of a log is as it was written.

    True for one without a digest, as of 0.1.0.
    """
    log = json.loads(carried)
    return not {_SEAL, _ROWS} & log.keys() or log.get(_SEAL) == _seal_of(name, log)


def digest_of_rows(carried: str) -> str | None:
    """The digest of the share-partitions that belong to the column `carried`.

    None if it was written without.
    """
    return json.loads(carried).get(_ROWS)


def _seal_of(name: str, log: Mapping[str, Any]) -> str:
    content = json.dumps({key: value for key, value in log.items() if key != _SEAL}, sort_keys=True)
    return hashlib.blake2b(f"{name} {content}".encode(), digest_size=16).hexdigest()


_UINT64 = 2**64 - 1


class RowDigest:
    """A hash of the rows of `carried_share_partitions` of one log, in any order, as OPTIMIZE changes it."""

    def __init__(self) -> None:
        self._count = 0
        self._sum = 0
        self._has_nulls = False

    @property
    def text(self) -> str:
        """The hash so far; null values, which no run writes, have none."""
        return "" if self._has_nulls else f"{self._count}:{self._sum:016x}"

    def of_each(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Pass tables on, adding each."""
        for table in tables:
            self.take(table)
            yield table

    def take(self, rows: pa.Table) -> None:
        """Add rows."""
        for batch in rows.to_batches():
            ranges = batch["batches"].flatten()
            columns = [batch[name] for name in _NAMES if name not in _COUNTED]
            columns += [ranges, *(ranges.field(name) for name in RANGE_COLUMNS.values())]
            self._has_nulls |= any(column.null_count for column in columns)
            if batch.num_rows and not self._has_nulls:
                self.take_hashes(_row_hashes(batch))

    def take_hashes(self, hashes: np.ndarray) -> None:
        """Add rows by their `row_hashes`."""
        self._count += len(hashes)
        # numpy would warn of each overflow of two scalars.
        self._sum = (self._sum + int(hashes.sum(dtype=np.uint64))) & _UINT64


def row_hashes(rows: pa.Table) -> np.ndarray:
    """uint64, a hash of each row of `carried_share_partitions`, without its counters, so it has no nulls."""
    return np.concatenate(
        [np.zeros(0, np.uint64), *(_row_hashes(batch) for batch in rows.to_batches() if len(batch))]
    )


def _row_hashes(batch: pa.RecordBatch) -> np.ndarray:
    """A hash of the key, the numbers and the batches of each row."""
    hashes = np.full(batch.num_rows, _FNV_BASIS, np.uint64)
    key, key_ends = column_bytes(batch["key"])
    add_slices(key, key_ends, hashes)
    numbers = _words([batch[column] for column in _COLUMNS.values()])
    add_slices(numbers, np.arange(len(hashes) + 1) * len(_COLUMNS), hashes)
    lists, ranges = batch["batches"], batch["batches"].flatten()
    sizes = lists.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
    words = _words([ranges.field(name) for name in RANGE_COLUMNS.values()])
    add_slices(words, np.concatenate(([0], np.cumsum(sizes))) * len(RANGE_COLUMNS), hashes)
    # Rows are added up: equal changes of two rows must not cancel each other.
    hashes ^= hashes >> np.uint64(33)
    hashes *= _MIX
    return hashes ^ (hashes >> np.uint64(33))


def _words(columns: Sequence[pa.Array]) -> np.ndarray:
    """Numbers of several columns, row by row."""
    words = np.empty((len(columns[0]), len(columns)), np.int64)
    for number, column in enumerate(columns):
        words[:, number] = column.to_numpy(zero_copy_only=False)
    return words.ravel().view(np.uint64)


@kernel
def add_slices(words, ends, hashes):
    """Continue the hash of each row (FNV-1a, by word) with its slice of an array: ends[row] to ends[row + 1]."""
    for row in range(len(hashes)):
        value = (hashes[row] ^ np.uint64(ends[row + 1] - ends[row])) * np.uint64(0x100000001B3)
        for at in range(ends[row], ends[row + 1]):
            value = (value ^ np.uint64(words[at])) * np.uint64(0x100000001B3)
            value ^= value >> np.uint64(32)
        hashes[row] = value


def resume_point_of(carried: str) -> ResumePoint | None:
    """Where to resume, from the column `carried` of `carried_logs`; None for a checkpoint of another version.

    Raises:
        DamagedCheckpointError: if it is not what a run writes.
    """
    log = _parsed(carried)
    return None if log is None else log.mark


class DamagedCheckpointError(Exception):
    """Raised if a row of `carried_logs` is not what a run writes."""


@dataclass(frozen=True, slots=True)
class _CarriedLog:
    mark: ResumePoint
    extent: LogExtent
    counts: LogCounts
    last_lost_offset: int
    last_break: int
    archiving_since: int
    archiving_time: int
    last_snapshot_record: int


def _parsed(carried: str) -> _CarriedLog | None:
    try:
        log = json.loads(carried)
        if log["form"] != _VERSION:
            return None
        mark = ResumePoint(**log["mark"])
        mark.check()
        extent = LogExtent()
        extent.runs = np.array([tuple(run) for run in log["runs"]], extent.runs.dtype)
        extent.cells = np.array([tuple(cell) for cell in log["cells"]], extent.cells.dtype)
        counts = LogCounts(
            layouts={_layout(number): _int64(offset) for number, offset in log["layouts"]},
            transactional=_pair(log["transactional"]),
            unknown_types={_int64(kind): _pair(seen) for kind, seen in log["unknown_types"]},
            unknown_tags=_pair(log["unknown_tags"]),
            records=_int64(log.get("records", 0)),
            other_records=_int64(log.get("other_records", 0)),
            foreign=_pair(log.get("foreign", (NO_OFFSET, 0))),
            aborted=_pair(log.get("aborted", (NO_OFFSET, 0))),
            deliveries={str(group): _int64(count) for group, count in log.get("deliveries", ())},
        )
        log.setdefault("break_at", NO_OFFSET)
        names = ("lost_at", "break_at", "archiving_since", "archiving_time", "last_snapshot_record")
        numbers = [log[name] for name in names]
        np.array(numbers, np.int64)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise DamagedCheckpointError from error
    return _CarriedLog(mark, extent, counts, *numbers)


def _layout(number: Any) -> int:
    if number not in (Layout.EARLY, Layout.CURRENT):
        raise ValueError(number)
    return int(number)


def _pair(value: Any) -> tuple[int, int]:
    first, count = value
    return _int64(first), _int64(count)


def _int64(value: Any) -> int:
    return int(np.int64(int(value)))


def checkpoint_share_partitions(name: str, checkpoint: FoldCheckpoint) -> Iterator[pa.Table]:
    """The share-partitions of a checkpoint: the table `carried_share_partitions`, in pieces.

    Deleted share-partitions are included while their last record is in the log.
    """
    chains, cells = checkpoint.chains, checkpoint.extent.cells
    floor, scalars = cells["first"][0] if len(cells) else 0, chains.chains
    is_in_log = scalars["exists"] | (scalars["last_offset"] >= floor) | (scalars["suspect_offset"] >= floor)
    keys = checkpoint.keys.binary()
    for begin, end in piece_bounds(sizes_before(chains)):
        piece, numbers = slice_chains(chains, begin, end), np.flatnonzero(is_in_log[begin:end])
        # Dropped share-partitions have no ranges, so the lists of the others are adjacent.
        ends = np.concatenate(([0], np.cumsum(np.diff(piece.ends)[numbers])))
        columns = [
            pa.repeat(pa.scalar(name), len(numbers)),
            keys[begin:end].take(pa.array(numbers)),
            *(pa.array(piece.chains[field][numbers]) for field in _COLUMNS),
            batch_lists(ends, piece.batches),
            *_counted_columns(checkpoint.outcomes, begin + numbers),
        ]
        yield pa.table(columns, schema=table_schema(CHECKPOINT_TABLE))


def _counted_columns(outcomes: np.ndarray | None, numbers: np.ndarray) -> list[pa.Array]:
    """The columns of some share-partitions that a stream alone has."""
    if outcomes is None:
        return [pa.nulls(len(numbers), pa.int64()) for _ in _COUNTED]
    return [pa.array(outcomes[name][numbers]) for name in _COUNTED]


def _restored_outcomes(share_partitions: pa.Table) -> np.ndarray | None:
    """OUTCOMES rows, None if no row has any; an audit or an earlier release leaves them out."""
    known = [name for name in _COUNTED if name in share_partitions.column_names]
    if all(share_partitions[name].null_count == len(share_partitions) for name in known):
        return None
    outcomes = blank_outcomes(len(share_partitions))
    for name in known:
        blank = int(blank_outcomes(1)[name][0])
        outcomes[name] = share_partitions[name].fill_null(blank).to_numpy()
    return outcomes


def restore_checkpoint(carried: str, share_partitions: pa.Table) -> FoldCheckpoint:
    """Build a checkpoint from the output of `checkpoint_row` and `checkpoint_share_partitions`.

    Args:
        carried: the column `carried` of the log's row in `carried_logs`.
        share_partitions: the log's rows of `carried_share_partitions`, in any order.
    """
    log, pieces = _parsed(carried), share_partitions.to_batches()
    assert log is not None
    lists = [piece["batches"] for piece in pieces]
    chains = np.empty(len(share_partitions), CHAIN)
    batches = np.empty(sum(len(ranges.flatten()) for ranges in lists), STATE_BATCH)
    ends = np.zeros(len(chains) + 1, np.int64)
    row = at = 0
    # One piece at a time: combining them first would need as much memory again.
    for piece, ranges in zip(pieces, lists, strict=True):
        end, batch_end = row + len(piece), at + len(ranges.flatten())
        for field, column in _COLUMNS.items():
            chains[field][row:end] = piece[column].to_numpy(zero_copy_only=False)
        read_batch_lists(ranges, batches[at:batch_end])
        ends[row + 1 : end + 1] = at + np.cumsum(ranges.value_lengths().to_numpy(zero_copy_only=False))
        row, at = end, batch_end
    chains["break_offset"] = NO_OFFSET
    chains["begins_here"] = chains["was_deleted"] | (log.mark.folded_from == 0)
    return FoldCheckpoint(
        mark=log.mark,
        keys=KeyTable.of(share_partitions["key"]),
        chains=Chains(chains, ends, batches, log.last_snapshot_record, log.mark.folded_from == 0),
        extent=log.extent,
        counts=log.counts,
        last_lost_offset=log.last_lost_offset,
        last_break=log.last_break,
        archiving_since=log.archiving_since,
        archiving_time=log.archiving_time,
        outcomes=_restored_outcomes(share_partitions),
    )


def copy_of(state: FoldCheckpoint) -> FoldCheckpoint:
    """A copy that a fold may change, equal to what `restore_checkpoint` makes of the rows of a state."""
    scalars, before = state.chains.chains, state.chains
    begins_at_zero = state.mark.folded_from == 0
    begins_here = scalars["was_deleted"] | begins_at_zero
    if before.last_break != NO_OFFSET or not np.array_equal(scalars["begins_here"], begins_here):
        scalars = clone_rows(scalars)
        scalars["break_offset"], scalars["begins_here"] = NO_OFFSET, begins_here
    # A fold makes new arrays of these and of the keys, and changes the others in place.
    chains = Chains(scalars, before.ends, before.batches, before.last_snapshot_record, begins_at_zero)
    extent, counts = deepcopy((state.extent, state.counts))
    return replace(state, keys=state.keys.copy(), chains=chains, extent=extent, counts=counts)
