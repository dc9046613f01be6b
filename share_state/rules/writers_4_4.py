"""What writers from 4.4 on guarantee: judged where the configuration names them, or their records give them away."""

import numpy as np

from share_state.fold.traced import Traced
from share_state.rules.registry import INFO, NOTHING, PLACE, TRACED, WARNING, Broken, rule
from share_state.rules.traced_rows import first_of_each, goes_on, of_rows, owners, span, state_names, within_records


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
