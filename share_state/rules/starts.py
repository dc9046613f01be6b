"""Start offsets (SPSO) that cannot be, or that go back."""

import numpy as np

from share_state.fold.traced import Traced
from share_state.rules.registry import ERROR, TRACED, WARNING, Broken, rule
from share_state.rules.traced_rows import goes_on, has_state, of_rows
from share_state.wire.share_group_state import Kind


@rule(
    "START_OFFSET_INVALID",
    severity=WARNING,
    source="spec I14",
    statement="A start offset is 0 or more, or -1 for none.",
    over=TRACED,
)
def start_offset_invalid(traced: Traced) -> Broken:
    """Start offsets below -1."""
    at = np.flatnonzero(traced.rows["start_offset"] < -1)
    rows = traced.rows[at]
    rows = rows[has_state(rows, traced.facts[at])]
    found = rows["start_offset"]
    return of_rows(rows, ("the start offset is ", found), found=found)


@rule(
    "START_OFFSET_REGRESSION",
    severity=ERROR,
    source="spec I15, I16; 4.4 addendum 3.6",
    statement="Only initialising a share-partition takes its start offset back.",
    over=TRACED,
)
def start_offset_regression(traced: Traced) -> Broken:
    """Start offsets below the one before, in one state epoch: records that were finished may be delivered again."""
    at = np.flatnonzero(traced.rows["start_offset"] < traced.facts["start_before"])
    rows, facts = traced.rows[at], traced.facts[at]
    # A snapshot of a later state epoch that takes a request along is how 4.1 follows an alteration of offsets.
    comparable = np.where(
        rows["kind"] == Kind.UPDATE,
        rows["start_offset"] >= 0,
        (rows["start_offset"] >= -1) & (rows["state_epoch"] == facts["state_epoch_before"]),
    )
    back = goes_on(rows, facts) & comparable
    found, before = rows["start_offset"][back], facts["start_before"][back]
    return of_rows(
        rows[back],
        ("the start offset goes back from ", before, " to ", found),
        found=found,
        before=before,
    )
