"""Rules over the control records of the KIP-932 draft: faulty records and tuples, and deleted records."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from share_state.fold.draft.control_log import FoldedControlLog
from share_state.fold.durations import duration_text
from share_state.fold.state_chains import NO_OFFSET
from share_state.fold.states import CONTROL_RECORDS
from share_state.kafka.control_records import UNREADABLE_CONTROL_FAULTS, ControlFault
from share_state.rules.breaches import (
    ERROR,
    INFO,
    OVER_LIMIT,
    WARNING,
    Breaches,
    GroupBreach,
    at_share_partitions,
)
from share_state.rules.delta_links import at_records
from share_state.rules.registry import Scope, rule
from share_state.sources.share_snapshots import ShareSnapshotEntry

# Deleted records.


@rule("ORPHAN_DELTA", Scope.CONTROL_LOG, WARNING, "KIP-932 draft, ShareCheckpoint")
def orphan_delta(folded: FoldedControlLog) -> Breaches:
    """The first control record of a group is a checkpoint.

    Groups without a checkpoint have no state and, with a subscription, hold the cutoff back.

    Do: export from the log start.
    """
    first = folded.all_chains.chains["orphan_offset"]
    rows = np.flatnonzero(first != NO_OFFSET)
    text = ("the log has no checkpoint of the group before its deltas from offset ", first[rows], " on")
    severity = np.where(folded.earliest.subscribes[rows], WARNING, INFO).astype(object)
    return Breaches(first[rows], text, key=rows, severity=severity)


@rule("BASE_LOST", Scope.CONTROL_LOG, ERROR, "KIP-932 draft, earliest scannable offset")
def base_lost(folded: FoldedControlLog) -> list[GroupBreach]:
    """The log still holds the latest checkpoint of every group.

    The deltas, the index, the last audit or the subscriptions show that there was one.
    """
    chains, start = folded.all_chains.chains, folded.log.log_start_offset
    orphans, links = chains["orphan_offset"], folded.links
    first = links[(links["offset"] == orphans[links["group"]]) & (links["back_offset"] < start)]
    names = folded.groups.take(pa.array(first["group"])).to_pylist()
    lost = dict(
        zip(names, zip(first["offset"].tolist(), first["back_offset"].tolist(), strict=True), strict=True)
    )
    checkpoints = {entry.group: entry.checkpoint_offset for entry in folded.options.index or ()}
    if folded.options.last_audit is not None:
        checkpoints |= {
            row["group_id"]: row["snapshot_offset"] for row in folded.options.last_audit.to_pylist()
        }
    present = set(folded.groups.filter(pa.array(chains["exists"])).to_pylist())
    breaches = [
        _base_lost(folded, group, f"its checkpoint is before the log start {start}", offset, back_offset=back)
        for group, (offset, back) in lost.items()
    ]
    breaches += [
        _base_lost(folded, group, f"its checkpoint was at offset {offset}, the log starts at {start}", offset)
        for group, offset in checkpoints.items()
        if group not in present and group not in lost
    ]
    unknown = {*folded.earliest.blocked_by} - {*folded.groups.to_pylist(), *checkpoints}
    never = f"the log, which starts at {start}, has no control record of it: if there was one"
    return breaches + [
        replace(_base_lost(folded, one, never), severity=WARNING) for one in sorted(unknown) if start > 0
    ]


def _base_lost(
    folded: FoldedControlLog, group: str, text: str, offset: int | None = None, **evidence: int
) -> GroupBreach:
    subscribed = (folded.options.subscriptions or {}).get(folded.log.topic, ())
    severity = None if folded.options.subscriptions is None or group in subscribed else INFO
    more = {**evidence, "log_start_offset": folded.log.log_start_offset}
    return _of_group(folded, group, f"{text}: its state is lost", offset, severity=severity, evidence=more)


def _of_group(
    folded: FoldedControlLog, group: str, message: str, offset: int | None = None, **more: Any
) -> GroupBreach:
    """A breach about a group of the log; `more` fields as in GroupBreach."""
    topic, partition = folded.log.topic, folded.log.partition
    return GroupBreach(message, group, None, topic, partition, offset=offset, dialect=CONTROL_RECORDS, **more)


@rule("SPSO_BELOW_LOG_START", Scope.CONTROL_LOG, WARNING, "KIP-932, share-partition start offset")
def spso_below_log_start(folded: FoldedControlLog) -> Breaches:
    """No share-partition starts before the log start offset.

    If retention deleted unread records, a leader moves the start to the log start.

    Do: nothing; the records are gone, and the leader resumes at the log start.
    """
    recorded, effective = folded.chains.chains["start_offset"], folded.leader_starts()
    rows = np.flatnonzero(effective > recorded)
    recorded, effective = recorded[rows], effective[rows]
    log_start = f", the log at {folded.log.log_start_offset}; a leader continues from "
    return at_share_partitions(
        folded, rows, "it starts at ", recorded, log_start, effective,
        offset=folded.chains.chains["snapshot_offset"][rows], start_offset=recorded, effective_start_offset=effective,
    )  # fmt: skip


@rule("LONG_CHAIN", Scope.CONTROL_LOG, WARNING, "KIP-932 draft, ShareCheckpoint")
def long_chain(folded: FoldedControlLog) -> Breaches:
    """No more control records follow a checkpoint than configured (limits.chain_length).

    Otherwise a new leader has to read many records, and the cutoff does not advance.

    Do: set `limits.updates_per_snapshot` to the broker's value.
    """
    chains, longest = folded.chains.chains, folded.limits.chain_length
    rows = np.flatnonzero(chains["followers"] > longest)
    base, followers = chains["snapshot_offset"][rows], chains["followers"][rows]
    text = (followers, " control records follow the checkpoint at offset ", base, f" (more than {longest})")
    size = {"records": followers, "offsets_to_log_end": folded.next_offset - base}
    return at_share_partitions(folded, rows, *text, offset=base, **size)


@rule("STATE_SUSPECT", Scope.CONTROL_LOG, WARNING, "KIP-932 draft, ShareDelta BackOffset")
def state_suspect(folded: FoldedControlLog) -> Breaches:
    """Every control record since a group's latest checkpoint is in the log, can be read and refers to its predecessor.

    In mode strict, the row has the state of the valid part of the chain.
    """
    rows = np.flatnonzero(folded.suspect[folded.numbers])
    chains = folded.chains.chains[rows]
    stopped, doubt = chains["stopped_offset"], chains["suspect_offset"]
    since = np.where(
        stopped != NO_OFFSET, stopped, np.where(doubt != NO_OFFSET, doubt, folded.last_lost_offset)
    )
    until = f" on; the mode {folded.options.mode} folded up to offset "
    text = ("the state may be wrong from offset ", since, until, chains["last_offset"].copy())
    return at_share_partitions(
        folded, rows, *text, offset=since, checkpoint_offset=chains["snapshot_offset"].copy()
    )


@rule("STALE_INDEX", Scope.CONTROL_LOG, WARNING, "KIP-932 draft, share snapshot file")
def stale_index(folded: FoldedControlLog) -> list[GroupBreach]:
    """The log has what the share snapshot file names: the checkpoints, and every group with earlier records.

    The log decides. A file that is older than the newest records is in order.

    Do: find out what the log has lost, or where the file comes from; then drop contradicted entries with
    `cutoff --index DIR --accept`.
    """
    if folded.options.index is None:
        return []
    actual_entries = {entry.group: entry for entry in folded.index_entries if not entry.is_contradicted}
    disputed = {
        replace(entry, is_contradicted=False) for entry in folded.index_entries if entry.is_contradicted
    }
    distinct = dict.fromkeys(folded.options.index)
    counts = Counter(entry.group for entry in distinct)
    breaches = []
    for entry in distinct:
        actual = actual_entries.get(entry.group)
        is_second = counts[entry.group] > 1 and entry != actual
        if entry not in disputed and not is_second:
            continue
        text = f"the index has {_place_of(entry)}; the log has {_place_of(actual)}"
        text += "; the log contradicts the index (--accept drops the entry)" if entry in disputed else ""
        text += "; the index has several entries of the group" if is_second else ""
        evidence = {"checkpoint_offset": actual.checkpoint_offset} if actual else {}
        breaches.append(_of_group(folded, entry.group, text, entry.checkpoint_offset, evidence=evidence))
    named = {entry.group for entry in folded.options.index}
    written_up_to = max((entry.last_offset for entry in folded.options.index), default=NO_OFFSET)
    begins = _first_records(folded)
    return breaches + [
        _of_group(
            folded,
            group,
            f"the index has {_place_of(None)}, and records up to {written_up_to}; the log has "
            f"{_place_of(actual)}, and records of the group from {begins[group]} on",
        )
        for group, actual in actual_entries.items()
        if group not in named and begins[group] <= written_up_to
    ]


def _first_records(folded: FoldedControlLog) -> dict[str, int]:
    """Group -> offset of its first record in the log."""
    numbers, first = np.unique(folded.links["group"], return_index=True)
    offsets = folded.links["offset"][first].tolist()
    return dict(zip(folded.groups.take(pa.array(numbers)).to_pylist(), offsets, strict=True))


def _place_of(entry: ShareSnapshotEntry | None) -> str:
    if entry is None:
        return "no checkpoint"
    return f"checkpoint {entry.checkpoint_offset} of epoch {entry.checkpoint_epoch}, last record {entry.last_offset}"


@rule("CUTOFF_PINNED", Scope.CONTROL_LOG, INFO, "KIP-932 draft, log cleaning")
def cutoff_pinned(folded: FoldedControlLog) -> list[GroupBreach]:
    """No single share-partition keeps many records from being deleted (limits.pinned_records).

    Reports the group that holds the cutoff back, even if it has no checkpoint.

    Do: delete the group if nobody uses it; upgrade; for control records, list the groups in use
    (`control_records.subscriptions`).
    """
    (row,) = folded.cutoff.to_pylist()
    earliest = folded.earliest
    pinned = row["pinned_records"]
    group = row["limited_by_group"]
    if group is None or (earliest.offset is not None and pinned < max(folded.limits.pinned_records, 1)):
        return []
    since = row["limited_since"]
    text = (
        f"its checkpoint at offset {earliest.offset} alone keeps {pinned} control records from being cleaned"
    )
    if earliest.offset is None:
        text = "it has no checkpoint, so nothing can be cleaned"
        text += f"; without it {pinned} control records could be" if pinned else ""
    evidence = {"pinned_records": pinned}
    if since is not None:
        evidence["seconds"] = max(0, folded.newest_time // 1000 - int(since.timestamp()))
        age = duration_text(1000 * evidence["seconds"])
        text += f"; it was written {age} before the newest record of the log"
    return [_of_group(folded, group, text, earliest.limited_from, evidence=evidence)]


# Single records.


def _with_fault(folded: FoldedControlLog, fault: int) -> np.ndarray:
    return folded.faulty[folded.faulty["fault"] & fault != 0]


@rule("KEY_MALFORMED", Scope.CONTROL_LOG, ERROR, "Kafka ControlRecordType.parse")
def key_malformed(folded: FoldedControlLog) -> Breaches:
    """Every control record has a version and a type.

    Do: the coordinator cannot load this partition: restore it from a replica, or delete the records before
    the next valid snapshots.
    """
    return at_records(
        _with_fault(folded, ControlFault.KEY_MALFORMED), "the key of a control record cannot be read"
    )


@rule("VALUE_MALFORMED", Scope.CONTROL_LOG, ERROR, "KIP-932 draft, ShareCheckpoint, ShareDelta")
def value_malformed(folded: FoldedControlLog) -> Breaches:
    """Every checkpoint and delta is read to its last byte.

    A warning if no group can be read.

    Do: the coordinator cannot load this partition: restore it from a replica, or delete the records before
    the next valid snapshots.
    """
    rows = _with_fault(folded, UNREADABLE_CONTROL_FAULTS)
    severity = np.where(rows["group"] < 0, WARNING, ERROR).astype(object)
    text = np.where(
        rows["fault"] & ControlFault.VALUE_TRAILING != 0,
        "bytes that are not in the layout follow the value; the record was left out",
        "the value is not a checkpoint or delta; the record was left out",
    )
    return at_records(rows, pa.array(text), severity=severity, type=rows["type"].copy())


@rule("INVERTED_RANGE", Scope.CONTROL_LOG, ERROR, "KIP-932 draft, ShareDelta States")
def inverted_range(folded: FoldedControlLog) -> Breaches:
    """Every tuple ends at or after its first offset.

    Any other tuple is left out.

    Do: the coordinator cannot load this partition: restore it from a replica, or delete the records before
    the next valid snapshots.
    """
    return at_records(
        _with_fault(folded, ControlFault.INVERTED_RANGE), "a tuple ends before it begins; it was left out"
    )


@rule("PERSISTED_ACQUIRED", Scope.CONTROL_LOG, WARNING, "KIP-932 draft, delivery states")
def persisted_acquired(folded: FoldedControlLog) -> Breaches:
    """The state Acquired is never written.

    It counts as available, with one delivery fewer.

    Do: fix the writer.
    """
    return at_records(
        _with_fault(folded, ControlFault.PERSISTED_ACQUIRED),
        "a tuple is acquired; it was folded as available",
    )


@rule("UNKNOWN_DELIVERY_STATE", Scope.CONTROL_LOG, WARNING, "KIP-932 draft, delivery states")
def unknown_delivery_state(folded: FoldedControlLog) -> Breaches:
    """The state of a tuple is 0, 2 or 4.

    A tuple in any other state is folded, and is not terminal.

    Do: before a downgrade, let dead-letter writes finish; 4.3 never ends ARCHIVING, and 4.2 refuses to load
    the partition.
    """
    return at_records(
        _with_fault(folded, ControlFault.UNKNOWN_STATE),
        "a tuple is in a state that the draft does not define",
    )


@rule("DELIVERY_COUNT_INVALID", Scope.CONTROL_LOG, WARNING, "KIP-932 draft, ShareDelta States")
def delivery_count_invalid(folded: FoldedControlLog) -> Breaches:
    """No delivery count is negative.

    Do: find the program that writes to the topic.
    """
    return at_records(
        _with_fault(folded, ControlFault.NEGATIVE_COUNT), "a tuple has a negative delivery count"
    )


@rule(OVER_LIMIT, Scope.CONTROL_LOG, WARNING, "Kafka group.share.delivery.count.limit")
def delivery_count_over_limit(folded: FoldedControlLog) -> Breaches:
    """No delivery count exceeds the limit of its group (limits.delivery_count, limits.groups).

    Judges the records since the latest checkpoints; reports each group once, at the record with the greatest
    count.

    Do: set `limits.delivery_count` to the group's limit.
    """
    rows, tuples = folded.records.rows, folded.records.tuples
    # The extra entry is for number -1: a record of no group, which is not folded.
    of_groups = folded.given_limits.of_groups("delivery_count", folded.groups)
    limits = np.append(of_groups, np.iinfo(np.int64).max)[rows["group"]]
    over = np.flatnonzero(tuples["count"] > np.repeat(limits, rows["tuple_count"]))
    owner = np.searchsorted(rows["tuples"], over, "right") - 1
    count, group = tuples["count"][over].astype(np.int64), rows["group"][owner]
    order = np.lexsort((over, -count, group))
    first = np.sort(order[np.diff(group[order], prepend=-1) > 0])
    owner, count = owner[first], count[first]
    text = ("offsets were delivered up to ", count, " times, but the limit of the group is ", limits[owner])
    why = ": limits.delivery_count or limits.groups differ from the brokers"
    return at_records(rows[owner], *text, why, delivery_count=count)


@rule(
    "START_OFFSET_INVALID",
    Scope.CONTROL_LOG,
    WARNING,
    "KIP-932 draft, ShareCheckpoint StartOffset, EndOffset",
)
def start_offset_invalid(folded: FoldedControlLog) -> Breaches:
    """A checkpoint's start offset is neither negative nor after its end offset.

    Do: reset the group's offsets to where it should resume.
    """
    rows = _with_fault(folded, ControlFault.WINDOW_INVALID)
    start, end = rows["start_offset"].copy(), rows["end_offset"].copy()
    return at_records(
        rows, "the checkpoint's window is from ", start, " to ", end, start_offset=start, end_offset=end
    )


@rule("OVERLAP_IN_DELTA", Scope.CONTROL_LOG, WARNING, "KIP-932 draft, ShareDelta States")
def overlap_in_delta(folded: FoldedControlLog) -> Breaches:
    """The tuples of a record do not overlap.

    If they do, the later tuple counts.

    Do: fix the writer.
    """
    return at_records(
        _with_fault(folded, ControlFault.OVERLAP), "tuples of the record overlap; the later one counts"
    )


# Irregularities found while folding.


@rule("CHECKPOINT_MISMATCH", Scope.CONTROL_LOG, WARNING, "KIP-932 draft, ShareCheckpoint")
def checkpoint_mismatch(folded: FoldedControlLog) -> Breaches:
    """A checkpoint holds the state of the chain before it: what was finished stays finished.

    Otherwise finished offsets are delivered again.

    Do: expect the forgotten offsets to be delivered again.
    """
    rows = folded.mismatches
    first, forgotten = rows["first_forgotten"].copy(), rows["forgotten"].copy()
    before, start = rows["start_before"].copy(), rows["start_offset"].copy()
    return at_records(
        rows, "the checkpoint lacks ", forgotten, " finished offsets, the first is ", first, "; it starts at ", start,
        ", the chain before it at ", before,
        offsets=forgotten, first_offset=first, start_offset=start, previous_start_offset=before,
    )  # fmt: skip


@rule("BELOW_START", Scope.CONTROL_LOG, INFO, "KIP-932 draft, ShareDelta States")
def below_start(folded: FoldedControlLog) -> Breaches:
    """No tuple is below the start offset of its share-partition.

    Such tuples are ignored.

    Do: nothing.
    """
    rows = np.flatnonzero(folded.all_chains.notes["below_start"] > 0)
    counts = folded.all_chains.notes["below_start"][rows].copy()
    text = " offsets of the record lie before the start and were ignored"
    return at_records(folded.records.rows[rows], counts, text, offsets=counts)


@rule("UNCOVERED_GAP", Scope.CONTROL_LOG, WARNING, "KIP-932 draft, ShareDelta States")
def uncovered_gap(folded: FoldedControlLog) -> Breaches:
    """A delta that extends the window covers every offset up to its new end.

    Offsets that it omits become available with count 0.

    Do: fix the writer.
    """
    rows = np.flatnonzero(folded.all_chains.notes["hole_offsets"] > 0)
    notes = folded.all_chains.notes[rows]
    first, last = notes["hole_first"].copy(), notes["hole_last"].copy()
    return at_records(
        folded.records.rows[rows], "the delta omits offsets ", first, " to ", last, "; they were folded as available",
        first_missing=first, last_missing=last, offsets=notes["hole_offsets"].copy(),
    )  # fmt: skip
