"""What the draft's control records hold of one share-partition, and what the next one must hold."""

from share_state.partition.in_flight import TERMINAL
from share_state.partition.recorded import RecordedBatches, is_later
from share_state.partition.share_partition import SharePartition
from share_state.partition.writes import (
    NO_DELIVERY_COMPLETE_COUNT,
    CheckpointWrite,
    DeliveryState,
    DeltaWrite,
    StateBatch,
    StateRead,
)


class DraftRecord:
    """The recorded state of one share-partition in the draft's dialect; it begins with a checkpoint.

    Args:
        checkpoint: the first one.
    Source: KIP-932 draft, SHARE_CHECKPOINT and SHARE_DELTA.
    """

    __slots__ = ("_batches", "deltas", "end_offset", "start_offset")

    def __init__(self, checkpoint: CheckpointWrite):
        self.checkpointed(checkpoint)

    def delta(self, changes: tuple[StateBatch, ...], partition: SharePartition) -> DeltaWrite:
        """The delta of one operation, before it is recorded.

        Args:
            changes: what the operation changed, ascending.
            partition: after the change.
        Returns:
            The changes, and between the recorded end and the highest of them everything else.
        """
        batches = RecordedBatches()
        last = changes[-1].last_offset
        if self.end_offset <= last:
            for batch in partition.recorded(self.end_offset, last):
                batches.lay(batch, is_later)
        for change in changes:
            batches.lay(change, is_later)
        return DeltaWrite(batches.all())

    def checkpoint(self, partition: SharePartition) -> CheckpointWrite:
        """The whole recorded state as it is now, without trailing offsets that are as if never fetched."""
        start = partition.start_offset
        batches = list(partition.recorded(start, partition.end_offset - 1))
        if batches and batches[-1][2:] == (DeliveryState.AVAILABLE, 0):
            batches.pop()
        end = batches[-1].last_offset + 1 if batches else start
        return CheckpointWrite(start, end, tuple(batches))

    def checkpointed(self, checkpoint: CheckpointWrite) -> None:
        """Learn that a checkpoint was recorded."""
        self.start_offset, self.end_offset = checkpoint.start_offset, checkpoint.end_offset
        self._batches = RecordedBatches(checkpoint.batches)
        self._advance()
        self.deltas = 0
        """How many deltas were recorded since."""

    def written(self, delta: DeltaWrite) -> None:
        """Learn that a delta was recorded."""
        for batch in delta.batches:
            self._batches.lay(batch, is_later)
            self.end_offset = max(self.end_offset, batch.last_offset + 1)
        self._advance()
        self.deltas += 1

    def _advance(self) -> None:
        """A reader moves the start past what has ended, after every record."""
        self._batches.prune(self.start_offset)
        self.start_offset = self._batches.end_of_leading(self.start_offset, TERMINAL)
        self._batches.prune(self.start_offset)

    def read(self, state_epoch: int) -> StateRead:
        """What a new leader rebuilds from the records."""
        return StateRead(state_epoch, self.start_offset, NO_DELIVERY_COMPLETE_COUNT, self._batches.all())
