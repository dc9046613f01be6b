"""The row of a partition of `__share_group_state` in the table `cutoff`."""

from typing import Any

import numpy as np
import pyarrow as pa

from share_state.fold.cutoff import CutoffEvidence, cutoff, unsafe_reasons
from share_state.fold.log_stats import LogExtent
from share_state.fold.state_chains import NO_OFFSET, Chains
from share_state.fold.states import SHARE_GROUP_STATE, to_timestamps

_SIZES = ("redundant_bytes", "pinned_bytes")
_OFFSETS = ("cutoff_offset", "log_start_offset", "log_end_offset", "redundant_records", "next_cutoff_offset",
            "pinned_records", "limited_by_group", "limited_by_topic_id", "limited_by_partition",
            "limited_since", "last_stable_offset")  # fmt: skip
"""Columns of `cutoff` that are null if the input has no sizes or no offsets."""


def cutoff_row(
    chains: Chains,
    key: dict[str, pa.Array],
    evidence: CutoffEvidence,
    extent: LogExtent,
    bounds: tuple[int, int],
    *,
    has_sizes: bool,
) -> tuple[dict[str, Any], int]:
    """The row of a log, and its number of redundant records, which is known also where the format has no offsets.

    Args:
        chains: the states of live share-partitions.
        key: their key columns.
        evidence: what the input shows of the log.
        extent: the offsets and bytes of the log.
        bounds: the log start offset, and the offset after the last record.
        has_sizes: whether the sizes of batches are known.
    """
    log = evidence.log
    first, end = bounds
    limit = cutoff(chains, evidence.stable_end)
    # The whole batch that contains the log start offset is folded, but its records before that are not
    # counted.
    current = max(limit.offset or 0, first)
    following = current if limit.next_offset is None else limit.next_offset
    offsets = (first, current, following)
    redundant, pinned = np.diff([extent.records_before(offset) for offset in offsets]).tolist()
    redundant_bytes, pinned_bytes = np.diff([extent.bytes_before(offset) for offset in offsets]).tolist()
    limiting = slice(0, 0) if limit.limited_by is None else slice(limit.limited_by, limit.limited_by + 1)
    holder = {name: next(iter(column[limiting].to_pylist()), None) for name, column in key.items()}
    written = to_timestamps(chains.chains["write_time"][limiting]).to_pylist()
    reasons = unsafe_reasons(evidence)
    row = {
        "dialect": SHARE_GROUP_STATE,
        "topic": log.topic,
        "partition": log.partition,
        "cutoff_offset": limit.offset,
        "log_start_offset": first,
        "log_end_offset": end,
        "redundant_records": redundant,
        "live_share_partitions": len(chains.chains),
        "limited_by_group": holder["group_id"],
        "limited_by_topic_id": holder["topic_id"],
        "limited_by_partition": holder["partition"],
        "limited_since": next(iter(written), None),
        "safe": not reasons,
        "reason": "; ".join(reasons) or None,
        "redundant_bytes": redundant_bytes,
        "next_cutoff_offset": limit.next_offset,
        "pinned_records": pinned,
        "pinned_bytes": pinned_bytes,
        "last_stable_offset": None if evidence.stable_end == NO_OFFSET else evidence.stable_end,
    }
    unknown = (*(() if log.has_offsets else _OFFSETS), *(() if has_sizes else _SIZES))
    return row | dict.fromkeys(unknown), redundant
