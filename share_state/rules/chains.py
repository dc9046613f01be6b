"""Share-partitions whose state rests on something that is missing."""

import numpy as np

from share_state.fold.chains import NOWHERE
from share_state.fold.log import FoldedLog
from share_state.rules.registry import ERROR, NOTHING, PLACE, WARNING, Broken, rule


@rule(
    "ORPHAN_UPDATE",
    severity=ERROR,
    source="spec I17, I37",
    statement="A share-partition's state begins with a snapshot.",
)
def orphan_update(folded: FoldedLog) -> Broken:
    """Live share-partitions without a snapshot; a warning where the log does not reach back to offset 0."""
    rows = np.flatnonzero(folded.chains.chains["orphan_offset"] != NOWHERE)
    if not len(rows):
        return NOTHING
    chains = folded.chains.chains[rows]
    partial = folded.folded_from > 0
    return Broken(
        chains["orphan_offset"].copy(),
        (f"the state rests on an update at {PLACE} ", chains["orphan_offset"].copy(), " that no snapshot precedes",
         f" (the log begins at {PLACE} {folded.folded_from})" if partial else ""),
        key=folded.numbers[rows],
        evidence={"updates": chains["updates"].copy()},
        severity=np.full(len(rows), WARNING if partial else ERROR, object),
    )  # fmt: skip


@rule(
    "BASE_LOST",
    severity=ERROR,
    source="spec I36",
    statement="The log reaches back to the latest snapshot of every live share-partition.",
)
def base_lost(folded: FoldedLog) -> Broken:
    """Live share-partitions whose snapshot was before the log start that the broker itself noted."""
    lost = folded.chains.chains["orphan_offset"] != NOWHERE
    rows = np.flatnonzero(lost & ~folded.chains.chains["was_deleted"])
    if not len(rows) or not folded.log.start_is_noted:
        return NOTHING
    return Broken(
        folded.chains.chains["orphan_offset"][rows].copy(),
        (f"its latest snapshot lies before the log start {folded.log.log_start_offset}: what it held is gone",),
        key=folded.numbers[rows],
    )


@rule(
    "STATE_SUSPECT",
    severity=WARNING,
    source="ARCHITECTURE, Trust",
    statement="Every record since a share-partition's latest snapshot could be read.",
)
def state_suspect(folded: FoldedLog) -> Broken:
    """Share-partitions whose row may be wrong, as records since their latest snapshot are missing or unreadable."""
    rows = np.flatnonzero(folded.suspect)
    if not len(rows):
        return NOTHING
    chains = folded.chains.chains[rows]
    since = np.maximum(chains["suspect_offset"], folded.lost_at)
    return Broken(
        since,
        (
            f"the state may be wrong: records from {PLACE} ",
            since,
            " on are missing or unreadable since its latest snapshot",
        ),
        key=folded.numbers[rows],
        evidence={"snapshot_offset": chains["snapshot_offset"].copy()},
    )
