"""State batches for tests, which give delivery states as numbers."""

from share_state.kafka.delivery_states import DeliveryState
from share_state.simulator.types import StateBatch


def state_batch(first: int, last: int, state: int, count: int) -> StateBatch:
    """A state batch of a delivery state."""
    return StateBatch(first, last, DeliveryState(state), count)
