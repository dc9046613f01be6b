"""A running cluster as what a command folds: the state topic's partitions, and what is known of the other topics."""

from dataclasses import dataclass

from share_state.fold.topics import Topics
from share_state.live.client_properties import read_client_properties
from share_state.live.cluster import Cluster
from share_state.live.records import LiveSource
from share_state.wire.log_folder import STATE_TOPIC, LogPartition


@dataclass(frozen=True, slots=True)
class LiveInput:
    """What is to be folded of a cluster.

    Attributes:
        logs: every partition of the state topic, each to be read from the earliest to the end offset of now.
        topics: names and end offsets.
        state_partitions: how many partitions the state topic has.
    """

    logs: tuple[LogPartition, ...]
    topics: Topics
    state_partitions: int


def live_logs(address: str, properties: str | None = None) -> LiveInput:
    """Ask a cluster what there is to read.

    Args:
        address: `kafka://host:port[,host:port…]`.
        properties: path of a properties file, as Kafka's own tools take it with --command-config.
    Raises:
        InputError: if no broker answers, refuses, or has no `__share_group_state`.
    """
    given = read_client_properties(properties)
    found = Cluster(address, given).look()
    logs = tuple(
        LogPartition(
            STATE_TOPIC,
            log.partition,
            segments=(),
            log_start_offset=log.start_offset,
            start_is_noted=True,
            topic_id=found.topic_id,
            source=LiveSource(address, log.end_offset, given),
        )
        for log in found.logs
    )
    return LiveInput(logs, found.topics, len(logs))
