"""Configuration of share groups, in the draft and in Kafka 4.3.1."""

from typing import Any

import pytest

from share_state.simulator import events as ev
from share_state.simulator.player import EventPlayer
from share_state.simulator.settings import (
    BrokerConfigs,
    ConfigError,
    DraftConfigs,
    PartitionSettings,
    PlayerSettings,
    with_config,
)
from share_state.simulator.types import ErrorCode

SHARE = "group.share."
PROFILES = {"draft": DraftConfigs, "4.3.1": BrokerConfigs}


def _enabled(**limits: int) -> DraftConfigs:
    """The configs of a broker that lets clients use share groups."""
    return DraftConfigs.model_validate({"enable": True} | limits)


@pytest.mark.parametrize(
    ("profile", "key", "value", "problem"),
    [
        ("draft", "delivery.count.limit", 1, "greater than or equal to 2"),
        ("draft", "delivery.count.limit", 11, "less than or equal to 10"),
        ("4.3.1", "delivery.count.limit", 1, "greater than or equal to 2"),
        ("4.3.1", "delivery.count.limit", 11, "less than or equal to 10"),
        ("draft", "record.lock.duration.ms", 60_001, "less than or equal to 60000"),
        ("4.3.1", "record.lock.duration.ms", 3_600_001, "less than or equal to 3600000"),
        ("4.3.1", "max.record.lock.duration.ms", 1_000, "greater than or equal to 30000"),
        ("4.3.1", "min.record.lock.duration.ms", 30_001, "less than or equal to 30000"),
        ("draft", "record.lock.partition.limit", 99, "greater than or equal to 100"),
        ("4.3.1", "partition.max.record.locks", 99, "greater than or equal to 100"),
        ("draft", "max.groups", 101, "less than or equal to 100"),
        ("4.3.1", "max.groups", 10, "not permitted"),
        ("4.3.1", "enable", True, "not permitted"),
        ("4.3.1", "record.lock.duration.max.ms", 60_000, "not permitted"),
    ],
)
def test_a_value_out_of_range_is_refused_in_one_line(profile: str, key: str, value: Any, problem: str):
    with pytest.raises(ConfigError) as raised:
        PROFILES[profile].of({SHARE + key: value})
    text = str(raised.value)
    assert text.startswith(SHARE) and problem in text and "\n" not in text


@pytest.mark.parametrize(
    ("profile", "key", "value"),
    [
        ("4.3.1", "record.lock.duration.ms", 60_001),
        ("draft", "record.lock.duration.max.ms", 30_000),
    ],
)
def test_what_one_profile_refuses_the_other_may_allow(profile: str, key: str, value: Any):
    PROFILES[profile].of({SHARE + key: value})


def test_the_drafts_lock_duration_may_not_exceed_its_max():
    with pytest.raises(
        ConfigError, match=r"30000: must not exceed group\.share\.record\.lock\.duration\.max\.ms, 1000"
    ):
        DraftConfigs.of({"group.share.record.lock.duration.max.ms": 1_000})


def test_defaults():
    assert DraftConfigs().settings() == PartitionSettings(5, 30_000, 200, renews=False)
    assert BrokerConfigs().settings() == PartitionSettings(5, 30_000, 2_000)
    assert BrokerConfigs.of({}).max_partition_max_record_locks == 4_000


@pytest.mark.parametrize(
    ("key", "value", "field", "result"),
    [
        ("share.delivery.count.limit", "10", "delivery_count_limit", 10),
        ("share.record.lock.duration.ms", 15_000, "record_lock_duration_ms", 15_000),
        ("share.partition.max.record.locks", 4_000, "max_record_locks", 4_000),
        ("share.renew.acknowledge.enable", "false", "renews", False),
        ("share.isolation.level", "read_committed", "reads_committed", True),
        ("errors.deadletterqueue.topic.name", "dlq.t", "has_dead_letter_queue", True),
        ("errors.deadletterqueue.topic.name", "_t", "has_dead_letter_queue", True),
        ("errors.deadletterqueue.topic.name", "", "has_dead_letter_queue", False),
    ],
)
def test_a_group_overrides_one_setting(key: str, value: Any, field: str, result: object):
    before = PartitionSettings()
    after = with_config(before, key, value)
    assert getattr(after, field) == result
    assert {name for name in before.__slots__ if getattr(before, name) != getattr(after, name)} <= {field}


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("share.delivery.count.limit", 11, "between the brokers' min and max settings, 2 and 10"),
        ("share.record.lock.duration.ms", 14_999, "between the brokers' min and max settings, 15000 and 60000"),
        ("share.partition.max.record.locks", 4_001, "between the brokers' min and max settings, 100 and 4000"),
        ("share.isolation.level", "serializable", "should match pattern"),
        ("errors.deadletterqueue.topic.name", "__t", "should match pattern"),
        ("share.colour", 1, "not permitted"),
    ],
)
def test_a_group_may_not_set_what_the_brokers_do_not_allow(key: str, value: Any, problem: str):
    with pytest.raises(ConfigError, match=f"^{key}: .*{problem}"):
        with_config(PartitionSettings(), key, value)


def test_the_brokers_bounds_can_be_moved():
    brokers = BrokerConfigs.of({"group.share.max.delivery.count.limit": 25})
    assert with_config(PartitionSettings(), "share.delivery.count.limit", 25, brokers).delivery_count_limit == 25


def initialize(player: EventPlayer, group: str, seq: int) -> ErrorCode:
    return next(
        iter(player.apply(ev.Init(seq=seq, ts_ms=0, group=group, topic="T", state_epoch=1, start_offset=0)))
    ).error


def test_the_draft_does_nothing_before_share_groups_are_enabled():
    assert (
        initialize(EventPlayer(settings=PlayerSettings(configs=DraftConfigs())), "G", 1)
        is ErrorCode.UNSUPPORTED_VERSION
    )
    assert initialize(EventPlayer(settings=PlayerSettings(configs=_enabled())), "G", 1) is ErrorCode.NONE


def test_the_draft_limits_the_number_of_groups():
    player = EventPlayer(settings=PlayerSettings(configs=_enabled(max_groups=10)))
    codes = [initialize(player, f"G{number}", number) for number in range(11)]
    assert codes == [ErrorCode.NONE] * 10 + [ErrorCode.GROUP_MAX_SIZE_REACHED]
    assert initialize(player, "G0", 12) is ErrorCode.NONE
