"""The cutoff of a log partition: the offset below which every record is redundant, and whether to rely on it."""

from dataclasses import dataclass

import numpy as np

from share_state.fold.chains import NOWHERE, Chains


@dataclass(frozen=True, slots=True)
class Cutoff:
    """The cutoff of one log partition.

    Attributes:
        offset: records before it are redundant; None where nothing may go.
        held_by: row (of the live chains) of the share-partition that holds it back, None where none does.
        next_offset: where the offset would be without that share-partition, None where none holds it back.
        unsafe_because: why deleting up to it could lose state; empty where it is safe.
    """

    offset: int | None
    held_by: int | None
    next_offset: int | None
    unsafe_because: str


def cutoff(chains: Chains, suspect: np.ndarray, *, hidden: bool = False) -> Cutoff:
    """What the broker's own pruning would delete up to, judged.

    Args:
        chains: live chains of one log partition.
        suspect: bool, one a chain.
        hidden: whether records are missing or unreadable that may be all there is of a share-partition.
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
    # Kafka's offsets manager knows snapshots only: a state that rests on an update alone would go with its records.
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
