"""What was recorded, folded: held against a dictionary of offsets."""

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.simulator.draft import DraftRecord
from share_state.simulator.recorded_state import (
    BatchMap,
    MemoryPersister,
    SharePartitionKey,
    greater_wins,
    newer_wins,
)
from share_state.simulator.types import (
    CheckpointWrite,
    DeliveryState,
    DeltaWrite,
    ErrorCode,
    StateBatch,
    StateRead,
    StateWrite,
)
from tests.simulator.history import batches, short

KEY = SharePartitionKey("G", "T", 0)


@st.composite
def any_batch(draw: st.DrawFn) -> StateBatch:
    first = draw(st.integers(0, 20))
    state = draw(st.sampled_from([DeliveryState.AVAILABLE, DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED]))
    return StateBatch(first, first + draw(st.integers(0, 8)), state, draw(st.integers(0, 3)))


@pytest.mark.parametrize("wins", [greater_wins, newer_wins])
@given(overlaid=st.lists(any_batch(), max_size=8), start=st.integers(0, 25))
def test_batches_laid_over_one_another(
    wins: Callable[[StateBatch, StateBatch], bool], overlaid: list[StateBatch], start: int
):
    recorded, model = BatchMap(), dict[int, StateBatch]()
    for batch in overlaid:
        recorded.overlay(batch, wins)
        for offset in range(batch.first_offset, batch.last_offset + 1):
            if offset not in model or wins(batch, model[offset]):
                model[offset] = batch
    recorded.prune(start)
    history = recorded.all()
    assert {offset: batch[2:] for batch in history for offset in range(batch.first_offset, batch.last_offset + 1)} == {
        offset: batch[2:] for offset, batch in model.items() if offset >= start
    }
    for left, right in pairwise(history):
        assert left.last_offset < right.first_offset
        assert left.last_offset + 1 < right.first_offset or left[2:] != right[2:]


def test_the_higher_count_wins_whatever_came_later():
    recorded = BatchMap(batches("10-20:0/2"))
    recorded.overlay(*batches("10-20:2/1"), greater_wins)
    assert short(recorded.all()) == "10-20:0/2"


def test_a_draft_reader_moves_the_start_past_what_has_ended():
    record = DraftRecord(CheckpointWrite(21, 24, batches("21-22:4/1, 23:0/1")))
    assert (record.start_offset, record.end_offset) == (23, 24)
    record.apply_delta(DeltaWrite(batches("23:2/2")))
    assert record.read(1) == StateRead(1, 24, -1, ())


def test_the_memory_persister_fences_and_forgets():
    persister = MemoryPersister()
    write = StateWrite(3, 2, 10, 0, batches("8-12:0/1"))
    assert persister.write(KEY, write, 0) is ErrorCode.INVALID_REQUEST
    assert persister.initialize(KEY, 2, 10, 0) is ErrorCode.NONE
    assert isinstance(persister.read(KEY, 3, 0), StateRead)
    assert persister.read(KEY, 2, 0) is ErrorCode.FENCED_LEADER_EPOCH
    assert persister.write(KEY, write, 0) is ErrorCode.NONE
    assert persister.write(KEY, StateWrite(2, 2, 10, 0, ()), 0) is ErrorCode.FENCED_LEADER_EPOCH
    assert persister.write(KEY, StateWrite(3, 1, 10, 0, ()), 0) is ErrorCode.FENCED_STATE_EPOCH
    assert persister.read(KEY, 3, 0) == StateRead(2, 10, 0, batches("10-12:0/1"))
    persister.delete(KEY, 0)
    assert persister.read(KEY, 3, 0) is ErrorCode.INVALID_REQUEST
