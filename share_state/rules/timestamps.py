"""Clocks that step back."""

import numpy as np
import pyarrow as pa

from share_state.fold.trace import Traced
from share_state.rules.registry import INFO, TRACED, Broken, rule
from share_state.rules.traced_rows import of_rows


@rule(
    "TIMESTAMP_REGRESSION",
    severity=INFO,
    source="spec I23, I24",
    statement="The times of a share-partition's records and snapshots never go back.",
    over=TRACED,
)
def timestamp_regression(traced: Traced) -> Broken:
    """Records stamped before their predecessor, and snapshots written before their creation or their predecessor."""
    rows, facts = traced.rows, traced.facts
    stamped = facts["folded"] & (rows["timestamp"] < facts["timestamp_before"])
    created = traced.snapshots & (rows["create_time"] > rows["write_time"])
    written = traced.snapshots & traced.known & (rows["write_time"] < facts["write_time_before"])
    at = np.flatnonzero(stamped | created | written)
    # Of several steps in one record the message names the first of these.
    later = np.select(
        [stamped[at], created[at]], [facts["timestamp_before"][at], rows["create_time"][at]],
        facts["write_time_before"][at],
    )  # fmt: skip
    earlier = np.where(stamped[at], rows["timestamp"][at], rows["write_time"][at])
    what = np.select(
        [stamped[at], created[at]],
        ["the record is stamped ", "the snapshot was written "],
        "the snapshot was written ",
    )
    than = np.select(
        [stamped[at], created[at]],
        [" ms before the share-partition's last record", " ms before it was created"],
        " ms before the one it replaces",
    )
    return of_rows(
        rows[at],
        (pa.array(what, pa.string()), later - earlier, pa.array(than, pa.string())),
        milliseconds=later - earlier,
    )
