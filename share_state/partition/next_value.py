"""What a request is recorded as: which record, and what it says."""

from share_state.partition.combining import combine
from share_state.partition.state_records import NO_TIME, DurableState, UpdateValue
from share_state.partition.writer_release import WriterRelease
from share_state.partition.writes import NO_DELIVERY_COMPLETE_COUNT, NO_EPOCH, NO_START_OFFSET, StateWrite


def initial_snapshot(
    state: DurableState | None, state_epoch: int, start_offset: int, now_ms: int, release: WriterRelease
) -> DurableState:
    """The snapshot that makes a share-partition, or sets it to another start.

    Args:
        state: what is known of it; None where it is new.
        state_epoch: the group's epoch.
        start_offset: NO_START_OFFSET where the leader is to decide.
        now_ms: the time.
        release: that writes.
    Source: Kafka ShareCoordinatorShard.generateInitializeStateRecord.
    """
    is_unknown = start_offset == NO_START_OFFSET or not release.tells_complete_count
    return DurableState(
        snapshot_epoch=state.snapshot_epoch + 1 if state else 0,
        state_epoch=state_epoch,
        leader_epoch=0,
        start_offset=start_offset,
        delivery_complete_count=NO_DELIVERY_COMPLETE_COUNT if is_unknown else 0,
        create_timestamp=now_ms,
        write_timestamp=now_ms,
    )


def value_written(
    state: DurableState | None,
    request: StateWrite,
    now_ms: int,
    release: WriterRelease,
    *,
    is_due: bool,
    changes_leader: bool,
) -> DurableState | UpdateValue:
    """The record of a write, or of a read with a new leader epoch.

    Args:
        state: what is known; None only where reads and writes make the state (4.0).
        request: what is written.
        now_ms: the time.
        release: that writes.
        is_due: whether it is time for a snapshot.
        changes_leader: whether the request's leader epoch is to be recorded.
    Source: Kafka ShareCoordinatorShard.generateShareStateRecord.
    """
    joins = release.joins_neighbours
    if state is None:
        batches = combine((), request.batches, request.start_offset, joins=joins)
        return DurableState(0, request.state_epoch, request.leader_epoch, request.start_offset, batches=batches)
    start, count = _start_and_count(state, request, release)
    leader_epoch = request.leader_epoch if changes_leader or release.takes_epochs_of_request else state.leader_epoch
    renews = release.snapshots_higher_state_epoch and request.state_epoch > state.state_epoch
    if not (is_due or renews):
        batches = combine((), request.batches, start, joins=joins)
        return UpdateValue(state.snapshot_epoch, leader_epoch, start, count, batches)
    start = state.start_offset if start == NO_START_OFFSET else start
    state_epoch = request.state_epoch if release.takes_epochs_of_request else NO_EPOCH
    time = NO_TIME if release.layout == "4.0" else now_ms
    return DurableState(
        snapshot_epoch=state.snapshot_epoch + 1,
        state_epoch=state.state_epoch if state_epoch == NO_EPOCH else state_epoch,
        leader_epoch=state.leader_epoch if leader_epoch == NO_EPOCH else leader_epoch,
        start_offset=start,
        delivery_complete_count=count,
        batches=combine(state.batches, request.batches, start, joins=joins),
        create_timestamp=time,
        write_timestamp=time,
    )


def _start_and_count(state: DurableState, request: StateWrite, release: WriterRelease) -> tuple[int, int]:
    """What a write records as start and delivery complete count."""
    start, count = request.start_offset, request.delivery_complete_count
    if not release.tells_complete_count:
        return start, NO_DELIVERY_COMPLETE_COUNT
    if not release.carries_start or start > state.start_offset:
        return start, count
    if start == state.start_offset:
        return start, max(count, state.delivery_complete_count)
    return state.start_offset, state.delivery_complete_count
