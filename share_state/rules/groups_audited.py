"""What the rules about share groups judge: the group side and the state side of one cluster, together."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from share_state.fold.groups import FoldedGroups
from share_state.fold.groups_state import ShareGroup, StatePartitions
from share_state.fold.groups_topics import names_of, sizes_by_id
from share_state.fold.topics import Topics
from share_state.rules.groups_stated import StatedPartitions
from share_state.wire.group_logs import group_partition_of


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """What the rules hold share groups against; the defaults are Kafka's own.

    Attributes:
        members: of a share group (group.share.max.size).
        retry_ms: after which a heartbeat asks again for state that was not made.
        delete_grace_ms: how long the state of a topic that is being deleted may still be there.
    """

    members: int = 200
    retry_ms: int = 30_000
    delete_grace_ms: int = 300_000


@dataclass(frozen=True)
class AuditedGroups:
    """The group side and the state side of one cluster.

    Attributes:
        folded: of `fold_groups`.
        states: the table `share_partition_state` of every state partition, control records' rows left alone.
        topics: names and end offsets from elsewhere; their partitions tell how many a topic has.
        now_ms: the time of the audit, ms since 1970; by default the newest stamp of any record of a group.
        limits: what the groups are held against.
        state_partition_count: how many partitions `__share_group_state` has, None where unknown.
        state_partitions: those of them that were read; None for all.
    """

    folded: FoldedGroups
    states: pa.Table
    topics: Topics = field(default_factory=Topics)
    now_ms: int | None = None
    limits: GroupLimits = field(default_factory=GroupLimits)
    state_partition_count: int | None = None
    state_partitions: frozenset[int] | None = None

    @property
    def time(self) -> int:
        """The time of the audit, ms since 1970."""
        return self.folded.newest_time if self.now_ms is None else self.now_ms

    @cached_property
    def stated(self) -> StatedPartitions:
        """Live share-partitions, the columns that the rules need."""
        return StatedPartitions.of(self.states)

    def knows_state_of(self, group_id: str, topic_id: str, partition: int) -> bool:
        """Whether the log that a share-partition's state belongs to was read: only then does its absence mean anything.

        Source: Kafka SharePartitionKey.asCoordinatorKey, ShareCoordinatorService.partitionFor.
        """
        if self.state_partitions is None:
            return True
        if self.state_partition_count is None:
            return False
        home = group_partition_of(f"{group_id}:{topic_id}:{partition}", self.state_partition_count)
        return home in self.state_partitions

    @cached_property
    def names(self) -> dict[str, str]:
        """Topic id -> name: as given, and as the groups tell where that is silent."""
        return self.folded.names | names_of(self.topics)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Topic id -> number of partitions, where the end offsets that were given show it."""
        return sizes_by_id(self.topics)

    def listed(self) -> Iterator[tuple[ShareGroup, StatePartitions]]:
        """Live groups that list their share-partitions; those of 4.0 do not."""
        for group_id, group in sorted(self.folded.live.items()):
            if group_id in self.folded.state_partitions:
                yield group, self.folded.state_partitions[group_id]
