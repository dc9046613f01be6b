"""Epochs that count: a snapshot too many or too few, and epochs that fence going back."""

import numpy as np

from share_state.fold.trace import Traced
from share_state.rules.registry import ERROR, TRACED, WARNING, Broken, rule
from share_state.rules.traced_rows import of_rows


@rule(
    "SNAPSHOT_EPOCH_GAP",
    severity=ERROR,
    source="spec I18, 3.6",
    statement="The snapshots of a share-partition count up by exactly one, from 0 when it is made.",
    over=TRACED,
)
def snapshot_epoch_gap(traced: Traced) -> Broken:
    """Snapshots whose epoch is not their predecessor's plus one: a record is missing, or two writers were at work."""
    facts = traced.facts
    # Where the log began earlier than what was read, the first snapshot seen may have any epoch.
    from_zero = facts["was_deleted"] | (~traced.known & (traced.folded_from == 0))
    expected = np.where(traced.known, facts["snapshot_epoch_before"].astype(np.int64) + 1, 0)
    judged = traced.snapshots & (traced.known | from_zero)
    at = np.flatnonzero(judged & (traced.rows["snapshot_epoch"] != expected))
    found, expected = traced.rows["snapshot_epoch"][at], expected[at]
    return of_rows(
        traced.rows[at],
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
    facts, epochs = traced.facts, traced.rows["snapshot_epoch"]
    judged = traced.updates & traced.known & ~facts["suspect"]
    at = np.flatnonzero(judged & (epochs != facts["snapshot_epoch_before"]))
    found, expected = epochs[at], facts["snapshot_epoch_before"][at]
    return of_rows(
        traced.rows[at],
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
    return _fallen(traced, "state_epoch", traced.snapshots & traced.known, "the snapshot has state epoch ")


@rule(
    "LEADER_EPOCH_REGRESSION",
    severity=WARNING,
    source="spec I22; Kafka ShareCoordinatorShard.maybeGetWriteStateError",
    statement="Only initialising a share-partition takes its leader epoch back.",
    over=TRACED,
)
def leader_epoch_regression(traced: Traced) -> Broken:
    """Records with a lower leader epoch than the state before them: a fenced partition leader wrote."""
    # An update that says -1 leaves the epoch as it is.
    unchanged = traced.updates & (traced.rows["leader_epoch"] == -1)
    return _fallen(traced, "leader_epoch", traced.going_on & ~unchanged, "the record has leader epoch ")


def _fallen(traced: Traced, epoch: str, judged: np.ndarray, said: str) -> Broken:
    """Those of the judged records whose epoch is lower than that of the state before them."""
    epochs, before = traced.rows[epoch], traced.facts[f"{epoch}_before"]
    at = np.flatnonzero(judged & (epochs < before))
    return of_rows(
        traced.rows[at],
        (said, epochs[at], ", the state before it ", before[at]),
        found=epochs[at],
        before=before[at],
    )
