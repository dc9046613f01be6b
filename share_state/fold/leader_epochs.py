"""Finds batches that the leaders of a log cannot have written: leader epochs and file names have no checksum."""

import numpy as np

from share_state.fold.state_chains import NO_OFFSET
from share_state.jit.compile import kernel
from share_state.kafka.record_batches import BatchStatus
from share_state.sources.log_partition import LogPartition


class LeaderEpochs:
    """Follows the leader epochs of the batches of a log.

    In the log of one replica they never decrease: a follower truncates what its leader does not have
    (KIP-101). The leader-epoch-checkpoint beside the segments records where each epoch begins; epochs after
    its last are newer. The name of a segment is the offset of the first batch that was appended to it.
    """

    def __init__(self, log: LogPartition, last_epoch: int = NO_OFFSET) -> None:
        """Begin at the start of a log, or where an earlier run stopped.

        Args:
            log: the log partition.
            last_epoch: leader epoch of the last batch that an earlier run read, -1 for none.
        """
        self._last_epoch = last_epoch
        names = [segment.base_offset for segment in log.segments] if log.source is None else []
        self._base_offsets = np.array(names, np.int64)
        self._replicas = np.array([segment.replica for segment in log.segments], np.int64)
        recorded = [
            sorted(copy.leader_epochs, key=lambda entry: entry[1]) if log.source is None else ()
            for copy in log.copies
        ]
        entries = [entry for of_replica in recorded for entry in of_replica]
        self._recorded = np.array(entries, np.int64).reshape(-1, 2)
        self._ends = np.cumsum([0, *map(len, recorded)], dtype=np.int64)
        self._entries = self._ends[:-1] - 1

    def take(self, batches: np.ndarray) -> np.ndarray:
        """Take the BATCH rows of a chunk, in log order.

        Returns:
            int64, base offsets of the valid batches that belong to another replica or another log.
        """
        is_foreign = np.zeros(len(batches), np.bool_)
        self._last_epoch, count = _mark_foreign(
            batches,
            self._base_offsets,
            self._replicas,
            self._recorded,
            self._ends,
            self._entries,
            self._last_epoch,
            is_foreign,
        )
        return batches["base_offset"][is_foreign] if count else np.zeros(0, np.int64)


@kernel
def _mark_foreign(batches, base_offsets, replicas, recorded, ends, entries, last_epoch, is_foreign):
    """Mark the batches whose leader epoch decreases, or is not the one that is recorded for their offset.

    Also those before the base offset in the name of their file.

    Args:
        batches: BATCH rows of a chunk.
        base_offsets: base offset of each segment; empty for other formats.
        replicas: number of the replica of each segment.
        recorded: rows (leader epoch, its first offset) of all replicas, each in offset order.
        ends: the rows of replica n are ends[n] to ends[n + 1].
        entries: per replica the row of its latest batch, one before its first for none; they are moved on.
        last_epoch: leader epoch of the batch before the chunk.
        is_foreign: bool, set per batch.
    Returns:
        The leader epoch of the last valid batch, and the number of marked batches.
    """
    count = 0
    for number in range(len(batches)):
        batch = batches[number]
        if batch.status != BatchStatus.VALID:
            continue
        epoch = np.int64(batch.leader_epoch)
        marked = epoch < last_epoch
        last_epoch = epoch
        if len(base_offsets):
            marked |= batch.base_offset < base_offsets[batch.segment]
        if len(recorded):
            replica = replicas[batch.segment]
            begin, end = ends[replica], ends[replica + 1]
            entry = entries[replica]
            while entry + 1 < end and recorded[entry + 1, 1] <= batch.base_offset:
                entry += 1
            while entry >= begin and recorded[entry, 1] > batch.base_offset:
                entry -= 1
            entries[replica] = entry
            if entry >= begin and epoch != recorded[entry, 0]:
                # Epochs after the last that is recorded are newer.
                marked |= entry + 1 < end or epoch < recorded[entry, 0]
        is_foreign[number] = marked
        count += marked
    return last_epoch, count
