"""Reads a log partition in offset order, in chunks of bounded size: batches are decompressed, and no offset repeats.

`read_chunks` yields the chunks of a log partition, `read_into` passes them to a consumer and reads ahead, and
`index_records` finds the records of a chunk inside a window. `segment_frames` finds the batches in the files;
`merge_replicas` selects one batch per offset where replicas or overlapping exports repeat a log.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from share_state.errors import InputError
from share_state.jit.compile import kernel
from share_state.kafka.buffers import PREFETCH_COUNT, BufferPool, byte_buffer, prefetched
from share_state.kafka.compression import CODEC_BITS, decompress_bodies, needs_decompression
from share_state.kafka.record_batches import (
    BATCH,
    CHUNK_SIZE,
    CONTROL,
    HEADER_SIZE,
    TRANSACTIONAL,
    BatchStatus,
    BatchSummary,
    Chunk,
    locate_and_check_records,
    summarize_batches,
)
from share_state.kafka.transactions import Fate, Transactions
from share_state.sources.as_of import Window
from share_state.sources.discovery import is_segment_name
from share_state.sources.log_partition import STATE_TOPIC, LogPartition, Segment, of_copies
from share_state.sources.segment_frames import frame_segments, load
from share_state.stores.paths import to_path


class RepeatedOffsetsError(Exception):
    """Raised when the segments of one folder overlap: the log must be read again with `merge=True`."""


_Part = TypeVar("_Part")


class ChunkConsumer(Protocol[_Part]):
    """Consumes the chunks of a log partition in order."""

    def prepare(self, part: Chunk) -> _Part:
        """Process what does not depend on earlier chunks; may run in another thread."""
        ...

    def take(self, part: _Part) -> None:
        """Consume the next chunk; its arrays stay valid until this returns."""
        ...


_Consumer = TypeVar("_Consumer", bound=ChunkConsumer[Any])


def read_into(
    make_consumer: Callable[[], _Consumer],
    log: LogPartition,
    *,
    chunk: int = CHUNK_SIZE,
    slices: int = 1,
    only_control: bool = False,
    cores: int = 1,
) -> _Consumer:
    """Pass all chunks of a log partition to a consumer; if segments overlap, start again with a new consumer.

    Args:
        make_consumer: creates an empty consumer.
        log, chunk, slices, only_control: as for `read_chunks`.
        cores: with more than one, the next chunks are read and prepared in a thread.
    Returns:
        The consumer that has consumed all chunks.
    Raises:
        InputError: if a segment cannot be read.
    """

    def read(*, merge: bool) -> _Consumer:
        consumer = make_consumer()
        buffers = 1 if cores == 1 else 1 + PREFETCH_COUNT
        parts = read_chunks(
            log, merge=merge, chunk=chunk, slices=slices, only_control=only_control, buffers=buffers
        )
        prepared = map(consumer.prepare, parts)
        for part in prepared if buffers == 1 else prefetched(prepared):
            consumer.take(part)
        return consumer

    try:
        return read(merge=log.has_replicas)
    except RepeatedOffsetsError:
        return read(merge=True)


def read_chunks(
    log: LogPartition,
    *,
    merge: bool = False,
    chunk: int = CHUNK_SIZE,
    slices: int = 1,
    only_control: bool = False,
    buffers: int = 1,
) -> Iterator[Chunk]:
    """The chunks of a log partition in offset order.

    The arrays of one stay valid until `buffers` more are read. In a log of `__share_group_state`, chunks from
    the first transaction on have its `transactions`, for which the batch headers are read twice.

    Args:
        log: the log partition, in segments or in another format.
        merge: read all batch headers first, then each offset from one replica only; needed if segments
            overlap.
        chunk: bytes to hold in memory at a time.
        slices: about how many chunks the bytes in memory are divided into, unless merged.
        only_control: do not decompress data batches; only control records will be read.
        buffers: number of chunks in memory.
    Raises:
        RepeatedOffsetsError: if `merge` is off and segments overlap.
        InputError: if a segment cannot be read.
    """
    parts = _read_parts(
        log, merge=merge, chunk=chunk, slices=slices, only_control=only_control, buffers=buffers
    )
    if only_control or log.topic != STATE_TOPIC:
        yield from parts
        return
    transactions = None
    for part in parts:
        if transactions is None and _has_transactions(part):
            transactions = Transactions.of(_read_parts(log, merge=merge, chunk=chunk, only_control=True))
        part.transactions = transactions
        yield part


def _has_transactions(part: Chunk) -> bool:
    flags = np.bitwise_or.reduce(part.batches["attributes"], initial=0)
    return bool(flags & (TRANSACTIONAL | CONTROL))


def _read_parts(
    log: LogPartition,
    *,
    merge: bool,
    chunk: int,
    slices: int = 1,
    only_control: bool = False,
    buffers: int = 1,
) -> Iterator[Chunk]:
    """`read_chunks` without transactions."""
    if log.source is not None:
        yield from log.source.chunks(log, chunk, merge=merge)
        return
    segments, pool = tuple(log.segments), BufferPool(byte_buffer, chunk, buffers)
    if not merge:
        last_offset = -1
        for framed in frame_segments(segments, chunk, buffers, slices):
            framed.summary = summarize_batches(framed.batches)
            last_offset = _checked_last_offset(framed.batches, framed.summary, last_offset)
            yield from _decompressed(framed, pool, only_control, log.max_body_size)
        return
    tables = [framed.batches.copy() for framed in frame_segments(segments, chunk)]
    table = np.concatenate(tables) if tables else np.zeros(0, BATCH)
    _mark_unreplicated(table, log)
    selected = merge_replicas(table)
    if len(selected) < len(table):
        yield Chunk(np.zeros(0, np.uint8), np.zeros(0, BATCH), repeated=len(table) - len(selected))
    for merged in _read_batches(segments, selected, chunk):
        yield from _decompressed(merged, pool, only_control, log.max_body_size)


def _decompressed(
    framed: Chunk, pool: BufferPool[np.ndarray], only_control: bool, max_size: int
) -> Iterator[Chunk]:
    """A chunk unchanged if nothing is compressed; otherwise one or more decompressed chunks."""
    summary = framed.summary or summarize_batches(framed.batches)
    if not summary.attributes & CODEC_BITS or not needs_decompression(framed.batches, only_control):
        yield framed
        return
    for data, batches, errors in decompress_bodies(framed.data, framed.batches, only_control, pool, max_size):
        yield Chunk(data, batches, errors)


def _checked_last_offset(batches: np.ndarray, summary: BatchSummary, last_offset: int) -> int:
    """The last offset after these batches.

    Raises:
        RepeatedOffsetsError: if a batch does not start after the last offset before it.
    """
    if summary.rows and summary.is_continuous and batches[0]["base_offset"] > last_offset:
        return int(batches[-1]["last_offset"])
    valid = batches[batches["status"] == BatchStatus.VALID]
    lasts = np.maximum.accumulate(np.concatenate(([last_offset], valid["last_offset"])))
    if (valid["base_offset"] <= lasts[:-1]).any():
        raise RepeatedOffsetsError
    return int(lasts[-1])


def _read_batches(segments: tuple[Segment, ...], table: np.ndarray, chunk: int) -> Iterator[Chunk]:
    """Read the batches of a table, in its order."""
    start = 0
    while start < len(table):
        ends = np.cumsum(table["size"][start:])
        count = max(1, int(np.searchsorted(ends, chunk, side="right")))
        rows = table[start : start + count].copy()
        data = np.empty(int(ends[count - 1]), np.uint8)
        rows["at"] = ends[:count] - rows["size"]
        shift = rows["at"] + np.minimum(HEADER_SIZE, rows["size"]) - rows["body"]
        rows["body"] += shift
        rows["body_end"] = rows["at"] + rows["size"]
        follows = (rows["segment"][1:] == rows["segment"][:-1]) & (
            rows["file_position"][1:] == rows["file_position"][:-1] + rows["size"][:-1]
        )
        for run in np.split(np.arange(count), np.flatnonzero(~follows) + 1):
            first, last = rows[run[0]], rows[run[-1]]
            load(
                segments[first["segment"]],
                int(first["file_position"]),
                data[first["at"] : last["at"] + last["size"]],
            )
        yield Chunk(data, rows)
        start += count


def without_obsolete_copies(log: LogPartition) -> LogPartition:
    """A log partition without the copies that end before the log start of the others: the broker deleted their records.

    Raises:
        InputError: if a segment cannot be read.
    Source: Kafka ReplicaManager.deleteRecords: a log start offset never decreases.
    """
    if len(log.copies) < 2:
        return log
    last = {segment.replica: segment for segment in log.segments}
    latest_first = sorted(last, key=lambda number: -log.copies[number].log_start_offset)
    start, ends = log.copies[latest_first[0]].log_start_offset, dict[int, int]()
    for number in latest_first:
        ends[number] = last[number].base_offset
        if ends[number] < start:
            ends[number] = _end_offset(last[number])
        if ends[number] >= start:
            start = min(start, log.copies[number].log_start_offset)
    remaining = {number for number, end in ends.items() if end >= start}
    return log if len(remaining) == len(ends) else of_copies(log, remaining)


def check_loose_segments(log: LogPartition) -> None:
    """Refuse files without a segment's name that are not parts or copies of one log: their folder names no partition.

    Raises:
        InputError: if most offsets of two of them hold different batches.
    """
    loose = [one for one in log.segments if not is_segment_name(to_path(one.path).name)]
    if log.partition is not None or len(loose) < 2:
        return
    tables = [_valid_batches(segment) for segment in loose]
    for number, table in enumerate(tables):
        for other in range(number):
            if _contradict(tables[other], table):
                first, second = loose[other].path, loose[number].path
                raise InputError(
                    f"{first} and {second}: different records at the same offsets, so they are segments of two state"
                    f" partitions, or copies that differ; move each into a folder named {log.topic}-N"
                )


def _contradict(table: np.ndarray, other: np.ndarray) -> bool:
    """Whether batches cover the same offsets, most of them with other bytes."""
    if not len(table) or not len(other):
        return False
    first = max(table["base_offset"][0], other["base_offset"][0])
    if first > min(table["last_offset"][-1], other["last_offset"][-1]):
        return False
    _, rows, other_rows = np.intersect1d(table["base_offset"], other["base_offset"], return_indices=True)
    return 2 * int((table["crc"][rows] == other["crc"][other_rows]).sum()) <= len(rows)


def _valid_batches(segment: Segment) -> np.ndarray:
    tables = [
        framed.batches[framed.batches["status"] == BatchStatus.VALID] for framed in frame_segments((segment,))
    ]
    return np.concatenate(tables) if tables else np.zeros(0, BATCH)


def _end_offset(segment: Segment) -> int:
    return int(_valid_batches(segment)["last_offset"].max(initial=segment.base_offset - 1)) + 1


def _mark_unreplicated(table: np.ndarray, log: LogPartition) -> None:
    """Mark batches above the high watermark of their copy that another copy replaces in a later leader epoch.

    Source: KIP-101; Kafka LeaderEpochFileCache.endOffsetFor, UnifiedLog.truncateTo.
    """
    copies = np.array([segment.replica for segment in log.segments])[table["segment"]]
    is_valid, base_offsets = table["status"] == BatchStatus.VALID, table["base_offset"]
    for number, copy in enumerate(log.copies):
        if copy.high_watermark is None:
            continue
        elsewhere = table[is_valid & (copies != number)]
        known = [entry for other in log.copies if other is not copy for entry in other.leader_epochs]
        epochs = np.concatenate((elsewhere["leader_epoch"], [epoch for epoch, _ in known]))
        starts = np.concatenate((elsewhere["base_offset"], [start for _, start in known]))[np.argsort(epochs)]
        # For each epoch, the first offset of this and all later epochs; infinity after the last epoch.
        first = np.append(np.minimum.accumulate(starts[::-1])[::-1], np.inf)
        above = np.flatnonzero(is_valid & (copies == number) & (base_offsets >= copy.high_watermark))
        later = np.searchsorted(np.sort(epochs), table["leader_epoch"][above], side="right")
        table["status"][above[first[later] <= base_offsets[above]]] = BatchStatus.UNREPLICATED


def merge_replicas(table: np.ndarray) -> np.ndarray:
    """Select one batch per offset from replicas or overlapping exports of a log.

    Batches with equal offsets and CRC are the same. If the bytes differ, the batch of the higher leader epoch
    is kept, because the log of that leader survived; the other batch stays in the result with status
    CONFLICT. So does a batch of an earlier leader epoch than a batch before it: followers truncate it
    (KIP-101).

    Args:
        table: BATCH rows of all replicas, in any order.
    Returns:
        BATCH rows in offset order; no two VALID ones share an offset.
    """
    # Damaged batches come before the valid replica of the same offset, so that no gap appears after them.
    is_valid = table["status"] == BatchStatus.VALID
    order = np.lexsort(
        (table["segment"], -table["leader_epoch"].astype("i8"), is_valid, table["base_offset"])
    )
    table = table[order]
    valid, keep = table[table["status"] == BatchStatus.VALID], np.ones(len(table), np.bool_)
    # Of one copy all is read: no checksum covers its leader epochs.
    overlaps = (valid["base_offset"][1:] <= valid["last_offset"][:-1]).any()
    _mark_repeated(table, keep, bool(overlaps))
    return table[keep]


@kernel
def _mark_repeated(table, keep, overlaps):
    kept = -1
    for row in range(len(table)):
        if table[row].status != BatchStatus.VALID:
            continue
        is_after = kept < 0 or table[row].base_offset > table[kept].last_offset
        if is_after and (not overlaps or kept < 0 or table[row].leader_epoch >= table[kept].leader_epoch):
            kept = row
        elif (
            table[row].base_offset == table[kept].base_offset
            and table[row].last_offset == table[kept].last_offset
            and table[row].crc == table[kept].crc
        ):
            keep[row] = False
        else:
            table[row].status = np.int8(BatchStatus.CONFLICT)


_ALL = Window()


@dataclass(frozen=True, slots=True)
class RecordIndex:
    """The records of a chunk inside a window.

    Attributes:
        part: the chunk without the batches outside the window.
        summary: summary of its batches.
        located: RECORD rows of all its valid batches.
        records: those inside the window that count: not those of open and aborted transactions.
        had_valid: whether the chunk had a valid batch, inside the window or not.
        fates: Fate of the records of each batch; None without transactions.
    """

    part: Chunk
    summary: BatchSummary
    located: np.ndarray
    records: np.ndarray
    had_valid: bool
    fates: np.ndarray | None = None

    def offsets_of(self, fate: Fate) -> np.ndarray:
        """The offsets of the records with a fate, whether inside the window or not."""
        if self.fates is None:
            return np.zeros(0, np.int64)
        return self.located["offset"][self.fates[self.located["batch"]] == fate]

    @property
    def first_open_row(self) -> int | None:
        """The first batch of an open transaction, None for none."""
        rows = np.zeros(0, np.int64) if self.fates is None else np.flatnonzero(self.fates == Fate.OPEN)
        return int(rows[0]) if len(rows) else None

    def split(self, row: int) -> "tuple[RecordIndex, RecordIndex]":
        """The batches before a row, and those from it on."""
        return self._of_rows(0, row), self._of_rows(row, len(self.part.batches))

    def _of_rows(self, begin: int, end: int) -> "RecordIndex":
        part = self.part
        errors = {row - begin: error for row, error in part.errors.items() if begin <= row < end}
        repeated = 0 if begin else part.repeated
        batches = part.batches[begin:end]
        kept = Chunk(part.data, batches, errors, repeated, faults=part.faults, transactions=part.transactions)
        summary, is_whole = summarize_batches(batches), self.records is self.located
        located = _records_of(self.located, begin, end)
        records = located if is_whole else _records_of(self.records, begin, end)
        fates = None if self.fates is None else self.fates[begin:end]
        return RecordIndex(kept, summary, located, records, summary.valid > 0, fates)


def _records_of(records: np.ndarray, begin: int, end: int) -> np.ndarray:
    """The RECORD rows of some batches, whose numbers then begin at 0."""
    kept = records[(records["batch"] >= begin) & (records["batch"] < end)]
    kept["batch"] -= begin
    return kept


def index_records(part: Chunk, begin: int, window: Window) -> RecordIndex:
    """Find the records of a chunk inside a window; does not depend on earlier chunks.

    Args:
        part: chunk from `read_chunks`; batches whose records cannot be located become MALFORMED in place.
        begin: skip valid batches that end before this offset: deleted by the broker or read by an earlier
            run.
        window: selects the records.
    """
    summary = part.summary or summarize_batches(part.batches)
    within = _within(part, summary, begin, window.until_offset)
    records, any_malformed = within.records, False
    if records is None:
        records, any_malformed = locate_and_check_records(within.data, within.batches)
    left = summarize_batches(within.batches) if any_malformed or within is not part else summary
    selected = records if window == _ALL else records[window.mask(records)]
    fates = None
    if part.transactions is not None:
        transactions = part.transactions.until(window.until_offset, window.until_time_ms)
        fates = transactions.fates(within.batches)
        if fates.any():
            selected = selected[fates[selected["batch"]] == Fate.COUNTS]
    return RecordIndex(within, left, records, selected, summary.valid > 0, fates)


def _within(part: Chunk, summary: BatchSummary, begin: int, until: int | None) -> Chunk:
    """A chunk without the batches that end before `begin` or start at `until` or later."""
    if summary.least_last_offset >= begin and (
        until is None or (summary.all_valid and summary.greatest_base_offset < until)
    ):
        return part
    batches = part.batches
    outside = (batches["status"] == BatchStatus.VALID) & (batches["last_offset"] < begin)
    if until is not None:
        outside |= batches["base_offset"] >= until
    if not outside.any():
        return part
    new_rows = np.cumsum(~outside) - 1
    errors = {int(new_rows[row]): error for row, error in part.errors.items() if not outside[row]}
    records = part.records
    if records is not None:
        records = records[~outside[records["batch"]]]
        records["batch"] = new_rows[records["batch"]]
    transactions = part.transactions
    return Chunk(
        part.data, batches[~outside], errors, part.repeated, records, part.faults, transactions=transactions
    )
