"""What became of deliveries: records that were acknowledged, given up, rejected and released, counted from the log.

A record of the log shows the new state of ranges of offsets. The fold record by record (`context_fold`)
compares it with the state before, so that an offset counts once however often a snapshot repeats its state.
Offsets that a reset, retention or a natural gap moves the start offset past count nowhere: the log does not
show a delivery.

Source: Kafka SharePartition.acknowledge, releaseAcquisitionLockOnTimeout; InFlightState.tryUpdateState.
"""

import numpy as np

from share_state.jit.compile import inlined, kernel
from share_state.kafka.buffers import clone_rows, fill_rows, take_rows, write_rows
from share_state.kafka.delivery_states import ACKNOWLEDGED, ARCHIVED, ARCHIVING, AVAILABLE, is_terminal

NO_TIME = -1
"""No such record."""

OUTCOMES = np.dtype(
    [
        ("acknowledged", "i8"),  # offsets
        (
            "given_up",
            "i8",
        ),  # offsets archived, or waiting in ARCHIVING, at the delivery limit: released or rejected
        (
            "rejected",
            "i8",
        ),  # offsets archived, or waiting in ARCHIVING, below the limit: rejected, or without a record
        ("released", "i8"),  # deliveries that ended in a release or an expired lock, and will be repeated
        ("dead_lettered", "i8"),  # offsets that left ARCHIVING for ARCHIVED: their dead-letter write is done
        (
            "failing_since",
            "i8",
        ),  # ms, when the first was given up or rejected since the last acknowledgement, or -1
        ("failing_until", "i8"),  # ms, when the last was
        (
            "rewound_from",
            "i8",
        ),  # where a leader started before SPSO was reset to an earlier offset; 0 for never, -1 if deleted since
        ("rewound_to", "i8"),  # SPSO after the latest such reset
        ("limit", "i8"),  # delivery limit of the group
    ]
)
"""One row per share-partition: what the records since the last audit show."""
COUNTS = ("acknowledged", "given_up", "rejected", "released", "dead_lettered")
"""The fields that count; `history.OUTCOME_COLUMNS` are their columns."""

_OF_LIMIT = list(OUTCOMES.names or ()).index("limit")


def blank_outcomes(count: int) -> np.ndarray:
    """OUTCOMES rows without an outcome."""
    rows = np.empty(count, OUTCOMES)
    fill_rows(rows, _BLANK[0])
    return rows


_BLANK = np.zeros(1, OUTCOMES)
_BLANK["failing_since"] = _BLANK["failing_until"] = NO_TIME


def added_outcomes(before: np.ndarray, new: np.ndarray) -> np.ndarray:
    """OUTCOMES rows of two spans of time, one after the other."""
    rows = clone_rows(before)
    rows["limit"] = new["limit"]
    # Few share-partitions have an outcome in a short span.
    fields, blank = new.view(np.int64).reshape(-1, len(OUTCOMES.names or ())), _BLANK.view(np.int64)
    changed = np.flatnonzero((fields[:, :_OF_LIMIT] != blank[:_OF_LIMIT]).any(axis=1))
    if len(changed):
        rows[changed] = _added(take_rows(before, changed), take_rows(new, changed))
    return rows


def _added(before: np.ndarray, new: np.ndarray) -> np.ndarray:
    rows = new.copy()
    for name in COUNTS:
        rows[name] += before[name]
    # An acknowledgement ends the time in which records were only given up.
    goes_on = (new["acknowledged"] == 0) & (before["failing_since"] != NO_TIME)
    rows["failing_since"] = np.where(goes_on, before["failing_since"], new["failing_since"])
    rows["failing_until"] = np.where(
        goes_on, np.maximum(before["failing_until"], new["failing_until"]), rows["failing_until"]
    )
    # Without a reset or a deletion the earlier one stands; after another reset, the farther offset counts.
    is_reset, was_deleted = new["rewound_from"] > 0, new["rewound_from"] < 0
    farther = np.maximum(before["rewound_from"], new["rewound_from"])
    stands = np.where(was_deleted, new["rewound_from"], before["rewound_from"])
    rows["rewound_from"] = np.where(is_reset, farther, stands)
    rows["rewound_to"] = np.where(is_reset, new["rewound_to"], before["rewound_to"])
    return rows


class GrowingOutcomes:
    """OUTCOMES rows of the share-partitions of a log, and one behind them for records that do not count.

    They are in one buffer, which doubles, so that a chunk of records does not copy those of all share-partitions.
    """

    def __init__(self) -> None:
        """Begin without share-partitions."""
        self._buffer = blank_outcomes(1)
        self._count = 0

    @property
    def rows(self) -> np.ndarray:
        """The rows of the share-partitions."""
        return self._buffer[: self._count]

    def grow(self, limits: np.ndarray) -> np.ndarray:
        """Add rows for new share-partitions.

        Args:
            limits: int64, delivery limit of each of them.
        Returns:
            All rows, and the one behind them.
        """
        count = self._count + len(limits)
        if count >= len(self._buffer):
            buffer = np.empty(2 * count + 1, OUTCOMES)
            write_rows(self.rows, buffer)
            self._buffer = buffer
        # The row for records that do not count lay behind the earlier ones.
        fill_rows(self._buffer[self._count : count + 1], _BLANK[0])
        self._buffer["limit"][self._count : count] = limits
        self._count = count
        return self._buffer[: count + 1]


@kernel
def count_outcome(outcome, first, last, old_count, old_state, count, state):
    """Count the offsets of a range whose state changes.

    For those that no range covered, the old state is AVAILABLE.

    Args:
        outcome: OUTCOMES row, updated.
        first, last: the range, inclusive.
        old_count, old_state: delivery count and state before.
        count, state: and after.
    """
    if is_terminal(old_state):
        return
    size = last - first + 1
    if state == ACKNOWLEDGED:
        outcome.acknowledged += size
    elif state == AVAILABLE:
        if count > old_count:
            outcome.released += size
    elif state == ARCHIVED or state == ARCHIVING:
        if old_state != ARCHIVING:
            if count >= outcome.limit:
                outcome.given_up += size
            else:
                outcome.rejected += size
        elif state == ARCHIVED:
            outcome.dead_lettered += size


@inlined
def count_changes(outcome, from_available, from_archiving, count, state):
    """Count offsets that become part of a range, like `count_outcome`, if none was in a terminal state.

    Args:
        outcome: OUTCOMES row, updated.
        from_available: number that were AVAILABLE, with a lesser count if the range is.
        from_archiving: number that were in ARCHIVING; 0 if the range is.
        count, state: delivery count and state of the range.
    """
    # Without branches: which of the states a range has is unpredictable.
    failed = from_available * ((state == ARCHIVED) | (state == ARCHIVING))
    given_up = failed * (count >= outcome.limit)
    outcome.acknowledged += from_available * (state == ACKNOWLEDGED)
    outcome.released += from_available * (state == AVAILABLE)
    outcome.given_up += given_up
    outcome.rejected += failed - given_up
    outcome.dead_lettered += from_archiving * (state == ARCHIVED)


@kernel
def count_replaced(buffer, size, incoming_end, outcome):
    """Count what a snapshot changes: the incoming ranges of a buffer (`interval_map`) against the current ones.

    Args:
        buffer, size: the current ranges are the first `size` rows.
        incoming_end: row after the incoming ranges, which begin in the second third.
        outcome: OUTCOMES row, updated.
    """
    row = np.int64(0)
    for new in range(len(buffer) // 3, incoming_end):
        first = buffer[new].first
        last = buffer[new].last
        count = buffer[new].count
        state = buffer[new].state
        while row < size and buffer[row].last < first:
            row += 1
        at = row
        while first <= last:
            if at == size or buffer[at].first > last:
                count_outcome(outcome, first, last, 0, AVAILABLE, count, state)
                break
            if first < buffer[at].first:
                count_outcome(outcome, first, buffer[at].first - 1, 0, AVAILABLE, count, state)
                first = buffer[at].first
            end = min(buffer[at].last, last)
            if buffer[at].count != count or buffer[at].state != state:
                count_outcome(outcome, first, end, buffer[at].count, buffer[at].state, count, state)
            first = end + 1
            at += 1


@inlined
def note_reset(outcome, before, after):
    """Note that an initialization set SPSO.

    Args:
        outcome: OUTCOMES row, updated.
        before: where a leader of the state before it would have started.
        after: SPSO since then.
    """
    if before > after >= 0:
        outcome.rewound_from = max(outcome.rewound_from, before)
        outcome.rewound_to = after


@inlined
def note_deletion(outcome):
    """Forget the resets of a share-partition that was deleted."""
    outcome.rewound_from = np.int64(-1)


@inlined
def note_times(outcome, acknowledged, failed, timestamp):
    """Note since when deliveries only fail.

    Args:
        outcome: OUTCOMES row after a record, updated.
        acknowledged, failed: the counts before the record; `failed` is the sum of given_up and rejected.
        timestamp: of the record, ms.
    """
    if outcome.acknowledged > acknowledged:
        outcome.failing_since = np.int64(NO_TIME)
        outcome.failing_until = np.int64(NO_TIME)
    elif outcome.given_up + outcome.rejected > failed:
        if outcome.failing_since == NO_TIME:
            outcome.failing_since = timestamp
        outcome.failing_until = timestamp
