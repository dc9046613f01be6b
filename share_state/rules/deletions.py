"""Tombstones of nothing, and records of a share-partition that was deleted."""

import numpy as np

from share_state.fold.traced import Traced
from share_state.rules.registry import INFO, TRACED, WARNING, Broken, rule
from share_state.rules.traced_rows import has_state, of_rows
from share_state.wire.share_group_state import Kind


@rule(
    "STATE_AFTER_DELETE",
    severity=WARNING,
    source="spec I34; Kafka ShareCoordinatorShard.deleteState, initializeState",
    statement="After a tombstone nothing follows but a snapshot that initialises the share-partition anew.",
    over=TRACED,
)
def state_after_delete(traced: Traced) -> Broken:
    """Records that bring a deleted share-partition back without initialising it: a load takes them as its state."""
    deleted = np.flatnonzero(traced.facts["was_deleted"])
    rows = traced.rows[deleted]
    begins_anew = (rows["kind"] == Kind.SNAPSHOT) & (rows["batch_count"] == 0) & (rows["leader_epoch"] == 0)
    rows = rows[has_state(rows, traced.facts[deleted]) & ~begins_anew]
    what = np.where(rows["kind"] == Kind.UPDATE, "an update", "a snapshot with state")
    return of_rows(
        rows,
        ("the share-partition was deleted, and ", what,
         " follows that initialises nothing"),
    )  # fmt: skip


@rule(
    "TOMBSTONE_WITHOUT_STATE",
    severity=INFO,
    source="spec I35; Kafka ShareCoordinatorShard.deleteState",
    statement="A tombstone ends a share-partition that has state.",
    over=TRACED,
)
def tombstone_without_state(traced: Traced) -> Broken:
    """Tombstones of share-partitions that the log does not know; judged where it was read from its beginning."""
    rows, facts = traced.rows[traced.tombstones], traced.facts[traced.tombstones]
    at = np.flatnonzero(~facts["known"] & (facts["was_deleted"] | (traced.folded_from == 0)))
    return of_rows(
        rows[at],
        ("a tombstone of a share-partition that ",
         np.where(facts["was_deleted"][at], "was deleted already", "no record precedes")),
    )  # fmt: skip
