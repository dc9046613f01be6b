"""Rules over the control records of the KIP-932 draft: faulty records and tuples, and deleted records."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from share_state.fold.chains import NO_OFFSET
from share_state.fold.control_log import FoldedControlLog
from share_state.fold.states import CONTROL_RECORDS
from share_state.kafka.control_records import UNREADABLE_CONTROL_FAULTS, ControlFault
from share_state.rules.control_chains import control_rule
from share_state.rules.registry import ERROR, INFO, WARNING, Breaches, Column, GroupBreach
from share_state.sources.share_snapshots import ShareSnapshotEntry

# Deleted records.


@control_rule(
    "ORPHAN_DELTA", WARNING, "KIP-932 draft, ShareCheckpoint", "The first control record of a group is a checkpoint."
)
def orphan_delta(folded: FoldedControlLog) -> Breaches:
    """Groups with deltas but no checkpoint: they have no state and, with a subscription, hold the cutoff back."""
    rows = np.flatnonzero(folded.all_chains.chains["orphan_offset"] != NO_OFFSET)
    offsets = folded.all_chains.chains["orphan_offset"][rows].copy()
    return Breaches(
        offsets,
        ("the log has no checkpoint of the group before its deltas from offset ", offsets, " on"),
        key=rows,
        severity=np.where(folded.earliest.counts[rows], WARNING, INFO).astype(object),
    )


@control_rule(
    "BASE_LOST",
    ERROR,
    "KIP-932 draft, earliest scannable offset",
    "The log still holds the latest checkpoint of every group.",
)
def base_lost(folded: FoldedControlLog) -> list[GroupBreach]:
    """Groups whose checkpoint is deleted, according to their deltas, the index, the last audit or subscriptions."""
    chains, start = folded.all_chains.chains, folded.log.log_start_offset
    orphans, links = chains["orphan_offset"], folded.links
    first = links[(links["offset"] == orphans[links["group"]]) & (links["back_offset"] < start)]
    names = folded.groups.take(pa.array(first["group"])).to_pylist()
    lost = dict(zip(names, zip(first["offset"].tolist(), first["back_offset"].tolist(), strict=True), strict=True))
    checkpoints = {entry.group: entry.checkpoint_offset for entry in folded.options.index or ()}
    if folded.options.last_audit is not None:
        checkpoints |= {row["group_id"]: row["snapshot_offset"] for row in folded.options.last_audit.to_pylist()}
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
    return GroupBreach(
        f"{text}: its state is lost",
        severity=None if folded.options.subscriptions is None or group in subscribed else INFO,
        evidence={**evidence, "log_start_offset": folded.log.log_start_offset},
        **_identity(folded, group, offset),
    )


def _identity(folded: FoldedControlLog, group: str, offset: int | None) -> dict[str, Any]:
    """Fields of a GroupBreach that identify a group of the log."""
    return {
        "group_id": group,
        "topic": folded.log.topic,
        "partition": folded.log.partition,
        "offset": offset,
        "dialect": CONTROL_RECORDS,
    }


@control_rule(
    "SPSO_BELOW_LOG_START",
    WARNING,
    "KIP-932, share-partition start offset",
    "No share-partition starts before the log start offset.",
)
def spso_below_log_start(folded: FoldedControlLog) -> Breaches:
    """Share-partitions with unread records that retention deleted: a leader moves their start to the log start."""
    recorded, effective = folded.chains.chains["start_offset"].copy(), folded.leader_starts()
    rows = np.flatnonzero(effective > recorded)
    return Breaches(
        folded.chains.chains["snapshot_offset"][rows],
        ("it starts at ", recorded[rows], f", the log at {folded.log.log_start_offset}; a leader continues from ",
         effective[rows]),
        key=folded.numbers[rows],
        evidence={"start_offset": recorded[rows], "effective_start_offset": effective[rows]},
    )  # fmt: skip


@control_rule(
    "LONG_CHAIN",
    WARNING,
    "KIP-932 draft, ShareCheckpoint",
    "No more control records follow a checkpoint than configured (limits.chain_length).",
)
def long_chain(folded: FoldedControlLog) -> Breaches:
    """Groups with too few checkpoints: a new leader has to read many records, and the cutoff does not advance."""
    chains, longest = folded.all_chains.chains, folded.limits.chain_length
    rows = np.flatnonzero(chains["exists"] & (chains["followers"] > longest))
    base, followers = chains["snapshot_offset"][rows].copy(), chains["followers"][rows].copy()
    return Breaches(
        base,
        (followers, " control records follow the checkpoint at offset ", base, f" (more than {longest})"),
        key=rows,
        evidence={"records": followers, "offsets_to_log_end": folded.next_offset - base},
    )


@control_rule(
    "STATE_SUSPECT",
    WARNING,
    "KIP-932 draft, ShareDelta BackOffset",
    "Every control record since a group's latest checkpoint is in the log, can be read and refers to its predecessor.",
)
def state_suspect(folded: FoldedControlLog) -> Breaches:
    """Share-partitions whose row may be wrong; in mode strict it is the state of the valid part of the chain."""
    rows = folded.numbers[folded.suspect[folded.numbers]]
    chains = folded.all_chains.chains[rows]
    stopped, doubt = chains["stopped_offset"], chains["doubt_offset"]
    since = np.where(stopped != NO_OFFSET, stopped, np.where(doubt != NO_OFFSET, doubt, folded.last_lost_offset))
    return Breaches(
        since,
        ("the state may be wrong from offset ", since, f" on; the mode {folded.options.mode} folded up to offset ",
         chains["last_offset"].copy()),
        key=rows,
        evidence={"checkpoint_offset": chains["snapshot_offset"].copy()},
    )  # fmt: skip


@control_rule(
    "STALE_INDEX",
    WARNING,
    "KIP-932 draft, share snapshot file",
    "The share snapshot file names the latest checkpoint of every group.",
)
def stale_index(folded: FoldedControlLog) -> list[GroupBreach]:
    """Entries of the share snapshot file that differ from the log, and groups without an entry; the log decides.

    The severity is info if an entry only lacks the newest deltas.
    """
    if folded.options.index is None:
        return []
    actual_entries = {entry.group: entry for entry in folded.index_entries if not entry.is_contradicted}
    disputed = {replace(entry, is_contradicted=False) for entry in folded.index_entries if entry.is_contradicted}
    breaches = []
    for entry in dict.fromkeys(folded.options.index):
        actual = actual_entries.get(entry.group)
        if entry == actual:
            continue
        text = f"the index has {_place_of(entry)}; the log has {_place_of(actual)}"
        text += "; the log contradicts the index (--accept drops the entry)" if entry in disputed else ""
        is_behind = actual is not None and replace(entry, last_offset=actual.last_offset) == actual
        severity = INFO if is_behind and entry not in disputed else None
        evidence = {"checkpoint_offset": actual.checkpoint_offset} if actual else {}
        about = _identity(folded, entry.group, entry.checkpoint_offset)
        breaches.append(GroupBreach(text, evidence=evidence, severity=severity, **about))
    named = {entry.group for entry in folded.options.index}
    return breaches + [
        GroupBreach(
            f"the index has {_place_of(None)}; the log has {_place_of(actual)}", **_identity(folded, group, None)
        )
        for group, actual in actual_entries.items()
        if group not in named
    ]


def _place_of(entry: ShareSnapshotEntry | None) -> str:
    if entry is None:
        return "no checkpoint"
    return f"checkpoint {entry.checkpoint_offset} of epoch {entry.checkpoint_epoch}, last record {entry.last_offset}"


@control_rule(
    "CUTOFF_PINNED",
    INFO,
    "KIP-932 draft, log cleaning",
    "No single share-partition keeps many records from being deleted (limits.pinned_records).",
)
def cutoff_pinned(folded: FoldedControlLog) -> list[GroupBreach]:
    """The group that holds the cutoff back, if it has no checkpoint or many records could be cleaned without it."""
    (row,) = folded.cutoff.to_pylist()
    earliest, pinned, group = folded.earliest, row["pinned_records"], row["limited_by_group"]
    if group is None or (earliest.offset is not None and pinned < max(folded.limits.pinned_records, 1)):
        return []
    since = row["limited_since"]
    text = f"its checkpoint at offset {earliest.offset} alone keeps {pinned} control records from being cleaned"
    if earliest.offset is None:
        text = "it has no checkpoint, so nothing can be cleaned"
        text += f"; without it {pinned} control records could be" if pinned else ""
    evidence = {"pinned_records": pinned}
    if since is not None:
        evidence["seconds"] = max(0, folded.newest_time // 1000 - int(since.timestamp()))
        text += f"; it was written {timedelta(seconds=evidence['seconds'])} before the newest record of the log"
    return [GroupBreach(text, evidence=evidence, **_identity(folded, group, earliest.limited_from))]


# Single records.


def _each(rows: np.ndarray, *message: Column, severity: np.ndarray | None = None, **evidence: Column) -> Breaches:
    """One breach per control record."""
    key = rows["group"].astype(np.int64)
    return Breaches(rows["offset"].copy(), message, key=key, evidence=evidence, severity=severity)


def _with_fault(folded: FoldedControlLog, fault: int) -> np.ndarray:
    return folded.faulty[folded.faulty["fault"] & fault != 0]


@control_rule("KEY_MALFORMED", ERROR, "Kafka ControlRecordType.parse", "Every control record has a version and a type.")
def key_malformed(folded: FoldedControlLog) -> Breaches:
    """Control records whose key is shorter than 4 bytes."""
    return _each(_with_fault(folded, ControlFault.KEY_MALFORMED), "the key of a control record cannot be read")


@control_rule(
    "VALUE_MALFORMED",
    ERROR,
    "KIP-932 draft, ShareCheckpoint, ShareDelta",
    "Every checkpoint and delta is read to its last byte.",
)
def value_malformed(folded: FoldedControlLog) -> Breaches:
    """Values that are not exactly a checkpoint or delta; a warning if no group can be read."""
    rows = _with_fault(folded, UNREADABLE_CONTROL_FAULTS)
    severity = np.where(rows["group"] < 0, WARNING, ERROR).astype(object)
    text = np.where(
        rows["fault"] & ControlFault.VALUE_TRAILING != 0,
        "bytes that are not in the layout follow the value; the record was left out",
        "the value is not a checkpoint or delta; the record was left out",
    )
    return _each(rows, pa.array(text), severity=severity, type=rows["type"].copy())


@control_rule(
    "INVERTED_RANGE", ERROR, "KIP-932 draft, ShareDelta States", "Every tuple ends at or after its first offset."
)
def inverted_range(folded: FoldedControlLog) -> Breaches:
    """Records with a tuple that is inverted or has impossible offsets; the tuple was left out."""
    return _each(_with_fault(folded, ControlFault.INVERTED_RANGE), "a tuple ends before it begins; it was left out")


@control_rule("PERSISTED_ACQUIRED", WARNING, "KIP-932 draft, delivery states", "The state Acquired is never written.")
def persisted_acquired(folded: FoldedControlLog) -> Breaches:
    """Records with a tuple in state 1; it counts as available, with one delivery less."""
    return _each(
        _with_fault(folded, ControlFault.PERSISTED_ACQUIRED), "a tuple is acquired; it was folded as available"
    )


@control_rule("UNKNOWN_DELIVERY_STATE", WARNING, "KIP-932 draft, delivery states", "The state of a tuple is 0, 2 or 4.")
def unknown_delivery_state(folded: FoldedControlLog) -> Breaches:
    """Records with a tuple in a state that the draft does not define; it was folded, and is not terminal."""
    return _each(
        _with_fault(folded, ControlFault.UNKNOWN_STATE), "a tuple is in a state that the draft does not define"
    )


@control_rule("DELIVERY_COUNT_INVALID", WARNING, "KIP-932 draft, ShareDelta States", "No delivery count is negative.")
def delivery_count_invalid(folded: FoldedControlLog) -> Breaches:
    """Records with a tuple with a negative delivery count."""
    return _each(_with_fault(folded, ControlFault.NEGATIVE_COUNT), "a tuple has a negative delivery count")


@control_rule(
    "DELIVERY_COUNT_OVER_LIMIT",
    WARNING,
    "Kafka group.share.delivery.count.limit",
    "No delivery count exceeds the limit of its group (limits.delivery_count, limits.groups).",
)
def delivery_count_over_limit(folded: FoldedControlLog) -> Breaches:
    """Records since the latest checkpoints with a tuple above the limit; the message has the first such tuple."""
    rows, tuples = folded.records.rows, folded.records.tuples
    # The extra entry is for number -1: a record of no group, which is not folded.
    limits = np.append(folded.limits.of_groups("delivery_count", folded.groups), np.iinfo(np.int64).max)[rows["group"]]
    over = np.flatnonzero(tuples["count"] > np.repeat(limits, rows["tuple_count"]))
    owner, first = np.unique(np.searchsorted(rows["tuples"], over, "right") - 1, return_index=True)
    tuples_over, count = tuples[over[first]].copy(), tuples["count"][over[first]]
    text = ("the tuple ", tuples_over["first"].copy(), "-", tuples_over["last"].copy(), " was delivered ", count)
    return _each(rows[owner], *text, " times; the limit is ", limits[owner], delivery_count=count)


@control_rule(
    "START_OFFSET_INVALID",
    WARNING,
    "KIP-932 draft, ShareCheckpoint StartOffset, EndOffset",
    "A checkpoint's start offset is neither negative nor after its end offset.",
)
def start_offset_invalid(folded: FoldedControlLog) -> Breaches:
    """Checkpoints with an impossible window."""
    rows = _with_fault(folded, ControlFault.WINDOW_INVALID)
    start, end = rows["start_offset"].copy(), rows["end_offset"].copy()
    return Breaches(rows["offset"].copy(), ("the checkpoint's window is from ", start, " to ", end),
                  key=rows["group"].astype(np.int64), evidence={"start_offset": start, "end_offset": end})  # fmt: skip


@control_rule("OVERLAP_IN_DELTA", WARNING, "KIP-932 draft, ShareDelta States", "The tuples of a record do not overlap.")
def overlap_in_delta(folded: FoldedControlLog) -> Breaches:
    """Records that hold an offset twice; the later tuple counts."""
    return _each(_with_fault(folded, ControlFault.OVERLAP), "tuples of the record overlap; the later one counts")


# Irregularities found while folding.


@control_rule(
    "CHECKPOINT_MISMATCH",
    WARNING,
    "KIP-932 draft, ShareCheckpoint",
    "A checkpoint holds the state of the chain before it: what was finished stays finished.",
)
def checkpoint_mismatch(folded: FoldedControlLog) -> Breaches:
    """Checkpoints whose start moved back, or that lack acknowledged or archived offsets: these are delivered again."""
    rows = folded.mismatches
    first, forgotten = rows["first_forgotten"].copy(), rows["forgotten"].copy()
    before, start = rows["start_before"].copy(), rows["start_offset"].copy()
    return Breaches(
        rows["offset"].copy(),
        ("the checkpoint lacks ", forgotten, " finished offsets, the first is ", first,
         "; it starts at ", start, ", the chain before it at ", before),
        key=rows["group"].astype(np.int64),
        evidence={"offsets": forgotten, "first_offset": first, "start_offset": start, "previous_start_offset": before},
    )  # fmt: skip


@control_rule(
    "BELOW_START",
    INFO,
    "KIP-932 draft, ShareDelta States",
    "No tuple is below the start offset of its share-partition.",
)
def below_start(folded: FoldedControlLog) -> Breaches:
    """Records with tuples below the start, which are ignored."""
    rows = np.flatnonzero(folded.all_chains.notes["below_start"] > 0)
    counts = folded.all_chains.notes["below_start"][rows].copy()
    return Breaches(
        folded.records.rows["offset"][rows].copy(),
        (counts, " offsets of the record lie before the start and were ignored"),
        key=folded.records.rows["group"][rows].astype(np.int64),
        evidence={"offsets": counts},
    )


@control_rule(
    "UNCOVERED_GAP",
    WARNING,
    "KIP-932 draft, ShareDelta States",
    "A delta that extends the window covers every offset up to its new end.",
)
def uncovered_gap(folded: FoldedControlLog) -> Breaches:
    """Deltas that omit offsets between the previous end and their last tuple; these become available with count 0."""
    rows = np.flatnonzero(folded.all_chains.notes["hole_offsets"] > 0)
    notes = folded.all_chains.notes[rows]
    first, last = notes["hole_first"].copy(), notes["hole_last"].copy()
    return Breaches(
        folded.records.rows["offset"][rows].copy(),
        ("the delta omits offsets ", first, " to ", last, "; they were folded as available"),
        key=folded.records.rows["group"][rows].astype(np.int64),
        evidence={"first_missing": first, "last_missing": last, "offsets": notes["hole_offsets"].copy()},
    )
