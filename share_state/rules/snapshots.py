"""Records that contradict what was folded before them: the log's own check of itself."""

import numpy as np
import pyarrow as pa

from share_state.fold.columns import Columns
from share_state.fold.traced import Traced
from share_state.rules.registry import ERROR, TRACED, Broken, rule
from share_state.rules.traced_rows import in_words, of_rows


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
