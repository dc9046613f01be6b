"""The cutoff of a log: the offset below which every record is redundant, and whether deleting below it is safe.

`cutoff` is for `__share_group_state`; `earliest_share_offset` is for control records of the KIP-932 draft;
`unsafe_reasons` judges both.
"""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.errors import pluralize
from share_state.fold.state_chains import NO_OFFSET, Chains
from share_state.sources.log_partition import STATE_TOPIC, LogPartition

_POSSIBLY_ONLY = "possibly the only records of a share-partition"
_EARLIER_ONLY = "earlier records may be the only ones of a share-partition"
_NO_OFFSETS = "this format has no offsets"


@dataclass(frozen=True, slots=True, kw_only=True)
class CutoffEvidence:
    """What the input shows of the log that a cutoff would clean: the conditions of `unsafe_reasons`.

    Attributes:
        log: the log partition.
        base: what the state of a share-partition begins with: "snapshot" or "checkpoint".
        start_is_shown: whether the input shows that no record of the broker's own log precedes it.
        suspects: number of live share-partitions whose latest snapshot is known and whose state is suspect.
        without_base: number of live share-partitions whose snapshot is not in the input.
        lost_offset: an offset from which records are missing or unreadable, -1 for none.
        break_offset: an offset at which the snapshot epochs do not follow, -1 for none.
        foreign_offset: an offset of a batch that has not the leader epoch of the log there, or precedes the
            base offset in the name of its file; -1 for none.
        misplaced: number of share-partitions whose records belong to another state partition.
        may_lack_partitions: whether they do so only if the input lacks no state partition.
        holds_other_records: whether most of its records are no state records.
        uncommitted: number of share-partitions whose latest snapshot or tombstone is not before
            `committed_end`.
        blocked_by: groups that have a subscription but no checkpoint (control records).
        stable_end: the last stable offset, -1 without an open transaction.
    """

    log: LogPartition
    base: str
    start_is_shown: bool
    suspects: int
    without_base: int
    lost_offset: int
    break_offset: int = NO_OFFSET
    foreign_offset: int = NO_OFFSET
    misplaced: int = 0
    may_lack_partitions: bool = False
    holds_other_records: bool = False
    uncommitted: int = 0
    blocked_by: tuple[str, ...] = ()
    stable_end: int = NO_OFFSET


def unsafe_reasons(evidence: CutoffEvidence) -> list[str]:
    """Why deleting the records before a cutoff from the broker's own log could change a live share-partition.

    The one list of conditions for both dialects. The conditions hold whatever part of the broker's log is not
    in the input: later records only move the cutoff forward, but earlier or missing ones may be the only
    records of a share-partition.

    Returns:
        One reason per condition that does not hold; empty if the cutoff is safe.
    """
    log, base = evidence.log, evidence.base
    if not log.has_offsets:
        return [_NO_OFFSETS]
    reasons = list[str]()
    if evidence.blocked_by:
        first, *others = evidence.blocked_by
        more = f" and {len(others)} more" if others else ""
        reasons.append(f"no {base} of group {first}{more}, so nothing may be cleaned")
    if evidence.suspects:
        untrusted = pluralize(evidence.suspects, "share-partition")
        reasons.append(f"{untrusted} cannot be trusted since the latest {base}")
    if evidence.lost_offset != NO_OFFSET:
        reasons.append(
            f"records from offset {evidence.lost_offset} on are missing or unreadable, {_POSSIBLY_ONLY}"
        )
    if evidence.break_offset != NO_OFFSET:
        reasons.append(
            f"the snapshot epoch at offset {evidence.break_offset} does not follow the one before it: records are"
            " missing, repeated, or of another log"
        )
    if evidence.foreign_offset != NO_OFFSET:
        reasons.append(
            f"from offset {evidence.foreign_offset} on, leader epochs or file names are not those of this log: another"
            " replica's or another log's batches are in it"
        )
    if evidence.without_base:
        where = "in the input"
        if evidence.start_is_shown:
            where += f", nor in the broker's log, which begins at offset {log.log_start_offset}"
        reasons.append(f"the {base} of {pluralize(evidence.without_base, 'share-partition')} is not {where}")
    if not evidence.start_is_shown:
        reasons.append(
            f"the input begins at offset {log.log_start_offset}, and nothing in it shows that the broker's log does:"
            f" {_EARLIER_ONLY}"
        )
    if evidence.misplaced:
        belonging = pluralize(evidence.misplaced, "share-partition")
        or_else = ", or the input lacks state partitions" if evidence.may_lack_partitions else ""
        reasons.append(f"the records of {belonging} belong to another state partition{or_else}")
    if evidence.holds_other_records:
        reasons.append("most of its records are no state records")
    if log.topic == STATE_TOPIC and log.partition is None:
        reasons.append("the number of the state partition is not known")
    if evidence.uncommitted:
        newest = pluralize(evidence.uncommitted, "share-partition")
        reasons.append(
            f"the latest {base} of {newest} is above the high watermark {log.committed_end} recorded beside the copy,"
            f" so another replica may not have it; give --as-of-offset {log.partition}={log.committed_end}"
        )
    return reasons


def hiding_reasons(reason: str | None) -> list[str]:
    """Those of the reasons of a cutoff for which a share-partition may have no row in the tables."""
    texts = (reason or "").split("; ")
    unknown = [f"{_NO_OFFSETS}, so it does not show whether records are missing"] * (_NO_OFFSETS in texts)
    return [*unknown, *(text for text in texts if text.endswith((_POSSIBLY_ONLY, _EARLIER_ONLY)))]


@dataclass(frozen=True, slots=True)
class Cutoff:
    """The cutoff of one log partition.

    Attributes:
        offset: records before it are redundant; None if there is no cutoff.
        limited_by: row in the live chains of the share-partition that limits it, None for none or an open
            transaction.
        next_offset: the cutoff without that share-partition or transaction, None if none limits it.
    """

    offset: int | None
    limited_by: int | None
    next_offset: int | None


def cutoff(chains: Chains, stable_end: int = NO_OFFSET) -> Cutoff:
    """Compute the offset below which the broker's own pruning would delete.

    Args:
        chains: live chains of one log partition.
        stable_end: the last stable offset, which no cutoff exceeds, as later records may count or not; -1
            without an open transaction.
    Returns:
        The smallest snapshot offset over live share-partitions; if there are none, the offset of the last
        tombstone.
    Source: Kafka ShareCoordinatorOffsetsManager.lastRedundantOffset,
        ShareCoordinatorService.performRecordPruning; KIP-932, ESO.
    """
    snapshots = chains.chains["snapshot_offset"]
    with_snapshot = np.flatnonzero(snapshots != NO_OFFSET)
    limiting_row = int(with_snapshot[np.argmin(snapshots[with_snapshot])]) if len(with_snapshot) else None
    offset = int(snapshots[limiting_row]) if limiting_row is not None else chains.last_snapshot_record
    other_offsets = snapshots[with_snapshot][snapshots[with_snapshot] != offset]
    following = None
    if limiting_row is not None:
        following = int(other_offsets.min()) if len(other_offsets) else chains.last_snapshot_record
    if NO_OFFSET < stable_end < offset:
        return Cutoff(stable_end or None, None, offset)
    if stable_end != NO_OFFSET and following is not None:
        following = min(following, stable_end)
    return Cutoff(offset if offset > 0 else None, limiting_row, following)


def count_uncommitted(chains: np.ndarray, committed_end: int | None) -> int:
    """Number of share-partitions whose latest snapshot, checkpoint or tombstone is not known to be replicated.

    Args:
        chains: CHAIN or CONTROL_CHAIN rows of all share-partitions of a log.
        committed_end: as in LogPartition.
    """
    if committed_end is None:
        return 0
    newest = "newest_offset" if "newest_offset" in (chains.dtype.names or ()) else "last_offset"
    replaced_at = np.where(chains["exists"], chains["snapshot_offset"], chains[newest])
    return int((replaced_at >= committed_end).sum())


@dataclass(frozen=True, slots=True)
class EarliestShareOffset:
    """The cutoff of one topic-partition.

    Attributes:
        offset: control records before it are redundant; None if there is no cutoff.
        limited_by: the group that limits it: the group with the checkpoint at this offset, or the oldest
            group that blocks a cutoff.
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
        firsts = np.where(chains["orphan_offset"] < 0, chains["newest_offset"], chains["orphan_offset"])[
            uncheckpointed
        ]
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


def _subscriptions_among(
    groups: pa.Array, subscribed: Collection[str] | None
) -> tuple[np.ndarray, list[str]]:
    """Which groups of the log have a subscription, and which subscribed groups are not in the log."""
    if subscribed is None:
        return np.ones(len(groups), bool), []
    subscriptions = pa.array(sorted(set(subscribed)), pa.string())
    subscribes = pc.call_function("is_in", [groups], pc.SetLookupOptions(subscriptions))
    is_in_log = pc.call_function("is_in", [subscriptions], pc.SetLookupOptions(groups))
    return subscribes.to_numpy(zero_copy_only=False), subscriptions.filter(
        pc.call_function("invert", [is_in_log])
    ).to_pylist()
