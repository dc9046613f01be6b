"""Clocks that step back."""

import numpy as np
import pyarrow as pa

from share_state.fold.traced import Traced
from share_state.rules.registry import INFO, TRACED, Broken, rule
from share_state.rules.traced_rows import of_rows
from share_state.wire.share_group_state import Kind


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
