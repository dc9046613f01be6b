"""The facts about a cluster that a plan uses, each from the first of its sources that knows it.

The order: the call and its configuration, a live cluster, the topics file, the export's own data folder
(`sources.cluster_facts`), the records of `__consumer_offsets`, Kafka's defaults. Two sources that disagree are a
finding, CLUSTER_FACTS_DISAGREE.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from share_state.fold.limits import Limits
from share_state.rules.cluster_settings import FactConflict
from share_state.sources.cluster_facts import BROKER_LIMITS, ClusterFacts
from share_state.sources.topics import Topics

if TYPE_CHECKING:
    from share_state.sources.kafka_admin import ClusterLimits

_OPTION = "cluster_facts"
"""Begins the names of facts among the options of a run."""


@dataclass(frozen=True, slots=True)
class SettledFacts:
    """The facts that a plan uses.

    Attributes:
        topics, limits, state_partitions: as in FoldPlan.
        origins: fact -> its value and where it comes from, for the options of a run; only facts of the data folder.
        conflicts: facts for which two sources disagree.
    """

    topics: Topics
    limits: Limits
    state_partitions: int | None
    origins: Mapping[str, str] = field(default_factory=dict)
    conflicts: tuple[FactConflict, ...] = ()


def settle_facts(
    facts: ClusterFacts,
    *,
    topics: Topics,
    limits: Limits,
    explicit_limits: frozenset[str],
    state_partitions: int | None,
    explicit_state_partitions: int | None,
) -> SettledFacts:
    """Use the facts of data folders where no source before them knows better.

    Args:
        facts: those of the data folders.
        topics: from the topics file or a live cluster.
        limits: limits of the call and of a live cluster, Kafka's defaults for the rest.
        explicit_limits: names of the limits that the call or its configuration sets.
        state_partitions: the number of state partitions by the other sources.
        explicit_state_partitions: the number that the call sets; None if it does not.
    """
    settled, own = _settle_limits(facts.limits, facts.group_limits, limits, explicit_limits)
    merged = merge_topics(topics, facts.topics)
    origins = {name: facts.origins.get(name, BROKER_LIMITS[name]) for name in facts.limits}
    conflicts = chain(
        _broker_conflicts(facts.conflicts),
        _limit_conflicts(
            facts.limits, limits, explicit_limits, {name: (f"by {one}", one) for name, one in origins.items()}
        ),
        _group_limit_conflicts(facts, limits),
        _topic_conflicts(topics, facts),
        _partition_conflicts(facts, explicit_state_partitions),
    )
    return SettledFacts(
        topics=merged,
        limits=settled,
        state_partitions=explicit_state_partitions or facts.state_partitions or state_partitions,
        origins=_origins(facts, own),
        conflicts=tuple(conflicts),
    )


@dataclass(frozen=True, slots=True)
class SettledLimits:
    """The limits that a plan uses.

    Attributes:
        limits: as in FoldPlan.
        known: names of the limits of the brokers that a live cluster shows.
        origins, conflicts: as in SettledFacts.
    """

    limits: Limits
    known: frozenset[str] = frozenset()
    origins: Mapping[str, str] = field(default_factory=dict)
    conflicts: tuple[FactConflict, ...] = ()


def settle_live_limits(asked: "ClusterLimits | None", limits: Limits, explicit: frozenset[str]) -> SettledLimits:
    """Use the limits of a live cluster where the call does not set them.

    Args:
        asked: the answer of the cluster; None if there is none.
        limits: limits of the call, Kafka's defaults for the rest.
        explicit: names of the limits that the call or its configuration sets.
    """
    if asked is None:
        return SettledLimits(limits)
    settled, own = _settle_limits(asked.of_brokers, asked.of_groups, limits, explicit)
    on_brokers = {name: ("on the brokers", key) for name, key in BROKER_LIMITS.items()}
    differing = _limit_conflicts(asked.of_brokers, limits, explicit, on_brokers)
    origins = {f"{_OPTION}.{name}": f"{value} ({BROKER_LIMITS[name]} of the brokers)" for name, value in own.items()}
    return SettledLimits(
        settled,
        frozenset(asked.of_brokers),
        origins | {f"limits.of_cluster.{name}": str(value) for name, value in own.items()},
        (*_broker_conflicts(asked.conflicts), *differing),
    )


def _settle_limits(
    of_brokers: Mapping[str, int],
    of_groups: Mapping[str, Mapping[str, int]],
    limits: Limits,
    explicit: frozenset[str],
) -> tuple[Limits, dict[str, int]]:
    """The limits of a cluster where the call does not set them; and those of the brokers that are used."""
    own = {name: value for name, value in of_brokers.items() if name not in explicit}
    names = sorted(of_groups.keys() | limits.groups.keys())
    groups = {group: {**of_groups.get(group, {}), **limits.groups.get(group, {})} for group in names}
    return replace(limits, **own, groups=groups), own


def _broker_conflicts(texts: Iterable[str]) -> Iterator[FactConflict]:
    return (FactConflict(f"brokers disagree: {text}; the first is used") for text in texts)


def _limit_conflicts(
    of_brokers: Mapping[str, int],
    limits: Limits,
    explicit: frozenset[str],
    origins: Mapping[str, tuple[str, str]],
) -> Iterator[FactConflict]:
    """Limits that the call sets to other values than the brokers have.

    Args:
        origins: name of a limit -> where the value of the brokers comes from, as the end of a clause, and as a name.
    """
    for name, value in of_brokers.items():
        given = getattr(limits, name)
        if name in explicit and given != value:
            clause, origin = origins[name]
            text = f"limits.{name} is {given} in the call or its configuration, but {value} {clause}; {given} is used"
            yield FactConflict(text, {"configured": str(given), origin: str(value)})


def merge_topics(first: Topics, second: Topics) -> Topics:
    """The facts of two sources; for each name, offset and partition count, those of the first if it knows it."""
    return Topics(
        _merge(first.names, second.names, ["topic_id"]),
        _merge(first.ends, second.ends, ["topic_id", "partition"]),
        {**second.partition_counts, **first.partition_counts},
        _merge(first.starts, second.starts, ["topic_id", "partition"]),
        first.is_complete or second.is_complete,
    )


def _merge(first: pa.Table, second: pa.Table, key: list[str]) -> pa.Table:
    if not len(first) or not len(second):
        return first if len(first) else second
    return pa.concat_tables([first, second.join(first.select(key), key, join_type="left anti").cast(second.schema)])


def _origins(facts: ClusterFacts, limits: Mapping[str, int]) -> dict[str, str]:
    """The facts that are used, for the options of a run: a change of one makes an audit judge again."""
    values: dict[str, object] = {**limits, "state_partitions": facts.state_partitions}
    texts = {name: f"{values[name]} ({origin})" for name, origin in facts.origins.items() if values.get(name)}
    texts |= {name: origin for name, origin in facts.origins.items() if name in ("topics", "end_offsets")}
    if not texts:
        return {}
    digest = hashlib.sha256(repr(sorted(facts.topics.partition_counts.items())).encode())
    digest.update(repr(facts.settings).encode())
    for table in (facts.topics.names, facts.topics.ends, facts.topics.starts):
        digest.update(repr(table.to_pydict()).encode())
    options = {f"{_OPTION}.{name}": text for name, text in texts.items()} | {
        f"{_OPTION}.digest": digest.hexdigest()[:16]
    }
    return options | {f"limits.of_cluster.{name}": str(value) for name, value in limits.items()}


def _group_limit_conflicts(facts: ClusterFacts, limits: Limits) -> Iterator[FactConflict]:
    for group, own in facts.group_limits.items():
        for name, value in own.items():
            given = limits.groups.get(group, {}).get(name, value)
            if given != value:
                text = (
                    f"{name} of the group is {given} in the configuration, but {value} by its configs; {given} is used"
                )
                yield FactConflict(text, {"configured": str(given), "metadata log": str(value)}, group)


def _topic_conflicts(topics: Topics, facts: ClusterFacts) -> Iterator[FactConflict]:
    if not len(topics.names) or facts.metadata is None:
        return
    known = _names(facts.topics)
    for topic_id, name in _names(topics).items():
        about = {"topic_id": topic_id, "topic": name}
        if topic_id in known and known[topic_id] != name:
            text = f"the topic is {name} in the topics file, but {known[topic_id]} in the metadata log; {name} is used"
            yield FactConflict(text, {"topics file": name, "metadata log": known[topic_id]}, **about)
        elif topic_id in facts.removed_topics:
            text = "the topics file names a topic that is deleted, according to the metadata log"
            yield FactConflict(text, {"topics file": name, "metadata log": "deleted"}, **about)
        elif topic_id not in known and facts.topics.is_complete:
            text = "the topics file names a topic that is not in the metadata log; is it of another cluster?"
            yield FactConflict(text, {"topics file": name, "metadata log": "absent"}, **about)
        count, actual = topics.partition_counts.get(topic_id), facts.topics.partition_counts.get(topic_id)
        if count is not None and actual is not None and count != actual:
            text = f"the topic has {count} partitions in the topics file, but {actual} in the metadata log"
            yield FactConflict(
                f"{text}; {count} is used", {"topics file": str(count), "metadata log": str(actual)}, **about
            )


def _names(topics: Topics) -> dict[str, str]:
    return dict(zip(topics.names["topic_id"].to_pylist(), topics.names["topic"].to_pylist(), strict=True))


def _partition_conflicts(facts: ClusterFacts, explicit: int | None) -> Iterator[FactConflict]:
    actual = facts.state_partitions
    if explicit is not None and actual is not None and explicit != actual:
        origin = facts.origins.get("state_partitions", "the metadata log")
        text = f"state_partitions is {explicit} in the call or its configuration, but {actual} by {origin}"
        yield FactConflict(f"{text}; {explicit} is used", {"configured": str(explicit), origin: str(actual)})
