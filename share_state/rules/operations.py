"""Rules over the folded state: share-partitions that make no progress or keep old records from being deleted."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.fold.interval_merge import has_terminal_after_start
from share_state.fold.log_stats import Folded
from share_state.fold.state_chains import NO_OFFSET
from share_state.fold.state_log import FoldedLog
from share_state.fold.states import window_ends
from share_state.kafka.buffers import range_rows
from share_state.kafka.delivery_states import ARCHIVED, ARCHIVING, are_terminal, is_poison
from share_state.kafka.releases import RELEASE_HISTORY
from share_state.kafka.state_records import LARGEST_OFFSET
from share_state.rules.breaches import (
    INFO,
    NOTHING,
    PLACE,
    WAITED,
    WARNING,
    Breaches,
    Column,
    GroupBreach,
    at_share_partitions,
    take_breaches,
)
from share_state.rules.registry import Scope, rule

_MAX_RANGES = 5
_MINUTE_MS = 60_000
_IN_PROGRESS_MS = 5 * _MINUTE_MS
"""Longer than an acquisition lock lasts by default (group.share.max.record.lock.duration.ms: one minute)."""

PRUNING_DUE_MS = 30 * _MINUTE_MS
"""Age of a cutoff up to which the broker has pruned: six times the default of the interval at which it
does."""


@rule("ARCHIVING_STUCK", Scope.STATE_LOG, WARNING, "KIP-1191")
def archiving_stuck(folded: FoldedLog) -> Breaches:
    """An offset in ARCHIVING becomes ARCHIVED once its dead-letter write is done (limits.archiving_seconds).

    Do: check the dead-letter topic and its settings; then restart the leader, which retries the write.
    """
    chains = folded.chains.chains
    # A fold without rules over records does not know the time; the last record is an upper limit for it.
    since = np.where(chains["archiving_at"] == NO_OFFSET, chains["last_timestamp"], chains["archiving_at"])
    rows = np.flatnonzero(folded.chains.batches["state"] == ARCHIVING)
    if not len(rows):
        return NOTHING
    why = ": the start offset cannot pass them until their dead-letter write is done"
    if (since < 0).any():
        # The format has no timestamps.
        return _with_ranges(folded, rows, lambda _: (f"in ARCHIVING{why}",))
    text = ("in ARCHIVING, the first for ", WAITED, why)
    # What "milliseconds" holds is replaced by the duration since then.
    breaches = _with_ranges(folded, rows, lambda _: text, milliseconds=since)
    since = np.asarray(breaches.evidence["milliseconds"])
    return replace(breaches, since=since, due=since + folded.limits.archiving_seconds * 1000)


@rule("POISON_RECORDS", Scope.LOG, WARNING, "Kafka group.share.delivery.count.limit")
def poison_records(folded: Folded) -> Breaches:
    """No offset is near the delivery limit of its group (limits.delivery_count, limits.groups).

    Reports offsets one delivery below the limit, and those archived at the limit. On a busy topic a few are
    normal: it is a warning if limits.poison_ratio of the records finished since the last audit were given up,
    or if offsets wait for their last delivery and no consumer has changed the state for 5 minutes; else an
    info. Where the log does not show what became of deliveries, it is always a warning.

    Do: read these offsets and fix the consumer.
    """
    batches, limits = folded.chains.batches, folded.limits_of("delivery_count")
    least = limits.min(initial=LARGEST_OFFSET)
    # Most ranges are far from the limit of any group, and need not be compared with that of their own.
    near = np.flatnonzero(batches["count"] >= min(least, max(least - 1, 1)))
    if not len(near):
        return NOTHING
    state, owner = batches["state"][near], np.searchsorted(folded.chains.ends, near, "right") - 1
    # Of the offsets before the leader's start, only archived ones are reported.
    is_reported = (batches["last"][near] >= folded.leader_starts()[owner]) | (state == ARCHIVED)
    rows = near[is_poison(state, batches["count"][near], limits[owner]) & is_reported]
    if not len(rows):
        return NOTHING
    after = " or one delivery below it"
    shares, is_frequent = _failed_deliveries(folded)
    waiting = rows[~are_terminal(batches["state"][rows])]
    waits = np.zeros(len(limits), bool)
    waits[np.searchsorted(folded.chains.ends, waiting, "right") - 1] = True
    shown = _with_ranges(
        folded,
        rows,
        lambda owners: ("at the delivery limit of ", limits[owners], after, shares.take(pa.array(owners))),
    )
    assert shown.key is not None
    by_number = np.argsort(folded.numbers)
    places = by_number[np.searchsorted(folded.numbers, shown.key, sorter=by_number)]
    idle_at = folded.chains.chains["last_consumed_at"][places] + _IN_PROGRESS_MS
    # Whether consumers still work on them shows the end of the export, so each of both severities has its
    # condition.
    is_open = waits[places] & ~is_frequent[places]
    severity = np.where(is_frequent[places] | is_open, WARNING, INFO).astype(object)
    every, open_rows = np.arange(len(places)), np.flatnonzero(is_open)
    always = np.full(len(places), NO_OFFSET)
    return replace(
        take_breaches(shown, np.concatenate((every, open_rows))),
        severity=np.concatenate((severity, np.full(len(open_rows), INFO, object))),
        due=np.concatenate((np.where(is_open, idle_at, NO_OFFSET), always[open_rows])),
        until=np.concatenate((always, idle_at[open_rows])),
    )


def _failed_deliveries(folded: Folded) -> tuple[pa.Array, np.ndarray]:
    """What share of the deliveries of each share-partition failed, since the last audit if there was one.

    Returns:
        The share as the end of a message, empty if no delivery ended; whether so many records were given up
        that it is a warning (True if the log does not show it).
    """
    outcomes = folded.outcomes
    if outcomes is None:
        return pa.repeat(pa.scalar(""), len(folded.numbers)), np.ones(len(folded.numbers), bool)
    finished = outcomes["acknowledged"] + outcomes["given_up"] + outcomes["rejected"]
    total = finished + outcomes["released"]
    failed = total - outcomes["acknowledged"]
    is_frequent = (finished > 0) & (
        outcomes["given_up"] >= folded.limits.poison_ratio * np.maximum(finished, 1)
    )
    is_frequent &= outcomes["given_up"] > 0
    percent = pa.array(np.round(100 * failed / np.maximum(total, 1), 1)).cast(pa.string())
    counts = pa.array(total).cast(pa.string())
    since = " since the last audit" if folded.outcomes_since else ""
    pieces = ["; ", percent, " % of ", counts, f" deliveries failed{since}", ""]
    texts = pc.call_function("binary_join_element_wise", pieces)
    return pc.if_else(pa.array(total > 0), texts, ""), is_frequent


def _with_ranges(
    folded: Folded,
    rows: np.ndarray,
    text: Callable[[np.ndarray], tuple[Column, ...]],
    severity: np.ndarray | None = None,
    **evidence: np.ndarray,
) -> Breaches:
    """One finding per share-partition with selected ranges at or after its start; the message lists the first few.

    Args:
        folded: the folded log.
        rows: selected rows of `folded.chains.batches`.
        text: returns the end of the message for rows of share-partitions.
        severity: as in Breaches, one value per live share-partition.
        evidence: additional evidence, one value per live share-partition.
    """
    if not len(rows):
        return NOTHING
    chains = folded.chains
    owner = np.searchsorted(chains.ends, rows, "right") - 1
    starts, last = chains.chains["start_offset"][owner], chains.batches["last"][rows]
    is_after_start = last >= starts
    rows, owner, starts, last = (column[is_after_start] for column in (rows, owner, starts, last))
    first = np.maximum(chains.batches["first"][rows], starts)
    owners_with_ranges, begin, ranges = np.unique(owner, return_index=True, return_counts=True)
    offsets = np.add.reduceat(last - first + 1, begin)
    noun, lists = np.where(offsets == 1, " offset (", " offsets ("), _listed(first, last, begin, ranges)
    evidence = {"offsets": offsets, "first_offset": first[begin], "ranges": ranges} | {
        name: column[owners_with_ranges] for name, column in evidence.items()
    }
    pieces = (offsets, noun, lists, ") ", *text(owners_with_ranges))
    severity = None if severity is None else severity[owners_with_ranges]
    return at_share_partitions(folded, owners_with_ranges, *pieces, severity=severity, **evidence)


def _listed(first: np.ndarray, last: np.ndarray, begin: np.ndarray, ranges: np.ndarray) -> pa.Array:
    """For each run of `ranges` rows from `begin` on, the first few ranges as text and the number of further ranges."""
    shown = np.minimum(ranges, _MAX_RANGES)
    ends = np.concatenate(([0], np.cumsum(shown)))
    rows = range_rows(begin, shown)
    lows, highs = pa.array(first[rows]).cast(pa.string()), pa.array(last[rows]).cast(pa.string())
    both = pc.call_function("binary_join_element_wise", [lows, highs, pa.scalar("-")])
    texts = pc.call_function("if_else", [pa.array(first[rows] == last[rows]), lows, both])
    lists = pa.ListArray.from_arrays(pa.array(ends.astype(np.int32)), texts)
    joined = pc.call_function("binary_join", [lists, pa.scalar(", ")])
    more = [f" and {count} more ranges" if count else "" for count in (ranges - shown).tolist()]
    return pc.call_function("binary_join_element_wise", [joined, pa.array(more, pa.string()), pa.scalar("")])


@rule("SPSO_STALL", Scope.LOG, WARNING, "KIP-1222; KIP-932, share-partition start offset")
def spso_stall(folded: Folded) -> Breaches:
    """The start offset advances while later offsets finish (limits.stall_minutes).

    Offsets after it finished until at least `limits.stall_minutes` after the first delivery since it moved.
    The message names the time since it moved.

    Do: find its consumer and restart it.
    """
    chains, batches = folded.chains.chains, folded.chains.batches
    start = chains["start_offset"].copy()
    stuck = folded.leader_starts() == start
    finished = has_terminal_after_start(start, folded.chains.ends, batches)
    # Measured from the first delivery since the start advanced: an idle share-partition has not stalled.
    milliseconds = np.where(
        chains["first_delivery_at"] < 0, 0, chains["last_consumed_at"] - chains["first_delivery_at"]
    )
    rows = np.flatnonzero(
        stuck & finished & (start >= 0) & (milliseconds >= folded.limits.stall_minutes * _MINUTE_MS)
    )
    text = (
        "the start offset ",
        start[rows],
        " has not moved for ",
        WAITED,
        ", and later offsets finished since",
    )
    moved = chains["start_advanced_at"][rows]
    breaches = at_share_partitions(
        folded, rows, *text, start_offset=start[rows], milliseconds=chains["last_consumed_at"][rows] - moved
    )
    return replace(breaches, since=moved)


@rule(
    "IN_FLIGHT_LIMIT",
    Scope.LOG,
    WARNING,
    "Kafka SharePartition.canAcquireRecords, group.share.partition.max.record.locks",
)
def in_flight_limit(folded: Folded) -> Breaches:
    """A share-partition has fewer offsets in flight than its limit (limits.record_locks, limits.groups).

    If the window from the leader's start to the end is full, no record beyond it can be acquired.

    Do: see SPSO_STALL; raise `group.share.partition.max.record.locks`.
    """
    limits = folded.limits_of("record_locks")
    # The recorded start may be one write behind; a leader starts after the finished offsets.
    start = folded.leader_starts()
    width = window_ends(folded.chains) - start
    rows = np.flatnonzero((folded.chains.chains["start_offset"] >= 0) & (width >= limits))
    width, start = width[rows], start[rows]
    more = " no record beyond them is delivered until the first of them finishes"
    text = (width, " offsets are in flight from ", start, " on; at ", limits[rows], more)
    return at_share_partitions(folded, rows, *text, in_flight=width, start_offset=start)


@rule("LONG_CHAIN", Scope.STATE_LOG, WARNING, "Kafka share.coordinator.snapshot.update.records.per.snapshot")
def long_chain(folded: FoldedLog) -> Breaches:
    """A snapshot is followed by no more updates than configured (limits.updates_per_snapshot).

    Otherwise loading takes long, and the cutoff does not advance.
    """
    limits, chains = folded.limits, folded.chains.chains
    # Up to 4.2.0 the first cycle after a load or a creation has one more update.
    is_counted = all(one.counts_first_update for one in limits.possible_writers())
    allowed = limits.updates_per_snapshot + (not is_counted)
    rows = np.flatnonzero((chains["updates"] > allowed) & ~folded.suspect)
    base, updates = chains["snapshot_offset"][rows], chains["updates"][rows]
    since = np.where(base >= 0, base, chains["orphan_offset"][rows])
    limit = f" without a snapshot; the limit is {limits.updates_per_snapshot}"
    text = (updates, f" updates follow {PLACE} ", since, limit)
    return at_share_partitions(folded, rows, *text, updates=updates, snapshot_offset=base)


_SKIPPED_JOB = "; Kafka {} skips the job that would snapshot it anew while updates are pending"


@rule("CUTOFF_PINNED", Scope.STATE_LOG, INFO, "Kafka ShareCoordinatorOffsetsManager")
def cutoff_pinned(folded: FoldedLog) -> Breaches:
    """No single share-partition keeps many records from being deleted (limits.pinned_records).

    Reports the share-partition whose old snapshot holds the cutoff back. Kafka 4.4.0 can keep it there: its
    job that snapshots idle share-partitions is skipped while updates are pending, a bug that is mended for 4.5.
    """
    snapshots = folded.chains.chains["snapshot_offset"]
    pinned = folded.cutoff["pinned_records"][0].as_py() or 0
    rows = np.flatnonzero(snapshots != NO_OFFSET)
    if pinned < max(folded.limits.pinned_records, 1) or not len(rows):
        return NOTHING
    (row,) = folded.cutoff.to_pylist()
    limiting_row = rows[[np.argmin(snapshots[rows])]]
    at, size = snapshots[limiting_row], row["pinned_bytes"]
    why = f" alone keeps {pinned} records ({size} bytes) from being cleaned"
    writers = folded.limits.possible_writers(folded.archiving[0])
    is_known = len(writers) < len(RELEASE_HISTORY)
    skipping = [one.patch for one in writers if is_known and one.skips_cold_job]
    bug = _SKIPPED_JOB.format(" and ".join(skipping)) if skipping else ""
    text = (
        f"its snapshot at {PLACE} ",
        at,
        f"{why}; without it the cutoff would be {row['next_cutoff_offset']}{bug}",
    )
    evidence = {"pinned_records": np.array([pinned]), "pinned_bytes": np.array([size])}
    return at_share_partitions(folded, limiting_row, *text, offset=at, **evidence)


@dataclass(frozen=True, slots=True)
class EarlierCutoff:
    """A state partition whose broker records where its log starts.

    Attributes:
        state_partition: its number.
        log_start_offset: its log start offset now.
        cutoff_offset: its cutoff PRUNING_DUE_MS ago.
    """

    state_partition: int
    log_start_offset: int
    cutoff_offset: int


@rule("PRUNING_BEHIND", Scope.PRUNING, WARNING, "Kafka ShareCoordinatorService.performRecordPruning")
def pruning_behind(earlier: Sequence[EarlierCutoff]) -> Iterator[GroupBreach]:
    """The log starts at or after the cutoff of 30 minutes ago.

    The coordinator prunes up to its cutoff every share.coordinator.state.topic.prune.interval.ms, 5 minutes
    by default. Checked where the input shows the broker's own log start.

    Do: look for errors of the prune job in the log of the broker that leads the state partition; let another
    broker lead it.
    """
    minutes = PRUNING_DUE_MS // _MINUTE_MS
    for one in earlier:
        if one.log_start_offset < one.cutoff_offset:
            yield GroupBreach(
                f"the log starts at offset {one.log_start_offset}, but the broker could have pruned it up to "
                f"{one.cutoff_offset} for {minutes} minutes",
                state_partition=one.state_partition,
                offset=one.log_start_offset,
                evidence={"log_start_offset": one.log_start_offset, "cutoff_offset": one.cutoff_offset},
            )
