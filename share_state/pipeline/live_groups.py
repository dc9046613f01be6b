"""The share groups of a running cluster while a stream runs: the partitions of `__consumer_offsets` that hold them."""

import logging
from dataclasses import dataclass, replace

from share_state.errors import PrunedError
from share_state.fold.groups.group_tables import GroupLogFold
from share_state.fold.limits import Limits
from share_state.kafka.primitives import partition_for
from share_state.kafka.record_batches import CHUNK_SIZE
from share_state.pipeline.facts import settle_live_limits
from share_state.pipeline.followed_groups import SECONDS, FollowedGroups, known_groups
from share_state.sources.as_of import Window
from share_state.sources.group_configs import ClusterLimits
from share_state.sources.kafka_client import ClientProperties
from share_state.sources.kafka_cluster import Cluster, PartitionOffsets, TopicOffsets
from share_state.sources.kafka_source import KafkaSource
from share_state.sources.log_partition import GROUP_TOPIC, LogPartition

_LOG = logging.getLogger("share_state")


@dataclass(slots=True)
class _Followed:
    """A partition of `__consumer_offsets`: its replay so far, and the next offset."""

    fold: GroupLogFold
    next_offset: int


class LiveGroups(FollowedGroups):
    """Follows the share groups of a cluster that have state."""

    def __init__(
        self, cluster: Cluster, properties: ClientProperties, limits: Limits, explicit_limits: frozenset[str]
    ) -> None:
        """Ask for the limits of the brokers.

        Args:
            cluster, properties: the cluster.
            limits: limits of the call, Kafka's defaults for the rest.
            explicit_limits: names of those that the call sets.
        """
        super().__init__(limits)
        self._cluster = cluster
        self._properties = properties
        self._own_limits, self._explicit_limits = limits, explicit_limits
        self._logs, self._topic_id = dict[int, _Followed](), ""
        self._is_denied = False
        self._take_limits(frozenset())

    @property
    def pause(self) -> float:
        """Seconds from one refresh to the next: few until the stream has read state of groups."""
        return SECONDS if self.known.members else 1.0

    def _refresh(self, groups: frozenset[str]) -> None:
        if not groups:
            return
        self._take_limits(groups)
        found = self._cluster.fetch_group_offsets()
        if found is None:
            if not self._is_denied:
                _LOG.info(
                    "%s: %s cannot be read, so it is not known which groups have no members",
                    self._cluster.address,
                    GROUP_TOPIC,
                )
            self._is_denied = True
            return
        if found.topic_id != self._topic_id:
            self._topic_id, self._logs = found.topic_id, {}
        numbers = {partition_for(group, found.partitions) for group in groups}
        for log in found.logs:
            if log.partition in numbers:
                self._read(log, found)
        known = known_groups([followed.fold for followed in self._logs.values()])
        of_state = {group: count for group, count in known.members.items() if group in groups}
        self.known = replace(known, members=of_state)

    def _take_limits(self, groups: frozenset[str]) -> None:
        asked: ClusterLimits = self._cluster.fetch_limits(groups)
        settled = settle_live_limits(asked, self._own_limits, self._explicit_limits)
        self.limits, self.origins = settled.limits, settled.origins

    def _read(self, offsets: PartitionOffsets, topic: TopicOffsets) -> None:
        known = self._logs.get(offsets.partition)
        begin = offsets.start_offset if known is None else max(known.next_offset, offsets.start_offset)
        source = KafkaSource(self._cluster.address, offsets.end_offset, self._properties)
        log = LogPartition(GROUP_TOPIC, offsets.partition, (), begin, True, topic.topic_id, source=source)
        if known is None:
            known = _Followed(GroupLogFold(log, Window()), begin)
        if begin >= offsets.end_offset:
            return
        try:
            for chunk in source.chunks(log, CHUNK_SIZE, merge=False):
                known.fold.take(known.fold.prepare(chunk))
        except PrunedError:
            # The next refresh reads the log from its new start.
            self._logs.pop(offsets.partition, None)
            return
        known.next_offset = offsets.end_offset
        self._logs[offsets.partition] = known
