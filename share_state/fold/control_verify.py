"""The proof that the control records before a cutoff are redundant: fold again without them, and compare."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from share_state.fold.control_log import FoldedControlLog, fold_control_log
from share_state.fold.verify import Proof
from share_state.wire.log_folder import Window


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
    full, left = _comparable(folded.states, counting), _comparable(again.states, counting)
    if full.equals(left):
        return Proof(len(full), ())
    # Only a failed proof pays for naming what differs.
    states = [{row["group_id"]: row for row in table.to_pylist()} for table in (full, left)]
    differing = sorted(group for group in {*states[0], *states[1]} if states[0].get(group) != states[1].get(group))
    name = f"{folded.log.topic}:{folded.log.partition}"
    return Proof(len(full), tuple(f"{group}:{name}" for group in differing))


def _comparable(states: pa.Table, groups: pa.ChunkedArray) -> pa.Table:
    of_groups = pc.call_function("is_in", [states["group_id"]], pc.SetLookupOptions(groups))
    return states.filter(of_groups).sort_by("group_id").combine_chunks()
