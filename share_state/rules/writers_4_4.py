"""What writers from 4.4 on guarantee: judged where the configuration names them, or their records give them away."""

import numpy as np

from share_state.fold.chains import NOWHERE
from share_state.fold.trace import Traced
from share_state.rules.registry import INFO, PLACE, TRACED, WARNING, Broken, rule
from share_state.rules.traced_rows import first_of_each, of_rows, span, state_names


def _by_4_4(traced: Traced) -> tuple[np.ndarray, str]:
    """(bool, one a record: a writer of 4.4 or later made it; how that is known, for the message)."""
    if traced.limits.writer_version is not None:
        return np.full(len(traced.rows), traced.limits.writer_version == "4.4"), ""
    if traced.archiving_since == NOWHERE:
        return np.zeros(len(traced.rows), bool), ""
    why = f" (the writer must be 4.4 or later: ARCHIVING is in the log since {PLACE} {traced.archiving_since})"
    return traced.rows["offset"] > traced.archiving_since, why


@rule(
    "START_NOT_CARRIED",
    severity=WARNING,
    source="4.4 addendum N02, 3.6",
    statement="From 4.4 on every update carries the start offset once there is one.",
    over=TRACED,
)
def start_not_carried(traced: Traced) -> Broken:
    """Updates that leave the start offset out: an older broker, or another writer, is still at work."""
    rows, facts = traced.rows, traced.facts
    of_4_4, why = _by_4_4(traced)
    judged = traced.updates & traced.known & of_4_4
    at = np.flatnonzero(judged & (rows["start_offset"] == -1) & (facts["start_before"] >= 0))
    before = facts["start_before"][at]
    return of_rows(rows[at], ("the update leaves out the start offset, which is ", before, why), before=before)


@rule(
    "COUNT_REGRESSION",
    severity=WARNING,
    source="4.4 addendum N01, 3.6",
    statement="From 4.4 on the delivery complete count does not fall while the start offset stays.",
    over=TRACED,
)
def count_regression(traced: Traced) -> Broken:
    """Records whose delivery complete count is lower than before at the same start offset."""
    rows, facts = traced.rows, traced.facts
    of_4_4, why = _by_4_4(traced)
    stays = facts["start_after"] == facts["start_before"]
    fell = rows["delivery_complete_count"] < facts["complete_before"]
    at = np.flatnonzero(traced.going_on & of_4_4 & stays & fell)
    found, before = rows["delivery_complete_count"][at], facts["complete_before"][at]
    return of_rows(
        rows[at],
        ("the delivery complete count falls from ", before, " to ", found, " while the start offset stays at ",
         facts["start_after"][at], why),
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
    facts = traced.facts
    of_4_4, why = _by_4_4(traced)
    at = np.flatnonzero(facts["folded"] & of_4_4 & (facts["archiving_passed_offset"] >= 0))
    passed, start = facts["archiving_passed_offset"][at], facts["start_after"][at]
    return of_rows(
        traced.rows[at],
        ("the start offset moves to ", start, " past offset ", passed, ", which was last in state ARCHIVING", why),
        passed_offset=passed,
    )


@rule(
    "BATCHES_NOT_JOINED",
    severity=INFO,
    source="4.4 addendum N08, 4.2",
    statement="From 4.4 on no two state batches of a record that touch have the same state and count.",
    over=TRACED,
)
def batches_not_joined(traced: Traced) -> Broken:
    """Records with state batches that 4.4 would have joined: an older broker wrote them; harmless."""
    of_4_4, why = _by_4_4(traced)
    if not of_4_4.any():
        return of_rows(traced.rows[:0], ())
    batches = traced.batches
    wrong = np.zeros(len(batches), bool)
    wrong[1:] = (
        (batches["first"][1:] == batches["last"][:-1] + 1)
        & (batches["state"][1:] == batches["state"][:-1])
        & (batches["count"][1:] == batches["count"][:-1])
    )
    suspects = np.flatnonzero(wrong)
    if len(suspects):
        owner = traced.owner
        # A cold snapshot repeats what an older writer left.
        judged = (of_4_4 & ~traced.facts["cold"])[owner[suspects]]
        wrong[suspects] = judged & (owner[suspects] == owner[suspects - 1])
    rows, batch, count = first_of_each(traced, wrong)
    return of_rows(
        rows,
        ("the state batch ", *span(batch), " and the one it touches are both ", state_names(batch["state"]),
         " at delivery count ", batch["count"], why),
        batches=count,
    )  # fmt: skip
