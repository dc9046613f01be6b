"""The delivery states of in-flight records: their codes, names and order, and the transitions that a broker makes.

Source: Kafka org.apache.kafka.server.share.fetch.RecordState.
"""

from enum import IntEnum
from typing import Any

import numpy as np

from share_state.jit.compile import inlined


class DeliveryState(IntEnum):
    """Delivery state of an in-flight record; ARCHIVING waits for the dead letter queue."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4


AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVING, ARCHIVED = map(int, DeliveryState)

TERMINAL = frozenset({DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED})
"""The start offset moves past records in these states."""


def state_name(state: int) -> str:
    """Name of a delivery state."""
    return _NAMES.get(state, f"UNKNOWN({state})")


_NAMES = {int(state): state.name for state in DeliveryState}


@inlined
def is_terminal(state):
    """Whether a state is one of TERMINAL, in compiled code."""
    return state == ACKNOWLEDGED or state == ARCHIVED


def are_terminal(states: np.ndarray) -> np.ndarray:
    """bool, whether states are among TERMINAL; `np.isin` takes ten times as long."""
    return (states == ACKNOWLEDGED) | (states == ARCHIVED)


@inlined
def is_illegal_transition(old_state, old_count, new_state, new_count):
    """Whether no broker changes the state of an offset like this.

    A lower value changes nothing, so it is legal.

    Illegal are: an acknowledged or archived offset that becomes the other of the two, or not terminal (with a
    higher count, or from acknowledged to ARCHIVING); an archiving offset that becomes available or
    acknowledged.
    """
    if new_state == old_state or new_count < old_count:
        return False
    if old_state == ARCHIVING:
        return new_state == AVAILABLE or new_state == ACKNOWLEDGED
    if not is_terminal(old_state):
        return False
    if is_terminal(new_state):
        return True
    # AVAILABLE at the same count is a delayed older write, which changes nothing.
    return new_count > old_count or (new_state == ARCHIVING and old_state == ACKNOWLEDGED)


def is_poison(state: Any, count: Any, limit: Any) -> Any:
    """Whether records are near their delivery limit: at most one delivery is left, or they were archived at the limit.

    Args:
        state, count: delivery state and delivery count: arrays, or expressions over a table.
        limit: delivery limit of the group: one number, or one per element of arrays.
    Source: KIP-932, group.share.delivery.count.limit.
    """
    # A record that was never delivered is not near a limit of 1.
    is_near = (state != ACKNOWLEDGED) & (state != ARCHIVED) & (count >= np.maximum(limit - 1, 1))
    return is_near | ((state == ARCHIVED) & (count >= limit))
