"""Checkpoints of the fold of a log partition: an audit writes them to tables, and the next audit resumes from them."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from share_state.fold.log_stats import LogCounts, LogExtent, piece_bounds
from share_state.fold.state_chains import CHAIN, Chains
from share_state.fold.states import batch_lists, read_batch_lists, sizes_before, slice_chains
from share_state.kafka.share_partition_keys import KeyTable
from share_state.kafka.state_records import STATE_BATCH
from share_state.schema.declarations import table_schema
from share_state.sources.resume_point import ResumePoint

_VERSION = 2
"""Version of the checkpoint; an audit that finds another version reads the log from its start."""

CHECKPOINT_TABLE = "carried_share_partitions"
"""A table of audits, and of a reconstruct that a stream may continue."""
_COLUMNS = dict(zip(CHAIN.names or (), table_schema(CHECKPOINT_TABLE).names[2:-1], strict=True))
"""Field of CHAIN -> column; the columns keep the names of the first release."""


@dataclass(slots=True)
class FoldCheckpoint:
    """State of the fold of a log partition; a fold that resumes from it has the same result as one without a stop.

    Attributes:
        mark: the last valid batch.
        keys, chains: every share-partition with records in the log, and their folded state.
        last_lost_offset: latest offset from which records of any share-partition may be missing, -1 for none.
        archiving_since, archiving_time: offset and timestamp (ms) of the first record with a batch in state ARCHIVING,
            -1 for none.
    """

    mark: ResumePoint
    keys: KeyTable
    chains: Chains
    extent: LogExtent
    counts: LogCounts
    last_lost_offset: int
    archiving_since: int
    archiving_time: int


def checkpoint_row(name: str, checkpoint: FoldCheckpoint) -> dict[str, Any]:
    """The row of a log in the table `carried_logs`."""
    extent, counts = checkpoint.extent, checkpoint.counts
    log = {
        "form": _VERSION,
        "mark": asdict(checkpoint.mark),
        "runs": extent.runs.tolist(),
        "cells": extent.cells.tolist(),
        "layouts": list(counts.layouts.items()),
        "transactional": counts.transactional,
        "unknown_types": list(counts.unknown_types.items()),
        "unknown_tags": counts.unknown_tags,
        "records": counts.records,
        "foreign": counts.foreign,
        "lost_at": checkpoint.last_lost_offset,
        "archiving_since": checkpoint.archiving_since,
        "archiving_time": checkpoint.archiving_time,
        "last_snapshot_record": checkpoint.chains.last_snapshot_record,
    }
    return {"log": name, "next_offset": checkpoint.mark.next_offset, "carried": json.dumps(log)}


def with_input(carried: str, digest: Callable[[], str]) -> str:
    """Add a hash of the input to the column `carried` of `carried_logs` if records are missing."""
    log = json.loads(carried)
    return carried if log["mark"]["is_sound"] else json.dumps(log | {"mark": log["mark"] | {"input": digest()}})


def resume_point_of(carried: str) -> ResumePoint | None:
    """Where to resume, from the column `carried` of `carried_logs`; None for a checkpoint of another version."""
    log = json.loads(carried)
    return ResumePoint(**log["mark"]) if log["form"] == _VERSION else None


def checkpoint_share_partitions(name: str, checkpoint: FoldCheckpoint) -> Iterator[pa.Table]:
    """The share-partitions of a checkpoint: the table `carried_share_partitions`, in pieces.

    Deleted share-partitions are included while their last record is in the log.
    """
    chains, cells = checkpoint.chains, checkpoint.extent.cells
    floor, scalars = cells["first"][0] if len(cells) else 0, chains.chains
    is_in_log = scalars["exists"] | (scalars["last_offset"] >= floor) | (scalars["suspect_offset"] >= floor)
    keys = checkpoint.keys.binary()
    for begin, end in piece_bounds(sizes_before(chains)):
        piece, numbers = slice_chains(chains, begin, end), np.flatnonzero(is_in_log[begin:end])
        # Dropped share-partitions have no ranges, so the lists of the others are adjacent.
        ends = np.concatenate(([0], np.cumsum(np.diff(piece.ends)[numbers])))
        columns = [
            pa.repeat(pa.scalar(name), len(numbers)),
            keys[begin:end].take(pa.array(numbers)),
            *(pa.array(piece.chains[field][numbers]) for field in _COLUMNS),
            batch_lists(ends, piece.batches),
        ]
        yield pa.table(columns, schema=table_schema(CHECKPOINT_TABLE))


def restore_checkpoint(carried: str, share_partitions: pa.Table) -> FoldCheckpoint:
    """Build a checkpoint from the output of `checkpoint_row` and `checkpoint_share_partitions`.

    Args:
        carried: the column `carried` of the log's row in `carried_logs`.
        share_partitions: the log's rows of `carried_share_partitions`, in any order.
    """
    log, pieces = json.loads(carried), share_partitions.to_batches()
    lists = [piece["batches"] for piece in pieces]
    chains = np.empty(len(share_partitions), CHAIN)
    batches = np.empty(sum(len(ranges.flatten()) for ranges in lists), STATE_BATCH)
    ends = np.zeros(len(chains) + 1, np.int64)
    row = at = 0
    # One piece at a time: combining them first would need as much memory again.
    for piece, ranges in zip(pieces, lists, strict=True):
        end, batch_end = row + len(piece), at + len(ranges.flatten())
        for field, column in _COLUMNS.items():
            chains[field][row:end] = piece[column].to_numpy(zero_copy_only=False)
        read_batch_lists(ranges, batches[at:batch_end])
        ends[row + 1 : end + 1] = at + np.cumsum(ranges.value_lengths().to_numpy(zero_copy_only=False))
        row, at = end, batch_end
    extent = LogExtent()
    extent.runs = np.array([tuple(run) for run in log["runs"]], extent.runs.dtype)
    extent.cells = np.array([tuple(cell) for cell in log["cells"]], extent.cells.dtype)
    counts = LogCounts(
        layouts=dict(log["layouts"]),
        transactional=tuple(log["transactional"]),
        unknown_types={kind: tuple(seen) for kind, seen in log["unknown_types"]},
        unknown_tags=tuple(log["unknown_tags"]),
        records=log.get("records", 0),
        foreign=log.get("foreign", 0),
    )
    return FoldCheckpoint(
        mark=ResumePoint(**log["mark"]),
        keys=KeyTable.of(share_partitions["key"]),
        chains=Chains(chains, ends, batches, log["last_snapshot_record"]),
        extent=extent,
        counts=counts,
        last_lost_offset=log["lost_at"],
        archiving_since=log["archiving_since"],
        archiving_time=log["archiving_time"],
    )
