"""Chains of the draft's control records: links, epochs, tuples, and what the log no longer holds."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from share_state.fold.chains import NOWHERE
from share_state.fold.control_log import LINK, FoldedControlLog
from share_state.fold.states import CONTROL_RECORDS
from share_state.kafka.control_records import EPOCHS, UNREADABLE_CONTROL_RECORD, ControlFault, ControlKind
from share_state.rules import record_batches
from share_state.rules.registry import ERROR, INFO, NOTHING, WARNING, Broken, judge_also, rule

LONGEST_CHAIN = 500
"""Control records behind a checkpoint above which a leader has long to read (spec D-45, max_chain_length)."""

for _code, _check in (
    ("TORN_TAIL", record_batches.torn_tail),
    ("CRC_MISMATCH", record_batches.crc_mismatch),
    ("MAGIC_UNSUPPORTED", record_batches.magic_unsupported),
    ("BATCH_MALFORMED", record_batches.batch_malformed),
    ("DUPLICATE_OFFSET_CONFLICT", record_batches.duplicate_offset_conflict),
):
    judge_also(CONTROL_RECORDS, _code, _check)


def _rule(
    code: str, severity: str, source: str, statement: str
) -> Callable[[Callable[[FoldedControlLog], Broken]], Callable[[FoldedControlLog], Broken]]:
    return rule(code, severity=severity, source=source, statement=statement, dialect=CONTROL_RECORDS)


# Links. Only deltas behind the latest checkpoint of their group are judged: older ones may have lost their predecessors
# to cleaning, and nothing rests on them.

_SAME, _STALE, _FUTURE = 0, 1, 2


def _deltas(folded: FoldedControlLog, epoch: int) -> np.ndarray:
    """Readable deltas behind their group's checkpoint, whose epoch is the same, stale or ahead."""
    rows = folded.records.rows
    known = folded.chains.chains[rows["group"]]
    ahead = (rows["epoch"] - known["epoch"]) % EPOCHS
    of_epoch = (ahead == 0, ahead >= EPOCHS // 2, (ahead > 0) & (ahead < EPOCHS // 2))[epoch]
    readable = rows["fault"] & UNREADABLE_CONTROL_RECORD == 0
    return rows[of_epoch & readable & known["exists"] & (rows["kind"] == ControlKind.DELTA)]


def _bad_links(folded: FoldedControlLog) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Deltas that do not name their predecessor.

    Returns:
        (their rows, offset of the predecessor that each should name, LINK row that each names instead; group -1 where
        that is no readable checkpoint or delta).
    """
    rows = _deltas(folded, _SAME)
    rows = rows[np.argsort(rows["group"], kind="stable")]
    previous = np.concatenate(([NOWHERE], rows["offset"]))[:-1]
    first = np.concatenate(([True], rows["group"][1:] != rows["group"][:-1]))[: len(rows)]
    previous[first] = folded.chains.chains["snapshot_offset"][rows["group"][first]]
    bad = rows["back_offset"] != previous
    rows, previous = rows[bad], previous[bad]
    links = folded.links[folded.links["fault"] & UNREADABLE_CONTROL_RECORD == 0]
    place = np.minimum(np.searchsorted(links["offset"], rows["back_offset"]), max(len(links) - 1, 0))
    named = links[place] if len(links) else np.zeros(0, LINK)
    named["group"][named["offset"] != rows["back_offset"]] = -1
    return rows, previous, named


def _has_sibling(folded: FoldedControlLog, rows: np.ndarray) -> np.ndarray:
    """Of deltas: whether an earlier delta of the chain names the same predecessor."""
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


def _links(rows: np.ndarray, previous: np.ndarray, text: str, **evidence: np.ndarray | pa.Array) -> Broken:
    if not len(rows):
        return NOTHING
    back = rows["back_offset"].copy()
    return Broken(
        rows["offset"].copy(),
        ("the delta names ", back, f" as its predecessor, {text}; the record before it is at offset ", previous),
        key=rows["group"].astype(np.int64),
        evidence={"back_offset": back, "expected": previous, **evidence},
    )


@_rule("BROKEN_CHAIN", ERROR, "spec D-20, D-21", "Every delta names the control record of its group before it.")
def broken_chain(folded: FoldedControlLog) -> Broken:
    """Deltas whose predecessor is not in the log, or is not the record that they name."""
    rows, previous, named = _links_of(folded, "missing")
    known = named["group"] >= 0
    base = folded.chains.chains["snapshot_offset"][rows["group"]]
    reason = np.where(known & (rows["back_offset"] >= base), "passed_over", np.where(known, "before_base", "missing"))
    return _links(rows, previous, "which it does not follow", reason=pa.array(reason, pa.string()))


@_rule("FORWARD_BACK_OFFSET", ERROR, "spec D-21", "The predecessor that a delta names lies before it.")
def forward_back_offset(folded: FoldedControlLog) -> Broken:
    """Deltas that name themselves or a later record."""
    rows, previous, _ = _links_of(folded, "forward")
    return _links(rows, previous, "which is no earlier offset")


@_rule("CROSS_GROUP", ERROR, "spec D-20, D-21; I-7", "The predecessor that a delta names is of its own group.")
def cross_group(folded: FoldedControlLog) -> Broken:
    """Deltas that name another group's record."""
    rows, previous, named = _links_of(folded, "group")
    return _links(rows, previous, "a record of another group", named_group=folded.groups.take(pa.array(named["group"])))


@_rule("CROSS_EPOCH", ERROR, "spec D-20, D-21; I-7", "The predecessor that a delta names is of its own epoch.")
def cross_epoch(folded: FoldedControlLog) -> Broken:
    """Deltas that name a record of another checkpoint's chain."""
    rows, previous, named = _links_of(folded, "epoch")
    return _links(rows, previous, "a record of another epoch", named_epoch=named["epoch"].copy())


@_rule("FORK", ERROR, "spec D-22", "No two deltas name the same predecessor.")
def fork(folded: FoldedControlLog) -> Broken:
    """The second and later deltas with one predecessor: two leaders wrote, or one wrote twice."""
    rows, previous, _ = _links_of(folded, "fork")
    return _links(rows, previous, "as an earlier delta does")


# Epochs.


@_rule("STALE_EPOCH", WARNING, "spec D-18", "No delta of an older epoch follows a checkpoint.")
def stale_epoch(folded: FoldedControlLog) -> Broken:
    """Deltas that belong to an earlier checkpoint, as a leader that was replaced writes them; they are not folded."""
    return _epochs(folded, _deltas(folded, _STALE), "an older epoch; it was left out")


@_rule("FUTURE_EPOCH", ERROR, "spec D-18", "No delta belongs to a checkpoint that is not in the log.")
def future_epoch(folded: FoldedControlLog) -> Broken:
    """Deltas of a checkpoint that is missing: the chain is incomplete."""
    return _epochs(folded, _deltas(folded, _FUTURE), "a checkpoint that is missing")


def _epochs(folded: FoldedControlLog, rows: np.ndarray, text: str) -> Broken:
    if not len(rows):
        return NOTHING
    latest = folded.chains.chains["epoch"][rows["group"]]
    return Broken(
        rows["offset"].copy(),
        ("the delta's epoch ", rows["epoch"].copy(), f" is of {text}; the latest checkpoint has epoch ", latest),
        key=rows["group"].astype(np.int64),
        evidence={"epoch": rows["epoch"].copy(), "checkpoint_epoch": latest},
    )


def _epoch_steps(folded: FoldedControlLog) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Checkpoints with an earlier one of their group: their rows, the earlier epoch, the step modulo 65536."""
    links = folded.links
    rows = links[(links["kind"] == ControlKind.CHECKPOINT) & (links["fault"] & UNREADABLE_CONTROL_RECORD == 0)]
    rows = rows[np.argsort(rows["group"], kind="stable")]
    follows = rows["group"][1:] == rows["group"][:-1]
    later, earlier = rows[1:][follows], rows["epoch"][:-1][follows]
    return later, earlier, (later["epoch"] - earlier) % EPOCHS


@_rule("EPOCH_GAP", WARNING, "spec D-19", "The checkpoints of a group count up by exactly one, 0 after 65535.")
def epoch_gap(folded: FoldedControlLog) -> Broken:
    """Checkpoints whose epoch is not the one after that of the checkpoint before."""
    rows, earlier, step = _epoch_steps(folded)
    gap = (step != 0) & (step != 1)
    return _steps(rows[gap], earlier[gap], missing=step[gap] - 1)


@_rule("EPOCH_REPEAT", WARNING, "spec D-19", "No two consecutive checkpoints of a group have one epoch.")
def epoch_repeat(folded: FoldedControlLog) -> Broken:
    """Checkpoints with the epoch of the checkpoint before."""
    rows, earlier, step = _epoch_steps(folded)
    return _steps(rows[step == 0], earlier[step == 0])


def _steps(rows: np.ndarray, earlier: np.ndarray, **evidence: np.ndarray) -> Broken:
    if not len(rows):
        return NOTHING
    return Broken(
        rows["offset"].copy(),
        ("the checkpoint has epoch ", rows["epoch"].copy(), ", the one before it ", earlier),
        key=rows["group"].astype(np.int64),
        evidence={"epoch": rows["epoch"].copy(), "previous_epoch": earlier, **evidence},
    )


# What the log no longer holds.


@_rule("ORPHAN_DELTA", WARNING, "spec D-43", "A group's control records begin with a checkpoint.")
def orphan_delta(folded: FoldedControlLog) -> Broken:
    """Groups with deltas and no checkpoint: they have no state, and hold back the cutoff."""
    rows = np.flatnonzero(folded.chains.chains["orphan_offset"] != NOWHERE)
    if not len(rows):
        return NOTHING
    offsets = folded.chains.chains["orphan_offset"][rows].copy()
    return Broken(
        offsets,
        ("no checkpoint of the group is in the log: its deltas from offset ", offsets, " on rest on nothing"),
        key=rows,
    )


@_rule("BASE_LOST", ERROR, "spec D-46", "The log reaches back to the latest checkpoint of every group.")
def base_lost(folded: FoldedControlLog) -> Broken:
    """Groups whose first delta names a record before the log start: retention has passed their checkpoint."""
    orphans = folded.chains.chains["orphan_offset"]
    links, start = folded.links, folded.log.log_start_offset
    first = links[(links["offset"] == orphans[links["group"]]) & (links["back_offset"] < start)]
    if not len(first):
        return NOTHING
    return Broken(
        first["offset"].copy(),
        ("its checkpoint lies before the log start ", np.full(len(first), start), ": what it held is gone"),
        key=first["group"].astype(np.int64),
        evidence={"back_offset": first["back_offset"].copy(), "log_start_offset": np.full(len(first), start)},
    )


@_rule("SPSO_BELOW_LOG_START", WARNING, "spec D-46", "No share-partition starts before the log does.")
def spso_below_log_start(folded: FoldedControlLog) -> Broken:
    """Share-partitions whose unread records retention has taken: a leader moves their start to where the log begins."""
    recorded, effective = (folded.states[name].to_numpy() for name in ("start_offset", "effective_start_offset"))
    rows = np.flatnonzero(effective > recorded)
    if not len(rows):
        return NOTHING
    return Broken(
        folded.states["snapshot_offset"].to_numpy()[rows],
        ("it starts at ", recorded[rows], f", the log at {folded.log.log_start_offset}; a leader goes on from ",
         effective[rows]),
        key=folded.numbers[rows],
        evidence={"start_offset": recorded[rows], "effective_start_offset": effective[rows]},
    )  # fmt: skip


@_rule("LONG_CHAIN", WARNING, "spec D-45", f"No more than {LONGEST_CHAIN} control records follow a checkpoint.")
def long_chain(folded: FoldedControlLog) -> Broken:
    """Groups whose leader checkpoints too rarely: a new leader must read far back, and the cutoff stays behind."""
    return chains_longer_than(folded, LONGEST_CHAIN)


def chains_longer_than(folded: FoldedControlLog, longest: int) -> Broken:
    """Groups with more control records behind their checkpoint than `longest`."""
    chains = folded.chains.chains
    rows = np.flatnonzero(chains["exists"] & (chains["followers"] > longest))
    if not len(rows):
        return NOTHING
    base, followers = chains["snapshot_offset"][rows].copy(), chains["followers"][rows].copy()
    return Broken(
        base,
        (followers, " control records follow the checkpoint at offset ", base, f" (more than {longest})"),
        key=rows,
        evidence={"records": followers, "offsets_to_log_end": folded.next_offset - base},
    )


@_rule(
    "STATE_SUSPECT",
    WARNING,
    "spec D-10, D-21; ARCHITECTURE, Trust",
    "Every control record since a group's latest checkpoint is there, can be read and follows its predecessor.",
)
def state_suspect(folded: FoldedControlLog) -> Broken:
    """Share-partitions whose row may be wrong; under the mode strict it is what the valid part of the chain gives."""
    rows = folded.numbers[folded.suspect[folded.numbers]]
    if not len(rows):
        return NOTHING
    chains = folded.chains.chains[rows]
    stopped, doubt = chains["stopped_offset"], chains["doubt_offset"]
    since = np.where(stopped != NOWHERE, stopped, np.where(doubt != NOWHERE, doubt, folded.lost_at))
    return Broken(
        since,
        ("the state may be wrong from offset ", since, f" on; the mode {folded.options.mode} folded up to offset ",
         chains["last_offset"].copy()),
        key=rows,
        evidence={"checkpoint_offset": chains["snapshot_offset"].copy()},
    )  # fmt: skip


@_rule("STALE_INDEX", WARNING, "spec D-38", "The share snapshot file names the latest checkpoint of every group.")
def stale_index(folded: FoldedControlLog) -> Broken:
    """Groups of which the share snapshot file says something else than the log; the log counts."""
    entries = folded.options.index
    if entries is None:
        return NOTHING
    numbers = dict(zip(folded.groups.to_pylist(), range(len(folded.groups)), strict=True))
    chains = folded.chains.chains
    told = {numbers[entry.group]: entry for entry in entries if entry.group in numbers}
    gone = [entry for entry in entries if entry.group not in numbers or not chains[numbers[entry.group]]["exists"]]
    wrong = [
        number
        for number in folded.numbers.tolist()
        if number not in told
        or (told[number].checkpoint_offset, told[number].checkpoint_epoch)
        != (chains[number]["snapshot_offset"], chains[number]["epoch"])
    ]
    if not wrong and not gone:
        return NOTHING
    named = [told.get(number) for number in wrong] + gone
    keys = [*wrong, *(numbers.get(entry.group, NOWHERE) for entry in gone)]
    actual = [int(chains[number]["snapshot_offset"]) for number in wrong] + [None] * len(gone)
    return Broken(
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


def _each(rows: np.ndarray, text: str, severity: np.ndarray | None = None) -> Broken:
    if not len(rows):
        return NOTHING
    return Broken(rows["offset"].copy(), (text,), key=rows["group"].astype(np.int64), severity=severity)


@_rule(
    "KEY_MALFORMED", ERROR, "spec D-03; Kafka ControlRecordType.parse", "Every control record has a version and type."
)
def key_malformed(folded: FoldedControlLog) -> Broken:
    """Control records whose key is shorter than 4 bytes."""
    return _each(_with(folded, ControlFault.KEY_MALFORMED), "the key of a control record cannot be read")


@_rule("VALUE_MALFORMED", ERROR, "spec D-05 to D-08; C-02", "Every checkpoint and delta is read to its last byte.")
def value_malformed(folded: FoldedControlLog) -> Broken:
    """Values that are not exactly a checkpoint or delta; where no group can be read, it may be something else."""
    rows = _with(folded, UNREADABLE_CONTROL_RECORD)
    severity = np.where(rows["group"] < 0, WARNING, ERROR).astype(object)
    text = np.where(
        rows["fault"] & ControlFault.VALUE_TRAILING != 0,
        "bytes follow the value, which the layout does not have; the record was left out",
        "the value is not a checkpoint or delta; the record was left out",
    )
    if not len(rows):
        return NOTHING
    return Broken(
        rows["offset"].copy(), (pa.array(text),), key=rows["group"].astype(np.int64),
        evidence={"type": rows["type"].copy()}, severity=severity,
    )  # fmt: skip


@_rule("INVERTED_RANGE", ERROR, "spec D-11", "Every tuple ends at or after its first offset.")
def inverted_range(folded: FoldedControlLog) -> Broken:
    """Records with a tuple that covers nothing, or that no log can hold; the tuple was left out."""
    return _each(_with(folded, ControlFault.INVERTED_RANGE), "a tuple ends before it begins; it was left out")


@_rule("PERSISTED_ACQUIRED", WARNING, "spec D-10, D-13", "The state Acquired is never written.")
def persisted_acquired(folded: FoldedControlLog) -> Broken:
    """Records with a tuple in state 1; it counts as available, delivered once less."""
    return _each(_with(folded, ControlFault.PERSISTED_ACQUIRED), "a tuple is acquired; it was taken for available")


@_rule("UNKNOWN_DELIVERY_STATE", WARNING, "spec D-10", "The state of a tuple is 0, 2 or 4.")
def unknown_delivery_state(folded: FoldedControlLog) -> Broken:
    """Records with a tuple in a state that the draft does not know; it was folded as it is, and is not terminal."""
    return _each(_with(folded, ControlFault.UNKNOWN_STATE), "a tuple is in a state that the draft does not know")


@_rule("DELIVERY_COUNT_INVALID", WARNING, "spec D-11", "No delivery count is negative.")
def delivery_count_invalid(folded: FoldedControlLog) -> Broken:
    """Records with a tuple of a negative delivery count."""
    return _each(_with(folded, ControlFault.NEGATIVE_COUNT), "a tuple has a negative delivery count")


@_rule("START_OFFSET_INVALID", WARNING, "spec D-06, D-12", "A checkpoint's start is not negative nor behind its end.")
def start_offset_invalid(folded: FoldedControlLog) -> Broken:
    """Checkpoints whose window cannot be."""
    rows = _with(folded, ControlFault.WINDOW_INVALID)
    if not len(rows):
        return NOTHING
    start, end = rows["start_offset"].copy(), rows["end_offset"].copy()
    return Broken(rows["offset"].copy(), ("the checkpoint's window is from ", start, " to ", end),
                  key=rows["group"].astype(np.int64), evidence={"start_offset": start, "end_offset": end})  # fmt: skip


@_rule("OVERLAP_IN_DELTA", WARNING, "spec D-28", "The tuples of one record do not overlap.")
def overlap_in_delta(folded: FoldedControlLog) -> Broken:
    """Records that tell one offset twice; the later tuple counts."""
    return _each(_with(folded, ControlFault.OVERLAP), "tuples of the record overlap; the later one counts")


# What folding met.


@_rule("BELOW_START", INFO, "spec D-26", "No tuple lies before the start of its share-partition.")
def below_start(folded: FoldedControlLog) -> Broken:
    """Records with tuples below the start, which count for nothing."""
    rows = np.flatnonzero(folded.chains.notes["below_start"] > 0)
    if not len(rows):
        return NOTHING
    found = folded.chains.notes["below_start"][rows].copy()
    return Broken(
        folded.records.rows["offset"][rows].copy(),
        (found, " offsets of the record lie before the start and were ignored"),
        key=folded.records.rows["group"][rows].astype(np.int64),
        evidence={"offsets": found},
    )


@_rule("UNCOVERED_GAP", WARNING, "spec D-27", "A delta that reaches past the end tells of every offset up to there.")
def uncovered_gap(folded: FoldedControlLog) -> Broken:
    """Deltas that leave out offsets between the end so far and their last tuple; these became available, count 0."""
    rows = np.flatnonzero(folded.chains.notes["hole_offsets"] > 0)
    if not len(rows):
        return NOTHING
    notes = folded.chains.notes[rows]
    first, last = notes["hole_first"].copy(), notes["hole_last"].copy()
    return Broken(
        folded.records.rows["offset"][rows].copy(),
        ("the delta tells nothing of offsets ", first, " to ", last, "; they were filled in as available"),
        key=folded.records.rows["group"][rows].astype(np.int64),
        evidence={"first_missing": first, "last_missing": last, "offsets": notes["hole_offsets"].copy()},
    )
