"""Rules over what is known of the cluster: sources that disagree, and settings by which share groups cannot work."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from share_state.kafka.primitives import parse_digits
from share_state.rules.breaches import ERROR, WARNING, GroupBreach, listed
from share_state.rules.registry import Scope, rule
from share_state.sources.cluster_facts import ClusterSettings
from share_state.sources.group_configs import used_value
from share_state.sources.log_partition import STATE_TOPIC

_SHARE_VERSION, _METADATA_VERSION = "share.version", "metadata.version"
_NEEDS_SHARE_VERSION = 28
"""Level of metadata.version (4.2-IV0) from which on brokers serve share groups only if share.version is
enabled."""


@dataclass(frozen=True, slots=True)
class FactConflict:
    """A fact about the cluster for which two sources disagree.

    Attributes:
        message: the fact, its values, and which of them is used.
        values: source -> value.
        group_id, topic_id, topic: the subject of the fact, if it is a group or a topic.
    """

    message: str
    values: Mapping[str, str] = field(default_factory=dict)
    group_id: str | None = None
    topic_id: str | None = None
    topic: str | None = None


@dataclass(frozen=True, slots=True)
class AuditedCluster:
    """What is known of a cluster.

    Attributes:
        conflicts: facts for which two sources disagree.
        settings: by the metadata log; None without one.
        has_state: whether the input has a state log.
    """

    conflicts: Sequence[FactConflict] = ()
    settings: ClusterSettings | None = None
    has_state: bool = False


@rule("CLUSTER_FACTS_DISAGREE", Scope.CLUSTER_FACTS, WARNING, "Kafka metadata records, DynamicBrokerConfig")
def cluster_facts_disagree(cluster: AuditedCluster) -> Iterator[GroupBreach]:
    """The call, the topics file, the metadata log and the brokers' settings agree on names, partitions and limits.

    The first of them that knows a fact is used. Ends of topics are not compared, because they grow.

    Do: write the topics file again (`share-state topics`), or remove the setting, so that the cluster's own
    value applies.
    """
    for one in cluster.conflicts:
        yield GroupBreach(
            one.message, one.group_id, one.topic_id, one.topic, evidence=one.values, dialect=None
        )


@rule(
    "SHARE_GROUPS_DISABLED",
    Scope.CLUSTER_FACTS,
    WARNING,
    "KIP-932, share.version; Kafka ShareVersion, KafkaApis",
)
def share_groups_disabled(cluster: AuditedCluster) -> Iterator[GroupBreach]:
    """The feature `share.version` is enabled in a cluster with share-group state, from Kafka 4.2 on.

    Otherwise brokers answer no share fetch, and the state stays as it is.

    Do: `kafka-features.sh upgrade --feature share.version=1` (2 from 4.4 on, for dead letters), if share
    groups are to work.
    """
    settings = cluster.settings
    if settings is None or not settings.is_complete or not cluster.has_state:
        return
    is_needed = settings.features.get(_METADATA_VERSION, 0) >= _NEEDS_SHARE_VERSION
    if is_needed and not settings.features.get(_SHARE_VERSION):
        text = f"{_SHARE_VERSION} is 0 according to {settings.path}, so brokers serve no share group"
        yield GroupBreach(text, evidence={_SHARE_VERSION: "0"})


@rule(
    "STATE_TOPIC_CONFIG",
    Scope.CLUSTER_FACTS,
    ERROR,
    "Kafka ShareCoordinatorService.shareGroupStateTopicConfigs",
)
def state_topic_config(cluster: AuditedCluster) -> Iterator[GroupBreach]:
    """The state topic has cleanup.policy=delete, and no limit of time or size, as the broker creates it.

    Only the share coordinator knows which records are redundant; by any other deletion share-partitions lose
    their state.

    Do: set the value that `message` names with `kafka-configs.sh --topic __share_group_state`, and check
    `share-state audit` for BASE_LOST.
    """
    settings = cluster.settings
    configs = settings.topic_configs.get(STATE_TOPIC, {}) if settings else {}
    for key, right in (("cleanup.policy", "delete"), ("retention.ms", "-1"), ("retention.bytes", "-1")):
        value = configs.get(key, right)
        if value != right:
            text = f"{key} of {STATE_TOPIC} is {value}: brokers may delete records that are still needed; set {right}"
            yield GroupBreach(text, topic=STATE_TOPIC, evidence={key: value})


@rule("STATE_TOPIC_UNDER_MIN_ISR", Scope.CLUSTER_FACTS, WARNING, "Kafka min.insync.replicas, PartitionRecord")
def state_topic_under_min_isr(cluster: AuditedCluster) -> Iterator[GroupBreach]:
    """Each partition of the state topic has as many in-sync replicas as `min.insync.replicas` asks for.

    Otherwise no state is written: acknowledgements fail, and nothing of its share-partitions is delivered.
    Partitions without a leader are not judged, because brokers that were stopped for a copy leave them so.

    Do: bring brokers back, add replicas, or lower `min.insync.replicas` of the topic.
    """
    settings = cluster.settings
    configs = settings.topic_configs.get(STATE_TOPIC, {}) if settings else {}
    least = parse_digits(configs.get("min.insync.replicas", ""))
    if settings is None or least is None:
        return
    short = sorted(number for number, count in settings.state_in_sync.items() if count < least)
    if short:
        names = listed([f"{STATE_TOPIC}-{number}" for number in short], 3)
        text = f"{names}: fewer in-sync replicas than min.insync.replicas, {least}, so no state is written"
        evidence = {"partitions": str(len(short)), "min.insync.replicas": str(least)}
        yield GroupBreach(text, topic=STATE_TOPIC, evidence=evidence)


@rule("GROUP_CONFIG_OUT_OF_BOUNDS", Scope.CLUSTER_FACTS, WARNING, "Kafka GroupConfig.evaluate (KIP-1240)")
def group_config_out_of_bounds(cluster: AuditedCluster) -> Iterator[GroupBreach]:
    """The configs of a group are within the bounds that the brokers set.

    Brokers use the bound instead.

    Do: change the group's config (`kafka-configs.sh --group`), or the bound.
    """
    if cluster.settings is None:
        return
    for group, configs in sorted(cluster.settings.group_configs.items()):
        for key, (least, most) in cluster.settings.bounds.items():
            value = configs.get(key, "")
            used = used_value(value, (least, most))
            if used is not None and used != parse_digits(value):
                text = f"{key} is {value}, but brokers allow {least} to {most} and use {used}"
                yield GroupBreach(text, group, evidence={key: value, "used": str(used)})
