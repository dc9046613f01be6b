"""The share groups of a running cluster while a stream runs: which have no members, and what limits they set.

Follows the partitions of `__consumer_offsets` that hold the groups of the stream, in a thread of its own: the
first read may take long, and nothing waits for it.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Lock, Thread

from share_state.errors import PrunedError, ShareStateError
from share_state.fold.groups.group_tables import GroupLogFold
from share_state.fold.limits import Limits
from share_state.kafka.primitives import partition_for
from share_state.kafka.record_batches import CHUNK_SIZE
from share_state.pipeline.facts import settle_live_limits
from share_state.sources.as_of import Window
from share_state.sources.group_configs import ClusterLimits
from share_state.sources.kafka_client import ClientProperties
from share_state.sources.kafka_cluster import Cluster, PartitionOffsets, TopicOffsets
from share_state.sources.kafka_source import KafkaSource
from share_state.sources.log_partition import GROUP_TOPIC, LogPartition

_LOG = logging.getLogger("share_state")
_SECONDS = 20.0


@dataclass(slots=True)
class _Followed:
    """A partition of `__consumer_offsets`: its replay so far, and the next offset."""

    fold: GroupLogFold
    next_offset: int


class LiveGroups:
    """Follows share groups.

    Attributes:
        empty: the groups that have no members.
        members: share group -> number of its members.
        limits: the limits of the cluster and of its groups.
    """

    def __init__(self, cluster: Cluster, properties: ClientProperties, limits: Limits) -> None:
        """Ask for the limits of the brokers.

        Args:
            cluster, properties: the cluster.
            limits: limits of the call, Kafka's defaults for the rest.
        """
        self._cluster = cluster
        self._properties = properties
        self._own_limits = limits
        self._logs, self._topic_id = dict[int, _Followed](), ""
        self._stopped = Event()
        self._lock = Lock()
        self._is_denied = False
        self._thread: Thread | None = None
        self.empty: tuple[str, ...] = ()
        self.members = dict[str, int]()
        self.limits = limits
        self._take_limits(frozenset())

    def start(self, groups: Callable[[], frozenset[str]]) -> Callable[[], None]:
        """Follow the groups that a function returns.

        Returns:
            A function that ends it.
        """

        def run() -> None:
            while not self._stopped.is_set():
                with suppress(ShareStateError):
                    self.refresh(groups())
                self._stopped.wait(_SECONDS if self.members else 1.0)

        self._thread = Thread(target=run, name="share-state-groups", daemon=True)
        self._thread.start()
        return self._stopped.set

    def refresh(self, groups: frozenset[str]) -> None:
        """Read what is new of some groups.

        Raises:
            ShareStateError: if no broker answers.
        """
        if not groups:
            return
        with self._lock:
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
            known = {
                group.group_id: len(group.members)
                for followed in self._logs.values()
                for group in followed.fold.replay.groups.values()
                if group.is_live and group.group_id in groups
            }
            self.members = known
            self.empty = tuple(sorted(group for group, count in known.items() if not count))

    def _take_limits(self, groups: frozenset[str]) -> None:
        asked: ClusterLimits = self._cluster.fetch_limits(groups)
        self.limits = settle_live_limits(asked, self._own_limits, frozenset()).limits

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
        # Groups of other kinds are of no interest, and there may be many.
        known.fold.replay.classic.clear()
        known.next_offset = offsets.end_offset
        self._logs[offsets.partition] = known
