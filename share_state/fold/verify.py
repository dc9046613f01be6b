"""Proof that a cutoff is safe: fold again without the records before it, and compare the states."""

from dataclasses import dataclass, replace

from share_state.fold.dialect import dialect_of
from share_state.fold.log_stats import Folded
from share_state.fold.options import FoldOptions
from share_state.sources.as_of import Window

FORGOTTEN = ("max_leader_epoch", "max_state_epoch", "redundant_retained")
"""Columns that may differ: a broker that loads the shorter log knows only the epochs of the remaining records, and what
is redundant is no state."""


@dataclass(frozen=True, slots=True)
class Proof:
    """Result of the comparison.

    Attributes:
        compared: number of share-partitions in the full fold.
        differing: "group:topic_id:partition" of those whose state differs; the topic's name if it has no id.
    """

    compared: int
    differing: tuple[str, ...]


def verify_cutoff(folded: Folded, window: Window, options: FoldOptions) -> Proof | None:
    """Fold only the records at or after the cutoff and compare the states with those of the full fold.

    Groups without a subscription are not compared if their state may be deleted (control records).

    Args:
        folded, window, options: the full fold of a log, its window and its options.
    Returns:
        None if the log has no cutoff.
    """
    offset = folded.cutoff["cutoff_offset"][0].as_py()
    if offset is None:
        return None
    dialect = dialect_of(folded.log)
    options = replace(options, restore=None, resume_status=None, judge=None)
    shorter = dialect.fold(folded.log, replace(window, from_offset=offset), options)
    by_key = [(name, "ascending") for name in ("group_id", "topic_id", "partition")]
    full, left = (
        dialect.comparable(folded, one.states).drop_columns(list(FORGOTTEN)).sort_by(by_key).combine_chunks()
        for one in (folded, shorter)
    )
    if full.equals(left):
        return Proof(len(full), ())
    # Only a failed proof pays for naming what differs.
    states = [
        {f"{row['group_id']}:{row['topic_id'] or row['topic']}:{row['partition']}": row for row in table.to_pylist()}
        for table in (full, left)
    ]
    differing = sorted(name for name in {*states[0], *states[1]} if states[0].get(name) != states[1].get(name))
    return Proof(len(full), tuple(differing))
