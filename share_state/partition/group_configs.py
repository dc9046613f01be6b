"""Configuration of share groups, in the draft and in Kafka 4.3.1: keys, defaults, ranges."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from share_state.errors import ShareStateError
from share_state.partition.settings import PartitionSettings

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
