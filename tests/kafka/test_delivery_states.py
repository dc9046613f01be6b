"""Delivery states: which records are poison, by the same rule for arrays and for filters of a table."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from share_state.kafka.delivery_states import DeliveryState, is_poison, state_name

CODES, COUNTS = (column.ravel() for column in np.meshgrid([*range(5), 7], range(7)))


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_a_record_is_poison_one_delivery_below_the_limit_or_archived_at_it(limit: int):
    def expected(state: int, count: int) -> bool:
        if state in (DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED):
            return state == DeliveryState.ARCHIVED and count >= limit
        # A record that was never delivered is not, whatever the limit.
        return count > 0 and count >= limit - 1

    of_arrays = is_poison(CODES, COUNTS, np.full(len(CODES), limit))
    assert of_arrays.tolist() == [expected(*one) for one in zip(CODES.tolist(), COUNTS.tolist(), strict=True)]
    rows = pa.table({"state": CODES, "count": COUNTS, "is_poison": of_arrays})
    assert rows.filter(is_poison(pc.field("state"), pc.field("count"), limit)) == rows.filter(pc.field("is_poison"))


def test_states_have_kafkas_names_and_others_their_code():
    assert [*map(state_name, range(6))] == [
        "AVAILABLE",
        "ACQUIRED",
        "ACKNOWLEDGED",
        "ARCHIVING",
        "ARCHIVED",
        "UNKNOWN(5)",
    ]
