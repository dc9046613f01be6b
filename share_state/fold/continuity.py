"""Compares a log that is read from its start with what the last audit read of it.

A segment has a position to resume at, where its bytes are compared. Tables, texts and clusters have none:
their end is compared instead. In both, a share-partition of the last audit must not be gone without a
tombstone.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.fold.checkpoint import FoldCheckpoint
from share_state.fold.fold_options import FoldOptions
from share_state.fold.log_stats import LogCounts, LogExtent
from share_state.fold.state_chains import NO_OFFSET, Chains
from share_state.fold.state_log import FoldedLog
from share_state.kafka.buffers import range_rows
from share_state.kafka.share_partition_keys import KeyTable
from share_state.sources.log_partition import LogPartition, Segment
from share_state.sources.resume_point import READ_FROM_START, ResumeStatus

_NOT_CONTINUED = (ResumeStatus.RECREATED, ResumeStatus.CLEANED, ResumeStatus.CHANGED)
"""Statuses of logs that need not show the tombstones of share-partitions that are gone."""

Fold = Callable[[LogPartition, FoldOptions], FoldedLog]


def fold_after(fold: Fold, log: LogPartition, options: FoldOptions) -> FoldedLog:
    """Fold a log as an audit does after an earlier one.

    The state of the earlier audit stays if the log ends before it, as does that of share-partitions that are
    gone; they are suspect.

    Args:
        fold: folds a log.
        log: the log partition.
        options: their `restore` returns a new copy of the checkpoint of the earlier audit.
    """
    if options.restore is None or options.resume_status not in READ_FROM_START:
        return fold(log, options)
    previous = options.restore()
    folded = fold(log, replace(options, restore=lambda: previous))
    is_behind = log.source is not None and folded.next_offset < previous.mark.next_offset
    if is_behind and folded.newest_time > previous.mark.newest_time >= 0:
        folded.observations.resume_status = ResumeStatus.RECREATED
        return folded
    if is_behind:
        start = previous.mark.log_start_offset
        nothing = Segment(f"{log.name}/behind", start, 0)
        empty = replace(log, segments=(nothing,), log_start_offset=start, source=None, copies=())
        return fold(empty, replace(options, resume_status=ResumeStatus.BEHIND))
    if options.resume_status in _NOT_CONTINUED or folded.first_offset > previous.mark.next_offset:
        return folded
    vanished = _vanished(folded, previous)
    return _with_vanished(fold, log, options, folded, previous, vanished) if len(vanished) else folded


def _vanished(folded: FoldedLog, previous: FoldCheckpoint) -> np.ndarray:
    """Numbers of the share-partitions with a state in the last audit of which the log has no record."""
    live = np.flatnonzero(previous.chains.chains["exists"])
    keys = previous.keys.binary().take(pa.array(live))
    is_known = pc.call_function("is_in", [keys], pc.SetLookupOptions(folded.keys.binary()))
    return live[~is_known.to_numpy(zero_copy_only=False)]


def _with_vanished(
    fold: Fold,
    log: LogPartition,
    options: FoldOptions,
    folded: FoldedLog,
    previous: FoldCheckpoint,
    vanished: np.ndarray,
) -> FoldedLog:
    """Fold the log again onto the last states of share-partitions that are gone."""
    chains = previous.chains.chains[vanished].copy()
    chains["suspect_offset"] = np.where(
        chains["suspect_offset"] == NO_OFFSET, chains["last_offset"], chains["suspect_offset"]
    )
    sizes = np.diff(previous.chains.ends)[vanished]
    batches = previous.chains.batches[range_rows(previous.chains.ends[:-1][vanished], sizes)]
    mark = replace(
        previous.mark,
        next_offset=NO_OFFSET,
        newest_time=folded.newest_time,
        folded_from=folded.folded_from,
        topic_id=log.topic_id,
    )

    def restore() -> FoldCheckpoint:
        keys = KeyTable.of(pa.chunked_array([previous.keys.binary().take(pa.array(vanished))]))
        ends = np.concatenate(([0], np.cumsum(sizes)))
        kept = Chains(chains.copy(), ends, batches.copy())
        return FoldCheckpoint(
            mark=mark,
            keys=keys,
            chains=kept,
            extent=LogExtent(),
            counts=LogCounts(),
            last_lost_offset=NO_OFFSET,
            last_break=NO_OFFSET,
            archiving_since=NO_OFFSET,
            archiving_time=NO_OFFSET,
        )

    again = fold(log, replace(options, restore=restore, resume_status=ResumeStatus.VANISHED))
    again.observations.vanished = np.arange(len(vanished))
    known = pc.index_in(
        again.keys.binary().take(pa.array(again.numbers)), folded.keys.binary().take(pa.array(folded.numbers))
    )
    is_known = known.is_valid().to_numpy(zero_copy_only=False)
    again.previous_starts[is_known] = folded.previous_starts[known.drop_null().to_numpy()]
    return again
