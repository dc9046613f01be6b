"""What was recorded, folded: held against a dictionary of offsets."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from share_state.kafka.delivery_states import DeliveryState
from share_state.simulator.control_record_writer import BatchMap, state_after_checkpoint, state_after_delta
from share_state.simulator.types import CheckpointWrite, DeltaWrite, StateBatch
from tests.simulator.history import batches


@st.composite
def any_batch(draw: st.DrawFn) -> StateBatch:
    first = draw(st.integers(0, 20))
    state = draw(st.sampled_from([DeliveryState.AVAILABLE, DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED]))
    return StateBatch(first, first + draw(st.integers(0, 8)), state, draw(st.integers(0, 3)))


@given(overlaid=st.lists(any_batch(), max_size=8), start=st.integers(0, 25))
def test_batches_laid_over_one_another(overlaid: list[StateBatch], start: int):
    recorded, model = BatchMap(), dict[int, StateBatch]()
    for batch in overlaid:
        recorded.overlay(batch)
        for offset in range(batch.first_offset, batch.last_offset + 1):
            model[offset] = batch
    recorded.prune(start)
    history = recorded.all()
    assert {offset: batch[2:] for batch in history for offset in range(batch.first_offset, batch.last_offset + 1)} == {
        offset: batch[2:] for offset, batch in model.items() if offset >= start
    }
    for left, right in pairwise(history):
        assert left.last_offset < right.first_offset
        assert left.last_offset + 1 < right.first_offset or left[2:] != right[2:]


def test_a_draft_reader_moves_the_start_past_what_has_ended():
    state = state_after_checkpoint(CheckpointWrite(21, 24, batches("21-22:4/1, 23:0/1")))
    assert (state.start_offset, state.end_offset, state.batches) == (23, 24, batches("23:0/1"))
    state = state_after_delta(state, DeltaWrite(batches("23:2/2")))
    assert (state.start_offset, state.end_offset, state.batches) == (24, 24, ())
