"""What a member says about the records it holds, and the checks a request must pass before anything is looked up.

What a share group is configured to do, as far as a share-partition asks for it.

Configuration of share groups, in the draft and in Kafka 4.3.1: keys, defaults, ranges.

Under what conditions events are played.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from share_state.errors import ShareStateError
from share_state.simulator.types import RELEASES, DeliveryState, Release


class AckType(IntEnum):
    """How a delivery ended. A gap is an offset that holds no record.

    Source: Kafka org.apache.kafka.clients.consumer.AcknowledgeType; KIP-932, KIP-1222.
    """

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class AckBatch(NamedTuple):
    """Acknowledgements of neighbouring offsets: one type for all of them, or one an offset.

    Source: Kafka ShareAcknowledgementBatch.
    """

    first_offset: int
    last_offset: int
    types: tuple[int, ...]


class AckSegment(NamedTuple):
    """Neighbouring offsets of one request that are acknowledged alike."""

    first_offset: int
    last_offset: int
    type: AckType


RENEW_SINCE_VERSION = 2


def complaint(batches: Sequence[AckBatch], *, is_renew_ack: bool, version: int = RENEW_SINCE_VERSION) -> str | None:
    """Why a share-partition's part of a request is refused with INVALID_REQUEST, None where it is not.

    Args:
        batches: in the order of the request.
        is_renew_ack: the request says that it holds renewals.
        version: of ShareFetch or ShareAcknowledge; renewals are known from 2 on.
    Returns:
        The first reason, one line.
    Source: Kafka KafkaApis.validateAcknowledgementBatches; KIP-1222.
    """
    greatest = AckType.RENEW if version >= RENEW_SINCE_VERSION else AckType.REJECT
    previous = -1
    for first, last, types in batches:
        if first > last:
            return f"acknowledgement {first}-{last} ends before it begins"
        if first < previous:
            return f"acknowledgement {first}-{last} begins before the one ahead of it ends, at {previous}"
        if not types:
            return f"acknowledgement {first}-{last} has no type"
        if len(types) > 1 and len(types) != last - first + 1:
            return f"acknowledgement {first}-{last} has {len(types)} types for {last - first + 1} offsets"
        if not 0 <= min(types) <= max(types) <= greatest:
            return f"acknowledgement {first}-{last} has a type outside 0 to {greatest.value}"
        if not is_renew_ack and AckType.RENEW in types:
            return f"acknowledgement {first}-{last} renews in a request that does not say so"
        previous = last
    return None


def segments(batch: AckBatch) -> Iterator[AckSegment]:
    """The acknowledgement as ranges of one type, ascending."""
    first, last, types = batch
    if len(types) == 1:
        yield AckSegment(first, last, AckType(types[0]))
        return
    begin = 0
    for i in range(1, len(types) + 1):
        if i == len(types) or types[i] != types[begin]:
            yield AckSegment(first + begin, first + i - 1, AckType(types[begin]))
            begin = i


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """Limits in force; a new one takes effect on the next transition, locks that run keep their deadline.

    Args:
        delivery_count_limit: how often a record is delivered before it is archived.
        record_lock_duration_ms: how long a member holds a record.
        max_record_locks: how wide the window may become before nothing new is fetched.
        renews: whether members may renew their locks.
        has_dead_letter_queue: whether rejected and exhausted records go to a dead letter queue.
        reads_committed: whether records of aborted transactions are kept from members.
    Source: Kafka ShareGroupConfig, GroupConfig; KIP-1191 for the dead letter queue.
    """

    delivery_count_limit: int = 5
    record_lock_duration_ms: int = 30_000
    max_record_locks: int = 2_000
    renews: bool = True
    has_dead_letter_queue: bool = False
    reads_committed: bool = False

    @property
    def throttle_from(self) -> int:
        """From how many deliveries on a batch is delivered in parts. Source: shouldThrottleRecordsDelivery."""
        return max(2, (self.delivery_count_limit + 1) // 2)

    def state_after_release(self, count: int) -> DeliveryState:
        """What becomes of a record that was not processed.

        Args:
            count: how often it was delivered.
        Source: Kafka InFlightState.tryUpdateState.
        """
        return DeliveryState.AVAILABLE if count < self.delivery_count_limit else self._discarded

    def state_after(self, ack: AckType, count: int) -> DeliveryState:
        """What becomes of an acquired record that is acknowledged, other than by RENEW.

        Args:
            ack: how.
            count: how often it was delivered.
        Source: KIP-932; with a dead letter queue KIP-1191.
        """
        if ack is AckType.ACCEPT:
            return DeliveryState.ACKNOWLEDGED
        if ack is AckType.RELEASE:
            return self.state_after_release(count)
        return self._discarded if ack is AckType.REJECT else DeliveryState.ARCHIVED

    @property
    def _discarded(self) -> DeliveryState:
        return DeliveryState.ARCHIVING if self.has_dead_letter_queue else DeliveryState.ARCHIVED


Value = str | int | bool


class ConfigError(ShareStateError):
    """Raised when a key is unknown or its value out of range."""


def _setting(key: str, default: int, low: int, high: int | None = None) -> Any:
    """A number of the brokers' configuration, with its default and the range that the broker takes."""
    return Field(default=default, ge=low, le=high, alias=key)


class _Configs(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    delivery_count_limit: int = _setting("group.share.delivery.count.limit", 5, 2, 10)
    session_timeout_ms: int = _setting("group.share.session.timeout.ms", 45_000, 1)
    min_session_timeout_ms: int = _setting("group.share.min.session.timeout.ms", 45_000, 1)
    max_session_timeout_ms: int = _setting("group.share.max.session.timeout.ms", 60_000, 1)
    heartbeat_interval_ms: int = _setting("group.share.heartbeat.interval.ms", 5_000, 1)
    min_heartbeat_interval_ms: int = _setting("group.share.min.heartbeat.interval.ms", 5_000, 1)
    max_heartbeat_interval_ms: int = _setting("group.share.max.heartbeat.interval.ms", 15_000, 1)

    @classmethod
    def of(cls, values: Mapping[str, Value]) -> Self:
        """Configuration from keys and values as brokers are given them.

        Args:
            values: by key; what is missing is at its default.
        Raises:
            ConfigError: naming the first key that is wrong, and what it must be.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key = ".".join(str(part) for part in first["loc"])
            text = first["msg"].removeprefix("Value error, ")
            raise ConfigError(f"{key}: {first['input']}: {text}" if key else text) from None

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        """Each interval lies between its own min and max settings."""
        for name in ("session_timeout_ms", "heartbeat_interval_ms"):
            low, value, high = (getattr(self, prefix + name) for prefix in ("min_", "", "max_"))
            if not low <= value <= high:
                key = type(self).model_fields[name].alias
                raise ValueError(f"{key}: {value}: must lie between its min and max settings, {low} and {high}")
        return self


class DraftConfigs(_Configs):
    """The brokers' configuration of share groups in the draft. Source: KIP-932 draft, broker properties."""

    enable: bool = Field(default=False, alias="group.share.enable")
    record_lock_duration_ms: int = _setting("group.share.record.lock.duration.ms", 30_000, 1_000, 60_000)
    record_lock_duration_max_ms: int = _setting("group.share.record.lock.duration.max.ms", 60_000, 1_000, 3_600_000)
    record_lock_partition_limit: int = _setting("group.share.record.lock.partition.limit", 200, 100, 10_000)
    max_groups: int = _setting("group.share.max.groups", 10, 1, 100)
    max_size: int = _setting("group.share.max.size", 200, 10, 1_000)
    assignors: tuple[str, ...] = Field(
        default=("org.apache.server.group.share.SimpleAssignor",), min_length=1, alias="group.share.assignors"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.record_lock_duration_ms > self.record_lock_duration_max_ms:
            raise ValueError(
                f"group.share.record.lock.duration.ms: {self.record_lock_duration_ms}: must not exceed "
                f"group.share.record.lock.duration.max.ms, {self.record_lock_duration_max_ms}"
            )
        return self

    @property
    def assignor(self) -> str:
        """The one assignor that is used, the first."""
        return self.assignors[0]

    def settings(self) -> PartitionSettings:
        """What share-partitions go by; the draft knows no renewals."""
        return PartitionSettings(
            self.delivery_count_limit, self.record_lock_duration_ms, self.record_lock_partition_limit, renews=False
        )


class BrokerConfigs(_Configs):
    """The brokers' configuration of share groups in Kafka 4.3.1. Source: ShareGroupConfig, GroupCoordinatorConfig."""

    min_delivery_count_limit: int = _setting("group.share.min.delivery.count.limit", 2, 2, 5)
    max_delivery_count_limit: int = _setting("group.share.max.delivery.count.limit", 10, 5, 25)
    record_lock_duration_ms: int = _setting("group.share.record.lock.duration.ms", 30_000, 1_000, 3_600_000)
    min_record_lock_duration_ms: int = _setting("group.share.min.record.lock.duration.ms", 15_000, 1_000, 30_000)
    max_record_lock_duration_ms: int = _setting("group.share.max.record.lock.duration.ms", 60_000, 30_000, 3_600_000)
    partition_max_record_locks: int = _setting("group.share.partition.max.record.locks", 2_000, 100, 10_000)
    min_partition_max_record_locks: int = _setting("group.share.min.partition.max.record.locks", 100, 100, 2_000)
    max_partition_max_record_locks: int = _setting("group.share.max.partition.max.record.locks", 4_000, 2_000, 10_000)
    max_size: int = _setting("group.share.max.size", 200, 1, 1_000)
    assignors: tuple[str, ...] = Field(default=("simple",), min_length=1, max_length=1, alias="group.share.assignors")

    def settings(self) -> PartitionSettings:
        """What share-partitions go by where their group sets nothing of its own."""
        return PartitionSettings(
            self.delivery_count_limit, self.record_lock_duration_ms, self.partition_max_record_locks
        )


PROFILES = {"draft": DraftConfigs, "4.3.1": BrokerConfigs}


class GroupConfigs(BaseModel):
    """What a group sets for itself in Kafka 4.3.1, over the brokers' configuration. Source: Kafka GroupConfig."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    delivery_count_limit: int = Field(default=5, alias="share.delivery.count.limit")
    record_lock_duration_ms: int = Field(default=30_000, alias="share.record.lock.duration.ms")
    partition_max_record_locks: int = Field(default=2_000, alias="share.partition.max.record.locks")
    renew_acknowledge_enable: bool = Field(default=True, alias="share.renew.acknowledge.enable")
    isolation_level: str = Field(
        default="read_uncommitted", pattern="^read_(un)?committed$", alias="share.isolation.level"
    )
    dead_letter_topic: str = Field(default="", pattern="^(_?[^_]|_?$)", alias="errors.deadletterqueue.topic.name")


_BOUNDED = ("delivery_count_limit", "record_lock_duration_ms", "partition_max_record_locks")


def with_config(
    settings: PartitionSettings, key: str, value: Value, brokers: BrokerConfigs | None = None
) -> PartitionSettings:
    """Settings of a group after it sets one key.

    Args:
        settings: before.
        key: of the group, for example share.record.lock.duration.ms.
        value: its new value.
        brokers: whose min and max settings bound it; the defaults, if not given.
    Raises:
        ConfigError: the key is unknown, or the value out of bounds.
    """
    brokers = brokers or BrokerConfigs()
    try:
        configs = GroupConfigs.model_validate({key: value})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigError(f"{key}: {first['input']}: {first['msg']}") from None
    (name,) = configs.model_fields_set
    new = getattr(configs, name)
    if name in _BOUNDED:
        low, high = getattr(brokers, f"min_{name}"), getattr(brokers, f"max_{name}")
        if not low <= new <= high:
            raise ConfigError(f"{key}: {new}: must lie between the brokers' min and max settings, {low} and {high}")
    fields = {
        "delivery_count_limit": {"delivery_count_limit": new},
        "record_lock_duration_ms": {"record_lock_duration_ms": new},
        "partition_max_record_locks": {"max_record_locks": new},
        "renew_acknowledge_enable": {"renews": new},
        "isolation_level": {"reads_committed": new == "read_committed"},
        "dead_letter_topic": {"has_dead_letter_queue": new != ""},
    }
    return replace(settings, **fields[name])


Dialect = Literal["share_group_state", "control_records", "both"]


@dataclass(frozen=True, slots=True)
class Rules:
    """The conditions of one simulation.

    Args:
        release: what the brokers can do.
        configs: of the brokers, which bound what groups may set.
        settings: what every group begins with; what `configs` say, if not given.
        dialect: what is persisted; with both, what is loaded comes from the share coordinator.
        checkpoint_every: how many deltas make a checkpoint due in the draft's dialect, None for never.
        traces: outcomes carry what is in flight.
    """

    release: Release = RELEASES["4.3"]
    configs: BrokerConfigs | DraftConfigs = field(default_factory=BrokerConfigs)
    settings: PartitionSettings | None = None
    dialect: Dialect = "share_group_state"
    checkpoint_every: int | None = 10
    traces: bool = False
