"""The proof that a cutoff is safe: fold again without the records before it, and compare.

The proof that the control records before a cutoff are redundant: fold again without them, and compare.
"""

from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from share_state.fold.control_log import FoldedControlLog, fold_control_log
from share_state.fold.log import FoldedLog, fold_log
from share_state.sources.discovery import Window
from share_state.sources.topics import Topics

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


def verify_control_cutoff(folded: FoldedControlLog, window: Window | None = None) -> Proof | None:
    """Fold only the control records at or after the cutoff and hold the states against those of the full fold.

    Args:
        folded: the full fold of a topic-partition.
        window: the window it was folded in.
    Returns:
        None where nothing may be cleaned, so that there is nothing to prove. Groups without a subscription are not
        compared: cleaning may take their state.
    """
    offset, options = folded.earliest.offset, folded.options
    if offset is None:
        return None
    again = fold_control_log(
        folded.log,
        replace(window or Window(), from_offset=offset),
        mode=options.mode,
        subscriptions=options.subscriptions,
        ignore_uncheckpointed=options.ignore_uncheckpointed,
    )
    counting = folded.checkpoints.filter(folded.checkpoints["counts"])["group_id"]
    full, left = _comparable_control(folded.states, counting), _comparable_control(again.states, counting)
    if full.equals(left):
        return Proof(len(full), ())
    # Only a failed proof pays for naming what differs.
    states = [{row["group_id"]: row for row in table.to_pylist()} for table in (full, left)]
    differing = sorted(group for group in {*states[0], *states[1]} if states[0].get(group) != states[1].get(group))
    name = f"{folded.log.topic}:{folded.log.partition}"
    return Proof(len(full), tuple(f"{group}:{name}" for group in differing))


def _comparable_control(states: pa.Table, groups: pa.ChunkedArray) -> pa.Table:
    of_groups = pc.call_function("is_in", [states["group_id"]], pc.SetLookupOptions(groups))
    return states.filter(of_groups).sort_by("group_id").combine_chunks()
