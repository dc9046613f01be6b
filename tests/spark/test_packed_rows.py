"""Records that are packed for a shuffle come out of it by log and in offset order, whatever order they had."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.spark import packed_rows
from share_state.spark.packed_rows import Placed, hashes_of, joined_hashes

SCHEMA = pa.schema([("log", pa.string()), ("group", pa.string()), ("offset", pa.int64())])
TASKS = [7, 3, 5]
RECORDS = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("ghijk"), st.integers(0, 30)), min_size=1)


def sent(pieces: list[list[tuple[str, str, int]]]) -> pa.Table:
    """Rows of a shuffle, as Spark sorts them in a task."""
    packed = list[pa.RecordBatch]()
    for piece in pieces:
        rows = pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in piece], schema=SCHEMA)
        placed = Placed(rows, hashes_of(rows["group"]), rows["log"].combine_chunks())
        packed += packed_rows._packed_records(placed, TASKS)
    return pa.Table.from_batches(packed).sort_by([("log", "ascending"), ("first_offset", "ascending")])


@given(st.lists(RECORDS, min_size=1, max_size=8), st.sampled_from([1, 100, 1 << 20]))
def test_each_task_gets_all_records_of_its_keys_by_log_and_offset(
    pieces: list[list[tuple[str, str, int]]], piece_bytes: int
):
    everything, tasks_of = list[tuple[str, str, int]](), dict[str, set[int]]()
    rows = sent(pieces)
    for task in TASKS:
        of_task = rows.filter(pc.equal(rows["label"], task))
        tables = list(packed_rows._in_offset_order(of_task.to_batches(), SCHEMA, piece_bytes))
        found = [tuple(row.values()) for table in tables for row in table.to_pylist()]
        assert [(log, offset) for log, _, offset in found] == sorted((log, offset) for log, _, offset in found)
        # A table has the records of one log.
        assert all(len(table["log"].unique()) == 1 for table in tables)
        for _, group, _ in found:
            tasks_of.setdefault(group, set()).add(task)
        everything += found
    assert sorted(everything) == sorted(row for piece in pieces for row in piece)
    assert all(len(tasks) == 1 for tasks in tasks_of.values())


@pytest.mark.parametrize("records_per_piece", [1, 50])
def test_records_in_any_order_are_given_before_all_have_come(records_per_piece: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(packed_rows, "_BLOCK_OFFSETS", 10)
    records = [("a", "g", offset) for offset in np.random.default_rng(1).permutation(100).tolist()]
    pieces = [records[begin : begin + records_per_piece] for begin in range(0, 100, records_per_piece)]
    tables = list(packed_rows._in_offset_order(sent(pieces).to_batches(max_chunksize=1), SCHEMA, 100))
    assert max(map(len, tables)) <= 20
    assert [offset for table in tables for offset in table["offset"].to_pylist()] == list(range(100))


def test_a_task_can_be_given_thousands_of_batches_since_they_are_small():
    rows = pa.table({"log": ["a"] * 100, "group": ["g" * 10_000] * 100, "offset": range(100)}).cast(SCHEMA)
    placed = Placed(rows, hashes_of(rows["group"]), rows["log"].combine_chunks())
    (packed,) = packed_rows._packed_records(placed, TASKS)
    kept = packed_rows.packed("kind", rows.combine_chunks().to_batches()[0])
    for batches in (packed, kept):
        assert max(batches["size"].to_pylist()) < 2 * packed_rows._PACKED_BYTES
        assert pa.Table.from_batches(packed_rows._batches_of(batches, SCHEMA)) == rows
    # A row that is larger than that is a batch of its own.
    large = pa.record_batch([["a"] * 2, ["g" * 100_000] * 2, range(2)], schema=SCHEMA)
    assert len(packed_rows.packed("kind", large)) == 2


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary()], ids=str)
def test_the_hash_of_a_key_depends_on_its_bytes_alone(kind: pa.DataType):
    one, other = (
        hashes_of(pa.chunked_array([pa.array(texts, pa.string()).cast(kind)])) for texts in (["g", "é"], ["é", "h"])
    )
    assert one[1] == other[0]
    assert one[0] != other[1]
    partitions = np.array([0, -1], np.int32)
    assert joined_hashes([one, partitions])[0] != joined_hashes([one, partitions + 1])[0]
