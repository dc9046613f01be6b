"""What rules about single records are shown: records beside what was true before and after each (fold/trace.py)."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from share_state.fold.columns import Columns
from share_state.fold.limits import Limits
from share_state.wire.plain_rows import taken
from share_state.wire.share_group_state import Kind, StateRecords

FACT = np.dtype(
    [
        ("start_before", "i8"),  # -1: none
        ("start_after", "i8"),
        ("end_after", "i8"),  # behind the last range; -1 without a start
        ("create_time_before", "i8"),
        ("write_time_before", "i8"),
        ("timestamp_before", "i8"),  # of the share-partition's last record, a tombstone too; -1 for the first
        ("terminal_after", "i8"),  # offsets at or after the start, acknowledged or archived
        ("left_offset", "i8"),  # first to leave a state that nothing leaves; -1 none
        ("contradicted_offset", "i8"),  # first where a snapshot cannot follow from what was folded; -1 none
        ("archiving_passed_offset", "i8"),  # first in state ARCHIVING that the start passed; -1 none
        ("snapshot_epoch_before", "i4"),
        ("state_epoch_before", "i4"),
        ("leader_epoch_before", "i4"),
        ("complete_before", "i4"),
        ("left_from", "i4"),  # priorities (fold/sweep.py) at left_offset, before and in the record
        ("left_to", "i4"),
        ("contradicted_from", "i4"),  # priorities at contradicted_offset, folded and in the snapshot
        ("contradicted_to", "i4"),
        ("folded", "?"),  # the fold took the record; the others are of no share-partition or unreadable
        ("known", "?"),  # a state existed before
        ("rests_on_snapshot", "?"),  # and a snapshot of the log begins it
        ("suspect", "?"),  # and a record behind that snapshot could not be read
        ("was_deleted", "?"),  # a tombstone came before, and nothing since
        ("initial", "?"),  # the snapshot begins the state anew
        ("cold", "?"),  # the snapshot repeats the state
    ]
)
"""One row a record. What is `before` is meaningless where `known` is false, timestamp_before apart."""


@dataclass(frozen=True)
class Traced:
    """Records of a chunk beside what was true before and after each.

    Attributes:
        rows: STATE_RECORD, in log order; those of a share-partition that are remarkable (fold/remarkable.py).
        batches: STATE_BATCH rows of all of them, in the same order.
        facts: FACT; row n is about rows[n].
        folded_from: the log start when this log was read for the first time.
        archiving_since: offset of the first record with a range in state ARCHIVING, to the end of the chunk; -1 none.
        limits: what the rules hold it against.
    """

    rows: Columns
    batches: Columns
    facts: Columns
    folded_from: int
    archiving_since: int
    limits: Limits

    @cached_property
    def snapshots(self) -> np.ndarray:
        """int64, the numbers of the records that are snapshots and were folded; there are few."""
        return self._folded(Kind.SNAPSHOT)

    @cached_property
    def tombstones(self) -> np.ndarray:
        """int64, the numbers of the records that are tombstones and were folded."""
        return self._folded(Kind.TOMBSTONE)

    @cached_property
    def updates(self) -> np.ndarray:
        """bool, one a record: an update that was folded."""
        return self.facts["folded"] & (self.rows["kind"] == Kind.UPDATE)

    @cached_property
    def begins(self) -> np.ndarray:
        """int64, one a record and the end: the number of its first batch, or where that would be."""
        return np.concatenate(([0], np.cumsum(self.rows["batch_count"], dtype=np.int64)))

    def _folded(self, kind: Kind) -> np.ndarray:
        return np.flatnonzero(self.facts["folded"] & (self.rows["kind"] == kind))


def only(records: StateRecords, numbers: np.ndarray, facts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Some of the records, in log order.

    Args:
        records: decoded records.
        numbers: int64, which of them, in any order.
        facts: FACT rows, one a number.
    Returns:
        (STATE_RECORD rows, STATE_BATCH rows that they point into, the FACT row of each).
    """
    order = np.argsort(numbers)
    rows = taken(records.rows, numbers[order])
    begins = np.cumsum(rows["batch_count"], dtype=np.int64) - rows["batch_count"]
    moved = np.repeat(rows["batches"] - begins, rows["batch_count"])
    rows["batches"] = begins
    return rows, taken(records.batches, moved + np.arange(len(moved))), taken(facts, order)
