"""Which records are remarkable: those that a coordinator going on from the state before them might not have written.

Nearly none is. So each is looked at once, where it is followed (fold/trace.py), and the rules over traced records say
of the few that are shown to them what is wrong and in which words. A condition here may hold for more records than a
rule finds, never for fewer: what no condition tells is seen by no such rule.
"""

import numpy as np

from share_state.fold.limits import Limits
from share_state.fold.ranges import ACKNOWLEDGED, ARCHIVED, ARCHIVING, AVAILABLE
from share_state.wire.compiled import inlined
from share_state.wire.share_group_state import LARGEST_OFFSET, Kind

_LIMIT, _ARCHIVES, _LOWERS, _SINCE_4_4, _EVERY = range(5)
"""Places in what `expected` returns: deliveries that no range exceeds, whether ARCHIVING is written, whether the
writer is known to lower delivery counts of what is released (4.1 alone does), the offset behind which 4.4 made every
record, whether all are taken."""


def written_states(limits: Limits) -> tuple[int, ...]:
    """The states that a writer persists: ARCHIVING from 4.4 on, and where the writer is not known."""
    older = (AVAILABLE, ACKNOWLEDGED, ARCHIVED)
    return (*older, ARCHIVING) if limits.writer_version in (None, "4.4") else older


def expected(limits: Limits, archiving_since: int, *, every: bool = False) -> np.ndarray:
    """What `is_remarkable` is to hold records against, as an array.

    Args:
        limits: of the cluster.
        archiving_since: offset of the first record with a range in state ARCHIVING, -1 for none.
        every: let every record be remarkable.
    """
    made = np.empty(5, np.int64)
    made[_LIMIT], made[_ARCHIVES], made[_EVERY] = limits.delivery_count, ARCHIVING in written_states(limits), every
    made[_LOWERS] = limits.writer_version == "4.1"
    since = limits.since_4_4(archiving_since)
    made[_SINCE_4_4] = LARGEST_OFFSET if since is None else since
    return made


@inlined
def is_remarkable(row, fact, batches, expected):
    """Whether a record is to be shown to the rules.

    Args:
        row: STATE_RECORD.
        fact: its FACT row (fold/traced.py).
        batches: STATE_BATCH rows that `row` points into.
        expected: of the function of that name.
    """
    return (
        expected[_EVERY] != 0
        or _steps_back(row, fact)
        or _miscounts(row, fact, expected[_SINCE_4_4])
        or _contradicts(row, fact, expected[_SINCE_4_4])
        or _is_odd(batches, row, expected)
    )


@inlined
def _steps_back(row, fact):
    """Clocks, epochs and the start offset: rules/timestamps.py, epochs.py, starts.py."""
    if row.timestamp < fact.timestamp_before or row.start_offset < -1:
        return True
    if row.kind == Kind.SNAPSHOT:
        follows = fact.snapshot_epoch_before + 1 if fact.known else 0
        if row.snapshot_epoch != follows or row.create_time > row.write_time:
            return True
        if fact.known and (
            row.write_time < fact.write_time_before
            or row.state_epoch < fact.state_epoch_before
            or row.leader_epoch < fact.leader_epoch_before
            or row.start_offset < fact.start_before
        ):
            return True
    # An update that says -1 leaves leader epoch and start offset as they are.
    return (
        fact.known
        and row.kind == Kind.UPDATE
        and (
            row.snapshot_epoch != fact.snapshot_epoch_before
            or (row.leader_epoch < fact.leader_epoch_before and row.leader_epoch != -1)
            or (row.start_offset < fact.start_before and row.start_offset != -1)
        )
    )


@inlined
def _miscounts(row, fact, since):
    """The delivery complete count: rules/counts.py, writers_4_4.py."""
    found, before = row.delivery_complete_count, fact.complete_before
    if found != fact.terminal_after and (found != -1 or before >= 0):
        return True
    return found < before and row.offset > since


@inlined
def _contradicts(row, fact, since):
    """Deletions and what was folded before: rules/deletions.py, snapshots.py, writers_4_4.py."""
    if (
        fact.was_deleted
        or (row.kind == Kind.TOMBSTONE and not fact.known)
        or fact.left_offset >= 0
        or fact.contradicted_offset >= 0
        or fact.archiving_passed_offset >= 0
    ):
        return True
    if fact.cold and (
        row.start_offset != fact.start_before
        or row.state_epoch != fact.state_epoch_before
        or row.leader_epoch != fact.leader_epoch_before
        or row.delivery_complete_count != fact.complete_before
        or row.create_time != fact.create_time_before
    ):
        return True
    return row.offset > since and row.kind == Kind.UPDATE and row.start_offset == -1 and fact.start_before >= 0


@inlined
def _is_odd(batches, row, expected):
    """State batches by themselves: rules/batch_contents.py, writers_4_4.py."""
    limit, archives, lowers = expected[_LIMIT], expected[_ARCHIVES], expected[_LOWERS]
    by_4_4 = row.offset > expected[_SINCE_4_4]
    before, value = np.int64(-(2**63)), np.int32(-1)
    for number in range(row.batches, row.batches + row.batch_count):
        batch = batches[number]
        state, count = batch.state, batch.count
        if state != AVAILABLE and state != ACKNOWLEDGED and state != ARCHIVED and not (archives and state == ARCHIVING):
            return True
        if count > limit or count < 0 or (count == 0 and state != ARCHIVED and not (lowers and state == AVAILABLE)):
            return True
        if batch.first <= before or batch.first < row.start_offset:
            return True
        if by_4_4 and batch.first == before + 1 and value == (np.int32(count) << 8) + state:
            return True
        before, value = batch.last, (np.int32(count) << 8) + state
    return False
