"""What the fold of a log partition hands to the next audit, and its form in tables."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from share_state.fold.chains import CHAIN, Chains
from share_state.fold.log_stats import Counts, Extent, stretches
from share_state.fold.states import batch_lists, part, rows_before
from share_state.kafka.share_partition_keys import KeyTable
from share_state.kafka.state_records import STATE_BATCH
from share_state.schema.declarations import table_schema
from share_state.sources.resume import Mark

FORM = 1
"""Grows when what is carried changes: an audit then reads its logs from their start."""

_SHARE_PARTITIONS = "carried_share_partitions"
_FIELDS = CHAIN.names or ()
_RANGE_FIELDS = {"first": "first_offset", "last": "last_offset", "state": "delivery_state", "count": "delivery_count"}


@dataclass(slots=True)
class Carried:
    """Where the fold of a log partition stopped, exactly: going on from here equals never having stopped.

    Attributes:
        mark: the last whole batch.
        keys: every share-partition that was seen and is still in the log.
        chains: their folded state, row n for number n.
        extent: records and bytes of the log so far.
        counts: what rules tell once a log partition.
        lost_at: offset from which records are missing or unreadable for any share-partition, -1 for none.
        archiving_since: offset of the first record with a batch in state ARCHIVING, -1 for none.
    """

    mark: Mark
    keys: KeyTable
    chains: Chains
    extent: Extent
    counts: Counts
    lost_at: int
    archiving_since: int


def carried_log(name: str, carried: Carried) -> dict[str, Any]:
    """The log's own part: one row of the table `carried_logs`."""
    log = {
        "form": FORM,
        "mark": asdict(carried.mark),
        "runs": carried.extent.runs.tolist(),
        "cells": carried.extent.cells.tolist(),
        "layouts": list(carried.counts.layouts.items()),
        "transactional": carried.counts.transactional,
        "unknown_types": list(carried.counts.unknown_types.items()),
        "unknown_tags": carried.counts.unknown_tags,
        "lost_at": carried.lost_at,
        "archiving_since": carried.archiving_since,
        "last_snapshot_record": carried.chains.last_snapshot_record,
    }
    return {"log": name, "next_offset": carried.mark.next_offset, "carried": json.dumps(log)}


def mark_of(carried: str) -> Mark | None:
    """Where reading goes on, from a row of `carried_logs`; None where another version carried something else."""
    log = json.loads(carried)
    return Mark(**log["mark"]) if log["form"] == FORM else None


def carried_share_partitions(name: str, carried: Carried) -> Iterator[pa.Table]:
    """The share-partitions' part: the table `carried_share_partitions`, in pieces.

    Those that were deleted are carried as long as their last record is in the log.
    """
    chains, floor = carried.chains, carried.extent.cells["first"][0] if len(carried.extent.cells) else 0
    kept = (
        chains.chains["exists"] | (chains.chains["last_offset"] >= floor) | (chains.chains["suspect_offset"] >= floor)
    )
    keys = carried.keys.binary()
    for begin, end in stretches(rows_before(chains)):
        yield _carried(name, part(chains, begin, end), keys[begin:end], np.flatnonzero(kept[begin:end]))


def _carried(name: str, chains: Chains, keys: pa.Array, numbers: np.ndarray) -> pa.Table:
    # A share-partition that is gone has no batches, so the lists of the others lie behind each other.
    ends = np.concatenate(([0], np.cumsum(np.diff(chains.ends)[numbers])))
    columns = [
        pa.repeat(pa.scalar(name), len(numbers)),
        keys.take(pa.array(numbers)),
        *(pa.array(chains.chains[field][numbers]) for field in _FIELDS),
        batch_lists(ends, chains.batches),
    ]
    return pa.table(columns, schema=table_schema(_SHARE_PARTITIONS))


def restored(log: str, share_partitions: pa.Table) -> Carried:
    """What `carried_log` and `carried_share_partitions` took down.

    Args:
        log: column `carried` of the log's row.
        share_partitions: its rows of `carried_share_partitions`, in any order.
    """
    found, pieces = json.loads(log), share_partitions.to_batches()
    lists = [piece["batches"] for piece in pieces]
    chains = np.empty(len(share_partitions), CHAIN)
    batches = np.empty(sum(len(ranges.flatten()) for ranges in lists), STATE_BATCH)
    ends = np.zeros(len(chains) + 1, np.int64)
    row = at = 0
    # Piece by piece: to have all in one first would take as much memory again.
    for piece, ranges in zip(pieces, lists, strict=True):
        end, flat = row + len(piece), ranges.flatten()
        for field in _FIELDS:
            chains[field][row:end] = piece[field].to_numpy(zero_copy_only=False)
        for field, name in _RANGE_FIELDS.items():
            batches[field][at : at + len(flat)] = flat.field(name).to_numpy(zero_copy_only=False)
        ends[row + 1 : end + 1] = at + np.cumsum(ranges.value_lengths().to_numpy(zero_copy_only=False))
        row, at = end, at + len(flat)
    extent = Extent()
    extent.runs = np.array([tuple(run) for run in found["runs"]], extent.runs.dtype)
    extent.cells = np.array([tuple(cell) for cell in found["cells"]], extent.cells.dtype)
    counts = Counts(
        layouts=dict(found["layouts"]),
        transactional=tuple(found["transactional"]),
        unknown_types={kind: tuple(seen) for kind, seen in found["unknown_types"]},
        unknown_tags=tuple(found["unknown_tags"]),
    )
    return Carried(
        mark=Mark(**found["mark"]),
        keys=KeyTable.of(share_partitions["key"]),
        chains=Chains(chains, ends, batches, found["last_snapshot_record"]),
        extent=extent,
        counts=counts,
        lost_at=found["lost_at"],
        archiving_since=found["archiving_since"],
    )
