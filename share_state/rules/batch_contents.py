"""State batches that no release writes: unknown states, impossible delivery counts, ranges in disorder."""

import numpy as np

from share_state.fold.ranges import ACKNOWLEDGED, ARCHIVING, AVAILABLE
from share_state.fold.remarkable import written_states
from share_state.fold.traced import Traced
from share_state.rules.registry import TRACED, WARNING, Broken, rule
from share_state.rules.traced_rows import first_of_each, of_rows, owners, span, state_names, within_records
from share_state.wire.share_group_state import Kind, Layout


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
