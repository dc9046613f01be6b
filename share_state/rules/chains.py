"""Share-partitions whose state rests on something that is missing.

Records that contradict what was folded before them: the log's own check of itself.

Tombstones of nothing, and records of a share-partition that was deleted.
"""

import numpy as np
import pyarrow as pa

from share_state.fold.chains import NOWHERE, Columns
from share_state.fold.log import FoldedLog
from share_state.fold.record_context import Traced
from share_state.kafka.state_records import Kind
from share_state.rules.registry import (
    ERROR,
    INFO,
    NOTHING,
    PLACE,
    TRACED,
    WARNING,
    Broken,
    has_state,
    in_words,
    of_rows,
    rule,
)


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


@rule(
    "COLD_SNAPSHOT_MISMATCH",
    severity=ERROR,
    source="spec I25; Kafka ShareCoordinatorShard.snapshotColdPartitions",
    statement="The snapshot of an idle share-partition repeats its state exactly.",
    over=TRACED,
)
def cold_snapshot_mismatch(traced: Traced) -> Broken:
    """Cold snapshots that differ from the state before them; judged where that is known from its own snapshot on."""
    cold = traced.snapshots[traced.facts["cold"][traced.snapshots]]
    rows, facts = traced.rows[cold], traced.facts[cold]
    differs = {
        "the start offset": rows["start_offset"] != facts["start_before"],
        "the state epoch": rows["state_epoch"] != facts["state_epoch_before"],
        "the leader epoch": rows["leader_epoch"] != facts["leader_epoch_before"],
        "the delivery complete count": rows["delivery_complete_count"] != facts["complete_before"],
        "the create time": rows["create_time"] != facts["create_time_before"],
        "its ranges": facts["contradicted_offset"] >= 0,
    }
    judged = facts["rests_on_snapshot"] & ~facts["suspect"]
    wrong = np.flatnonzero(judged & np.any(list(differs.values()), axis=0))
    what = [", ".join(name for name, column in differs.items() if column[row]) for row in wrong]
    return of_rows(
        rows[wrong],
        ("the cold snapshot differs from the state before it in ", pa.array(what, pa.string()),
         _first_contradiction(facts[wrong])),
        contradicted_offset=facts["contradicted_offset"][wrong],
    )  # fmt: skip


@rule(
    "SNAPSHOT_MISMATCH",
    severity=ERROR,
    source="spec I26; Kafka ShareCoordinatorShard.generateShareStateRecord",
    statement="A snapshot holds what was folded before it, merged with one request.",
    over=TRACED,
)
def snapshot_mismatch(traced: Traced) -> Broken:
    """Snapshots that lower an offset, leave one out, or hold one below their start: a record before them is missing."""
    rows, facts = traced.rows[traced.snapshots], traced.facts[traced.snapshots]
    judged = facts["known"] & ~facts["cold"] & ~facts["initial"] & ~facts["suspect"]
    at = np.flatnonzero(judged & (facts["contradicted_offset"] >= 0))
    return of_rows(
        rows[at],
        ("the snapshot cannot follow from the records before it", _first_contradiction(facts[at])),
        contradicted_offset=facts["contradicted_offset"][at],
    )


@rule(
    "TERMINAL_STATE_LEFT",
    severity=ERROR,
    source="spec I28; 4.4 addendum I28; Kafka RecordState",
    statement="An acknowledged or archived offset stays what it is, and an archiving one can only be archived.",
    over=TRACED,
)
def terminal_state_left(traced: Traced) -> Broken:
    """Records that take an offset out of a state that nothing leaves: it may be delivered or counted twice."""
    at = np.flatnonzero(traced.facts["left_offset"] >= 0)
    facts = traced.facts[at]
    offsets, old, new = facts["left_offset"], in_words(facts["left_from"]), in_words(facts["left_to"])
    return of_rows(
        traced.rows[at],
        ("offset ", offsets, " was ", old, " and becomes ", new),
        left_offset=offsets,
        before=old,
        found=new,
    )


def _first_contradiction(facts: Columns) -> pa.Array:
    """The first offset that two lists disagree on, in words; nothing where they agree."""
    folded, snapshot = in_words(facts["contradicted_from"]), in_words(facts["contradicted_to"])
    texts = []
    for at, before, found in zip(facts["contradicted_offset"].tolist(), folded, snapshot, strict=True):
        if at < 0:
            texts.append("")
        elif before.as_py() == found.as_py():
            texts.append(f": it holds offset {at}, below its start offset")
        else:
            texts.append(f": offset {at} was folded to {before}, the snapshot has {found}")
    return pa.array(texts, pa.string())


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
