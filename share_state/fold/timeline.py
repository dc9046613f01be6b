"""The state after every record of chosen share-partitions: the incremental core of the audit, written down as it goes.

A share-partition's ranges are kept canonical in place (`held_ranges`) and copied out after each of its records, so a
record costs its own ranges and those it leaves, never the records before it.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.declarations import table_schema
from share_state.fold.chains import CHAIN, NOWHERE, Chains, by_key
from share_state.fold.chosen import Chosen
from share_state.fold.held_ranges import finished_among, fits, fitting
from share_state.fold.log import decode_log
from share_state.fold.states import declared, key_columns, state_table, times
from share_state.fold.topics import Topics
from share_state.fold.trace import advance
from share_state.fold.traced import FACT
from share_state.wire.as_of import AsOf, as_of_window
from share_state.wire.compiled import allocating_kernel
from share_state.wire.keys import KeyTable
from share_state.wire.log_folder import LogPartition, Window
from share_state.wire.move_rows import move_rows
from share_state.wire.plain_rows import copied
from share_state.wire.share_group_state import STATE_BATCH, UNREADABLE, StateRecords

TABLE = "timeline"

_KINDS = pa.array(["snapshot", "update", "tombstone"])
_POINTS, _RANGES = 1 << 16, 1 << 20


@dataclass(frozen=True, slots=True)
class Points:
    """States of share-partitions, each after one record.

    Attributes:
        rows: STATE_RECORD, the record of each; those of one share-partition follow each other, in log order.
        chains: CHAIN after it; `exists` is false after a tombstone.
        ends: int64; the ranges of point n are rows ends[n] to ends[n + 1] of `batches`.
        batches: STATE_BATCH rows, canonical within each point.
    """

    rows: np.ndarray
    chains: np.ndarray
    ends: np.ndarray
    batches: np.ndarray


class Timeline:
    """Carries chosen share-partitions of one log partition from chunk to chunk."""

    def __init__(self, *, points: int = _POINTS, ranges: int = _RANGES) -> None:
        """Begin a log partition.

        Args:
            points: at most so many at a time.
            ranges: room for the ranges of all points at a time; grows only where one point alone needs more.
        """
        self.chains = Chains()
        self._chains, self._at = np.empty(points, CHAIN), np.empty(points, np.int64)
        self._ends, self._batches = np.zeros(points + 1, np.int64), np.empty(ranges, STATE_BATCH)

    def take(self, records: StateRecords, chosen: np.ndarray) -> Iterator[Points]:
        """The states after the records of a chunk, to be read to the end before the next chunk.

        Args:
            records: decoded records in log order, later than all before.
            chosen: bool, entry n for share-partition number n; the others are left out.
        """
        # One more entry: number -1 is a record of no share-partition.
        rows = records.rows[np.append(chosen, False)[records.rows["key"]]]
        keys = len(chosen)
        order, starts = by_key(rows, keys)
        chains, carried = self.chains.grown(keys)
        place, room = np.array([0, -1, 0, 0]), np.empty(1024, STATE_BATCH)
        while True:
            made, room = _points(
                rows, records.batches, order, starts, chains, carried, self.chains.batches, place, room,
                self._chains, self._at, self._ends, self._batches,
            )  # fmt: skip
            if made:
                ends = self._ends[: made + 1].copy()
                yield Points(
                    rows[self._at[:made]], copied(self._chains[:made]), ends, copied(self._batches[: ends[-1]])
                )
            elif place[0] < keys:
                self._batches = np.empty(2 * len(self._batches), STATE_BATCH)
            if place[0] == keys:
                break
        self.chains.apply(StateRecords(rows, records.batches), keys)


def points_of(
    log: LogPartition, window: Window, chosen: Chosen, topics: Topics, losses: list[int] | None = None
) -> Iterator[tuple[Points, KeyTable]]:
    """The state after every record of chosen share-partitions of a log partition.

    Args:
        log: a log partition from `find_logs`.
        window: which records count.
        chosen: the share-partitions.
        topics: the names that are known.
        losses: takes the offsets from which records were found to be missing or unreadable, as they are met.
    Returns:
        Points, with the numbers of the share-partitions so far.
    """
    timeline, known, mask = Timeline(), 0, np.zeros(0, bool)
    for records, keys in decode_log(log, window, losses):
        if len(keys) > known:
            known, mask = len(keys), chosen.of(keys, topics)
        for points in timeline.take(records, mask):
            yield points, keys


def timeline_tables(
    log: LogPartition,
    window: Window | None = None,
    chosen: Chosen | None = None,
    topics: Topics | None = None,
    *,
    as_of: AsOf | None = None,
) -> Iterator[pa.Table]:
    """The table `timeline` of a log partition, piece by piece.

    Args:
        log: a log partition from `find_logs`.
        window: which records count; all of them by default.
        chosen: the share-partitions; all of them by default.
        topics: names and end offsets that are known.
        as_of: in place of a window: an offset, a moment or its ISO 8601 text; nothing later counts.
    Returns:
        Columns of schemas/tables/timeline.yaml. The rows of one share-partition come in log order.
    Raises:
        InputError: if a segment cannot be read.
    """
    losses: list[int] = []
    topics = topics or Topics()
    for points, keys in points_of(log, window or as_of_window(as_of), chosen or Chosen(), topics, losses):
        yield _table(points, keys, log.partition, topics, losses)


def suspects(points: Points, losses: list[int]) -> np.ndarray:
    """Whether records since each point's snapshot are missing or unreadable, as far as the log tells by then.

    Args:
        points: states after records.
        losses: offsets from which records are missing.
    Returns:
        bool, one a point.
    """
    lost = np.array([NOWHERE, *sorted(losses)])
    lost_by_then = lost[np.searchsorted(lost, points.rows["offset"], side="right") - 1]
    return (points.chains["suspect_offset"] != NOWHERE) | (lost_by_then > points.chains["snapshot_offset"])


def _table(points: Points, keys: KeyTable, partition: int | None, topics: Topics, losses: list[int]) -> pa.Table:
    key = key_columns(keys, points.rows["key"], topics)
    chains, topic_ends = (
        Chains(points.chains, points.ends, points.batches),
        topics.end_of(key["topic_id"], key["partition"]),
    )
    after = state_table(chains, key, partition, suspects(points, losses), topic_ends)
    exists = pa.array(points.chains["exists"])
    record = {"state_partition", "offset", "timestamp", "kind", *key}
    columns: dict[str, pa.Array] = {
        name: pc.call_function("if_else", [exists, after[name].combine_chunks(), pa.scalar(None, after[name].type)])
        for name in table_schema(TABLE).names
        if name not in record
    }
    columns |= key | {
        "state_partition": after["state_partition"].combine_chunks(),
        "offset": pa.array(points.rows["offset"].copy()),
        "timestamp": times(points.rows["timestamp"]),
        "kind": _KINDS.take(pa.array(points.rows["kind"].copy())),
    }
    return declared(TABLE, columns)


@allocating_kernel
def _points(
    rows, batches, order, starts, chains, carried, carried_batches, place, room, out_chains, out_at, out_ends, out
):
    """Go on with the records of a chunk until the room for points is full.

    Args:
        place: int64, where to go on, moved: share-partition, place in `order` (-1 at its beginning), its ranges held,
            offsets that they finish.
        room: holds the ranges of the share-partition (fold/held_ranges.py).
        out_chains, out_at, out_ends, out: take the points: CHAIN, row of the record, ends, STATE_BATCH.
    Returns:
        (how many points were made, the room).
    """
    fact = np.empty(1, FACT)
    key, number, size, finished = place[0], place[1], place[2], place[3]
    made, at = np.int64(0), np.int64(0)
    is_full = False
    while key < len(chains) and not is_full:
        if number < 0:
            number = starts[key]
            size = carried[key + 1] - carried[key]
            if starts[key] < starts[key + 1]:
                room = fitting(room, 0, size)
                move_rows(carried_batches, carried[key], room, 0, size)
                finished = finished_among(room, 0, size, chains[key].start_offset)
        while number < starts[key + 1]:
            row = rows[order[number]]
            count = np.int64(row.batch_count)
            # A wide range may fill the gaps between all the others.
            if made == len(out_chains) or at + 2 * (size + count + 1) > len(out):
                is_full = True
                break
            if not fits(room, size, count):
                room = fitting(room, size, count)
            size, finished = advance(row, batches, chains[key], room, size, finished, fact[0])
            if not row.fault & UNREADABLE:
                out_chains[made] = chains[key]
                out_at[made] = order[number]
                move_rows(room, 0, out, at, size)
                at += size
                made += 1
                out_ends[made] = at
            number += 1
        if not is_full:
            key += 1
            number = np.int64(-1)
    place[0], place[1], place[2], place[3] = key, number, size, finished
    return made, room
