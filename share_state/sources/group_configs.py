"""The configs of share groups that decide how their records are delivered, and which value brokers use of each.

A group sets a config for itself (KIP-1240); otherwise the brokers' default counts, then Kafka's. Each value
has a source in words.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from share_state.kafka.primitives import parse_digits
from share_state.sources import dead_letter_settings


@dataclass(frozen=True, slots=True)
class ShareGroupConfig:
    """A config of share groups.

    Attributes:
        name: of the config of a group.
        broker_config: the config of brokers that is its default; "" if there is none.
        default: Kafka's default.
        limit: name in fold.limits.GROUP_LIMITS; "" if it is no limit.
    """

    name: str
    broker_config: str
    default: str
    limit: str = ""


GROUP_CONFIGS = (
    ShareGroupConfig("share.delivery.count.limit", "group.share.delivery.count.limit", "5", "delivery_count"),
    ShareGroupConfig(
        "share.partition.max.record.locks", "group.share.partition.max.record.locks", "2000", "record_locks"
    ),
    ShareGroupConfig("share.record.lock.duration.ms", "group.share.record.lock.duration.ms", "30000"),
    ShareGroupConfig("share.isolation.level", "", "read_uncommitted"),
    ShareGroupConfig("share.auto.offset.reset", "", "latest"),
    ShareGroupConfig("share.renew.acknowledge.enable", "", "true"),
    ShareGroupConfig(dead_letter_settings.TOPIC, "", ""),
    ShareGroupConfig(f"{dead_letter_settings.PREFIX}copy.record.enable", "", "false"),
)
"""Source: Kafka GroupConfig, ShareGroupConfig; KIP-932, KIP-1191, KIP-1240."""

NOT_SET = "Kafka's default"


@dataclass(frozen=True, slots=True)
class ClusterLimits:
    """The limits of a cluster.

    Attributes:
        of_brokers: name in fold.limits.Limits -> value that the brokers use.
        of_groups: share group -> name in fold.limits.GROUP_LIMITS -> value that it sets for itself.
        group_configs: share group -> config -> value that it sets for itself.
        broker_configs: broker config -> value, for the configs that are the defaults of groups.
        conflicts: limits on which brokers disagree, in words.
        notes: what could not be asked, one line each.
    """

    of_brokers: dict[str, int] = field(default_factory=dict)
    of_groups: dict[str, dict[str, int]] = field(default_factory=dict)
    group_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    broker_configs: dict[str, str] = field(default_factory=dict)
    conflicts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EffectiveConfig:
    """A config of a group as brokers use it.

    Attributes:
        name: of the config of a group.
        value: the value that brokers use.
        source: where it comes from, in words.
    """

    name: str
    value: str
    source: str


@dataclass(frozen=True, slots=True)
class GroupConfigs:
    """What is known of the configs of share groups.

    Attributes:
        of_call: name of a limit -> value, for limits of the cluster that the call or its configuration sets.
        of_call_groups: share group -> name of a limit -> value, likewise.
        of_groups: share group -> config -> value, as the groups set them.
        of_brokers: broker config -> value and where it comes from.
        bounds: config of a group -> the least and the greatest value that brokers use.
        origin: where `of_groups` comes from: the path of the metadata log, or the address of a cluster.
    """

    of_call: Mapping[str, int] = field(default_factory=dict)
    of_call_groups: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    of_groups: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    of_brokers: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    bounds: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    origin: str = ""

    def effective(self, group: str) -> list[EffectiveConfig]:
        """The configs of a group as brokers use them."""
        return [EffectiveConfig(config.name, *self._value(config, group)) for config in GROUP_CONFIGS]

    def _value(self, config: ShareGroupConfig, group: str) -> tuple[str, str]:
        """The value of a config of a group, and its source."""
        called = self.of_call_groups.get(group, {}).get(config.limit)
        if called is not None:
            return str(called), "limits of the group, in the call or its configuration"
        own = self.of_groups.get(group, {}).get(config.name)
        if own is not None:
            used = used_value(own, self.bounds[config.name]) if config.name in self.bounds else None
            source = f"config of the group in {self.origin}"
            bounded = f"{source}: {own}, which brokers bound"
            return (own, source) if used is None or str(used) == own else (str(used), bounded)
        if config.limit in self.of_call:
            return str(self.of_call[config.limit]), "limits, in the call or its configuration"
        if config.broker_config in self.of_brokers:
            value, origin = self.of_brokers[config.broker_config]
            return value, f"{config.broker_config} in {origin}"
        return config.default, NOT_SET


def used_value(value: str | None, bounds: tuple[int, int]) -> int | None:
    """The value that brokers use of a group config; None if it is not set, or is no number.

    Args:
        value: as the group sets it.
        bounds: the least and the greatest value that brokers use.
    """
    number = parse_digits(value or "")
    return None if number is None else min(max(number, bounds[0]), bounds[1])
