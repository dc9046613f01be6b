"""Start offsets (SPSO) that cannot be, or that go back."""

import numpy as np

from share_state.fold.trace import Traced
from share_state.rules.registry import ERROR, TRACED, WARNING, Broken, rule
from share_state.rules.traced_rows import of_rows


@rule(
    "START_OFFSET_INVALID",
    severity=WARNING,
    source="spec I14",
    statement="A start offset is 0 or more, or -1 for none.",
    over=TRACED,
)
def start_offset_invalid(traced: Traced) -> Broken:
    """Start offsets below -1."""
    starts = traced.rows["start_offset"]
    at = np.flatnonzero(traced.states & (starts < -1))
    return of_rows(traced.rows[at], ("the start offset is ", starts[at]), found=starts[at])


@rule(
    "START_OFFSET_REGRESSION",
    severity=ERROR,
    source="spec I15, I16; 4.4 addendum 3.6",
    statement="Only initialising a share-partition takes its start offset back.",
    over=TRACED,
)
def start_offset_regression(traced: Traced) -> Broken:
    """Start offsets below the one before, in one state epoch: records that were finished may be delivered again."""
    rows, facts = traced.rows, traced.facts
    starts, before = rows["start_offset"], facts["start_before"]
    # A snapshot of a later state epoch that takes a request along is how 4.1 follows an alteration of offsets.
    comparable = np.where(
        traced.updates, starts >= 0, (starts >= -1) & (rows["state_epoch"] == facts["state_epoch_before"])
    )
    at = np.flatnonzero(traced.going_on & comparable & (starts < before))
    found, before = starts[at], before[at]
    return of_rows(
        rows[at],
        ("the start offset goes back from ", before, " to ", found),
        found=found,
        before=before,
    )
