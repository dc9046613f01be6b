"""Rows that travel through Spark as Arrow record batches in bytes.

Spark converts each column of each row between its own layout and Arrow's, and sorts rows one by one; bytes
it copies. So records are packed before a shuffle, in batches of one task and one block of offsets of a log, and
rows before they are kept. Spark sorts the batches, on its disks where they are many.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema

from share_state.fold.states import in_large_pieces
from share_state.spark.connections import described

_PIECE_BYTES = 32 << 20
"""Rows that are sorted and folded at a time; below that, a call costs as much as its records."""

_BLOCK_OFFSETS = 65_536
"""Offsets of a log whose records share batches: a task holds those of few blocks at a time, in any order."""

_PACKED_BYTES = 64 << 10
"""Size of a batch before it is compressed. Without a limit of bytes, Spark gives a task thousands at once."""

_GIVEN_ROWS = 10_000
"""Rows that are unpacked at a time, as many as Spark gives by default."""

_LABEL = "label"
_LOG, _FIRST = "log", "first_offset"
_KIND = "kind"
_SIZE, _ROWS = "size", "rows"
_BATCH = pa.schema([(_SIZE, pa.int64()), (_ROWS, pa.binary())])
_SHUFFLED = pa.schema([(_LABEL, pa.int32()), (_LOG, pa.string()), (_FIRST, pa.int64()), *_BATCH])
KEPT = pa.schema([(_KIND, pa.string()), *_BATCH])
"""Columns of `packed`."""
_CODEC = "lz4_raw"
SHUFFLE_TASKS = "spark.sql.shuffle.partitions"
_PARTITIONS_BY_DEFAULT = 200
_CANDIDATES_PER_TASK = 64
_LABELS = dict[int, list[int]]()
_LONGEST = 2**31 - 1
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class Placed:
    """Records, and where each belongs.

    Attributes:
        rows: with a column `offset` without nulls.
        hashes: uint64, equal for the records of a share-partition.
        logs: the name of the log of each.
    """

    rows: pa.Table
    hashes: np.ndarray
    logs: pa.Array


def shuffled(
    frame: DataFrame,
    place: Callable[[pa.Table], Placed],
    schema: pa.Schema,
    work: Callable[[Iterator[pa.Table]], Iterator[pa.RecordBatch]],
    result: pa.Schema = KEPT,
    tasks: int | None = None,
) -> DataFrame:
    """Bring the records of each share-partition, or of each log, to one task.

    Args:
        frame: records.
        place: places rows of the frame.
        schema: of placed rows.
        work: gets tables of one log each; those of a log follow each other, in offset order. Yields batches of
            `result`.
        result: the columns of the frame that is returned; by default those of `packed`, for `unpacked`.
        tasks: how many there are; records with hash n go to task n modulo `tasks`. None: as many as the session
            has for shuffles, of which Spark joins small ones.
    Returns:
        What `work` yields.
    """
    labels = _labels(frame.sparkSession) if tasks is None else list(range(tasks))

    def pack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for piece in in_large_pieces(map(pa.table, batches), _PIECE_BYTES, "nbytes"):
            yield from _packed_records(place(piece), labels)

    def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from work(_in_offset_order(batches, schema, _PIECE_BYTES))

    sent = frame.mapInArrow(pack, from_arrow_schema(_SHUFFLED))
    sent = sent.repartition(_LABEL) if tasks is None else sent.repartitionById(tasks, _LABEL)
    return sent.sortWithinPartitions(_LOG, _FIRST).mapInArrow(unpack, from_arrow_schema(result))


def hashes_of(column: pa.ChunkedArray, skipped: int = 0) -> np.ndarray:
    """uint64, a hash of each text or of each row of bytes, none of which is null; equal in every process.

    Args:
        column: the texts or bytes.
        skipped: how many bytes at the start of each do not count.
    """
    encoded = pc.dictionary_encode(column.combine_chunks())
    # Without an end, Arrow fails for bytes that are shorter than that.
    values = pc.binary_slice(encoded.dictionary.cast(pa.binary()), skipped, _LONGEST).to_pylist()
    hashed = np.fromiter(map(xxhash.xxh3_64_intdigest, values), np.uint64, len(values))
    return hashed[encoded.indices.to_numpy()]


def joined_hashes(columns: Iterable[np.ndarray]) -> np.ndarray:
    """uint64, a hash of several columns of integers."""
    first, *others = columns
    joined = first.astype(np.uint64)
    for column in others:
        joined = joined * _MULTIPLIER + column.astype(np.uint64)
    return joined


def packed(kind: str, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows that hold rows of a kind."""
    step = _rows_of_a_batch(rows)
    begins = range(0, len(rows), step)
    given = _compressed(rows.slice(begin, step) for begin in begins)
    return pa.RecordBatch.from_arrays([pa.repeat(kind, len(begins)), *given], schema=KEPT)


def unpacked(
    frame: DataFrame,
    kind: str,
    schema: pa.Schema,
    made: Callable[[pa.Table], pa.Table] | None = None,
    result: pa.Schema | None = None,
) -> DataFrame:
    """The rows of a kind, or what is made of them.

    Args:
        frame: rows of `packed`.
        kind: which of them.
        schema: theirs.
        made: makes the rows of a table from those of some packed batches; None to return them.
        result: the columns that it makes.
    """

    def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        given = (pa.table(rows) for batch in batches for rows in _batches_of(batch, schema))
        if made is not None:
            given = (made(rows).cast(result) for rows in given)
        for piece in in_large_pieces(given, _GIVEN_ROWS):
            yield from piece.combine_chunks().to_batches()

    of_kind = frame.where(sql.col(_KIND) == kind).select(*_BATCH.names)
    return of_kind.mapInArrow(unpack, from_arrow_schema(result or schema))


def shuffle_tasks(spark: SparkSession) -> int:
    """How many tasks a shuffle of a session has; some clusters give no number."""
    configured = spark.conf.get(SHUFFLE_TASKS) or ""
    return int(configured) if configured.isdigit() else _PARTITIONS_BY_DEFAULT


def _labels(spark: SparkSession) -> list[int]:
    """One number for each task of a shuffle, which Spark sends there: hashes of fewer numbers would meet."""
    count = shuffle_tasks(spark)
    if count not in _LABELS:
        # Spark hashes numbers of other types otherwise.
        task = sql.pmod(sql.hash(sql.col("id").cast("int")), sql.lit(count)).alias("task")
        with described(spark, "share_state: number the tasks of a shuffle"):
            tasks = spark.range(_CANDIDATES_PER_TASK * count).select(task).toArrow()["task"].to_numpy()
        _LABELS[count] = np.unique(tasks, return_index=True)[1].tolist()
    return _LABELS[count]


def _packed_records(placed: Placed, labels: list[int]) -> Iterator[pa.RecordBatch]:
    if not len(placed.rows):
        return
    task = (placed.hashes % np.uint64(len(labels))).astype(np.int64)
    names = placed.logs.dictionary_encode()
    log, offset = names.indices.to_numpy(), placed.rows["offset"].to_numpy()
    order = np.lexsort((offset, log, task))
    rows = placed.rows.take(pa.array(order)).combine_chunks().to_batches()[0]
    begins = np.zeros(len(order), bool)
    for place in (task, log, offset // _BLOCK_OFFSETS):
        begins |= np.diff(place[order], prepend=place[order[0]] - 1) != 0
    positions = np.arange(len(order))
    in_block = positions - np.maximum.accumulate(np.where(begins, positions, 0))
    begins = np.flatnonzero(in_block % _rows_of_a_batch(rows) == 0)
    firsts = order[begins]
    ends = pairwise([*begins.tolist(), len(order)])
    columns = [
        pa.array(np.array(labels, np.int32)[task[firsts]]),
        names.dictionary.take(pa.array(log[firsts])),
        pa.array(offset[firsts]),
        *_compressed(rows.slice(begin, end - begin) for begin, end in ends),
    ]
    yield pa.RecordBatch.from_arrays(columns, schema=_SHUFFLED)


def _in_offset_order(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, piece_bytes: int
) -> Iterator[pa.Table]:
    """Merge packed records of each log, which begin in offset order but may overlap."""
    blocks = (
        block
        for batch in batches
        for block in zip(
            batch[_LOG].to_pylist(), batch[_FIRST].to_pylist(), _batches_of(batch, schema), strict=True
        )
    )
    for _, of_log in groupby(blocks, lambda block: block[0]):
        waiting, size = list[pa.RecordBatch](), 0
        limit = piece_bytes
        for _, first, rows in of_log:
            if size >= limit:
                merged = _sorted(waiting)
                end = int(np.searchsorted(merged["offset"].to_numpy(), first))
                if end:
                    yield merged.slice(0, end)
                waiting = merged.slice(end).to_batches()
                size = sum(batch.nbytes for batch in waiting)
                # What overlaps is sorted again only when as much has come.
                limit = max(piece_bytes, 2 * size)
            waiting.append(rows)
            size += rows.nbytes
        yield _sorted(waiting)


def _sorted(batches: list[pa.RecordBatch]) -> pa.Table:
    rows = pa.Table.from_batches(batches).combine_chunks()
    offsets = rows["offset"].to_numpy()
    if (offsets[1:] >= offsets[:-1]).all():
        return rows
    return rows.take(pa.array(np.argsort(offsets, kind="stable"))).combine_chunks()


def _rows_of_a_batch(rows: pa.RecordBatch) -> int:
    return max(1, _PACKED_BYTES * len(rows) // max(rows.nbytes, 1))


def _compressed(batches: Iterable[pa.RecordBatch]) -> list[pa.Array]:
    """Columns of `_BATCH`."""
    sizes, compressed = list[int](), list[bytes]()
    # One at a time, so that the memory of a batch serves the next one while it is in the CPU cache.
    for batch in batches:
        serialized = batch.serialize()
        sizes.append(serialized.size)
        compressed.append(pa.compress(serialized, codec=_CODEC, asbytes=True))
    return [pa.array(sizes, pa.int64()), pa.array(compressed, pa.binary())]


def _batches_of(given: pa.RecordBatch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches in columns of `_BATCH`."""
    for size, rows in zip(given[_SIZE].to_pylist(), given[_ROWS], strict=True):
        serialized = pa.decompress(rows.as_buffer(), decompressed_size=size, codec=_CODEC)
        yield pa.ipc.read_record_batch(serialized, schema)
