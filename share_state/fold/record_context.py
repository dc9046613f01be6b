"""The context of each record: the state of its share-partition before the record, and what the record changes.

Rules over records are compiled predicates (`rules.registry`) that check every record with its context.
`context_fold` and `bit_fold` compute the contexts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numba import from_dtype, types

from share_state.fold.interval_map import UNCOVERED
from share_state.fold.limits import Limits
from share_state.fold.state_chains import NO_OFFSET
from share_state.jit.compile import inlined, kernel
from share_state.kafka.state_records import LARGEST_OFFSET, STATE_BATCH, STATE_RECORD

RECORD_CONTEXT = np.dtype(
    [
        ("start_before", "i8"),  # -1: none
        ("start_after", "i8"),
        ("end_after", "i8"),  # after the last range; -1 without a start
        ("create_time_before", "i8"),
        ("write_time_before", "i8"),
        (
            "timestamp_before",
            "i8",
        ),  # timestamp of its share-partition's last record, or tombstone; -1 for none
        ("terminal_after", "i8"),  # number of acknowledged or archived offsets at or after the start
        (
            "gaps_after",
            "i8",
        ),  # offsets from start to end in no range, if the complete count exceeds terminal_after
        ("left_offset", "i8"),  # first offset that leaves a terminal state or ARCHIVING; -1 for none
        (
            "contradicted_offset",
            "i8",
        ),  # first offset where a snapshot contradicts the state before it; -1 for none
        (
            "archiving_passed_offset",
            "i8",
        ),  # first offset in state ARCHIVING that the start passed; -1 for none
        ("snapshot_epoch_before", "i4"),
        ("state_epoch_before", "i4"),
        ("leader_epoch_before", "i4"),
        ("complete_count_before", "i4"),
        ("left_from", "i4"),  # priorities (fold/interval_merge.py) at left_offset, before and in the record
        ("left_to", "i4"),
        ("contradicted_from", "i4"),  # priorities at contradicted_offset, before and in the snapshot
        ("contradicted_to", "i4"),
        ("is_folded", "?"),  # whether the record is folded; unreadable records are skipped
        ("exists_before", "?"),
        ("rests_on_snapshot", "?"),  # whether the state before begins with a snapshot that is in the log
        (
            "is_suspect",
            "?",
        ),  # whether a record since that snapshot, or since its deletion, is missing or unreadable
        ("was_deleted", "?"),  # whether the last record before it is a tombstone
        ("is_initial", "?"),  # whether the snapshot initializes the share-partition
        ("is_cold", "?"),  # whether the snapshot repeats the state of an idle share-partition
    ]
)
"""One row per record. Fields that end in `_before` are only valid if `exists_before`, except
timestamp_before."""

RULE_LIMITS = np.dtype(
    [
        ("delivery_count", "i8"),  # most deliveries of an offset
        ("log_start_offset", "i8"),  # when the log was first read; -1 if the format has no offsets
        (
            "written_by_4_4_after",
            "i8",
        ),  # 4.4 or later wrote all records after this offset; 2^63 - 1 if unknown
        ("writer_is_known", "?"),
        (
            "lowers_counts",
            "?",
        ),  # the writer is known to be 4.1, which may lower the count of a released offset to 0
        ("writes_archiving", "?"),  # the writer persists ARCHIVING, or is unknown
    ]
)
"""Limits that predicates compare a record with, besides its context."""


def rule_limits(limits: Limits, log_start_offset: int, archiving_since: int) -> np.ndarray:
    """Rows of RULE_LIMITS: the first with the limits of the cluster, then one per group of `limits.groups`.

    Args:
        limits: limits of the cluster and of groups.
        log_start_offset: when the log was first read.
        archiving_since: offset of the first record with a range in state ARCHIVING, -1 for none.
    """
    since, writer = limits.written_by_4_4_after(archiving_since), limits.writer
    rows = np.zeros(1 + len(limits.groups), RULE_LIMITS)
    rows["delivery_count"], rows["log_start_offset"] = limits.values("delivery_count"), log_start_offset
    rows["written_by_4_4_after"] = LARGEST_OFFSET if since is None else since
    rows["writer_is_known"] = writer is not None
    rows["lowers_counts"] = writer is not None and writer.leave_decrements_count
    rows["writes_archiving"] = writer is None or writer.dead_letters
    return rows


_RECORD = from_dtype(STATE_RECORD)
_CONTEXT = from_dtype(RECORD_CONTEXT)
_LIMITS = from_dtype(RULE_LIMITS)
_BATCHES = types.Array(from_dtype(STATE_BATCH), 1, "A", readonly=True)

BROKEN_RULES = types.int64(_RECORD, _CONTEXT, _BATCHES, _LIMITS)
"""Signature of a compiled function (record, context, batches, limits): bit n is set if the record breaks rule
n."""

BROKEN_BY_BATCH = types.int64(_RECORD, _CONTEXT, _BATCHES, types.int64, _LIMITS)
"""Signature of a compiled function for one state batch: (record, context, batches, row of the batch,
limits)."""


@dataclass(frozen=True, slots=True)
class ContextChunk:
    """Records of a chunk that break a rule, in log order, with their context.

    Attributes:
        records: STATE_RECORD rows.
        batches: STATE_BATCH rows of all of them, in the same order.
        contexts: RECORD_CONTEXT rows; row n is about records[n].
        broken: int64, one per record: which rules it breaks, a bit per rule.
        archiving_since: offset of the first record up to the end of the chunk with a range in state
            ARCHIVING; -1 for none.
        limits: limits of the cluster and of groups.
        rule_limits: rows of RULE_LIMITS.
        limit_rows: int64, row of `rule_limits` for share-partition number n.
    """

    records: np.ndarray
    batches: np.ndarray
    contexts: np.ndarray
    broken: np.ndarray
    archiving_since: int
    limits: Limits
    rule_limits: np.ndarray
    limit_rows: np.ndarray


class RecordJudge(Protocol):
    """Rules over records, as the fold sees them."""

    @property
    def broken_rules(self) -> Any:
        """Compiled for the signature BROKEN_RULES by `jit.compile.first_class`."""
        ...

    def __call__(self, chunk: ContextChunk, /) -> Sequence[Any]:
        """The findings about the records of a chunk that break a rule."""
        ...

    def shown_deliveries(self, found: Sequence[Any], /) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of share-partitions in findings about too many deliveries, and those deliveries (int64)."""
        ...


INITIAL_CONTEXT = np.zeros(1, RECORD_CONTEXT)
for _name in ("start_before", "start_after", "end_after", "timestamp_before", "left_offset", "contradicted_offset",
              "archiving_passed_offset"):  # fmt: skip
    INITIAL_CONTEXT[_name] = NO_OFFSET
for _name in ("left_from", "left_to", "contradicted_from", "contradicted_to"):
    INITIAL_CONTEXT[_name] = UNCOVERED


@inlined
def set_before(chain, context):
    """Fill in what a CHAIN row says about the state before a record."""
    context.timestamp_before = chain.last_timestamp
    context.exists_before = chain.exists
    context.was_deleted = chain.was_deleted and not chain.exists
    context.is_suspect |= chain.suspect_offset != NO_OFFSET
    if not chain.exists:
        return
    context.start_before = chain.start_offset
    context.create_time_before = chain.create_time
    context.write_time_before = chain.write_time
    context.snapshot_epoch_before = chain.snapshot_epoch
    context.state_epoch_before = chain.state_epoch
    context.leader_epoch_before = chain.leader_epoch
    context.complete_count_before = chain.delivery_complete_count
    context.rests_on_snapshot = chain.snapshot_offset != NO_OFFSET


@kernel
def follows_loss(offset, chain, loss_offsets):
    """Whether records are missing between a record and the snapshot that the state before it is based on."""
    at = np.searchsorted(loss_offsets, offset) - 1
    return at >= 0 and loss_offsets[at] > (chain.snapshot_offset if chain.exists else chain.last_offset)
