"""Asks a running Kafka cluster, with confluent-kafka, for the offsets of its logs and for its topics: `Cluster`.

`kafka_source` reads its records.
Needs the extra `share-state[kafka]`; import this module only when an address is given.
"""

import re
import struct
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from share_state.errors import InputError, missing_module
from share_state.kafka.codec import uuid_text
from share_state.sources.cluster_facts import BROKER_LIMITS, GROUP_LIMIT_CONFIGS
from share_state.sources.group_configs import ClusterLimits
from share_state.sources.kafka_client import (
    ClientProperties,
    bootstrap_servers,
)
from share_state.sources.log_partition import GROUP_TOPIC, STATE_TOPIC
from share_state.sources.topics import Topics, topics_of

try:
    import confluent_kafka
    from confluent_kafka import KafkaError, KafkaException, admin
except ModuleNotFoundError as error:
    raise missing_module(error) from None

# The type stubs of confluent-kafka are incomplete.
_kafka: Any = confluent_kafka
_admin: Any = admin

_AUTHENTICATION_ERRORS = {
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
    KafkaError.ILLEGAL_SASL_STATE,
}
_CONNECTION_ERRORS = {
    KafkaError._TRANSPORT,
    KafkaError._RESOLVE,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._TIMED_OUT_QUEUE,
    KafkaError._WAIT_COORD,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
}
DELETED_RECORDS = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE}
_UNKNOWN_TOPICS = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
_NOT_AUTHORIZED = "not authorized ({}); grant this user DESCRIBE "
_ERROR_TEXTS = (
    ({KafkaError.TOPIC_AUTHORIZATION_FAILED}, f"{_NOT_AUTHORIZED}and READ on the topic"),
    ({KafkaError.CLUSTER_AUTHORIZATION_FAILED}, f"{_NOT_AUTHORIZED}on the cluster"),
    ({KafkaError.GROUP_AUTHORIZATION_FAILED}, f"{_NOT_AUTHORIZED}on the groups"),
    (_AUTHENTICATION_ERRORS, "the broker refuses this user ({}); check the properties file"),
    ({KafkaError._SSL}, "no TLS connection ({}); check ssl.* in the properties file"),
    (_UNKNOWN_TOPICS, "no such topic; the first use of a share group creates it"),
    (DELETED_RECORDS, "the broker deleted records while they were read; run the command again"),
    (_CONNECTION_ERRORS,
     "no broker answers ({}); check that it is running, and security.protocol if it requires one"),
)  # fmt: skip
"""Codes of librdkafka -> reason and fix, with the place of librdkafka's own text."""


class ClientErrors:
    """Collects the errors that librdkafka reports in the background: a call that times out does not give the reason."""

    def __init__(self) -> None:
        self._latest: dict[int, KafkaError] = {}

    def __call__(self, error: KafkaError) -> None:
        """Store an error; librdkafka's `error_cb`."""
        self._latest[error.code()] = error

    @property
    def are_permanent(self) -> bool:
        """Whether a broker rejected the user or the connection, so that waiting is useless."""
        return bool(self._latest.keys() & {KafkaError._SSL, *_AUTHENTICATION_ERRORS})

    @property
    def no_broker_reachable(self) -> bool:
        """Whether no broker could be reached."""
        return KafkaError._ALL_BROKERS_DOWN in self._latest

    def worst(self, otherwise: KafkaError) -> KafkaError:
        """The collected error that explains a failure best."""
        ranked = [*_AUTHENTICATION_ERRORS, KafkaError._SSL, KafkaError._RESOLVE, KafkaError._TRANSPORT]
        return next((self._latest[code] for code in ranked if code in self._latest), otherwise)


def client_error(
    where: str, error: KafkaException | KafkaError, earlier: ClientErrors | None = None
) -> InputError:
    """Convert an error of librdkafka to a one-line error; `where` names the cluster and the request."""
    kafka_error = error.args[0] if isinstance(error, KafkaException) else error
    if not isinstance(kafka_error, KafkaError):
        return InputError(f"{where}: {_plain(kafka_error)}")
    code = kafka_error.code()
    if code in _CONNECTION_ERRORS and earlier is not None:
        kafka_error = earlier.worst(kafka_error)
        code = kafka_error.code()
    text = next((text for codes, text in _ERROR_TEXTS if code in codes), "{}")
    return InputError(f"{where}: {text.format(_plain(kafka_error))}")


def _plain(error: Any) -> str:
    """The message of librdkafka without its client and thread names."""
    text = error.str() if isinstance(error, KafkaError) else str(error)
    text = re.sub(r"^(\[thrd:[^\]]*\]: ?)+", "", text)
    text = re.sub(r"^(\w+://)?[\w.\[\]:-]+:\d+/\w+: ", "", text)
    return re.sub(r" \(after \d+ms in state [\w_]+(, [^)]*)?\)", "", text).strip().rstrip(".")


_Key = TypeVar("_Key")

_SKIPPED_ERRORS = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
}
"""Errors of topics that were deleted meanwhile, have no leader or may not be read; they are skipped."""

_OF_GROUP = 8
"""DYNAMIC_GROUP_CONFIG: a config that a group sets for itself. Source: Kafka DescribeConfigsResponse.ConfigSource."""

TIMEOUT = 15.0
"""Seconds to wait for a response."""

_TIMEOUT_IF_DOWN = 2.5


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """Offsets of a partition when the command started.

    Attributes:
        start_offset: the log start offset.
        end_offset: the high watermark; of `__share_group_state`, the last stable offset.
        high_watermark: None if unknown.
    """

    partition: int
    start_offset: int
    end_offset: int
    high_watermark: int | None = None


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """The id of a topic, the offsets of its partitions that have a leader, and the number of all its partitions."""

    topic_id: str
    logs: tuple[PartitionOffsets, ...]
    partitions: int


@dataclass(frozen=True, slots=True)
class ClusterOffsets(TopicOffsets):
    """The offsets of the state topic, and names and end offsets of all topics that are not internal, at one time."""

    topics: Topics


class Cluster:
    """An admin connection to `kafka://host:port[,host:port…]`.

    Raises:
        InputError: if the address or a setting is invalid; also by all methods, if no broker answers or
            access is denied.
    """

    def __init__(self, address: str, properties: ClientProperties) -> None:
        self.address, self._errors = address, ClientErrors()
        settings = client_settings(address, properties) | {"error_cb": self._errors}
        try:
            self._admin = _admin.AdminClient(settings)
        except KafkaException as error:
            raise unusable_setting(properties, error) from None
        self._connect()

    def _connect(self) -> None:
        """Send requests until a broker answers.

        Gives up early if the user is rejected or no broker is running.
        """
        started = time.monotonic()
        while True:
            try:
                self._admin.list_topics(STATE_TOPIC, timeout=1)
                return
            except KafkaException as error:
                self._admin.poll(0)
                waited = time.monotonic() - started
                # A host may have several addresses, and the first may not be the one that listens.
                timeout = _TIMEOUT_IF_DOWN if self._errors.no_broker_reachable else TIMEOUT
                if self._errors.are_permanent or waited > timeout:
                    raise client_error(self.address, error, self._errors) from None

    def fetch_offsets(self) -> ClusterOffsets:
        """Fetch the offsets of the state topic, which must exist, then names and end offsets of the other topics."""
        state = self.fetch_topic_offsets([STATE_TOPIC])[STATE_TOPIC]
        # Fetch the end offsets of the topics last; otherwise a lag could be negative.
        return ClusterOffsets(state.topic_id, state.logs, state.partitions, self.topics())

    def fetch_state_offsets(self) -> TopicOffsets | None:
        """Fetch the offsets of the state topic; None while there is no such topic."""
        return (
            self.fetch_topic_offsets([STATE_TOPIC])[STATE_TOPIC]
            if STATE_TOPIC in self._list_topics()
            else None
        )

    def fetch_group_offsets(self) -> TopicOffsets | None:
        """Fetch the offsets of `__consumer_offsets`.

        None if this user may not read it or it does not exist.
        """
        topic = self._described([GROUP_TOPIC]).get(GROUP_TOPIC)
        if topic is None or _admin.AclOperation.READ not in (topic.authorized_operations or ()):
            return None
        return self._topic_offsets(GROUP_TOPIC, topic)

    def fetch_topic_offsets(self, names: Sequence[str]) -> dict[str, TopicOffsets]:
        """Fetch the offsets of topics.

        Those that do not exist and partitions without a leader are left out.
        """
        described = self._described(names) if names else {}
        return {name: self._topic_offsets(name, topic) for name, topic in described.items()}

    def _topic_offsets(self, name: str, topic: Any) -> TopicOffsets:
        partitions = [(name, one.id) for one in topic.partitions if one.leader is not None]
        starts = self._offsets(partitions, _admin.OffsetSpec.earliest())
        ends = self._offsets(partitions, _admin.OffsetSpec.latest())
        stable = ends
        if name == STATE_TOPIC:
            committed = _kafka.IsolationLevel.READ_COMMITTED
            stable = self._offsets(partitions, _admin.OffsetSpec.latest(), committed)
        logs = (
            PartitionOffsets(one[1], starts[one], min(stable.get(one, ends[one]), ends[one]), ends[one])
            for one in sorted(starts.keys() & ends.keys())
        )
        return TopicOffsets(topic_id_text(topic.topic_id), tuple(logs), len(topic.partitions))

    def _list_topics(self) -> dict[str, Any]:
        """The topics that this user may see, by name."""
        try:
            return self._admin.list_topics(timeout=TIMEOUT).topics
        except KafkaException as error:
            raise client_error(self.address, error, self._errors) from None

    def topics(self) -> Topics:
        """Names, partitions, log starts and ends of all topics that this user may see and that are not internal."""
        names = sorted(name for name, topic in self._list_topics().items() if topic.error is None)
        described = {name: topic for name, topic in self._described(names).items() if not topic.is_internal}
        partitions = [(name, partition.id) for name, topic in described.items() for partition in topic.partitions
                      if partition.leader is not None]  # fmt: skip
        # A log start that moves meanwhile must not be after the end.
        starts = self._offsets(partitions, _admin.OffsetSpec.earliest())
        ends = self._offsets(partitions, _admin.OffsetSpec.latest())
        ids = {name: topic_id_text(topic.topic_id) for name, topic in described.items()}
        topics = topics_of(
            {topic_id: name for name, topic_id in ids.items()},
            ends={(ids[name], partition): end for (name, partition), end in ends.items()},
            starts={(ids[name], partition): start for (name, partition), start in starts.items()},
            partition_counts={ids[name]: len(topic.partitions) for name, topic in described.items()},
        )
        return replace(topics, are_live=True)

    def fetch_retention(self, names: Sequence[str]) -> dict[str, int]:
        """Topic -> ms for which brokers keep its records, -1 for no limit of time.

        Without topics that deny it.

        Source: Kafka TopicConfig, retention.ms and cleanup.policy, with the brokers' defaults.
        """
        resources = [_admin.ConfigResource(_admin.ConfigResource.Type.TOPIC, name) for name in names]
        futures = self._admin.describe_configs(resources, request_timeout=TIMEOUT) if resources else {}
        answers = self._results(
            {resource.name: (resource.name, future) for resource, future in futures.items()}
        )
        retention = dict[str, int]()
        for name, configs in answers.items():
            is_deleted = "delete" in configs["cleanup.policy"].value.split(",")
            retention[name] = int(configs["retention.ms"].value) if is_deleted else -1
        return retention

    def fetch_limits(self, groups: Collection[str]) -> ClusterLimits:
        """The limits of the brokers, and those that some share groups set for themselves; without Java.

        Without those that the cluster denies.

        Source: Kafka ShareGroupConfig, GroupConfig; ConfigEntry.ConfigSource.
        """
        try:
            brokers = self._admin.list_topics(STATE_TOPIC, timeout=TIMEOUT).brokers
        except KafkaException as error:
            raise client_error(self.address, error, self._errors) from None
        of_brokers, of_groups = dict[str, int](), dict[str, dict[str, int]]()
        for configs in self._configs(_admin.ConfigResource.Type.BROKER, map(str, sorted(brokers))).values():
            for limit, key in BROKER_LIMITS.items():
                if key in configs and configs[key].value is not None:
                    of_brokers.setdefault(limit, int(configs[key].value))
        for group, configs in self._configs(_admin.ConfigResource.Type.GROUP, sorted(groups)).items():
            own = {
                limit: int(configs[key].value)
                for limit, key in GROUP_LIMIT_CONFIGS.items()
                if key in configs and configs[key].source == _OF_GROUP and configs[key].value is not None
            }
            of_groups |= {group: own} if own else {}
        return ClusterLimits(of_brokers, of_groups)

    def _configs(self, kind: Any, names: Iterable[str]) -> dict[str, Any]:
        """The configs of brokers or groups, by name; without those that are denied or gone."""
        resources = [_admin.ConfigResource(kind, name) for name in names]
        futures = self._admin.describe_configs(resources, request_timeout=TIMEOUT) if resources else {}
        answers = dict[str, Any]()
        for resource, future in futures.items():
            with suppress(KafkaException):
                answers[resource.name] = future.result(timeout=2 * TIMEOUT)
        return answers

    def _described(self, names: Sequence[str]) -> dict[str, Any]:
        futures = self._admin.describe_topics(
            _kafka.TopicCollection(list(names)), include_authorized_operations=True, request_timeout=TIMEOUT
        )
        return self._results({name: (name, future) for name, future in futures.items()})

    def _offsets(
        self,
        partitions: Sequence[tuple[str, int]],
        spec: Any,
        isolation: Any = _kafka.IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[tuple[str, int], int]:
        """The earliest or latest offset of each (topic, partition)."""
        if not partitions:
            return {}
        specs = {_kafka.TopicPartition(*one): spec for one in partitions}
        listed = self._admin.list_offsets(specs, isolation_level=isolation, request_timeout=TIMEOUT)
        futures = {
            (at.topic, at.partition): (f"{at.topic}-{at.partition}", future) for at, future in listed.items()
        }
        return {partition: result.offset for partition, result in self._results(futures).items()}

    def _results(self, requests: Mapping[_Key, tuple[str, Future[Any]]]) -> dict[_Key, Any]:
        """The results of requests.

        Topics with one of _SKIPPED_ERRORS are left out, except for the state topic.
        """
        results = {}
        for key, (name, future) in requests.items():
            is_state = STATE_TOPIC in (name, name.rpartition("-")[0])
            try:
                results[key] = future.result(timeout=2 * TIMEOUT)
            except KafkaException as error:
                if not is_state and error.args[0].code() in _SKIPPED_ERRORS:
                    continue
                self._admin.poll(0)
                raise client_error(f"{self.address}: {name}", error, self._errors) from None
            except TimeoutError:
                timed_out = KafkaError(KafkaError._TIMED_OUT)
                raise client_error(f"{self.address}: {name}", timed_out, self._errors) from None
        return results


def topic_id_text(topic_id: Any) -> str:
    """A topic id as Kafka prints it: librdkafka uses another base64 alphabet."""
    halves = topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits()
    return uuid_text(struct.pack(">qq", *halves))


def client_settings(address: str, properties: ClientProperties) -> dict[str, Any]:
    """The settings of all clients of a cluster; librdkafka logs nothing."""
    configured = properties.for_librdkafka()
    configured.pop("debug", None)  # it turns logging on
    fixed = {
        "bootstrap.servers": bootstrap_servers(address),
        "log_level": 0,
        "socket.connection.setup.timeout.ms": 5000,
    }
    return {"client.id": "share-state"} | configured | fixed


def unusable_setting(properties: ClientProperties, error: KafkaException) -> InputError:
    """The error for a setting that librdkafka rejects; it shows the name of the setting, not its value."""
    path = properties.path or "client settings"
    text = error.args[0].str() if error.args and isinstance(error.args[0], KafkaError) else str(error)
    shown = properties.secrets_in(text)
    return InputError(f"{path}: {', '.join(shown)}: not a valid value" if shown else f"{path}: {text}")
