"""The delivery complete count beside what the ranges say."""

import numpy as np
import pyarrow as pa

from share_state.fold.trace import Traced
from share_state.rules.registry import INFO, TRACED, Broken, rule
from share_state.rules.traced_rows import of_rows
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
    rows, facts = traced.rows, traced.facts
    found, terminal = rows["delivery_complete_count"], facts["terminal_after"]
    started = traced.of_kind(Kind.SNAPSHOT, Kind.UPDATE) & (facts["start_after"] >= 0)
    # Without a snapshot before it, the state may hold less than the leader knew.
    is_base = rows["kind"] == Kind.SNAPSHOT
    whole = started & (is_base | (facts["rests_on_snapshot"] & ~facts["suspect"]))
    window = facts["end_after"] - facts["start_after"]
    invalid = traced.of_kind(Kind.SNAPSHOT, Kind.UPDATE) & (found < -1)
    forgotten = started & facts["known"] & ~facts["initial"] & (found == -1) & (facts["complete_before"] >= 0)
    differs = whole & (found >= 0) & (found != terminal)
    at = np.flatnonzero(invalid | forgotten | differs)
    text = np.select(
        [invalid[at], forgotten[at], (found > window)[at]],
        ["it is below -1", "it was known before", "more than there are offsets in flight"],
        "",
    )
    text = np.where(text == "", np.char.add(terminal[at].astype(str), " offsets from the start on are finished"), text)
    return of_rows(
        rows[at],
        ("the delivery complete count is ", found[at], ": ", pa.array(text.tolist(), pa.string())),
        found=found[at],
        finished=terminal[at],
        in_flight=window[at],
    )
