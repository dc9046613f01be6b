"""Epochs that count: a snapshot too many or too few, and epochs that fence going back."""

import numpy as np

from share_state.fold.columns import Columns
from share_state.fold.traced import Traced
from share_state.rules.registry import ERROR, TRACED, WARNING, Broken, rule
from share_state.rules.traced_rows import goes_on, of_rows
from share_state.wire.share_group_state import Kind


@rule(
    "SNAPSHOT_EPOCH_GAP",
    severity=ERROR,
    source="spec I18, 3.6",
    statement="The snapshots of a share-partition count up by exactly one, from 0 when it is made.",
    over=TRACED,
)
def snapshot_epoch_gap(traced: Traced) -> Broken:
    """Snapshots whose epoch is not their predecessor's plus one: a record is missing, or two writers were at work."""
    rows, facts = traced.rows[traced.snapshots], traced.facts[traced.snapshots]
    # Where the log began earlier than what was read, the first snapshot seen may have any epoch.
    judged = facts["known"] | facts["was_deleted"] | (traced.folded_from == 0)
    expected = np.where(facts["known"], facts["snapshot_epoch_before"].astype(np.int64) + 1, 0)
    at = np.flatnonzero(judged & (rows["snapshot_epoch"] != expected))
    found, expected = rows["snapshot_epoch"][at], expected[at]
    return of_rows(
        rows[at],
        ("the snapshot says epoch ", found, " where ", expected, " follows"),
        found=found,
        expected=expected,
    )


@rule(
    "UPDATE_EPOCH_MISMATCH",
    severity=ERROR,
    source="spec I19; Kafka ShareCoordinatorShard.generateShareStateRecord",
    statement="An update names the epoch of the snapshot before it.",
    over=TRACED,
)
def update_epoch_mismatch(traced: Traced) -> Broken:
    """Updates of another snapshot than the one before them; quiet where that one could not be read."""
    at = np.flatnonzero(traced.updates & (traced.rows["snapshot_epoch"] != traced.facts["snapshot_epoch_before"]))
    rows, facts = traced.rows[at], traced.facts[at]
    judged = facts["known"] & ~facts["suspect"]
    found, expected = rows["snapshot_epoch"][judged], facts["snapshot_epoch_before"][judged]
    return of_rows(
        rows[judged],
        ("the update is of snapshot epoch ", found, ", the snapshot before it has ", expected),
        found=found,
        expected=expected,
    )


@rule(
    "STATE_EPOCH_REGRESSION",
    severity=ERROR,
    source="spec I21, 3.7",
    statement="The state epoch of a share-partition's snapshots never goes back.",
    over=TRACED,
)
def state_epoch_regression(traced: Traced) -> Broken:
    """Snapshots with a lower state epoch than the state before them: a fenced group coordinator wrote."""
    rows, facts = traced.rows[traced.snapshots], traced.facts[traced.snapshots]
    at = np.flatnonzero(facts["known"] & (rows["state_epoch"] < facts["state_epoch_before"]))
    return _fallen(rows[at], facts[at], "state_epoch", "the snapshot has state epoch ")


@rule(
    "LEADER_EPOCH_REGRESSION",
    severity=WARNING,
    source="spec I22; Kafka ShareCoordinatorShard.maybeGetWriteStateError",
    statement="Only initialising a share-partition takes its leader epoch back.",
    over=TRACED,
)
def leader_epoch_regression(traced: Traced) -> Broken:
    """Records with a lower leader epoch than the state before them: a fenced partition leader wrote."""
    at = np.flatnonzero(traced.rows["leader_epoch"] < traced.facts["leader_epoch_before"])
    rows, facts = traced.rows[at], traced.facts[at]
    # An update that says -1 leaves the epoch as it is.
    unchanged = (rows["kind"] == Kind.UPDATE) & (rows["leader_epoch"] == -1)
    fallen = goes_on(rows, facts) & ~unchanged
    return _fallen(rows[fallen], facts[fallen], "leader_epoch", "the record has leader epoch ")


def _fallen(rows: Columns, facts: Columns, epoch: str, said: str) -> Broken:
    """Records whose epoch is lower than that of the state before them."""
    found, before = rows[epoch], facts[f"{epoch}_before"]
    return of_rows(rows, (said, found, ", the state before it ", before), found=found, before=before)
