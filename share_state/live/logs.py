"""A running cluster as what a command folds: the state topic's partitions, and what is known of the other topics."""

from dataclasses import dataclass

from share_state.fold.topics import Topics
from share_state.live.client_properties import read_client_properties
from share_state.live.cluster import Cluster, LiveLog
from share_state.live.records import LiveSource
from share_state.wire.group_logs import GROUP_TOPIC
from share_state.wire.log_folder import STATE_TOPIC, LogPartition


@dataclass(frozen=True, slots=True)
class LiveInput:
    """What is to be folded of a cluster.

    Attributes:
        logs: every partition of the state topic, each to be read from the earliest to the end offset of now.
        topics: names and end offsets.
        state_partitions: how many partitions the state topic has.
        groups: partitions of `__consumer_offsets`, to be read in the same way; none where this user may not read it.
        group_partitions: how many partitions that topic has, None where it is not read.
    """

    logs: tuple[LogPartition, ...]
    topics: Topics
    state_partitions: int
    groups: tuple[LogPartition, ...] = ()
    group_partitions: int | None = None


def live_logs(address: str, properties: str | None = None) -> LiveInput:
    """Ask a cluster what there is to read.

    Args:
        address: `kafka://host:port[,host:port…]`.
        properties: path of a properties file, as Kafka's own tools take it with --command-config.
    Raises:
        InputError: if no broker answers, refuses, or has no `__share_group_state`.
    """
    given = read_client_properties(properties)
    cluster = Cluster(address, given)
    # A group lists a share-partition before its state is written, and as deleted before its state goes: were the groups
    # read up to a later moment than the state, they would list what the state does not have yet.
    groups = cluster.groups()
    found = cluster.look()

    def partition_of(topic: str, topic_id: str, log: LiveLog) -> LogPartition:
        return LogPartition(
            topic,
            log.partition,
            segments=(),
            log_start_offset=log.start_offset,
            start_is_noted=True,
            topic_id=topic_id,
            source=LiveSource(address, log.end_offset, given),
        )

    logs = tuple(partition_of(STATE_TOPIC, found.topic_id, log) for log in found.logs)
    if groups is None:
        return LiveInput(logs, found.topics, len(logs))
    of_groups = tuple(partition_of(GROUP_TOPIC, groups.topic_id, log) for log in groups.logs)
    return LiveInput(logs, found.topics, len(logs), of_groups, groups.partitions)
