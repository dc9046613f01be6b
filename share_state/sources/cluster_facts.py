"""What a broker's data folder says about its cluster: names, partitions, ends, limits and features.

The facts come from the metadata log (`metadata_log`), from the folders of topics and the checkpoint files
(`topic_extents`), and from `server.properties`. Each fact has an origin in words. Confidential settings are
never kept: only the keys of KEPT_CONFIGS are.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.errors import InputError
from share_state.kafka.metadata_records import ResourceType
from share_state.kafka.primitives import parse_digits
from share_state.sources import dead_letter_settings
from share_state.sources.cluster_metadata import KEPT_CONFIGS, ClusterMetadata
from share_state.sources.dead_letter_settings import DeadLetterSettings
from share_state.sources.discovery import HIGH_WATERMARK_CHECKPOINT, METADATA_FOLDER
from share_state.sources.group_configs import GROUP_CONFIGS, GroupConfigs, used_value
from share_state.sources.log_partition import GROUP_TOPIC, STATE_TOPIC
from share_state.sources.metadata_log import read_metadata_log
from share_state.sources.topic_extents import (
    TopicExtent,
    latest_extents,
    read_extents,
)
from share_state.sources.topics import BEFORE_THE_LOG, Topics, topics_of
from share_state.stores.object_stores import read_errors
from share_state.stores.paths import InputPath

SERVER_PROPERTIES = "server.properties"
_UNLIMITED = -1
_RETENTION = (("log.retention.ms", 1), ("log.retention.minutes", 60_000), ("log.retention.hours", 3_600_000))
"""Broker configs of the retention by time, the one that counts first, and their units in ms.
Source: Kafka KafkaConfig.logRetentionTimeMillis."""

_DEFAULT_RETENTION_HOURS = 168
_CLUSTER_DEFAULT = ""
"""Name of the resource with the dynamic configs of all brokers."""

BROKER_LIMITS = {
    "delivery_count": "group.share.delivery.count.limit",
    "record_locks": "group.share.partition.max.record.locks",
    "updates_per_snapshot": "share.coordinator.snapshot.update.records.per.snapshot",
}
"""Name in fold.limits.Limits -> broker config."""

GROUP_LIMIT_CONFIGS = {
    "delivery_count": "share.delivery.count.limit",
    "record_locks": "share.partition.max.record.locks",
}
"""Name of a limit -> group config that sets it."""

_BOUNDS = {
    "share.delivery.count.limit": ("delivery.count.limit", 2, 10),
    "share.partition.max.record.locks": ("partition.max.record.locks", 100, 4000),
    "share.record.lock.duration.ms": ("record.lock.duration.ms", 15_000, 60_000),
}
"""Group config -> the end of the names of the broker configs that bound it, and Kafka's bounds.
Source: Kafka GroupConfig.evaluate (KIP-1240), ShareGroupConfig."""


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The settings of a cluster that decide whether share groups and dead letters work.

    Attributes:
        path: the metadata log.
        is_complete: as in ClusterMetadata; only then is what it lacks not set.
        features: feature -> finalized level.
        group_configs: share group -> its configs.
        bounds: group config -> the least and the greatest value that brokers use.
        topic_configs: topic -> its configs; of the state topic and of the dead-letter topics that exist.
        state_in_sync: partition of the state topic -> number of its in-sync replicas; without partitions that
            have no leader, as after brokers were stopped for a copy.
        dead_letters: what decides whether dead letters can be written.
        retention_ms: topic -> ms for which brokers keep records, of the topics in the data folders that set
            it; -1 for no limit of time.
        default_retention_ms: that of other topics; None if the brokers' settings are not known.
        delivery_limits: share group -> each change of its delivery limit: when (ms; None if it was before the
            metadata log shows), and the limit (None if the group's config was removed).
    """

    path: str
    is_complete: bool
    features: Mapping[str, int]
    group_configs: Mapping[str, Mapping[str, str]]
    bounds: Mapping[str, tuple[int, int]]
    topic_configs: Mapping[str, Mapping[str, str]]
    state_in_sync: Mapping[int, int]
    dead_letters: DeadLetterSettings
    retention_ms: Mapping[str, int] = field(default_factory=dict)
    default_retention_ms: int | None = None
    delivery_limits: Mapping[str, Sequence[tuple[int | None, int | None]]] = field(default_factory=dict)

    @property
    def group_limits(self) -> dict[str, dict[str, int]]:
        """Share group -> name of a limit that it sets for itself -> the value that brokers use."""
        limits = dict[str, dict[str, int]]()
        for group, configs in self.group_configs.items():
            for limit, key in GROUP_LIMIT_CONFIGS.items():
                if (used := used_value(configs.get(key), self.bounds[key])) is not None:
                    limits.setdefault(group, {})[limit] = used
        return limits

    @property
    def dead_letter_topics(self) -> dict[str, str]:
        """Share group -> its dead-letter topic, for the groups that have one."""
        topics = {
            group: configs.get(dead_letter_settings.TOPIC, "")
            for group, configs in self.group_configs.items()
        }
        return {group: topic for group, topic in topics.items() if topic}

    @property
    def unusable_dead_letters(self) -> dict[str, str]:
        """Share group -> why brokers cannot write its dead letters.

        Empty if the metadata log lacks its beginning.
        """
        topics = self.dead_letter_topics if self.is_complete else {}
        faults = {group: self.dead_letters.fault_of(topic) for group, topic in sorted(topics.items())}
        return {group: fault for group, fault in faults.items() if fault is not None}


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What the data folders of brokers say about their cluster.

    Attributes:
        folders: the data folders.
        metadata: the metadata log; None if there is none, or it cannot be read.
        topics: topics that exist: names, partition counts, log starts and ends.
        removed_topics: id -> name of topics that were deleted.
        group_configs: the configs of share groups, and the brokers' defaults of them.
        limits: name in fold.limits.Limits -> value, for the limits that brokers set.
        settings: what decides whether share groups work; None without the metadata log.
        state_partitions, group_partitions: partitions of the state topic and of `__consumer_offsets`; None if
            unknown.
        origins: name of a fact -> where it comes from, in words.
        notes: what is wrong or guessed, one line each.
        conflicts: facts on which two folders disagree, in words.
    """

    folders: tuple[str, ...]
    metadata: ClusterMetadata | None = None
    topics: Topics = field(default_factory=Topics)
    removed_topics: Mapping[str, str] = field(default_factory=dict)
    group_configs: GroupConfigs = field(default_factory=GroupConfigs)
    limits: Mapping[str, int] = field(default_factory=dict)
    settings: ClusterSettings | None = None
    state_partitions: int | None = None
    group_partitions: int | None = None
    origins: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()

    @property
    def group_limits(self) -> Mapping[str, Mapping[str, int]]:
        """As in ClusterSettings."""
        return self.settings.group_limits if self.settings else {}


def read_cluster_facts(folders: Sequence[InputPath], until_time_ms: int | None = None) -> ClusterFacts:
    """Read the facts in the data folders of the brokers of one cluster.

    Args:
        folders: data folders, from `discovery.find_data_folders`.
        until_time_ms: a moment: what the metadata log says of it. Ends are those at the time of the copy.
    Raises:
        InputError: if a file cannot be read.
    """
    notes, origins = list[str](), dict[str, str]()
    extents = [extent for folder in folders for extent in read_extents(folder)]
    # Only replicas on several brokers need to know which of them leads.
    led = {extent.topic for extent in extents} if folders[1:] else set[str]()
    metadata = _newest_metadata(folders, until_time_ms, {*led, STATE_TOPIC}, notes)
    topics = _topics(metadata, extents, origins)
    static = [(folder / SERVER_PROPERTIES, read_properties(folder / SERVER_PROPERTIES)) for folder in folders]
    settings = _BrokerSettings(
        metadata, [(str(file), properties) for file, properties in static if file.is_file()]
    )
    limits = {
        name: value
        for name, key in BROKER_LIMITS.items()
        if (value := settings.number(key, name)) is not None
    }
    copied = sorted({extent.topic for extent in extents})
    cluster = _cluster_settings(metadata, settings, copied) if metadata else None
    if metadata is not None:
        notes += metadata.notes
    return ClusterFacts(
        folders=tuple(map(str, folders)),
        metadata=metadata,
        topics=topics,
        removed_topics=_removed(metadata),
        group_configs=GroupConfigs(
            of_groups=cluster.group_configs if cluster else {},
            of_brokers=settings.group_defaults(),
            bounds=cluster.bounds if cluster else {},
            origin=cluster.path if cluster else "",
        ),
        limits=limits,
        settings=cluster,
        state_partitions=_partition_count(STATE_TOPIC, topics, settings, "state_partitions", origins),
        group_partitions=_partition_count(GROUP_TOPIC, topics, settings, "group_partitions", origins),
        origins=origins | settings.origins,
        notes=tuple(notes),
        conflicts=tuple(settings.conflicts),
    )


def _cluster_settings(
    metadata: ClusterMetadata, settings: "_BrokerSettings", copied: Sequence[str]
) -> ClusterSettings:
    """The settings of a cluster; `copied` are the topics that the data folders hold."""
    group_configs = metadata.configs_of(ResourceType.GROUP)
    bounds = {key: settings.bounds(end, least, most) for key, (end, least, most) in _BOUNDS.items()}
    live = metadata.live_topics
    wanted = {
        STATE_TOPIC,
        *(configs.get(dead_letter_settings.TOPIC, "") for configs in group_configs.values()),
    }
    existing = live.filter(pc.is_in(live["topic"], pa.array([*wanted], pa.string())))
    names = existing["topic"].to_pylist()
    configs = metadata.configs_of(ResourceType.TOPIC, names)
    rows = dict(zip(names, existing["row"].to_pylist(), strict=True))
    is_led = (metadata.partitions["topic"] == rows.get(STATE_TOPIC, -1)) & (
        metadata.partitions["leader"] >= 0
    )
    of_state = metadata.partitions[is_led]
    return ClusterSettings(
        path=metadata.path,
        is_complete=metadata.is_complete,
        features=metadata.features,
        group_configs=group_configs,
        bounds=bounds,
        topic_configs={name: configs.get(name, {}) for name in names},
        state_in_sync=dict(zip(of_state["partition"].tolist(), of_state["in_sync"].tolist(), strict=True)),
        dead_letters=DeadLetterSettings(
            share_version=metadata.features.get("share.version", 0),
            existing=names,
            enabled=[
                name for name in names if configs.get(name, {}).get(dead_letter_settings.ENABLED) == "true"
            ],
            topic_prefix=settings.text(
                dead_letter_settings.TOPIC_PREFIX, dead_letter_settings.DEFAULT_TOPIC_PREFIX
            ),
            creates_topics=settings.text(dead_letter_settings.CREATES_TOPICS, "") == "true",
        ),
        retention_ms=_topic_retention(metadata, copied),
        default_retention_ms=settings.retention_ms,
        delivery_limits=_delivery_limits(metadata, bounds),
    )


def _topic_retention(metadata: ClusterMetadata, topics: Sequence[str]) -> dict[str, int]:
    """The retention.ms of those topics that set it or a cleanup.policy."""
    retention = dict[str, int]()
    for topic, configs in metadata.configs_of(ResourceType.TOPIC, topics).items():
        if "delete" not in configs.get("cleanup.policy", "delete"):
            retention[topic] = _UNLIMITED
        elif (own := _integer(configs.get("retention.ms", ""))) is not None:
            retention[topic] = own
    return retention


def _delivery_limits(
    metadata: ClusterMetadata, bounds: Mapping[str, tuple[int, int]]
) -> dict[str, list[tuple[int | None, int | None]]]:
    """The changes of the delivery limits of groups, within the bounds that the brokers have now."""
    config = GROUP_LIMIT_CONFIGS["delivery_count"]
    changes = metadata.config_changes.filter(
        (pc.field("resource_type") == int(ResourceType.GROUP))
        & (pc.field("key") == KEPT_CONFIGS.index(config))
    )
    limits = dict[str, list[tuple[int | None, int | None]]]()
    columns = (changes[name].to_pylist() for name in ("resource", "value", "timestamp"))
    for group, value, time in zip(*columns, strict=True):
        limits.setdefault(group, []).append((time, used_value(value, bounds[config])))
    return limits


def _newest_metadata(
    folders: Sequence[InputPath], until_time_ms: int | None, partitions_of: Collection[str], notes: list[str]
) -> ClusterMetadata | None:
    """The metadata log that goes furthest; of several brokers, all have a copy of the same log."""
    newest: ClusterMetadata | None = None
    for folder in folders:
        if not (folder / METADATA_FOLDER).is_dir():
            continue
        try:
            metadata = read_metadata_log(folder / METADATA_FOLDER, until_time_ms, partitions_of)
        except InputError as error:
            notes.append(f"{error}; the command works without it")
            continue
        if newest is None or (metadata.is_complete, metadata.end_offset) > (
            newest.is_complete,
            newest.end_offset,
        ):
            newest = metadata
    return newest


def _removed(metadata: ClusterMetadata | None) -> dict[str, str]:
    if metadata is None:
        return {}
    removed = metadata.topics.filter(metadata.topics["removed"].is_valid())
    return dict(zip(removed["topic_id"].to_pylist(), removed["topic"].to_pylist(), strict=True))


def _topics(
    metadata: ClusterMetadata | None, extents: Sequence[TopicExtent], origins: dict[str, str]
) -> Topics:
    """The topics that exist, by the metadata log; without it, those whose folders show their ids."""
    if metadata is None:
        # Of an export of internal topics alone, nothing is learned.
        named = [one for one in extents if one.topic_id is not None and not one.topic.startswith("__")]
        topics = topics_of({extent.topic_id: extent.topic for extent in named if extent.topic_id is not None})
        latest = latest_extents(extents, {})
        if len(topics.names):
            origins["topics"] = "partition.metadata in the topics' folders"
    else:
        live = metadata.live_topics
        has_partitions = pc.greater(live["partitions"], 0)
        counts = live.select(["topic_id", "partitions"])
        counts = counts.append_column("extended", pc.fill_null(live["extended"], BEFORE_THE_LOG))
        counts = counts if pc.all(has_partitions).as_py() else counts.filter(has_partitions)
        topics = Topics(live.select(["topic_id", "topic"]), counts=counts, is_complete=metadata.is_complete)
        latest = latest_extents(extents, _leaders(metadata, {extent.topic for extent in extents}))
        origins["topics"] = metadata.path
    # A cluster may have many more topics than the export has folders of.
    is_near = pc.is_in(topics.names["topic"], pa.array([extent.topic for extent in extents], pa.string()))
    near = topics.names.filter(is_near)
    ids_by_name = dict(zip(near["topic"].to_pylist(), near["topic_id"].to_pylist(), strict=True))
    ids = {*ids_by_name.values()}
    known = list[tuple[str, TopicExtent]]()
    for extent in latest:
        topic_id = extent.topic_id or ids_by_name.get(extent.topic)
        if topic_id is not None and topic_id in ids:
            known.append((topic_id, extent))
    if known:
        is_guess = not all(extent.is_log_end for _, extent in known)
        marks = f"; where a folder is missing, {HIGH_WATERMARK_CHECKPOINT}, which may be seconds old"
        origins["end_offsets"] = f"last batches in the topics' folders{marks if is_guess else ''}"
    offsets = topics_of(
        {},
        ends={(topic_id, extent.partition): extent.end for topic_id, extent in known},
        starts={
            (topic_id, extent.partition): extent.start
            for topic_id, extent in known
            if extent.start is not None
        },
    )
    return replace(topics, ends=offsets.ends, starts=offsets.starts)


def _leaders(metadata: ClusterMetadata, topics: set[str]) -> dict[tuple[str, int], int]:
    """Topic and partition -> id of the leader, for some topics."""
    live = metadata.live_topics
    live = live.filter(pc.is_in(live["topic"], pa.array([*topics], pa.string())))
    names = dict(zip(live["row"].to_pylist(), live["topic"].to_pylist(), strict=True))
    rows = metadata.partitions[np.isin(metadata.partitions["topic"], np.array([*names], np.int32))]
    columns = (rows[name].tolist() for name in ("topic", "partition", "leader"))
    return {(names[topic], partition): leader for topic, partition, leader in zip(*columns, strict=True)}


def _partition_count(
    topic: str, topics: Topics, settings: "_BrokerSettings", name: str, origins: dict[str, str]
) -> int | None:
    """The number of partitions of an internal topic: as created; before that, as brokers will create it."""
    ids = topics.names.filter(pc.equal(topics.names["topic"], topic))["topic_id"].combine_chunks()
    existing = topics.counts.filter(pc.is_in(topics.counts["topic_id"], ids))
    if len(existing):
        origins[name] = origins["topics"]
        return existing["partitions"][0].as_py()
    if topics.is_complete:
        return None
    keys = {
        STATE_TOPIC: "share.coordinator.state.topic.num.partitions",
        GROUP_TOPIC: "offsets.topic.num.partitions",
    }
    return settings.number(keys[topic], name)


class _BrokerSettings:
    """The settings of the brokers: dynamic configs of brokers, of the cluster, then `server.properties`.

    Source: Kafka DynamicBrokerConfig: a broker's dynamic config, the cluster's default, the static config.
    """

    def __init__(
        self, metadata: ClusterMetadata | None, static: Sequence[tuple[str, Mapping[str, str]]]
    ) -> None:
        dynamic = metadata.configs_of(ResourceType.BROKER) if metadata else {}
        default = dynamic.pop(_CLUSTER_DEFAULT, {})
        path = metadata.path if metadata else ""
        of_brokers = [(f"{path}, broker {broker}", configs) for broker, configs in sorted(dynamic.items())]
        self._levels = [of_brokers, [(f"{path}, all brokers", default)], static]
        self.origins, self.conflicts = dict[str, str](), list[str]()

    def text(self, key: str, default: str) -> str:
        """The value of a config."""
        found = (configs[key] for level in self._levels for _, configs in level if key in configs)
        return next(found, default)

    def group_defaults(self) -> dict[str, tuple[str, str]]:
        """Broker config -> value and origin, for the configs that are the defaults of groups."""
        defaults = dict[str, tuple[str, str]]()
        for key in (one.broker_config for one in GROUP_CONFIGS if one.broker_config):
            found = ((number, origin) for level in self._levels for origin, configs in level
                     if (number := _integer(configs.get(key, ""))) is not None)  # fmt: skip
            if (first := next(found, None)) is not None:
                defaults[key] = str(first[0]), first[1]
        return defaults

    def bounds(self, end: str, least: int, most: int) -> tuple[int, int]:
        """The least and the greatest value that brokers use of a group config.

        Args:
            end: end of the names of the broker configs that bound it.
            least, most: Kafka's defaults.
        """
        return self.number(f"group.share.min.{end}") or least, self.number(f"group.share.max.{end}") or most

    @property
    def retention_ms(self) -> int | None:
        """How long brokers keep records of topics without retention.ms.

        None without their `server.properties`.
        """
        if not self._levels[-1]:
            return None
        if "delete" not in self.text("log.cleanup.policy", "delete"):
            return _UNLIMITED
        for key, unit in _RETENTION:
            if (value := self.number(key)) is not None:
                return value * unit if value >= 0 else _UNLIMITED
        return _DEFAULT_RETENTION_HOURS * 3_600_000

    def number(self, key: str, name: str = "") -> int | None:
        """The value of a config, if it is a number; its origin is noted under the name of the fact."""
        for level in self._levels:
            found = {origin: _integer(configs.get(key, "")) for origin, configs in level}
            values = {origin: value for origin, value in found.items() if value is not None}
            if not values:
                continue
            if len(set(values.values())) > 1:
                self.conflicts.append(
                    f"{key} is " + ", ".join(f"{value} ({origin})" for origin, value in values.items())
                )
            origin, value = next(iter(values.items()))
            if name:
                self.origins[name] = f"{key} in {origin}"
            return value
        return None


def _integer(text: str) -> int | None:
    number = parse_digits(text.removeprefix("-"))
    return -number if number is not None and text.startswith("-") else number


def read_properties(file: InputPath) -> dict[str, str]:
    """The settings of a properties file whose keys are in KEPT_CONFIGS; empty if there is no such file."""
    with read_errors(file):
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []
    split = (line.strip().partition("=") for line in lines if not line.lstrip().startswith(("#", "!")))
    return {key.strip(): value.strip() for key, _, value in split if key.strip() in KEPT_CONFIGS}
