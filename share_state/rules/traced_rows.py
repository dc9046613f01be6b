"""What the rules over traced records share: rows that break one, and what an offset holds in words."""

import numpy as np
import pyarrow as pa

from share_state.fold.columns import Columns
from share_state.fold.held_ranges import UNCOVERED
from share_state.fold.ranges import STATE_NAMES
from share_state.fold.traced import Traced
from share_state.rules.registry import NOTHING, Broken, Column
from share_state.wire.share_group_state import Kind

LATER_THAN_4_1 = ("4.2", "4.3", "4.4")
"""Releases that record how many offsets are complete."""


def of_rows(rows: Columns, message: tuple[Column, ...], **evidence: Column) -> Broken:
    """The records `rows` as a finding each.

    Args:
        rows: STATE_RECORD.
        message: pieces of the sentence, columns as long as `rows`.
        evidence: columns as long as `rows`.
    """
    if not len(rows):
        return NOTHING
    return Broken(
        rows["offset"],
        tuple(_whole(piece) for piece in message),
        key=rows["key"].astype(np.int64),
        evidence={name: _whole(column) for name, column in evidence.items()},
    )


def has_state(rows: Columns, facts: Columns) -> np.ndarray:
    """bool, one a record: a snapshot or an update that was folded."""
    return facts["folded"] & (rows["kind"] != Kind.TOMBSTONE)


def goes_on(rows: Columns, facts: Columns) -> np.ndarray:
    """bool, one a record: a snapshot or an update that goes on from the state before it."""
    return has_state(rows, facts) & facts["known"] & ~facts["initial"]


def first_of_each(traced: Traced, batches: np.ndarray) -> tuple[Columns, Columns, np.ndarray]:
    """The records that hold state batches which are wrong.

    Args:
        batches: int64, numbers of state batches that are wrong, ascending.
    Returns:
        (their STATE_RECORD rows, the first wrong STATE_BATCH of each, how many each holds).
    """
    if not len(batches):
        return traced.rows[batches], traced.batches[batches], batches
    # Only those that matter are led back to their record, as nearly always there is none.
    rows, first, count = np.unique(owners(traced, batches), return_index=True, return_counts=True)
    return traced.rows[rows], traced.batches[batches[first]], count


def owners(traced: Traced, batches: np.ndarray) -> np.ndarray:
    """int64: the numbers of the records that hold state batches, given by their numbers."""
    return np.searchsorted(traced.begins, batches, side="right") - 1


def within_records(traced: Traced, pairs: np.ndarray) -> np.ndarray:
    """The state batches that have something to do with the one before them in the same record.

    Args:
        pairs: bool, changed in place; entry n is about batches n and n + 1 of all of them.
    Returns:
        int64: the number of the second batch of each such pair.
    """
    edges = traced.begins[(traced.begins > 0) & (traced.begins <= len(pairs))]
    pairs[edges - 1] = False
    return np.flatnonzero(pairs) + 1


def span(batches: Columns) -> tuple[Column, ...]:
    """The offsets of STATE_BATCH rows, for a message."""
    return batches["first"], "-", batches["last"]


def in_words(values: np.ndarray) -> pa.Array:
    """What an offset holds: a state and a delivery count.

    Args:
        values: int32 priorities (fold/sweep.py), UNCOVERED for none.
    """
    counts = (values.astype(np.int64) + 128) >> 8
    states = values - (counts << 8)
    return pa.array(
        [
            "no state" if value == UNCOVERED else f"{state_name(state)} at delivery count {count}"
            for value, state, count in zip(values.tolist(), states.tolist(), counts.tolist(), strict=True)
        ],
        pa.string(),
    )


def state_names(states: np.ndarray) -> pa.Array:
    """Delivery states by name."""
    return pa.array([state_name(state) for state in states.tolist()], pa.string())


def state_name(state: int) -> str:
    """A delivery state by name."""
    return STATE_NAMES.get(state, f"UNKNOWN({state})")


def _whole(piece: Column) -> Column:
    return np.ascontiguousarray(piece) if isinstance(piece, np.ndarray) else piece
