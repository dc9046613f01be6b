"""Buffers for decoded records go from log to log, but for those that one log has made large."""

import numpy as np

from share_state.kafka.buffers import RecordBuffer, RecordBufferPool

RECORD, BATCH = np.dtype([("offset", "i8")]), np.dtype([("first", "i8"), ("last", "i8")])


def new_pool() -> RecordBufferPool:
    return RecordBufferPool(lambda: RecordBuffer(RECORD, BATCH))


def test_a_buffer_that_is_taken_back_is_the_next_one_and_empty():
    pool = new_pool()
    buffer = pool.acquire()
    rows, batches = buffer.extend(3, 5)
    rows["offset"], batches["last"], buffer.batch_count = 7, 9, 4
    pool.release(buffer)
    assert pool.acquire() is buffer
    assert (buffer.size, buffer.row_count, buffer.batch_count) == (0, 0, 0)
    assert len(buffer.extend(3, 5)[0]) == 3


def test_nobody_else_gets_a_buffer_that_is_in_use():
    pool = new_pool()
    one, other = pool.acquire(), pool.acquire()
    assert one is not other
    pool.release(other)
    assert pool.acquire() is other


def test_a_large_buffer_is_let_go():
    pool = new_pool()
    buffer = pool.acquire()
    buffer.extend(1, 20_000_000)
    assert buffer.capacity > 256 << 20
    pool.release(buffer)
    assert pool.acquire() is not buffer
