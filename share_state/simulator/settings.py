"""Settings of share groups and of the event player, and the acknowledgement types that requests may carry."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from itertools import groupby
from typing import Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from share_state.errors import ShareStateError
from share_state.kafka.delivery_states import DeliveryState
from share_state.kafka.releases import LATEST, Release


class AckType(IntEnum):
    """Acknowledgement type of a delivery; a gap is an offset without a record.

    Source: Kafka org.apache.kafka.clients.consumer.AcknowledgeType; KIP-932, KIP-1222.
    """

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class AckBatch(NamedTuple):
    """Acknowledgements of adjacent offsets: one type for all, or one per offset.

    Source: Kafka ShareAcknowledgementBatch.
    """

    first_offset: int
    last_offset: int
    types: tuple[int, ...]


class AckSegment(NamedTuple):
    """Adjacent offsets with the same acknowledgement type."""

    first_offset: int
    last_offset: int
    type: AckType


RENEW_SINCE_VERSION = 2


def validate_ack_batches(
    batches: Sequence[AckBatch], *, is_renew_ack: bool, version: int = RENEW_SINCE_VERSION
) -> str | None:
    """Why a share-partition's acknowledgements are rejected with INVALID_REQUEST, or None.

    Args:
        batches: in the order of the request.
        is_renew_ack: the request's IsRenewAck field.
        version: the version of ShareFetch or ShareAcknowledge; renewals need version 2.
    Source: Kafka KafkaApis.validateAcknowledgementBatches; KIP-1222.
    """
    greatest = AckType.RENEW if version >= RENEW_SINCE_VERSION else AckType.REJECT
    previous = -1
    for first, last, types in batches:
        if first > last:
            return f"acknowledgement {first}-{last} ends before it starts"
        if first < previous:
            return f"acknowledgement {first}-{last} starts before the previous one ends, at {previous}"
        if not types:
            return f"acknowledgement {first}-{last} has no type"
        if len(types) > 1 and len(types) != last - first + 1:
            return f"acknowledgement {first}-{last} has {len(types)} types for {last - first + 1} offsets"
        if not 0 <= min(types) <= max(types) <= greatest:
            return f"acknowledgement {first}-{last} has a type outside 0 to {greatest.value}"
        if not is_renew_ack and AckType.RENEW in types:
            return f"acknowledgement {first}-{last} renews in a request without IsRenewAck"
        previous = last
    return None


def split_by_type(batch: AckBatch, first: int, last: int) -> Iterator[AckSegment]:
    """The parts of an acknowledgement from `first` to `last`, ascending, each of one type."""
    if len(batch.types) == 1:
        if first <= last:
            yield AckSegment(first, last, AckType(batch.types[0]))
        return
    for ack_type, run in groupby(
        range(first, last + 1), lambda offset: batch.types[offset - batch.first_offset]
    ):
        offsets = list(run)
        yield AckSegment(offsets[0], offsets[-1], AckType(ack_type))


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """Limits of a share-partition; a change applies to later transitions, held locks keep their deadline.

    Args:
        delivery_count_limit: deliveries before a record is archived.
        record_lock_duration_ms: duration of an acquisition lock.
        max_record_locks: maximum in-flight offsets.
        renews: whether members may renew locks.
        has_dead_letter_queue: whether rejected and exhausted records go to a dead letter queue.
        reads_committed: whether records of aborted transactions are hidden.
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
        """Delivery count from which batches are throttled. Source: shouldThrottleRecordsDelivery."""
        return max(2, (self.delivery_count_limit + 1) // 2)

    def state_after_release(self, count: int) -> DeliveryState:
        """State of a released record with `count` deliveries. Source: InFlightState.tryUpdateState."""
        return DeliveryState.AVAILABLE if count < self.delivery_count_limit else self._discarded

    def state_after(self, ack: AckType, count: int) -> DeliveryState:
        """State of a record acknowledged with any type but RENEW. Source: KIP-932, KIP-1191."""
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
    """Raised when a config key is unknown or its value is out of range."""


def _setting(key: str, default: int, low: int, high: int | None = None) -> Any:
    """A broker config with its default and range."""
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

    @model_validator(mode="after")
    def _within_bounds(self) -> Self:
        """Source: Kafka GroupCoordinatorConfig."""
        for name in ("session_timeout_ms", "heartbeat_interval_ms"):
            value, low, high = (getattr(self, f"{bound}{name}") for bound in ("", "min_", "max_"))
            if not low <= value <= high:
                key = f"group.share.{name.replace('_', '.')}"
                raise ValueError(f"{key}: {value}: must be from {low} to {high}, its min and max settings")
        return self

    @classmethod
    def of(cls, values: Mapping[str, Value]) -> Self:
        """Configs from broker properties; missing keys have their default.

        Raises:
            ConfigError: names the first invalid key and the accepted range.
        """
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key = ".".join(str(part) for part in first["loc"])
            text = first["msg"].removeprefix("Value error, ")
            raise ConfigError(f"{key}: {first['input']}: {text}" if key else text) from None


class DraftConfigs(_Configs):
    """Broker configs of share groups in the draft. Source: KIP-932 draft, broker properties."""

    enable: bool = Field(default=False, alias="group.share.enable")
    record_lock_duration_ms: int = _setting("group.share.record.lock.duration.ms", 30_000, 1_000, 60_000)
    record_lock_duration_max_ms: int = _setting(
        "group.share.record.lock.duration.max.ms", 60_000, 1_000, 3_600_000
    )
    record_lock_partition_limit: int = _setting("group.share.record.lock.partition.limit", 200, 100, 10_000)
    max_groups: int = _setting("group.share.max.groups", 10, 1, 100)
    max_size: int = _setting("group.share.max.size", 200, 10, 1_000)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.record_lock_duration_ms > self.record_lock_duration_max_ms:
            raise ValueError(
                f"group.share.record.lock.duration.ms: {self.record_lock_duration_ms}: must not exceed "
                f"group.share.record.lock.duration.max.ms, {self.record_lock_duration_max_ms}"
            )
        return self

    def settings(self) -> PartitionSettings:
        """Default limits of share-partitions; the draft has no renewals."""
        return PartitionSettings(
            self.delivery_count_limit,
            self.record_lock_duration_ms,
            self.record_lock_partition_limit,
            renews=False,
        )


class BrokerConfigs(_Configs):
    """Broker configs of share groups in Kafka 4.3.1. Source: ShareGroupConfig, GroupCoordinatorConfig."""

    max_size: int = _setting("group.share.max.size", 200, 1, 1_000)
    min_delivery_count_limit: int = _setting("group.share.min.delivery.count.limit", 2, 2, 5)
    max_delivery_count_limit: int = _setting("group.share.max.delivery.count.limit", 10, 5, 25)
    record_lock_duration_ms: int = _setting("group.share.record.lock.duration.ms", 30_000, 1_000, 3_600_000)
    min_record_lock_duration_ms: int = _setting(
        "group.share.min.record.lock.duration.ms", 15_000, 1_000, 30_000
    )
    max_record_lock_duration_ms: int = _setting(
        "group.share.max.record.lock.duration.ms", 60_000, 30_000, 3_600_000
    )
    partition_max_record_locks: int = _setting("group.share.partition.max.record.locks", 2_000, 100, 10_000)
    min_partition_max_record_locks: int = _setting(
        "group.share.min.partition.max.record.locks", 100, 100, 2_000
    )
    max_partition_max_record_locks: int = _setting(
        "group.share.max.partition.max.record.locks", 4_000, 2_000, 10_000
    )

    def settings(self) -> PartitionSettings:
        """Default limits of share-partitions."""
        return PartitionSettings(
            self.delivery_count_limit, self.record_lock_duration_ms, self.partition_max_record_locks
        )


WIDEST = BrokerConfigs(
    max_delivery_count_limit=25,
    min_record_lock_duration_ms=1_000,
    max_record_lock_duration_ms=3_600_000,
    max_partition_max_record_locks=10_000,
)
"""The widest bounds of group configs that brokers may have."""


class GroupConfigs(BaseModel):
    """Dynamic group configs in Kafka 4.3.1. Source: Kafka GroupConfig."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    delivery_count_limit: int = Field(default=5, alias="share.delivery.count.limit")
    record_lock_duration_ms: int = Field(default=30_000, alias="share.record.lock.duration.ms")
    partition_max_record_locks: int = Field(default=2_000, alias="share.partition.max.record.locks")
    renew_acknowledge_enable: bool = Field(default=True, alias="share.renew.acknowledge.enable")
    isolation_level: str = Field(
        default="read_uncommitted", pattern="^read_(un)?committed$", alias="share.isolation.level"
    )
    dead_letter_topic: str = Field(
        default="", pattern="^(_?[^_]|_?$)", alias="errors.deadletterqueue.topic.name"
    )


_BOUNDED = ("delivery_count_limit", "record_lock_duration_ms", "partition_max_record_locks")


def with_config(
    settings: PartitionSettings, key: str, value: Value, brokers: BrokerConfigs | None = None
) -> PartitionSettings:
    """Settings of a group after one group config changes.

    Args:
        key: group config, for example share.record.lock.duration.ms.
        brokers: whose min and max settings bound the value.
    Raises:
        ConfigError: the key is unknown or the value out of bounds.
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
            raise ConfigError(
                f"{key}: {new}: must be between the brokers' min and max settings, {low} and {high}"
            )
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
class PlayerSettings:
    """Settings of an event player.

    Args:
        release: features of the brokers.
        configs: broker configs, which bound the group configs.
        settings: initial settings of every group; from `configs` if None.
        dialect: what is persisted; with "both", state is loaded from the share coordinator.
        checkpoint_every: deltas before a checkpoint in the draft dialect; None for never.
        traces: whether results contain the in-flight batches.
        checkpoints_at_end: in the draft dialect, whether a checkpoint also follows a delta that leaves
            nothing in flight.
    """

    release: Release = LATEST
    configs: BrokerConfigs | DraftConfigs = field(default_factory=BrokerConfigs)
    settings: PartitionSettings | None = None
    dialect: Dialect = "share_group_state"
    checkpoint_every: int | None = 10
    traces: bool = False
    checkpoints_at_end: bool = False

    def is_checkpoint_due(self, deltas: int, *, is_at_end: bool) -> bool:
        """Whether the leader writes a checkpoint after a delta.

        Args:
            deltas: number of deltas since the last one.
            is_at_end: whether nothing is in flight: SPSO = SPEO.
        """
        is_long = self.checkpoint_every is not None and deltas >= self.checkpoint_every
        return is_long or (self.checkpoints_at_end and is_at_end)

    @property
    def initial_settings(self) -> PartitionSettings:
        """The initial settings of every group."""
        return self.settings or self.configs.settings()
