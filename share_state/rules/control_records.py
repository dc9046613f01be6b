"""Rules over the control records of the KIP-932 draft: links, epochs, tuples, and records that are gone."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from share_state.fold.chains import NOWHERE
from share_state.fold.control_log import LINK, FoldedControlLog
from share_state.kafka.control_records import EPOCH_MODULUS, UNREADABLE_CONTROL_FAULTS, ControlFault, ControlKind
from share_state.rules.registry import ERROR, INFO, NOTHING, WARNING, Breaches, Column, Scope, rule

LONGEST_CHAIN = 500
"""Control records after a checkpoint above which a new leader has much to read."""


def _rule(
    code: str, severity: str, source: str, statement: str
) -> Callable[[Callable[[FoldedControlLog], Breaches]], Callable[[FoldedControlLog], Breaches]]:
    return rule(code, Scope.CONTROL_LOG, severity=severity, source=source, statement=statement)


# Links. Only deltas after the latest checkpoint of their group are judged: the predecessors of older ones may have been
# deleted, and no state depends on them.

_SAME, _STALE, _FUTURE = 0, 1, 2


def _each(rows: np.ndarray, *message: Column, severity: np.ndarray | None = None, **evidence: Column) -> Breaches:
    """One breach per control record."""
    key = rows["group"].astype(np.int64)
    return Breaches(rows["offset"].copy(), message, key=key, evidence=evidence, severity=severity)


def _deltas(folded: FoldedControlLog, epoch: int) -> np.ndarray:
    """Readable deltas after their group's checkpoint, whose epoch is the same, stale or ahead."""
    rows = folded.records.rows
    known = folded.chains.chains[rows["group"]]
    ahead = (rows["epoch"] - known["epoch"]) % EPOCH_MODULUS
    of_epoch = (ahead == 0, ahead >= EPOCH_MODULUS // 2, (ahead > 0) & (ahead < EPOCH_MODULUS // 2))[epoch]
    readable = rows["fault"] & UNREADABLE_CONTROL_FAULTS == 0
    return rows[of_epoch & readable & known["exists"] & (rows["kind"] == ControlKind.DELTA)]


def _bad_links(folded: FoldedControlLog) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Deltas that do not refer to their predecessor.

    Returns:
        (their rows, offset of each one's predecessor, LINK row that it refers to instead; group -1 if that is no
        readable checkpoint or delta).
    """
    rows = _deltas(folded, _SAME)
    rows = rows[np.argsort(rows["group"], kind="stable")]
    previous = np.concatenate(([NOWHERE], rows["offset"]))[:-1]
    first = np.concatenate(([True], rows["group"][1:] != rows["group"][:-1]))[: len(rows)]
    previous[first] = folded.chains.chains["snapshot_offset"][rows["group"][first]]
    bad = rows["back_offset"] != previous
    rows, previous = rows[bad], previous[bad]
    links = folded.links[folded.links["fault"] & UNREADABLE_CONTROL_FAULTS == 0]
    place = np.minimum(np.searchsorted(links["offset"], rows["back_offset"]), max(len(links) - 1, 0))
    named = links[place] if len(links) else np.zeros(0, LINK)
    named["group"][named["offset"] != rows["back_offset"]] = -1
    return rows, previous, named


def _has_sibling(folded: FoldedControlLog, rows: np.ndarray) -> np.ndarray:
    """Whether an earlier delta of the chain refers to the same predecessor, for each delta."""
    chain = _deltas(folded, _SAME)
    order = np.lexsort((chain["offset"], chain["back_offset"], chain["group"]))
    chain = chain[order]
    repeats = (chain["group"][1:] == chain["group"][:-1]) & (chain["back_offset"][1:] == chain["back_offset"][:-1])
    return np.isin(rows["offset"], chain["offset"][1:][repeats])


def _links_of(folded: FoldedControlLog, kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The bad links of one kind: forward, group, epoch, fork or missing. Every bad link is of exactly one."""
    rows, previous, named = _bad_links(folded)
    forward = rows["back_offset"] >= rows["offset"]
    found = ~forward & (named["group"] >= 0)
    group = found & (named["group"] != rows["group"])
    epoch = found & ~group & (named["epoch"] != rows["epoch"])
    fork = found & ~group & ~epoch & _has_sibling(folded, rows)
    chosen = {
        "forward": forward,
        "group": group,
        "epoch": epoch,
        "fork": fork,
        "missing": ~(forward | group | epoch | fork),
    }[kind]
    return rows[chosen], previous[chosen], named[chosen]


def _links(rows: np.ndarray, previous: np.ndarray, text: str, **evidence: np.ndarray | pa.Array) -> Breaches:
    back = rows["back_offset"].copy()
    return Breaches(
        rows["offset"].copy(),
        ("the delta names ", back, f" as its predecessor, {text}; the record before it is at offset ", previous),
        key=rows["group"].astype(np.int64),
        evidence={"back_offset": back, "expected": previous, **evidence},
    )


@_rule(
    "BROKEN_CHAIN",
    ERROR,
    "KIP-932 draft, ShareDelta BackOffset",
    "Every delta refers to the previous control record of its group.",
)
def broken_chain(folded: FoldedControlLog) -> Breaches:
    """Deltas whose predecessor is not in the log, or is not the record that they refer to."""
    rows, previous, named = _links_of(folded, "missing")
    known = named["group"] >= 0
    base = folded.chains.chains["snapshot_offset"][rows["group"]]
    reason = np.where(known & (rows["back_offset"] >= base), "passed_over", np.where(known, "before_base", "missing"))
    return _links(rows, previous, "which it does not follow", reason=pa.array(reason, pa.string()))


@_rule("FORWARD_BACK_OFFSET", ERROR, "KIP-932 draft, ShareDelta BackOffset", "A delta refers to an earlier offset.")
def forward_back_offset(folded: FoldedControlLog) -> Breaches:
    """Deltas that refer to themselves or a later record."""
    rows, previous, _ = _links_of(folded, "forward")
    return _links(rows, previous, "which is no earlier offset")


@_rule("CROSS_GROUP", ERROR, "KIP-932 draft, ShareDelta BackOffset", "A delta refers to a record of its own group.")
def cross_group(folded: FoldedControlLog) -> Breaches:
    """Deltas that refer to another group's record."""
    rows, previous, named = _links_of(folded, "group")
    return _links(rows, previous, "a record of another group", named_group=folded.groups.take(pa.array(named["group"])))


@_rule(
    "CROSS_EPOCH",
    ERROR,
    "KIP-932 draft, ShareDelta BackOffset",
    "A delta refers to a record of its own checkpoint epoch.",
)
def cross_epoch(folded: FoldedControlLog) -> Breaches:
    """Deltas that refer to a record of another checkpoint's chain."""
    rows, previous, named = _links_of(folded, "epoch")
    return _links(rows, previous, "a record of another epoch", named_epoch=named["epoch"].copy())


@_rule("FORK", ERROR, "KIP-932 draft, ShareDelta BackOffset", "No two deltas refer to the same record.")
def fork(folded: FoldedControlLog) -> Breaches:
    """The second and later deltas with the same predecessor: two leaders wrote, or one wrote twice."""
    rows, previous, _ = _links_of(folded, "fork")
    return _links(rows, previous, "as an earlier delta does")


# Epochs.


@_rule("STALE_EPOCH", WARNING, "KIP-932 draft, checkpoint epoch", "No delta of an older epoch follows a checkpoint.")
def stale_epoch(folded: FoldedControlLog) -> Breaches:
    """Deltas of an earlier checkpoint, as written by a leader that was replaced; they are not folded."""
    return _epochs(folded, _deltas(folded, _STALE), "an older epoch; it was left out")


@_rule(
    "FUTURE_EPOCH", ERROR, "KIP-932 draft, checkpoint epoch", "Every delta belongs to a checkpoint that is in the log."
)
def future_epoch(folded: FoldedControlLog) -> Breaches:
    """Deltas of a checkpoint that is missing: the chain is incomplete."""
    return _epochs(folded, _deltas(folded, _FUTURE), "a checkpoint that is missing")


def _epochs(folded: FoldedControlLog, rows: np.ndarray, text: str) -> Breaches:
    latest = folded.chains.chains["epoch"][rows["group"]]
    return Breaches(
        rows["offset"].copy(),
        ("the delta's epoch ", rows["epoch"].copy(), f" is of {text}; the latest checkpoint has epoch ", latest),
        key=rows["group"].astype(np.int64),
        evidence={"epoch": rows["epoch"].copy(), "checkpoint_epoch": latest},
    )


def _epoch_steps(folded: FoldedControlLog) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Checkpoints with an earlier one of their group: their rows, the earlier epoch, the difference modulo 65536."""
    links = folded.links
    rows = links[(links["kind"] == ControlKind.CHECKPOINT) & (links["fault"] & UNREADABLE_CONTROL_FAULTS == 0)]
    rows = rows[np.argsort(rows["group"], kind="stable")]
    follows = rows["group"][1:] == rows["group"][:-1]
    later, earlier = rows[1:][follows], rows["epoch"][:-1][follows]
    return later, earlier, (later["epoch"] - earlier) % EPOCH_MODULUS


@_rule(
    "EPOCH_GAP",
    WARNING,
    "KIP-932 draft, checkpoint epoch",
    "The checkpoint epoch of a group increases by exactly one, from 65535 to 0.",
)
def epoch_gap(folded: FoldedControlLog) -> Breaches:
    """Checkpoints whose epoch is not the one after that of the checkpoint before."""
    rows, earlier, step = _epoch_steps(folded)
    gap = (step != 0) & (step != 1)
    return _steps(rows[gap], earlier[gap], missing=step[gap] - 1)


@_rule(
    "EPOCH_REPEAT",
    WARNING,
    "KIP-932 draft, checkpoint epoch",
    "No two consecutive checkpoints of a group have the same epoch.",
)
def epoch_repeat(folded: FoldedControlLog) -> Breaches:
    """Checkpoints with the epoch of the checkpoint before."""
    rows, earlier, step = _epoch_steps(folded)
    return _steps(rows[step == 0], earlier[step == 0])


def _steps(rows: np.ndarray, earlier: np.ndarray, **evidence: np.ndarray) -> Breaches:
    return Breaches(
        rows["offset"].copy(),
        ("the checkpoint has epoch ", rows["epoch"].copy(), ", the one before it ", earlier),
        key=rows["group"].astype(np.int64),
        evidence={"epoch": rows["epoch"].copy(), "previous_epoch": earlier, **evidence},
    )


# Records that the log no longer holds.


@_rule(
    "ORPHAN_DELTA", WARNING, "KIP-932 draft, ShareCheckpoint", "The first control record of a group is a checkpoint."
)
def orphan_delta(folded: FoldedControlLog) -> Breaches:
    """Groups with deltas and no checkpoint: they have no state and hold the cutoff back."""
    rows = np.flatnonzero(folded.chains.chains["orphan_offset"] != NOWHERE)
    offsets = folded.chains.chains["orphan_offset"][rows].copy()
    return Breaches(
        offsets,
        ("no checkpoint of the group is in the log: its deltas from offset ", offsets, " on rest on nothing"),
        key=rows,
    )


@_rule(
    "BASE_LOST",
    ERROR,
    "KIP-932 draft, earliest scannable offset",
    "The log still holds the latest checkpoint of every group.",
)
def base_lost(folded: FoldedControlLog) -> Breaches:
    """Groups whose first delta refers to a record before the log start: retention deleted their checkpoint."""
    orphans = folded.chains.chains["orphan_offset"]
    links, start = folded.links, folded.log.log_start_offset
    first = links[(links["offset"] == orphans[links["group"]]) & (links["back_offset"] < start)]
    return Breaches(
        first["offset"].copy(),
        ("its checkpoint lies before the log start ", np.full(len(first), start), ": what it held is gone"),
        key=first["group"].astype(np.int64),
        evidence={"back_offset": first["back_offset"].copy(), "log_start_offset": np.full(len(first), start)},
    )


@_rule(
    "SPSO_BELOW_LOG_START",
    WARNING,
    "KIP-932, share-partition start offset",
    "No share-partition starts before the log start offset.",
)
def spso_below_log_start(folded: FoldedControlLog) -> Breaches:
    """Share-partitions with unread records that retention deleted: a leader moves their start to the log start."""
    recorded, effective = (folded.states[name].to_numpy() for name in ("start_offset", "effective_start_offset"))
    rows = np.flatnonzero(effective > recorded)
    return Breaches(
        folded.states["snapshot_offset"].to_numpy()[rows],
        ("it starts at ", recorded[rows], f", the log at {folded.log.log_start_offset}; a leader goes on from ",
         effective[rows]),
        key=folded.numbers[rows],
        evidence={"start_offset": recorded[rows], "effective_start_offset": effective[rows]},
    )  # fmt: skip


@_rule(
    "LONG_CHAIN",
    WARNING,
    "KIP-932 draft, ShareCheckpoint",
    f"No more than {LONGEST_CHAIN} control records follow a checkpoint.",
)
def long_chain(folded: FoldedControlLog) -> Breaches:
    """Groups whose leader writes checkpoints too rarely: a new leader reads far back, the cutoff does not advance."""
    return chains_longer_than(folded, LONGEST_CHAIN)


def chains_longer_than(folded: FoldedControlLog, longest: int) -> Breaches:
    """Groups with more control records after their checkpoint than `longest`."""
    chains = folded.chains.chains
    rows = np.flatnonzero(chains["exists"] & (chains["followers"] > longest))
    base, followers = chains["snapshot_offset"][rows].copy(), chains["followers"][rows].copy()
    return Breaches(
        base,
        (followers, " control records follow the checkpoint at offset ", base, f" (more than {longest})"),
        key=rows,
        evidence={"records": followers, "offsets_to_log_end": folded.next_offset - base},
    )


@_rule(
    "STATE_SUSPECT",
    WARNING,
    "KIP-932 draft, ShareDelta BackOffset",
    "Every control record since a group's latest checkpoint is in the log, can be read and refers to its predecessor.",
)
def state_suspect(folded: FoldedControlLog) -> Breaches:
    """Share-partitions whose row may be wrong; in mode strict it is the state of the valid part of the chain."""
    rows = folded.numbers[folded.suspect[folded.numbers]]
    chains = folded.chains.chains[rows]
    stopped, doubt = chains["stopped_offset"], chains["doubt_offset"]
    since = np.where(stopped != NOWHERE, stopped, np.where(doubt != NOWHERE, doubt, folded.last_lost_offset))
    return Breaches(
        since,
        ("the state may be wrong from offset ", since, f" on; the mode {folded.options.mode} folded up to offset ",
         chains["last_offset"].copy()),
        key=rows,
        evidence={"checkpoint_offset": chains["snapshot_offset"].copy()},
    )  # fmt: skip


@_rule(
    "STALE_INDEX",
    WARNING,
    "KIP-932 draft, share snapshot file",
    "The share snapshot file names the latest checkpoint of every group.",
)
def stale_index(folded: FoldedControlLog) -> Breaches:
    """Groups for which the share snapshot file differs from the log; the log counts."""
    entries = folded.options.index
    if entries is None:
        return NOTHING
    numbers = dict(zip(folded.groups.to_pylist(), range(len(folded.groups)), strict=True))
    chains = folded.chains.chains
    indexed = {numbers[entry.group]: entry for entry in entries if entry.group in numbers}
    gone = [entry for entry in entries if entry.group not in numbers or not chains[numbers[entry.group]]["exists"]]
    wrong = [
        number
        for number in folded.numbers.tolist()
        if number not in indexed
        or (indexed[number].checkpoint_offset, indexed[number].checkpoint_epoch)
        != (chains[number]["snapshot_offset"], chains[number]["epoch"])
    ]
    if not wrong and not gone:
        return NOTHING
    named = [indexed.get(number) for number in wrong] + gone
    keys = [*wrong, *(numbers.get(entry.group, NOWHERE) for entry in gone)]
    actual = [int(chains[number]["snapshot_offset"]) for number in wrong] + [None] * len(gone)
    return Breaches(
        np.array([entry.checkpoint_offset if entry else NOWHERE for entry in named], np.int64),
        ("the index names ", pa.array([str(entry.checkpoint_offset) if entry else "no checkpoint" for entry in named]),
         " for group ", pa.array([entry.group if entry else folded.groups[key].as_py()
                                  for entry, key in zip(named, keys, strict=True)]),
         ", the log ", pa.array(["none" if offset is None else str(offset) for offset in actual])),
        key=np.array(keys, np.int64),
        evidence={"checkpoint_offset": pa.array(actual, pa.int64())},
    )  # fmt: skip


# Single records.


def _with(folded: FoldedControlLog, fault: int) -> np.ndarray:
    return folded.faulty[folded.faulty["fault"] & fault != 0]


@_rule("KEY_MALFORMED", ERROR, "Kafka ControlRecordType.parse", "Every control record has a version and a type.")
def key_malformed(folded: FoldedControlLog) -> Breaches:
    """Control records whose key is shorter than 4 bytes."""
    return _each(_with(folded, ControlFault.KEY_MALFORMED), "the key of a control record cannot be read")


@_rule(
    "VALUE_MALFORMED",
    ERROR,
    "KIP-932 draft, ShareCheckpoint, ShareDelta",
    "Every checkpoint and delta is read to its last byte.",
)
def value_malformed(folded: FoldedControlLog) -> Breaches:
    """Values that are not exactly a checkpoint or delta; a warning if no group can be read."""
    rows = _with(folded, UNREADABLE_CONTROL_FAULTS)
    severity = np.where(rows["group"] < 0, WARNING, ERROR).astype(object)
    text = np.where(
        rows["fault"] & ControlFault.VALUE_TRAILING != 0,
        "bytes follow the value, which the layout does not have; the record was left out",
        "the value is not a checkpoint or delta; the record was left out",
    )
    return _each(rows, pa.array(text), severity=severity, type=rows["type"].copy())


@_rule("INVERTED_RANGE", ERROR, "KIP-932 draft, ShareDelta States", "Every tuple ends at or after its first offset.")
def inverted_range(folded: FoldedControlLog) -> Breaches:
    """Records with a tuple that is inverted or has impossible offsets; the tuple was left out."""
    return _each(_with(folded, ControlFault.INVERTED_RANGE), "a tuple ends before it begins; it was left out")


@_rule("PERSISTED_ACQUIRED", WARNING, "KIP-932 draft, delivery states", "The state Acquired is never written.")
def persisted_acquired(folded: FoldedControlLog) -> Breaches:
    """Records with a tuple in state 1; it counts as available, with one delivery less."""
    return _each(_with(folded, ControlFault.PERSISTED_ACQUIRED), "a tuple is acquired; it was taken for available")


@_rule("UNKNOWN_DELIVERY_STATE", WARNING, "KIP-932 draft, delivery states", "The state of a tuple is 0, 2 or 4.")
def unknown_delivery_state(folded: FoldedControlLog) -> Breaches:
    """Records with a tuple in a state that the draft does not define; it was folded as it is, and is not terminal."""
    return _each(_with(folded, ControlFault.UNKNOWN_STATE), "a tuple is in a state that the draft does not know")


@_rule("DELIVERY_COUNT_INVALID", WARNING, "KIP-932 draft, ShareDelta States", "No delivery count is negative.")
def delivery_count_invalid(folded: FoldedControlLog) -> Breaches:
    """Records with a tuple of a negative delivery count."""
    return _each(_with(folded, ControlFault.NEGATIVE_COUNT), "a tuple has a negative delivery count")


@_rule(
    "START_OFFSET_INVALID",
    WARNING,
    "KIP-932 draft, ShareCheckpoint StartOffset, EndOffset",
    "A checkpoint's start offset is neither negative nor after its end offset.",
)
def start_offset_invalid(folded: FoldedControlLog) -> Breaches:
    """Checkpoints with an impossible window."""
    rows = _with(folded, ControlFault.WINDOW_INVALID)
    start, end = rows["start_offset"].copy(), rows["end_offset"].copy()
    return Breaches(rows["offset"].copy(), ("the checkpoint's window is from ", start, " to ", end),
                  key=rows["group"].astype(np.int64), evidence={"start_offset": start, "end_offset": end})  # fmt: skip


@_rule("OVERLAP_IN_DELTA", WARNING, "KIP-932 draft, ShareDelta States", "The tuples of a record do not overlap.")
def overlap_in_delta(folded: FoldedControlLog) -> Breaches:
    """Records that hold an offset twice; the later tuple counts."""
    return _each(_with(folded, ControlFault.OVERLAP), "tuples of the record overlap; the later one counts")


# Found while folding.


@_rule(
    "BELOW_START",
    INFO,
    "KIP-932 draft, ShareDelta States",
    "No tuple is below the start offset of its share-partition.",
)
def below_start(folded: FoldedControlLog) -> Breaches:
    """Records with tuples below the start, which are ignored."""
    rows = np.flatnonzero(folded.chains.notes["below_start"] > 0)
    found = folded.chains.notes["below_start"][rows].copy()
    return Breaches(
        folded.records.rows["offset"][rows].copy(),
        (found, " offsets of the record lie before the start and were ignored"),
        key=folded.records.rows["group"][rows].astype(np.int64),
        evidence={"offsets": found},
    )


@_rule(
    "UNCOVERED_GAP",
    WARNING,
    "KIP-932 draft, ShareDelta States",
    "A delta that extends the window covers every offset up to its new end.",
)
def uncovered_gap(folded: FoldedControlLog) -> Breaches:
    """Deltas that leave out offsets between the previous end and their last tuple; these became available, count 0."""
    rows = np.flatnonzero(folded.chains.notes["hole_offsets"] > 0)
    notes = folded.chains.notes[rows]
    first, last = notes["hole_first"].copy(), notes["hole_last"].copy()
    return Breaches(
        folded.records.rows["offset"][rows].copy(),
        ("the delta leaves out offsets ", first, " to ", last, "; they were filled in as available"),
        key=folded.records.rows["group"][rows].astype(np.int64),
        evidence={"first_missing": first, "last_missing": last, "offsets": notes["hole_offsets"].copy()},
    )
