"""The leaders of many share-partitions, each with what it persists and where."""

from dataclasses import dataclass, field

from share_state.partition.draft import DraftRecord
from share_state.partition.error_codes import FENCED, ErrorCode
from share_state.partition.operations import DeadLetter, Operation, PendingWrite
from share_state.partition.outcomes import Outcome
from share_state.partition.recorded import Persister, SharePartitionKey
from share_state.partition.share_partition import SharePartition


@dataclass(slots=True)
class Seat:
    """One share-partition as the simulation holds it.

    Args:
        key: which one.
        leaders: every leader there was, by leader epoch; an old one does not know yet that it is.
        leader: the current one.
        draft: what control records hold, None where the draft's dialect is not written or nothing was initialized.
        fails: writes fail.
        holds: writes stay unanswered.
        held: unanswered operations, in order.
        holds_letters: the dead letter queue is silent.
        letters: on their way to it.
        watched: the deadline that the player waits for.
    """

    key: SharePartitionKey
    leaders: dict[int, SharePartition] = field(default_factory=dict)
    leader: SharePartition | None = None
    draft: DraftRecord | None = None
    state_epoch: int = 0
    fails: bool = False
    holds: bool = False
    held: list[tuple[SharePartition, Operation]] = field(default_factory=list)
    holds_letters: bool = False
    letters: list[tuple[SharePartition, DeadLetter]] = field(default_factory=list)
    watched: int | None = None


class Desk:
    """Has operations persisted and tells their share-partition how it went.

    Args:
        persister: the state dialect's, None where only the draft's is written.
        checkpoint_every: how many deltas make a checkpoint due in the draft's dialect, None for never.
    Source: Kafka SharePartition.writeShareGroupState.
    """

    def __init__(self, persister: Persister | None, checkpoint_every: int | None):
        self._persister = persister
        self._checkpoint_every = checkpoint_every

    def persist(
        self, seat: Seat, partition: SharePartition, operation: Operation, outcome: Outcome, now_ms: int
    ) -> ErrorCode:
        """Persist one operation, or hold it back.

        Args:
            seat: where the share-partition sits.
            partition: which of its leaders made it.
            operation: what is to be persisted.
            outcome: what was persisted is told there.
            now_ms: the time.
        Returns:
            What the share coordinator answered; NONE while it is silent.
        """
        if seat.holds:
            seat.held.append((partition, operation))
            return ErrorCode.NONE
        # The delta is made while the change is under way, before a start moves or a lock is given back.
        delta = seat.draft.delta(operation.changes, partition) if seat.draft is not None else None
        worst = ErrorCode.NONE
        for pending in operation.writes:
            code = self._answer(seat, partition, pending, outcome, now_ms)
            worst = worst if code is ErrorCode.NONE else code
        if delta is not None and seat.draft is not None and worst is ErrorCode.NONE:
            seat.draft.written(delta)
            outcome.delta = delta
            if self._checkpoint_every is not None and seat.draft.deltas >= self._checkpoint_every:
                self.checkpoint(seat, outcome)
        return worst

    def _answer(
        self, seat: Seat, partition: SharePartition, pending: PendingWrite, outcome: Outcome, now_ms: int
    ) -> ErrorCode:
        if seat.fails:
            code = ErrorCode.KAFKA_STORAGE_ERROR
        elif self._persister is not None:
            code = self._persister.write(seat.key, pending.write, now_ms)
        else:
            code = ErrorCode.NONE if partition is seat.leader else ErrorCode.FENCED_LEADER_EPOCH
        if code is ErrorCode.NONE:
            outcome.writes.append(pending.write)
            letters = partition.written(pending)
        else:
            outcome.refused.append((pending.write, code))
            letters = partition.failed(pending, now_ms, code)
        seat.letters += [(partition, letter) for letter in letters]
        return code

    def checkpoint(self, seat: Seat, outcome: Outcome) -> None:
        """Write a checkpoint of the current leader's state, where the draft's dialect is written."""
        if seat.draft is not None and seat.leader is not None:
            checkpoint = seat.draft.checkpoint(seat.leader)
            seat.draft.checkpointed(checkpoint)
            outcome.checkpoint = checkpoint


def told_client(code: ErrorCode) -> ErrorCode:
    """What a client hears of a failed write: a fenced leader is none. Source: SharePartition.fetchPersisterError."""
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if code in FENCED else code
