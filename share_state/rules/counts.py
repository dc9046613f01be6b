"""The delivery complete count beside what the ranges say."""

import numpy as np
import pyarrow as pa

from share_state.fold.traced import Traced
from share_state.rules.registry import INFO, TRACED, Broken, rule
from share_state.rules.traced_rows import has_state, of_rows
from share_state.wire.share_group_state import Kind


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
