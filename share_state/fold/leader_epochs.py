"""Finds batches that the leaders of a log cannot have written: leader epochs and file names have no checksum."""

import numpy as np

from share_state.fold.state_chains import NO_OFFSET
from share_state.kafka.record_batches import BatchStatus
from share_state.sources.discovery import LogPartition


class LeaderEpochs:
    """Follows the leader epochs of the batches of a log.

    In the log of one replica they never decrease: a follower truncates what its leader does not have (KIP-101). The
    leader-epoch-checkpoint beside the segments records where each epoch begins; epochs after its last are newer. The
    name of a segment is the offset of the first batch that was appended to it.
    """

    def __init__(self, log: LogPartition, last_epoch: int = NO_OFFSET) -> None:
        """Begin at the start of a log, or where an earlier run stopped.

        Args:
            log: the log partition.
            last_epoch: leader epoch of the last batch that an earlier run read, -1 for none.
        """
        self._last_epoch = last_epoch
        self._base_offsets = np.array([segment.base_offset for segment in log.segments], np.int64)
        self._is_named = log.source is None
        self._replicas = np.array([segment.replica for segment in log.segments], np.int64)
        self._recorded = {
            number: np.array(sorted(copy.leader_epochs, key=lambda entry: entry[1]), np.int64)
            for number, copy in enumerate(log.copies)
            if copy.leader_epochs and log.source is None
        }

    def take(self, batches: np.ndarray) -> np.ndarray:
        """Take the BATCH rows of a chunk, in log order.

        Returns:
            int64, base offsets of the valid batches that belong to another replica or another log.
        """
        valid = batches[batches["status"] == BatchStatus.VALID]
        if not len(valid):
            return np.zeros(0, np.int64)
        epochs = valid["leader_epoch"].copy()
        is_foreign = epochs < np.concatenate(([self._last_epoch], epochs[:-1]))
        self._last_epoch = int(epochs[-1])
        if self._is_named:
            is_foreign |= valid["base_offset"] < self._base_offsets[valid["segment"]]
        if self._recorded:
            replicas = self._replicas[valid["segment"]]
            for number, recorded in self._recorded.items():
                rows = np.flatnonzero(replicas == number)
                is_foreign[rows] |= _contradicts(recorded, valid["base_offset"][rows], epochs[rows])
        return valid["base_offset"][is_foreign]


def _contradicts(recorded: np.ndarray, base_offsets: np.ndarray, epochs: np.ndarray) -> np.ndarray:
    """bool, whether batches have another leader epoch than the one that is recorded for their offset.

    Args:
        recorded: rows (leader epoch, its first offset), in offset order.
        base_offsets, epochs: one per batch.
    """
    entry = np.searchsorted(recorded[:, 1], base_offsets, side="right") - 1
    is_last = entry == len(recorded) - 1
    expected = recorded[entry, 0]
    return (entry >= 0) & (epochs != expected) & ~(is_last & (epochs > expected))
