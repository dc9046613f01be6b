"""Queries a cluster for share groups with Kafka's Java Admin client: librdkafka lacks these requests.

The client runs in a small JVM next to this process, so it supports every security setting of Kafka. It reads
the properties file itself, so no secret is sent over the connection to the JVM.
"""

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from share_state.errors import InputError, missing_module
from share_state.sources import dead_letter_settings, jars
from share_state.sources.cluster_facts import BROKER_LIMITS, GROUP_LIMIT_CONFIGS
from share_state.sources.dead_letter_settings import DeadLetterSettings
from share_state.sources.group_configs import GROUP_CONFIGS, ClusterLimits
from share_state.sources.kafka_client import ClientProperties, bootstrap_servers, read_client_properties
from share_state.sources.kafka_cluster import Cluster, ClusterOffsets

try:
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
    from py4j.protocol import Py4JJavaError
except ModuleNotFoundError as error:
    raise missing_module(error) from None

_TIMEOUT_MS = 15_000
_JAVA_OPTIONS = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xmx256m"]
_NO_SUCH_GROUP = "GroupIdNotFoundException"
_FIXES = {
    "TimeoutException": "check that it is running, and security.protocol if it requires one",
    "SaslAuthenticationException": "check the properties file",
    "SslAuthenticationException": "check ssl.* in the properties file",
    "GroupAuthorizationException": "grant this user DESCRIBE on the groups",
    "ClusterAuthorizationException": "grant this user DESCRIBE on the cluster",
    "UnsupportedVersionException": "share groups need brokers of 4.1 and later",
}


@dataclass(frozen=True, slots=True)
class ShareGroupOffset:
    """The state of one share-partition according to the broker.

    Attributes:
        group_id, topic, partition: the share-partition.
        start_offset: SPSO.
        leader_epoch: None if the broker does not return it.
        lag: in records; None if the broker does not know it.
    Source: Kafka Admin.listShareGroupOffsets (DescribeShareGroupOffsets).
    """

    group_id: str
    topic: str
    partition: int
    start_offset: int
    leader_epoch: int | None
    lag: int | None


@dataclass(frozen=True, slots=True)
class BrokerOffsets:
    """The share-partitions of a cluster according to its brokers.

    Attributes:
        share_partitions: the share-partitions with a start offset.
        before, after: offsets of the cluster before and after the request.
    """

    share_partitions: Sequence[ShareGroupOffset]
    before: ClusterOffsets
    after: ClusterOffsets


def fetch_broker_offsets(address: str, properties: str | None, groups: Collection[str] = ()) -> BrokerOffsets:
    """Request the offsets of all share groups from a cluster.

    Args:
        address: `kafka://host:port[,host:port…]`.
        properties: path of a properties file, as for `--command-config` of Kafka's tools.
        groups: share groups to request in addition to those that the broker lists.
    Raises:
        InputError: if no broker answers, access is denied, or there is no `__share_group_state`.
        SetupError: if Java or the jars of Kafka's client are missing.
    """
    client_properties = read_client_properties(properties)
    cluster = Cluster(address, client_properties)
    before = cluster.fetch_offsets()
    offsets = list_share_group_offsets(address, client_properties, groups)
    return BrokerOffsets(offsets, before, cluster.fetch_offsets())


def list_share_group_offsets(
    address: str, properties: ClientProperties, groups: Collection[str] = ()
) -> list[ShareGroupOffset]:
    """All share-partitions with a start offset, of all share groups that this user may see.

    The broker's list omits groups that the user may not see; a request for one of `groups` then fails.
    Arguments and errors as for `fetch_broker_offsets`.
    """
    with _connected(address, properties) as (jvm, admin):
        return list(_offsets(jvm, admin, groups))


def fetch_limits(address: str, properties: str | None) -> ClusterLimits:
    """Request the limits of the brokers, and those that share groups set for themselves.

    Args:
        address, properties: as for `fetch_broker_offsets`.
    Raises:
        InputError: if no broker answers or access is denied.
        SetupError: if Java or the jars of Kafka's client are missing.
    Source: Kafka Admin.describeConfigs, ConfigResource.Type.BROKER and GROUP; ShareGroupConfig, GroupConfig.
    """
    limits = dict[str, dict[str, int]]()
    of_brokers = dict[str, int]()
    group_configs, broker_configs = dict[str, dict[str, str]](), dict[str, str]()
    conflicts = list[str]()
    notes = list[str]()
    client_properties = read_client_properties(properties)
    with _connected(address, client_properties) as (jvm, admin):
        try:
            nodes = jvm.java.util.ArrayList(admin.describeCluster().nodes().get())
            answers = _configs(jvm, admin, "BROKER", sorted((node.idString() for node in nodes), key=int))
        except Py4JJavaError as error:
            answers = {}
            why = _java_error(address, client_properties, error.java_exception)
            notes.append(f"the limits of the brokers are unknown, so Kafka's defaults apply: {why}")
        for node, answer in answers.items():
            for key in (one.broker_config for one in GROUP_CONFIGS if one.broker_config):
                if (value := _value(answer, key)) is not None:
                    broker_configs.setdefault(key, value)
            for limit, key in BROKER_LIMITS.items():
                if (value := _value(answer, key)) is None:
                    continue
                if of_brokers.setdefault(limit, int(value)) != int(value):
                    conflicts.append(f"{key} is {of_brokers[limit]}, but {value} on broker {node}")
        for group, answer in _configs(jvm, admin, "GROUP", _share_groups(jvm, admin)).items():
            entries = {one.name: answer.get(one.name) for one in GROUP_CONFIGS}
            group_configs[group] = {
                key: entry.value()
                for key, entry in entries.items()
                if entry is not None
                and entry.source().name() == "DYNAMIC_GROUP_CONFIG"
                and entry.value() is not None
            }
            group_limits = {
                limit: int(group_configs[group][key])
                for limit, key in GROUP_LIMIT_CONFIGS.items()
                if key in group_configs[group]
            }
            if group_limits:
                limits[group] = group_limits
    return ClusterLimits(of_brokers, limits, group_configs, broker_configs, tuple(conflicts), tuple(notes))


@dataclass(frozen=True, slots=True)
class DeadLetterTopics:
    """The dead-letter topics of a cluster.

    Attributes:
        topics: topic -> number of partitions, for existing topics that a share group names or that have
            errors.deadletterqueue.group.enable.
        unusable: share group -> why the brokers cannot write its dead letters.
        topic_of: share group -> the topic that it is configured with.
    """

    topics: dict[str, int]
    unusable: dict[str, str]
    topic_of: dict[str, str]


def fetch_dead_letter_topics(address: str, properties: str | None) -> DeadLetterTopics:
    """Request the dead-letter topics of a cluster, and which share groups cannot use theirs.

    Args:
        address, properties: as for `fetch_broker_offsets`.
    Raises:
        InputError: if no broker answers or access is denied.
        SetupError: if Java or the jars of Kafka's client are missing.
    Source: KIP-1191; Kafka ShareGroupDLQStateManager.ProduceRequestHandler.validateDlqTopic.
    """
    with _connected(address, read_client_properties(properties)) as (jvm, admin):
        of_group = _configs(jvm, admin, "GROUP", _share_groups(jvm, admin))
        topics_of_groups = (
            (group, _value(config, dead_letter_settings.TOPIC)) for group, config in of_group.items()
        )
        named = {group: topic for group, topic in topics_of_groups if topic}
        existing = set(admin.listTopics().names().get())
        of_topic = _configs(jvm, admin, "TOPIC", existing)
        enabled = {
            name
            for name, config in of_topic.items()
            if _value(config, dead_letter_settings.ENABLED) == "true"
        }
        node = admin.describeCluster().nodes().get().iterator().next().idString()
        of_broker = _configs(jvm, admin, "BROKER", [node])[node]
        feature = admin.describeFeatures().featureMetadata().get().finalizedFeatures().get("share.version")
        settings = DeadLetterSettings(
            share_version=0 if feature is None else feature.maxVersionLevel(),
            existing=existing,
            enabled=enabled,
            topic_prefix=_value(of_broker, dead_letter_settings.TOPIC_PREFIX) or "",
            creates_topics=_value(of_broker, dead_letter_settings.CREATES_TOPICS) == "true",
        )
        topics = sorted(enabled | existing & {*named.values()})
        described = dict(admin.describeTopics(topics).allTopicNames().get())
        leaderless = {
            topic: [one.partition() for one in found.partitions() if one.leader() is None]
            for topic, found in described.items()
        }
        counts = {topic: len(found.partitions()) for topic, found in described.items()}

    def why(topic: str) -> str | None:
        if fault := settings.fault_of(topic):
            return fault
        if gone := leaderless.get(topic):
            return f"{topic} has no leader for partition {', '.join(map(str, gone))}"
        return None

    found = ((group, why(topic)) for group, topic in sorted(named.items()))
    return DeadLetterTopics(counts, {group: reason for group, reason in found if reason is not None}, named)


def _configs(jvm: Any, admin: Any, kind: str, names: Collection[str]) -> dict[str, Any]:
    """The configs of groups, topics or brokers, by name."""
    resource = jvm.org.apache.kafka.common.config.ConfigResource
    resources = [resource(getattr(resource.Type, kind), name) for name in names]
    return {one.name(): config for one, config in dict(admin.describeConfigs(resources).all().get()).items()}


def _value(config: Any, key: str) -> str | None:
    entry = config.get(key)
    return None if entry is None else entry.value()


@contextmanager
def _connected(address: str, properties: ClientProperties) -> Iterator[tuple[Any, Any]]:
    """Yield a JVM and an Admin client in it; exceptions of the client become InputError."""
    with _jvm() as jvm:
        try:
            admin = _admin(jvm, address, properties)
            try:
                yield jvm, admin
            finally:
                admin.close()
        except Py4JJavaError as error:
            raise _java_error(address, properties, error.java_exception) from None


def _share_groups(jvm: Any, admin: Any) -> set[str]:
    options = jvm.org.apache.kafka.clients.admin.ListGroupsOptions.forShareGroups()
    return {group.groupId() for group in admin.listGroups(options).all().get()}


def _offsets(jvm: Any, admin: Any, groups: Collection[str]) -> Iterator[ShareGroupOffset]:
    clients, specs = jvm.org.apache.kafka.clients.admin, jvm.java.util.HashMap()
    names = sorted(_share_groups(jvm, admin) | set(groups))
    for name in names:
        specs.put(name, clients.ListShareGroupOffsetsSpec())
    if not names:
        return
    result = admin.listShareGroupOffsets(specs)
    for name in names:
        try:
            offsets = result.partitionsToOffsetInfo(name).get()
        except Py4JJavaError as error:
            if _cause(error.java_exception).getClass().getSimpleName() == _NO_SUCH_GROUP:
                continue
            raise
        for entry in offsets.entrySet():
            info = entry.getValue()
            if info is not None and info.startOffset() >= 0:
                where = entry.getKey()
                epoch = info.leaderEpoch().orElse(None)
                lag = info.lag().orElse(None)
                yield ShareGroupOffset(name, where.topic(), where.partition(), info.startOffset(), epoch, lag)


def _admin(jvm: Any, address: str, properties: ClientProperties) -> Any:
    settings = jvm.org.apache.kafka.common.utils.Utils.loadProps(properties.path) if properties.path else None
    settings = settings or jvm.java.util.Properties()
    settings.put("bootstrap.servers", bootstrap_servers(address))
    settings.put("request.timeout.ms", str(_TIMEOUT_MS // 2))
    settings.put("default.api.timeout.ms", str(_TIMEOUT_MS))
    return jvm.org.apache.kafka.clients.admin.Admin.create(settings)


@contextmanager
def _jvm() -> Iterator[Any]:
    class_path = os.pathsep.join(map(str, jars.jars(jars.KAFKA_CLIENTS)))
    launched: Any = launch_gateway(
        classpath=class_path, javaopts=_JAVA_OPTIONS, java_path=jars.java(),
        die_on_exit=True, enable_auth=True, return_proc=True,
    )  # fmt: skip
    port, token, process = launched
    gateway = JavaGateway(
        gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True)
    )
    try:
        yield gateway.jvm
    finally:
        gateway.shutdown()
        process.stdin.close()
        process.wait()


def _cause(thrown: Any) -> Any:
    while thrown.getCause() is not None:
        thrown = thrown.getCause()
    return thrown


def _java_error(address: str, properties: ClientProperties, thrown: Any) -> InputError:
    cause = _cause(thrown)
    name, message = cause.getClass().getSimpleName(), str(cause.getMessage()).rstrip(".")
    if (fix := _FIXES.get(name)) is not None:
        return InputError(f"{address}: {message}; {fix}")
    if properties.path is None:
        return InputError(f"{address}: {message} ({name})")
    # The message of an invalid setting may contain its value, which may be a password.
    settings = ", ".join(properties.secrets_in(message)) or "one of the settings"
    return InputError(f"{properties.path}: {settings}: Kafka's client cannot use it ({name})")
