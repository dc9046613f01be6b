"""What a running cluster says of its share-partitions, between two looks at how far its logs have come."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from share_state.live.admin import Answer, share_group_offsets
from share_state.live.client_properties import read_client_properties
from share_state.live.cluster import Cluster, Found


@dataclass(frozen=True, slots=True)
class Answers:
    """A broker's answers.

    Attributes:
        share_partitions: those with a start offset.
        before, after: logs and topics when the question was put, and when it had been answered.
    """

    share_partitions: Sequence[Answer]
    before: Found
    after: Found


def broker_answers(
    address: str, properties: str | None, class_path: Sequence[Path], groups: Collection[str] = ()
) -> Answers:
    """Ask a running cluster about every share group.

    Args:
        address: `kafka://host:port[,host:port…]`.
        properties: path of a properties file, as Kafka's own tools take it with --command-config.
        class_path: jars of kafka-clients (`share_state.spark.jars.KAFKA_CLIENTS`).
        groups: share groups to ask for beside those that the broker lists.
    Raises:
        InputError: if no broker answers, refuses, or has no `__share_group_state`.
        SetupError: if there is no Java.
    """
    given = read_client_properties(properties)
    cluster = Cluster(address, given)
    before = cluster.look()
    answered = share_group_offsets(address, given, class_path, groups)
    return Answers(answered, before, cluster.look())
