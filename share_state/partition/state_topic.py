"""The topic `__share_group_state` on disk: every share-partition has the coordinator that its key hashes to."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from share_state.partition.coordinator import COLD_AFTER_MS, UPDATES_PER_SNAPSHOT, Held, ShareCoordinator
from share_state.partition.record_batches import CODECS
from share_state.partition.record_bytes import bytes_of
from share_state.partition.routing import state_partition_of
from share_state.partition.segments import BATCH_BYTES, LINGER_MS, SEGMENT_BYTES, LogWriter
from share_state.partition.state_records import StateKey, StateRecord
from share_state.partition.writer_release import LATEST, WriterRelease
from share_state.wire.log_folder import STATE_TOPIC

STATE_PARTITIONS = 50

Observer = Callable[[int, int, int, StateRecord, Held | None], None]
"""Told of each record once it is replayed: state partition, offset, time in ms, the record, and what the coordinator
then holds of its share-partition."""


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """How the state topic is kept.

    Attributes:
        release: of Kafka that writes.
        state_partitions: partitions of the topic.
        updates_per_snapshot, cold_after_ms: see ShareCoordinator.
        codec, segment_bytes, batch_bytes, linger_ms: see LogWriter.
    Source: Kafka ShareCoordinatorConfig.
    """

    release: WriterRelease = LATEST
    state_partitions: int = STATE_PARTITIONS
    updates_per_snapshot: int = UPDATES_PER_SNAPSHOT
    cold_after_ms: int = COLD_AFTER_MS
    codec: str = CODECS[0]
    segment_bytes: int = SEGMENT_BYTES
    batch_bytes: int = BATCH_BYTES
    linger_ms: int = LINGER_MS


class StateTopic:
    """All state partitions of one cluster.

    Args:
        folder: gets a folder `__share_group_state-N` for each partition.
        settings: how they are kept.
        topic_ids: the topics that exist; every topic does where None.
        observe: told of every record.
    """

    def __init__(
        self,
        folder: Path,
        settings: TopicSettings | None = None,
        *,
        topic_ids: Collection[str] | None = None,
        observe: Observer | None = None,
    ) -> None:
        self._partitions: dict[StateKey, int] = {}
        self.settings = settings = settings or TopicSettings()
        self.logs = [
            LogWriter(
                folder / f"{STATE_TOPIC}-{partition}",
                codec=settings.codec,
                segment_bytes=settings.segment_bytes,
                batch_bytes=settings.batch_bytes,
                linger_ms=settings.linger_ms,
            )
            for partition in range(settings.state_partitions)
        ]
        self.coordinators = [
            ShareCoordinator(
                _StateLog(log, settings.release),
                settings.release,
                updates_per_snapshot=settings.updates_per_snapshot,
                cold_after_ms=settings.cold_after_ms,
                topic_ids=topic_ids,
                observe=_numbered(partition, observe),
            )
            for partition, log in enumerate(self.logs)
        ]

    def partition_of(self, key: StateKey) -> int:
        """The state partition that keeps a share-partition."""
        known = self._partitions.get(key)
        if known is None:
            known = self._partitions[key] = state_partition_of(key, self.settings.state_partitions)
        return known

    def coordinator_of(self, key: StateKey) -> ShareCoordinator:
        """The coordinator of a share-partition."""
        return self.coordinators[self.partition_of(key)]

    def snapshot_cold(self, now_ms: int) -> int:
        """Run the cold job of every coordinator; returns how many snapshots it wrote."""
        return sum(len(coordinator.snapshot_cold(now_ms)) for coordinator in self.coordinators)

    def prune(self) -> None:
        """Delete the records that are redundant in each state partition.

        Source: Kafka ShareCoordinatorService.performRecordPruning.
        """
        for coordinator, log in zip(self.coordinators, self.logs, strict=True):
            offset = coordinator.last_redundant_offset()
            if offset is not None:
                log.delete_before(offset)


class _StateLog:
    """Encodes state records on their way to a log."""

    def __init__(self, log: LogWriter, release: WriterRelease) -> None:
        self.log, self.release = log, release

    def append(self, record: StateRecord, now_ms: int) -> int:
        return self.log.append(now_ms, *bytes_of(record, self.release))


def _numbered(partition: int, observe: Observer | None) -> Callable[[int, int, StateRecord, Held | None], None] | None:
    if observe is None:
        return None
    return lambda offset, now_ms, record, held: observe(partition, offset, now_ms, record, held)
