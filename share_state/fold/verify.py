"""The proof that a cutoff is safe: fold again without the records before it, and compare."""

from dataclasses import dataclass, replace

import pyarrow as pa

from share_state.fold.log import FoldedLog, fold_log
from share_state.fold.topics import Topics
from share_state.wire.log_folder import Window

FORGOTTEN = ("max_leader_epoch", "max_state_epoch")
"""Columns that may change: a broker that loads the cleaned log knows only the epochs of the records that are left."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What folding without the records before the cutoff gave.

    Attributes:
        compared: share-partitions in the full fold.
        differing: "group:topic_id:partition" of those whose state is not the same.
    """

    compared: int
    differing: tuple[str, ...]


def verify_cutoff(folded: FoldedLog, window: Window, topics: Topics) -> Proof | None:
    """Fold only the records at or after the cutoff and hold the states against those of the full fold.

    Args:
        folded: the full fold of a log partition.
        window: the window it was folded in.
        topics: as given to the full fold.
    Returns:
        None where nothing may be cleaned, so that there is nothing to prove.
    """
    offset = folded.cutoff["cutoff_offset"][0].as_py()
    if offset is None:
        return None
    again = fold_log(folded.log, replace(window, from_offset=offset), topics=topics)
    full, left = _comparable(folded.states), _comparable(again.states)
    if full.equals(left):
        return Proof(len(full), ())
    # Only a failed proof pays for naming what differs.
    states = [{_name(row): row for row in table.to_pylist()} for table in (full, left)]
    differing = sorted(name for name in {*states[0], *states[1]} if states[0].get(name) != states[1].get(name))
    return Proof(len(full), tuple(differing))


def _comparable(states: pa.Table) -> pa.Table:
    by_key = [(name, "ascending") for name in ("group_id", "topic_id", "partition")]
    return states.drop_columns(list(FORGOTTEN)).sort_by(by_key).combine_chunks()


def _name(row: dict[str, object]) -> str:
    return f"{row['group_id']}:{row['topic_id']}:{row['partition']}"
