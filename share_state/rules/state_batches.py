"""State batches that no release writes: unknown states, impossible delivery counts, ranges in disorder.

What writers from 4.4 on guarantee: judged where the configuration names them, or their records give them away.
"""

import numpy as np

from share_state.fold.interval_merge import ACKNOWLEDGED, ARCHIVING, AVAILABLE
from share_state.fold.record_context import Traced, written_states
from share_state.kafka.state_records import Kind, Layout
from share_state.rules.registry import (
    INFO,
    NOTHING,
    PLACE,
    TRACED,
    WARNING,
    Broken,
    first_of_each,
    goes_on,
    of_rows,
    owners,
    rule,
    span,
    state_names,
    within_records,
)


@rule(
    "UNKNOWN_DELIVERY_STATE",
    severity=WARNING,
    source="spec I08; 4.4 addendum I08, N04",
    statement="A persisted state is AVAILABLE, ACKNOWLEDGED, ARCHIVED or, from 4.4 on, ARCHIVING.",
    over=TRACED,
)
def unknown_delivery_state(traced: Traced) -> Broken:
    """State batches in a state that is never persisted: a broker may refuse the partition, or its start stays stuck."""
    written = written_states(traced.limits)
    wrong = np.logical_and.reduce([traced.batches["state"] != state for state in written])
    why = "" if ARCHIVING in written else f", which {traced.limits.writer_version} does not write"
    rows, batch, count = first_of_each(traced, np.flatnonzero(wrong))
    return of_rows(
        rows,
        ("the state batch ", *span(batch), " is in state ", state_names(batch["state"]), why),
        state=batch["state"],
        batches=count,
    )


@rule(
    "DELIVERY_COUNT_INVALID",
    severity=WARNING,
    source="spec I09; 4.4 addendum I09",
    statement="Whatever was delivered has a delivery count of 1 or more.",
    over=TRACED,
)
def delivery_count_invalid(traced: Traced) -> Broken:
    """Delivery counts below 0, or 0 for what was delivered; only 4.1 lowers the count of a released offset."""
    counts, states = traced.batches["count"], traced.batches["state"]
    zero = np.flatnonzero(counts == 0)
    wrong = counts < 0
    wrong[zero] = (states[zero] == ACKNOWLEDGED) | (states[zero] == ARCHIVING)
    released = zero[states[zero] == AVAILABLE]
    if len(released):
        wrong[released] = _never_lowers_counts(traced)[owners(traced, released)]
    rows, batch, count = first_of_each(traced, np.flatnonzero(wrong))
    return of_rows(
        rows,
        (
            "the state batch ",
            *span(batch),
            " is ",
            state_names(batch["state"]),
            " with delivery count ",
            batch["count"],
        ),
        delivery_count=batch["count"],
        batches=count,
    )


def _never_lowers_counts(traced: Traced) -> np.ndarray:
    """bool, one a record: not written by 4.1, which may let a released offset fall back to 0."""
    rows, writer = traced.rows, traced.limits.writer_version
    if writer is not None:
        return np.full(len(rows), writer != "4.1")
    # A snapshot may still hold what 4.1 wrote; an update with a count of complete offsets is one request of 4.2 on.
    later = (rows["kind"] == Kind.UPDATE) & (rows["delivery_complete_count"] >= 0)
    return later | (rows["layout"] == Layout.EARLY)


@rule(
    "DELIVERY_COUNT_OVER_LIMIT",
    severity=WARNING,
    source="spec I10",
    statement="No delivery count exceeds the limit of the configuration (limits.delivery_count).",
    over=TRACED,
)
def delivery_count_over_limit(traced: Traced) -> Broken:
    """Delivery counts above the limit: another limit is in force than the audit was told, or a writer ignores it."""
    limit = traced.limits.delivery_count
    rows, batch, count = first_of_each(traced, np.flatnonzero(traced.batches["count"] > limit))
    return of_rows(
        rows,
        ("the state batch ", *span(batch), " was delivered ", batch["count"], f" times; the limit is {limit}"),
        delivery_count=batch["count"],
        batches=count,
    )


@rule(
    "BATCHES_OVERLAP",
    severity=WARNING,
    source="spec I11; Kafka PersisterStateBatchCombiner",
    statement="The state batches of a record are in order and do not overlap.",
    over=TRACED,
)
def batches_overlap(traced: Traced) -> Broken:
    """Records whose state batches overlap or are out of order; the greatest value of each offset was folded."""
    first, last = traced.batches["first"], traced.batches["last"]
    # The next record begins anew.
    suspects = within_records(traced, first[1:] <= last[:-1])
    # INVERTED_RANGE speaks for ranges that cover nothing.
    ordered = (first[suspects] <= last[suspects]) & (first[suspects - 1] <= last[suspects - 1])
    rows, batch, count = first_of_each(traced, suspects[ordered])
    return of_rows(
        rows,
        ("the state batch ", *span(batch), " does not begin behind the one before it"),
        batches=count,
    )


@rule(
    "BATCH_BELOW_START",
    severity=WARNING,
    source="spec I13; Kafka SharePartition.maybeInitialize",
    statement="No state batch of a record begins below the start offset that the record carries.",
    over=TRACED,
)
def batch_below_start(traced: Traced) -> Broken:
    """State batches below their record's start; a leader refuses to load a snapshot that holds one."""
    starts = np.repeat(traced.rows["start_offset"], traced.rows["batch_count"])
    below = np.flatnonzero(traced.batches["first"] < starts)
    rows, batch, count = first_of_each(traced, below[traced.batches["first"][below] <= traced.batches["last"][below]])
    return of_rows(
        rows,
        ("the state batch ", *span(batch), " begins below the start offset ", rows["start_offset"]),
        batches=count,
    )


def _by_4_4(traced: Traced) -> tuple[int, str] | None:
    """(`Limits.since_4_4`; how that is known, for the message), None where 4.4 is not known to have made any record."""
    if (since := traced.limits.since_4_4(traced.archiving_since)) is None:
        return None
    if traced.limits.writer_version is not None:
        return since, ""
    return since, f" (the writer must be 4.4 or later: ARCHIVING is in the log since {PLACE} {since})"


@rule(
    "START_NOT_CARRIED",
    severity=WARNING,
    source="4.4 addendum N02, 3.6",
    statement="From 4.4 on every update carries the start offset once there is one.",
    over=TRACED,
)
def start_not_carried(traced: Traced) -> Broken:
    """Updates that leave the start offset out: an older broker, or another writer, is still at work."""
    if (by_4_4 := _by_4_4(traced)) is None:
        return NOTHING
    since, why = by_4_4
    at = np.flatnonzero(traced.updates & (traced.rows["start_offset"] == -1))
    rows, facts = traced.rows[at], traced.facts[at]
    wrong = facts["known"] & (facts["start_before"] >= 0) & (rows["offset"] > since)
    before = facts["start_before"][wrong]
    return of_rows(rows[wrong], ("the update leaves out the start offset, which is ", before, why), before=before)


@rule(
    "COUNT_REGRESSION",
    severity=WARNING,
    source="4.4 addendum N01, 3.6",
    statement="From 4.4 on the delivery complete count does not fall while the start offset stays.",
    over=TRACED,
)
def count_regression(traced: Traced) -> Broken:
    """Records whose delivery complete count is lower than before at the same start offset."""
    if (by_4_4 := _by_4_4(traced)) is None:
        return NOTHING
    since, why = by_4_4
    at = np.flatnonzero(traced.rows["delivery_complete_count"] < traced.facts["complete_before"])
    rows, facts = traced.rows[at], traced.facts[at]
    stays = facts["start_after"] == facts["start_before"]
    wrong = goes_on(rows, facts) & stays & (rows["offset"] > since)
    found, before = rows["delivery_complete_count"][wrong], facts["complete_before"][wrong]
    return of_rows(
        rows[wrong],
        ("the delivery complete count falls from ", before, " to ", found, " while the start offset stays at ",
         facts["start_after"][wrong], why),
        found=found,
        before=before,
    )  # fmt: skip


@rule(
    "ARCHIVING_PASSED",
    severity=WARNING,
    source="4.4 addendum N06, 9.3",
    statement="The start offset passes no offset that waits in ARCHIVING.",
    over=TRACED,
)
def archiving_passed(traced: Traced) -> Broken:
    """Records whose start offset passes an ARCHIVING offset: its dead-letter write was never seen to finish."""
    if (by_4_4 := _by_4_4(traced)) is None:
        return NOTHING
    since, why = by_4_4
    at = np.flatnonzero(traced.facts["archiving_passed_offset"] >= 0)
    rows, facts = traced.rows[at], traced.facts[at]
    wrong = rows["offset"] > since
    passed, start = facts["archiving_passed_offset"][wrong], facts["start_after"][wrong]
    return of_rows(
        rows[wrong],
        ("the start offset moves to ", start, " past offset ", passed, ", which was last in state ARCHIVING",
         why),
        passed_offset=passed,
    )  # fmt: skip


@rule(
    "BATCHES_NOT_JOINED",
    severity=INFO,
    source="4.4 addendum N08, 4.2",
    statement="From 4.4 on no two state batches of a record that touch have the same state and count.",
    over=TRACED,
)
def batches_not_joined(traced: Traced) -> Broken:
    """Records with state batches that 4.4 would have joined: an older broker wrote them; harmless."""
    if (by_4_4 := _by_4_4(traced)) is None:
        return NOTHING
    since, why = by_4_4
    batches = traced.batches
    suspects = within_records(
        traced,
        (batches["first"][1:] == batches["last"][:-1] + 1)
        & (batches["state"][1:] == batches["state"][:-1])
        & (batches["count"][1:] == batches["count"][:-1]),
    )
    owner = owners(traced, suspects)
    # A cold snapshot repeats what an older writer left.
    judged = (traced.rows["offset"][owner] > since) & ~traced.facts["cold"][owner]
    rows, batch, count = first_of_each(traced, suspects[judged])
    return of_rows(
        rows,
        ("the state batch ", *span(batch), " and the one it touches are both ", state_names(batch["state"]),
         " at delivery count ", batch["count"], why),
        batches=count,
    )  # fmt: skip
