"""What a metadata log says: `ClusterMetadata`, the topics, configs, features and brokers of a cluster.

`metadata_log` reads it. Confidential values are never kept: only configs with a key in KEPT_CONFIGS are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.kafka.metadata_records import (
    ResourceType,
)

KEPT_CONFIGS = (
    "cleanup.policy",
    "min.insync.replicas",
    "retention.bytes",
    "retention.ms",
    "errors.deadletterqueue.auto.create.topics.enable",
    "errors.deadletterqueue.copy.record.enable",
    "errors.deadletterqueue.group.enable",
    "errors.deadletterqueue.topic.name",
    "errors.deadletterqueue.topic.name.prefix",
    "share.auto.offset.reset",
    "share.delivery.count.limit",
    "share.isolation.level",
    "share.partition.max.record.locks",
    "share.record.lock.duration.ms",
    "share.renew.acknowledge.enable",
    "group.share.delivery.count.limit",
    "group.share.max.delivery.count.limit",
    "group.share.max.partition.max.record.locks",
    "group.share.max.record.lock.duration.ms",
    "group.share.max.size",
    "group.share.min.delivery.count.limit",
    "group.share.min.partition.max.record.locks",
    "group.share.min.record.lock.duration.ms",
    "group.share.partition.max.record.locks",
    "group.share.record.lock.duration.ms",
    "share.coordinator.cold.partition.snapshot.interval.ms",
    "share.coordinator.snapshot.update.records.per.snapshot",
    "share.coordinator.state.topic.num.partitions",
    "share.coordinator.state.topic.prune.interval.ms",
    "log.cleanup.policy",
    "log.retention.hours",
    "log.retention.minutes",
    "log.retention.ms",
    "offsets.topic.num.partitions",
)
"""Keys of the configs that are read; no other config, and no password, leaves the bytes of the log."""


PARTITION = np.dtype(
    [
        ("topic", "i4"),  # the row of its topic in `ClusterMetadata.topics`
        ("partition", "i4"),
        ("leader", "i4"),  # -1 for none
        ("leader_epoch", "i4"),
        ("in_sync", "i4"),  # number of in-sync replicas
    ]
)
"""A partition of a topic."""


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """What a metadata log says at its end, or at a moment.

    Attributes:
        path: folder of the log.
        topics: columns topic_id, topic, created and removed (ms; null if unknown or not removed), number (of
            the record), partitions (their number) and extended (ms, when the last of them was created; null
            if unknown); removed topics, too, if the log still shows them.
        partitions: PARTITION rows of topics that exist and that were asked for.
        config_changes: every change of a config that the log still shows, in its order: columns
            resource_type, resource, key (its place in KEPT_CONFIGS), value (null if it is removed), timestamp
            (ms; null in a snapshot) and number (of the record).
        features: feature -> finalized level.
        brokers: id of each registered broker -> whether it is fenced.
        end_offset: offset after the last record that counts.
        newest_time: ms, of the newest record; -1 for none.
        is_complete: whether the log is read from a snapshot or its very beginning on, without a gap or
            damage: only then does a missing topic not exist.
        skipped: reason -> number of records that were not understood.
        notes: what is wrong with the log, one line each.
    """

    path: str
    topics: pa.Table
    partitions: np.ndarray
    config_changes: pa.Table
    features: Mapping[str, int]
    brokers: Mapping[int, bool]
    end_offset: int
    newest_time: int
    is_complete: bool
    skipped: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def live_topics(self) -> pa.Table:
        """The topics that exist, and the column row (in `topics`)."""
        topics = self.topics.append_column("row", pa.array(np.arange(len(self.topics))))
        exists = topics["removed"].is_null()
        return topics if pc.all(exists).as_py() else topics.filter(exists)

    def configs_of(
        self, resource_type: ResourceType, names: Sequence[str] | None = None
    ) -> dict[str, dict[str, str]]:
        """Name of a resource -> its configs; of a topic, those since it was created.

        Args:
            resource_type: topics, brokers or groups.
            names: those to look for; all by default.
        """
        changes = self.config_changes.filter(
            pc.equal(self.config_changes["resource_type"], int(resource_type))
        )
        if names is not None:
            changes = changes.filter(pc.is_in(changes["resource"], pa.array(names, pa.string())))
        configs, created = dict[str, dict[str, str]](), self._created(changes["resource"])
        columns = (changes[name].to_pylist() for name in ("resource", "key", "value", "number"))
        for resource, key, value, number in zip(*columns, strict=True):
            if resource_type == ResourceType.TOPIC and number < created.get(resource, number + 1):
                continue
            configs.setdefault(resource, {}).pop(KEPT_CONFIGS[key], None)
            if value is not None:
                configs[resource][KEPT_CONFIGS[key]] = value
        return {resource: config for resource, config in configs.items() if config}

    def _created(self, names: pa.ChunkedArray) -> dict[str, int]:
        """Name of a topic that exists -> number of the record that created it."""
        live = self.topics.filter(
            pc.and_(self.topics["removed"].is_null(), pc.is_in(self.topics["topic"], names))
        )
        return dict(zip(live["topic"].to_pylist(), live["number"].to_pylist(), strict=True))
