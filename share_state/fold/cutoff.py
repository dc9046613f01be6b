"""The cutoff of a log: the offset below which every record is redundant, and whether deleting below it is safe.

`cutoff` is for `__share_group_state`; `earliest_share_offset` is for control records of the KIP-932 draft.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.errors import pluralize
from share_state.fold.state_chains import NO_OFFSET, Chains


@dataclass(frozen=True, slots=True)
class Cutoff:
    """The cutoff of one log partition.

    Attributes:
        offset: records before it are redundant; None if there is no cutoff.
        limited_by: row in the live chains of the share-partition that limits it, None for none.
        next_offset: the cutoff without that share-partition, None if none limits it.
        unsafe_reason: why deleting below it could lose state; empty if it is safe.
    """

    offset: int | None
    limited_by: int | None
    next_offset: int | None
    unsafe_reason: str


def cutoff(chains: Chains, suspect: np.ndarray, *, hidden: bool = False) -> Cutoff:
    """Compute the offset below which the broker's own pruning would delete, and whether that is safe.

    Args:
        chains, suspect: live chains of one log partition, and for each whether its state is suspect.
        hidden: whether missing or unreadable records may be the only records of a share-partition.
    Returns:
        The smallest snapshot offset over live share-partitions; if there are none, the offset of the last tombstone.
    Source: Kafka ShareCoordinatorOffsetsManager.lastRedundantOffset, ShareCoordinatorService.performRecordPruning;
        KIP-932, ESO.
    """
    snapshots = chains.chains["snapshot_offset"]
    with_snapshot = np.flatnonzero(snapshots != NO_OFFSET)
    limiting_row = int(with_snapshot[np.argmin(snapshots[with_snapshot])]) if len(with_snapshot) else None
    offset = int(snapshots[limiting_row]) if limiting_row is not None else chains.last_snapshot_record
    other_offsets = snapshots[with_snapshot][snapshots[with_snapshot] != offset]
    following = None
    if limiting_row is not None:
        following = int(other_offsets.min()) if len(other_offsets) else chains.last_snapshot_record
    # Kafka's offsets manager tracks only snapshots: it would delete a state that has none.
    orphans = chains.chains["orphan_offset"]
    endangered_count = int(((orphans != NO_OFFSET) & (orphans < offset)).sum())
    reasons = []
    if suspect.any():
        untrusted = pluralize(int(suspect.sum()), "share-partition")
        reasons.append(f"{untrusted} cannot be trusted since the latest snapshot")
    if hidden:
        reasons.append("records are missing or unreadable, possibly the only records of a share-partition")
    if endangered_count:
        reasons.append(
            f"the state of {pluralize(endangered_count, 'share-partition')} depends on updates before the cutoff"
            " that no snapshot precedes"
        )
    return Cutoff(offset if offset > 0 else None, limiting_row, following, "; ".join(reasons))


@dataclass(frozen=True, slots=True)
class EarliestShareOffset:
    """The cutoff of one topic-partition.

    Attributes:
        offset: control records before it are redundant; None if there is no cutoff.
        limited_by: the group that limits it: the group with the checkpoint at this offset, or the oldest group that
            blocks a cutoff.
        limited_from: offset of that checkpoint, or of the first delta of the blocking group; None for none.
        next_offset: the cutoff without that group; None if there is none.
        blocked_by: groups with a subscription but no checkpoint; a single one prevents a cutoff.
        subscribes: bool, whether each group of the log subscribes to the topic.
    """

    offset: int | None
    limited_by: str | None
    limited_from: int | None
    next_offset: int | None
    blocked_by: tuple[str, ...]
    subscribes: np.ndarray


def earliest_share_offset(
    groups: pa.Array,
    chains: np.ndarray,
    subscribed: Collection[str] | None = None,
    *,
    ignore_uncheckpointed: bool = False,
) -> EarliestShareOffset:
    """Compute the smallest share checkpoint offset (SCO) over the groups with a subscription.

    Args:
        groups: ids of the groups of the log.
        chains: CONTROL_CHAIN, one row per group.
        subscribed: groups with a subscription to the topic; None for all groups of the log.
        ignore_uncheckpointed: ignore groups without a checkpoint if another has one.
    Source: KIP-932 draft, log cleaning (SCO, ESO).
    """
    subscribes, absent = _subscriptions_among(groups, subscribed)
    exists = chains["exists"]
    checkpointed, uncheckpointed = np.flatnonzero(subscribes & exists), np.flatnonzero(subscribes & ~exists)
    blocking = tuple(sorted([*groups.take(pa.array(uncheckpointed)).to_pylist(), *absent]))
    offsets = np.unique(chains["snapshot_offset"][checkpointed]).tolist()
    if blocking and not (ignore_uncheckpointed and offsets):
        following = offsets[0] if offsets and not blocking[1:] else None
        firsts = np.where(chains["orphan_offset"] < 0, chains["newest_offset"], chains["orphan_offset"])[uncheckpointed]
        if not len(uncheckpointed):
            return EarliestShareOffset(None, blocking[0], None, following, blocking, subscribes)
        oldest = int(np.argmin(firsts))
        name = groups[int(uncheckpointed[oldest])].as_py()
        return EarliestShareOffset(None, name, int(firsts[oldest]), following, blocking, subscribes)
    if not offsets:
        return EarliestShareOffset(None, None, None, None, blocking, subscribes)
    limiting = groups[int(checkpointed[np.argmin(chains["snapshot_offset"][checkpointed])])].as_py()
    following = offsets[1] if offsets[1:] else None
    return EarliestShareOffset(offsets[0], limiting, offsets[0], following, blocking, subscribes)


def _subscriptions_among(groups: pa.Array, subscribed: Collection[str] | None) -> tuple[np.ndarray, list[str]]:
    """Which groups of the log have a subscription, and which subscribed groups are not in the log."""
    if subscribed is None:
        return np.ones(len(groups), bool), []
    subscriptions = pa.array(sorted(set(subscribed)), pa.string())
    subscribes = pc.call_function("is_in", [groups], pc.SetLookupOptions(subscriptions))
    is_in_log = pc.call_function("is_in", [subscriptions], pc.SetLookupOptions(groups))
    return subscribes.to_numpy(zero_copy_only=False), subscriptions.filter(
        pc.call_function("invert", [is_in_log])
    ).to_pylist()
