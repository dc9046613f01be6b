"""The row of a log with control records in the table `cutoff`."""

from typing import Any

import numpy as np
import pyarrow as pa

from share_state.fold.cutoff import CutoffEvidence, EarliestShareOffset, unsafe_reasons
from share_state.fold.state_chains import NO_OFFSET
from share_state.fold.states import CONTROL_RECORDS, to_timestamps


def control_cutoff_row(
    evidence: CutoffEvidence,
    earliest: EarliestShareOffset,
    groups: pa.Array,
    rows: np.ndarray,
    links: np.ndarray,
    first_offset: int,
) -> dict[str, Any]:
    """The columns of `cutoff` that depend on the cutoff.

    Args:
        evidence: what the input shows of the log.
        earliest: the earliest share offset.
        groups: ids of all groups of the log.
        rows: CONTROL_CHAIN, one per group.
        links: LINK rows of the log.
        first_offset: the log start offset; earlier links do not count.
    """
    log = evidence.log
    offset = earliest.offset
    following = earliest.next_offset
    retained = links[links["offset"] >= first_offset]
    offsets = retained["offset"]
    limiting = (
        None if earliest.limited_from is None else retained["timestamp"][offsets == earliest.limited_from]
    )
    reasons = unsafe_reasons(evidence)
    reason = "; ".join(reasons) or None
    if not reasons and len(groups) and not earliest.subscribes.any():
        reason = "no group subscribes to the topic, so there is no earliest share offset"
    return {
        "dialect": CONTROL_RECORDS,
        "topic": log.topic,
        "partition": log.partition,
        "cutoff_offset": offset,
        "redundant_records": int((offsets < (offset or 0)).sum()),
        "limited_by_group": earliest.limited_by,
        "limited_by_partition": None if earliest.limited_by is None else log.partition,
        "limited_since": None if limiting is None else to_timestamps(limiting[:1])[0].as_py(),
        "next_cutoff_offset": following,
        "pinned_records": int(((offsets >= (offset or 0)) & (offsets < (following or 0))).sum()),
        "ignored": _ignored(groups, earliest.subscribes, rows, links, offset),
        "safe": not reasons,
        "reason": reason,
    }


def _ignored(
    groups: pa.Array, subscribes: np.ndarray, rows: np.ndarray, links: np.ndarray, earliest: int | None
) -> list[dict[str, Any]]:
    """The groups without a subscription, and how many records that their states need are below the cutoff."""
    snapshot_offsets = rows["snapshot_offset"][links["group"]]
    lost = links["group"][
        (snapshot_offsets != NO_OFFSET)
        & (links["offset"] >= snapshot_offsets)
        & (links["offset"] < (earliest or 0))
    ]
    numbers, lost_records = np.flatnonzero(~subscribes), np.bincount(lost, minlength=len(groups))
    names = groups.take(pa.array(numbers)).to_pylist()
    counts_by_name = sorted(zip(names, lost_records[numbers].tolist(), strict=True))
    return [{"group_id": name, "lost_records": count} for name, count in counts_by_name]
