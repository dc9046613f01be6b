"""The cutoff of a log: the offset below which every record is redundant, and whether deleting up to it is safe.

`cutoff` is for `__share_group_state`; `earliest_share_offset` is for control records of the KIP-932 draft.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.fold.chains import NOWHERE, Chains


@dataclass(frozen=True, slots=True)
class Cutoff:
    """The cutoff of one log partition.

    Attributes:
        offset: records before it are redundant; None if there is no cutoff.
        held_by: row (of the live chains) of the share-partition that limits it, None for none.
        next_offset: the cutoff without that share-partition, None if none limits it.
        unsafe_because: why deleting up to it could lose state; empty if it is safe.
    """

    offset: int | None
    held_by: int | None
    next_offset: int | None
    unsafe_because: str


def cutoff(chains: Chains, suspect: np.ndarray, *, hidden: bool = False) -> Cutoff:
    """The offset up to which the broker's own pruning would delete, and whether that is safe.

    Args:
        chains, suspect: live chains of one log partition, and a bool for each.
        hidden: whether missing or unreadable records may be the only ones of a share-partition.
    Returns:
        The smallest snapshot offset over live share-partitions; with no live one, the offset of the last tombstone.
    Source: Kafka ShareCoordinatorOffsetsManager.lastRedundantOffset, ShareCoordinatorService.performRecordPruning;
        KIP-932, ESO.
    """
    snapshots = chains.chains["snapshot_offset"]
    held = np.flatnonzero(snapshots != NOWHERE)
    holder = int(held[np.argmin(snapshots[held])]) if len(held) else None
    offset = int(snapshots[holder]) if holder is not None else chains.last_snapshot_record
    others = snapshots[held][snapshots[held] != offset]
    following = None if holder is None else int(others.min()) if len(others) else chains.last_snapshot_record
    # Kafka's offsets manager knows only snapshots: it would delete a state that has none.
    orphans = chains.chains["orphan_offset"]
    endangered = int(((orphans != NOWHERE) & (orphans < offset)).sum())
    reasons = []
    if suspect.any():
        reasons.append(f"{int(suspect.sum())} share-partitions cannot be trusted since their latest snapshot")
    if hidden:
        reasons.append("records are missing or unreadable, and with them maybe share-partitions that rest on them")
    if endangered:
        reasons.append(f"{endangered} share-partitions rest on updates before the cutoff that no snapshot precedes")
    unsafe_because = "; ".join(reasons)
    if offset <= 0:
        return Cutoff(None, holder if offset == 0 else None, following, unsafe_because)
    return Cutoff(offset, holder, following, unsafe_because)


@dataclass(frozen=True, slots=True)
class EarliestShareOffset:
    """The cutoff of one topic-partition.

    Attributes:
        offset: control records before it are redundant; None if there is no cutoff.
        limited_by: the group that limits it: the holder of the checkpoint at this offset, or the oldest that blocks it.
        limited_from: offset of that checkpoint, or of the first delta of the group that blocks; None for none.
        next_offset: the cutoff without that group; None if there is none.
        blocked_by: groups with a subscription and without a checkpoint; one is enough to prevent a cutoff.
        counts: bool, groups of the log that have a subscription.
    """

    offset: int | None
    limited_by: str | None
    limited_from: int | None
    next_offset: int | None
    blocked_by: tuple[str, ...]
    counts: np.ndarray


def earliest_share_offset(
    groups: pa.Array,
    chains: np.ndarray,
    subscribed: Collection[str] | None = None,
    *,
    ignore_uncheckpointed: bool = False,
) -> EarliestShareOffset:
    """The smallest share checkpoint offset (SCO) over the groups with a subscription; none over no group.

    Args:
        groups: ids of the groups of the log.
        chains: CONTROL_CHAIN, one row for each.
        subscribed: groups with a subscription to the topic; None for all groups of the log.
        ignore_uncheckpointed: groups without a checkpoint do not block.
    Source: KIP-932 draft, log cleaning (SCO, ESO).
    """
    counts, unseen = _subscriptions_among(groups, subscribed)
    held, orphans = np.flatnonzero(counts & chains["exists"]), np.flatnonzero(counts & ~chains["exists"])
    blocking = tuple(sorted([*groups.take(pa.array(orphans)).to_pylist(), *unseen]))
    offsets = np.unique(chains["snapshot_offset"][held]).tolist()
    if blocking and not ignore_uncheckpointed:
        following = offsets[0] if offsets and not blocking[1:] else None
        firsts = np.where(chains["orphan_offset"] < 0, chains["newest_offset"], chains["orphan_offset"])[orphans]
        if not len(orphans):
            return EarliestShareOffset(None, blocking[0], None, following, blocking, counts)
        oldest = int(np.argmin(firsts))
        name = groups[int(orphans[oldest])].as_py()
        return EarliestShareOffset(None, name, int(firsts[oldest]), following, blocking, counts)
    if not offsets:
        return EarliestShareOffset(None, None, None, None, blocking, counts)
    holder = held[np.argmin(chains["snapshot_offset"][held])]
    following = offsets[1] if offsets[1:] else None
    return EarliestShareOffset(offsets[0], groups[int(holder)].as_py(), offsets[0], following, blocking, counts)


def _subscriptions_among(groups: pa.Array, subscribed: Collection[str] | None) -> tuple[np.ndarray, list[str]]:
    """Which groups of the log have a subscription, and which subscribed groups are not in the log."""
    if subscribed is None:
        return np.ones(len(groups), bool), []
    listed = pa.array(sorted(set(subscribed)), pa.string())
    counts = pc.call_function("is_in", [groups], pc.SetLookupOptions(listed))
    seen = pc.call_function("is_in", [listed], pc.SetLookupOptions(groups))
    return counts.to_numpy(zero_copy_only=False), listed.filter(pc.call_function("invert", [seen])).to_pylist()
