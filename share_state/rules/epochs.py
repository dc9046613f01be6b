"""Epochs that count: a snapshot too many or too few, and epochs that fence going back.

Start offsets (SPSO) that cannot be, or that go back.

Clocks that step back.

The delivery complete count beside what the ranges say.
"""

import numpy as np
import pyarrow as pa

from share_state.fold.chains import Columns
from share_state.fold.record_context import Traced
from share_state.kafka.state_records import Kind
from share_state.rules.registry import ERROR, INFO, TRACED, WARNING, Broken, goes_on, has_state, of_rows, rule


@rule(
    "SNAPSHOT_EPOCH_GAP",
    severity=ERROR,
    source="spec I18, 3.6",
    statement="The snapshots of a share-partition count up by exactly one, from 0 when it is made.",
    over=TRACED,
)
def snapshot_epoch_gap(traced: Traced) -> Broken:
    """Snapshots whose epoch is not their predecessor's plus one: a record is missing, or two writers were at work."""
    rows, facts = traced.rows[traced.snapshots], traced.facts[traced.snapshots]
    # Where the log began earlier than what was read, the first snapshot seen may have any epoch.
    judged = facts["known"] | facts["was_deleted"] | (traced.folded_from == 0)
    expected = np.where(facts["known"], facts["snapshot_epoch_before"].astype(np.int64) + 1, 0)
    at = np.flatnonzero(judged & (rows["snapshot_epoch"] != expected))
    found, expected = rows["snapshot_epoch"][at], expected[at]
    return of_rows(
        rows[at],
        ("the snapshot says epoch ", found, " where ", expected, " follows"),
        found=found,
        expected=expected,
    )


@rule(
    "UPDATE_EPOCH_MISMATCH",
    severity=ERROR,
    source="spec I19; Kafka ShareCoordinatorShard.generateShareStateRecord",
    statement="An update names the epoch of the snapshot before it.",
    over=TRACED,
)
def update_epoch_mismatch(traced: Traced) -> Broken:
    """Updates of another snapshot than the one before them; quiet where that one could not be read."""
    at = np.flatnonzero(traced.updates & (traced.rows["snapshot_epoch"] != traced.facts["snapshot_epoch_before"]))
    rows, facts = traced.rows[at], traced.facts[at]
    judged = facts["known"] & ~facts["suspect"]
    found, expected = rows["snapshot_epoch"][judged], facts["snapshot_epoch_before"][judged]
    return of_rows(
        rows[judged],
        ("the update is of snapshot epoch ", found, ", the snapshot before it has ", expected),
        found=found,
        expected=expected,
    )


@rule(
    "STATE_EPOCH_REGRESSION",
    severity=ERROR,
    source="spec I21, 3.7",
    statement="The state epoch of a share-partition's snapshots never goes back.",
    over=TRACED,
)
def state_epoch_regression(traced: Traced) -> Broken:
    """Snapshots with a lower state epoch than the state before them: a fenced group coordinator wrote."""
    rows, facts = traced.rows[traced.snapshots], traced.facts[traced.snapshots]
    at = np.flatnonzero(facts["known"] & (rows["state_epoch"] < facts["state_epoch_before"]))
    return _fallen(rows[at], facts[at], "state_epoch", "the snapshot has state epoch ")


@rule(
    "LEADER_EPOCH_REGRESSION",
    severity=WARNING,
    source="spec I22; Kafka ShareCoordinatorShard.maybeGetWriteStateError",
    statement="Only initialising a share-partition takes its leader epoch back.",
    over=TRACED,
)
def leader_epoch_regression(traced: Traced) -> Broken:
    """Records with a lower leader epoch than the state before them: a fenced partition leader wrote."""
    at = np.flatnonzero(traced.rows["leader_epoch"] < traced.facts["leader_epoch_before"])
    rows, facts = traced.rows[at], traced.facts[at]
    # An update that says -1 leaves the epoch as it is.
    unchanged = (rows["kind"] == Kind.UPDATE) & (rows["leader_epoch"] == -1)
    fallen = goes_on(rows, facts) & ~unchanged
    return _fallen(rows[fallen], facts[fallen], "leader_epoch", "the record has leader epoch ")


def _fallen(rows: Columns, facts: Columns, epoch: str, said: str) -> Broken:
    """Records whose epoch is lower than that of the state before them."""
    found, before = rows[epoch], facts[f"{epoch}_before"]
    return of_rows(rows, (said, found, ", the state before it ", before), found=found, before=before)


@rule(
    "START_OFFSET_INVALID",
    severity=WARNING,
    source="spec I14",
    statement="A start offset is 0 or more, or -1 for none.",
    over=TRACED,
)
def start_offset_invalid(traced: Traced) -> Broken:
    """Start offsets below -1."""
    at = np.flatnonzero(traced.rows["start_offset"] < -1)
    rows = traced.rows[at]
    rows = rows[has_state(rows, traced.facts[at])]
    found = rows["start_offset"]
    return of_rows(rows, ("the start offset is ", found), found=found)


@rule(
    "START_OFFSET_REGRESSION",
    severity=ERROR,
    source="spec I15, I16; 4.4 addendum 3.6",
    statement="Only initialising a share-partition takes its start offset back.",
    over=TRACED,
)
def start_offset_regression(traced: Traced) -> Broken:
    """Start offsets below the one before, in one state epoch: records that were finished may be delivered again."""
    at = np.flatnonzero(traced.rows["start_offset"] < traced.facts["start_before"])
    rows, facts = traced.rows[at], traced.facts[at]
    # A snapshot of a later state epoch that takes a request along is how 4.1 follows an alteration of offsets.
    comparable = np.where(
        rows["kind"] == Kind.UPDATE,
        rows["start_offset"] >= 0,
        (rows["start_offset"] >= -1) & (rows["state_epoch"] == facts["state_epoch_before"]),
    )
    back = goes_on(rows, facts) & comparable
    found, before = rows["start_offset"][back], facts["start_before"][back]
    return of_rows(
        rows[back],
        ("the start offset goes back from ", before, " to ", found),
        found=found,
        before=before,
    )


@rule(
    "TIMESTAMP_REGRESSION",
    severity=INFO,
    source="spec I23, I24",
    statement="The times of a share-partition's records and snapshots never go back.",
    over=TRACED,
)
def timestamp_regression(traced: Traced) -> Broken:
    """Records stamped before their predecessor, and snapshots written before their creation or their predecessor."""
    looked_at = traced.rows["timestamp"] < traced.facts["timestamp_before"]
    looked_at[traced.snapshots] = True
    at = np.flatnonzero(looked_at)
    rows, facts = traced.rows[at], traced.facts[at]
    snapshots = rows["kind"] == Kind.SNAPSHOT
    stamped = rows["timestamp"] < facts["timestamp_before"]
    created = snapshots & (rows["create_time"] > rows["write_time"])
    written = snapshots & facts["known"] & (rows["write_time"] < facts["write_time_before"])
    wrong = np.flatnonzero(facts["folded"] & (stamped | created | written))
    rows, facts, stamped, created = rows[wrong], facts[wrong], stamped[wrong], created[wrong]
    # Of several steps in one record the message names the first of these.
    later = np.select([stamped, created], [facts["timestamp_before"], rows["create_time"]], facts["write_time_before"])
    earlier = np.where(stamped, rows["timestamp"], rows["write_time"])
    what = np.where(stamped, "the record is stamped ", "the snapshot was written ")
    than = np.select(
        [stamped, created],
        [" ms before the share-partition's last record", " ms before it was created"],
        " ms before the one it replaces",
    )
    return of_rows(
        rows,
        (pa.array(what, pa.string()), later - earlier, pa.array(than, pa.string())),
        milliseconds=later - earlier,
    )


@rule(
    "DELIVERY_COMPLETE_COUNT_MISMATCH",
    severity=INFO,
    source="spec I29 to I32; KIP-1226",
    statement="The delivery complete count is how many offsets from the start on are acknowledged or archived.",
    over=TRACED,
)
def delivery_complete_count_mismatch(traced: Traced) -> Broken:
    """Counts that are impossible, that fell back to unknown, or that differ from the ranges: the lag shown is wrong.

    A leader counts before it writes, so a count may be off by what was in flight just then; one that stays off is not.
    """
    unlike = np.flatnonzero(traced.rows["delivery_complete_count"] != traced.facts["terminal_after"])
    # That no count is told is wrong only where one was told before.
    told = (traced.rows["delivery_complete_count"][unlike] != -1) | (traced.facts["complete_before"][unlike] >= 0)
    rows, facts = traced.rows[unlike[told]], traced.facts[unlike[told]]
    found, terminal = rows["delivery_complete_count"], facts["terminal_after"]
    started = facts["start_after"] >= 0
    window = facts["end_after"] - facts["start_after"]
    forgotten = started & facts["known"] & ~facts["initial"] & (found == -1) & (facts["complete_before"] >= 0)
    # Without a snapshot before it, the state may hold less than the leader knew.
    whole = (rows["kind"] == Kind.SNAPSHOT) | (facts["rests_on_snapshot"] & ~facts["suspect"])
    cases = (found < -1, forgotten, started & whole & (found > window), started & whole & (found >= 0))
    wrong = np.flatnonzero(has_state(rows, facts) & np.logical_or.reduce(cases))
    texts = np.select(
        [case[wrong] for case in cases[:-1]],
        ["it is below -1", "it was known before", "more than there are offsets in flight"],
        np.char.add(terminal[wrong].astype(str), " offsets from the start on are finished"),
    )
    return of_rows(
        rows[wrong],
        ("the delivery complete count is ", found[wrong], ": ", pa.array(texts.tolist(), pa.string())),
        found=found[wrong],
        finished=terminal[wrong],
        in_flight=window[wrong],
    )
