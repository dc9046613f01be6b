"""The facts about a cluster that a plan uses, each from the first of its sources that knows it.

The order, of which `docs/topics.md` tells users:

1. the call and its configuration;
2. a live cluster;
3. the topics file that the call names;
4. the export's own data folder (`sources.cluster_facts`);
5. a topics file beside the logs, which nobody asked for, so that it may be old;
6. the records of `__consumer_offsets` (`driver_side.read_groups`);
7. Kafka's defaults.

Two sources that disagree are a finding, CLUSTER_FACTS_DISAGREE.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from share_state.config.sections import LimitSettings
from share_state.fold.limits import GROUP_LIMITS, Limits
from share_state.rules.cluster_settings import FactConflict
from share_state.sources.cluster_facts import BROKER_LIMITS, ClusterFacts
from share_state.sources.group_configs import GroupConfigs
from share_state.sources.topics import Topics, TopicSource

if TYPE_CHECKING:
    from share_state.sources.group_configs import ClusterLimits

_OPTION = "cluster_facts"
"""Begins the names of facts among the options of a run."""

_DIGEST = f"{_OPTION}.digest"
"""Changes with the facts themselves."""


def settle_topics(sources: Sequence[TopicSource]) -> tuple[Topics, list[FactConflict]]:
    """Use each fact about topics of the first source that knows it.

    Args:
        sources: in their order; one at most is a running cluster.
    """
    settled, conflicts = Topics(), list[FactConflict]()
    for number, source in enumerate(sources):
        for other in sources[:number]:
            conflicts += _topic_conflicts(other, source)
        settled = merge_topics(settled, source.topics)
    return settled, conflicts


@dataclass(frozen=True, slots=True)
class SettledFacts:
    """The facts that a plan uses.

    Attributes:
        topics, limits, state_partitions: as in FoldPlan.
        origins: fact -> its value and where it comes from, for the options of a run.
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
    topics: Sequence[TopicSource],
    adjacent: TopicSource | None,
    limits: Limits,
    explicit_limits: frozenset[str],
    state_partitions: int | None,
    explicit_state_partitions: int | None,
) -> SettledFacts:
    """Use the facts of data folders where no source before them knows better.

    Args:
        facts: those of the data folders.
        topics: a live cluster and the topics file that the call names, if there are any.
        adjacent: the topics file beside the logs.
        limits: limits of the call and of a live cluster, Kafka's defaults for the rest.
        explicit_limits: names of the limits that the call or its configuration sets.
        state_partitions: the number of state partitions by the other sources.
        explicit_state_partitions: the number that the call sets; None if it does not.
    """
    settled, own = _settle_limits(facts.limits, facts.group_limits, limits, explicit_limits)
    sources = [*topics, *_data_folder(facts), *([adjacent] if adjacent else [])]
    merged, topic_conflicts = settle_topics(sources)
    origins = {name: facts.origins.get(name, BROKER_LIMITS[name]) for name in facts.limits}
    conflicts = chain(
        _broker_conflicts(facts.conflicts),
        _limit_conflicts(
            facts.limits, limits, explicit_limits, {name: (f"by {one}", one) for name, one in origins.items()}
        ),
        _group_limit_conflicts(facts, limits),
        topic_conflicts,
        _partition_conflicts(facts, explicit_state_partitions),
    )
    return SettledFacts(
        topics=merged,
        limits=settled,
        state_partitions=explicit_state_partitions or facts.state_partitions or state_partitions,
        origins=_origins(facts, own, sources),
        conflicts=tuple(conflicts),
    )


def _data_folder(facts: ClusterFacts) -> list[TopicSource]:
    if not len(facts.topics.names):
        return []
    origin, of_log = facts.origins.get("topics"), facts.metadata is not None
    name = "metadata log" if of_log else "data folder"
    return [TopicSource(name, facts.topics, origin, is_authority=of_log, removed=facts.removed_topics)]


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


def settle_live_limits(
    asked: "ClusterLimits | None", limits: Limits, explicit: frozenset[str]
) -> SettledLimits:
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
    origins = {
        f"{_OPTION}.{name}": f"{value} ({BROKER_LIMITS[name]} of the brokers)" for name, value in own.items()
    }
    return SettledLimits(
        settled,
        frozenset(asked.of_brokers),
        origins | {f"limits.of_cluster.{name}": str(value) for name, value in own.items()},
        (*_broker_conflicts(asked.conflicts), *differing),
    )


def limits_of_groups(limits: Limits) -> dict[str, str]:
    """The limits of groups, as options of a run: those of the call do not hold what was read from a cluster."""
    return {
        f"limits.groups.{group}.{name}": str(value)
        for group, own in limits.groups.items()
        for name, value in own.items()
    }


def settle_group_configs(
    facts: ClusterFacts | None, asked: "ClusterLimits | None", addresses: Sequence[str], limits: LimitSettings
) -> GroupConfigs:
    """What is known of the configs of share groups.

    Args:
        facts: those of data folders; None if there are none.
        asked: the answer of a live cluster, which is read alone; None if there is none.
        addresses: the inputs.
        limits: limits of the call and its configuration.
    """
    known = facts.group_configs if facts else GroupConfigs()
    if asked is not None:
        address = " ".join(addresses)
        of_brokers = {key: (value, address) for key, value in asked.broker_configs.items()}
        known = GroupConfigs(of_groups=asked.group_configs, of_brokers=of_brokers, origin=address)
    return replace(
        known,
        of_call={name: getattr(limits, name) for name in limits.model_fields_set if name in GROUP_LIMITS},
        of_call_groups={
            group: config.model_dump(exclude_none=True) for group, config in limits.groups.items()
        },
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
        origins: name of a limit -> where the value of the brokers comes from, as the end of a clause, and as
            a name.
    """
    for name, value in of_brokers.items():
        given = getattr(limits, name)
        if name in explicit and given != value:
            clause, origin = origins[name]
            text = f"limits.{name} is {given} in the call or its configuration, but {value} {clause}; {given} is used"
            yield FactConflict(text, {"configured": str(given), origin: str(value)})


def merge_topics(first: Topics, second: Topics) -> Topics:
    """The facts of two sources.

    For each name, offset and partition count, those of the first if it knows it.
    """
    return Topics(
        _merge(first.names, second.names, ["topic_id"]),
        _merge(first.ends, second.ends, ["topic_id", "partition"]),
        _merge(first.counts, second.counts, ["topic_id"]),
        _merge(first.starts, second.starts, ["topic_id", "partition"]),
        first.is_complete or second.is_complete,
        first.are_live or second.are_live,
        second.may_be_old if not len(first.ends) else first.may_be_old,
    )


def _merge(first: pa.Table, second: pa.Table, key: list[str]) -> pa.Table:
    if not len(first) or not len(second):
        return first if len(first) else second
    return pa.concat_tables(
        [first, second.join(first.select(key), key, join_type="left anti").cast(second.schema)]
    )


def _origins(
    facts: ClusterFacts, limits: Mapping[str, int], sources: Sequence[TopicSource]
) -> dict[str, str]:
    """The facts that are used, for the options of a run: a change of one makes an audit judge again."""
    values: dict[str, object] = {**limits, "state_partitions": facts.state_partitions}
    texts = {name: f"{values[name]} ({origin})" for name, origin in facts.origins.items() if values.get(name)}
    if of_topics := [source.origin for source in sources if source.origin]:
        texts["topics"] = ", then ".join(of_topics)
    if "end_offsets" in facts.origins:
        texts["end_offsets"] = facts.origins["end_offsets"]
    if not texts:
        return {}
    # Without its path: an export may be in another folder each night.
    settings = facts.settings and replace(facts.settings, path="")
    digest = hashlib.sha256(repr((settings, values)).encode())
    # The ends of a live cluster differ from moment to moment, and the configuration has a digest of its topics file.
    for topics in (source.topics for source in sources if not source.topics.are_live):
        for table in (topics.names, topics.counts, topics.ends, topics.starts):
            digest.update(_content(table))
    options = {f"{_OPTION}.{name}": text for name, text in texts.items()}
    options[_DIGEST] = digest.hexdigest()[:16]
    return options | {f"limits.of_cluster.{name}": str(value) for name, value in limits.items()}


def without_origins(options: Mapping[str, str]) -> dict[str, str]:
    """The options of a run without those that only say where facts come from."""
    return {
        name: text for name, text in options.items() if not name.startswith(f"{_OPTION}.") or name == _DIGEST
    }


def _content(table: pa.Table) -> memoryview:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table.combine_chunks())
    return memoryview(sink.getvalue())


def _group_limit_conflicts(facts: ClusterFacts, limits: Limits) -> Iterator[FactConflict]:
    for group, own in facts.group_limits.items():
        for name, value in own.items():
            given = limits.groups.get(group, {}).get(name, value)
            if given != value:
                text = f"{name} of the group is {given} in the configuration, but {value} by its configs"
                text += f"; {given} is used"
                yield FactConflict(text, {"configured": str(given), "metadata log": str(value)}, group)


def _topic_conflicts(first: TopicSource, second: TopicSource) -> Iterator[FactConflict]:
    """Topics on which two sources disagree; the first of them is used."""
    for topic_id, name, other in _differences(first.topics.names, second.topics.names, "topic"):
        text = f"the topic is {name} in the {first.name}, but {other} in the {second.name}; {name} is used"
        yield FactConflict(text, {first.name: name, second.name: other}, topic_id=topic_id, topic=name)
    for topic_id, count, other in _differences(first.topics.counts, second.topics.counts, "partitions"):
        text = f"the topic has {count} partitions in the {first.name}, but {other} in the {second.name}"
        text += f"; {count} is used"
        name = first.topics.name_of(pa.array([topic_id])).to_pylist()[0]
        values = {first.name: str(count), second.name: str(other)}
        yield FactConflict(text, values, topic_id=topic_id, topic=name)
    for source, other in ((first, second), (second, first)):
        if other.is_authority and not source.is_authority:
            yield from _stale_topics(source, other)


def _differences(first: pa.Table, second: pa.Table, column: str) -> Iterator[tuple[str, Any, Any]]:
    """Topic id and both values of a column, where two tables with one row per topic disagree."""
    values = second[column].combine_chunks()
    other = values.take(pc.index_in(first["topic_id"], second["topic_id"].combine_chunks()))
    is_different = pc.fill_null(pc.not_equal(first[column], other), False)
    differing = first.append_column("other", other).filter(is_different)
    return zip(*(differing[name].to_pylist() for name in ("topic_id", column, "other")), strict=True)


def _stale_topics(source: TopicSource, authority: TopicSource) -> Iterator[FactConflict]:
    """Topics of a source that do not exist in the cluster."""
    names = source.topics.names
    is_known = pc.is_in(names["topic_id"], authority.topics.names["topic_id"].combine_chunks())
    unknown = names.filter(pc.invert(is_known))
    for topic_id, name in zip(unknown["topic_id"].to_pylist(), unknown["topic"].to_pylist(), strict=True):
        if topic_id in authority.removed:
            text = f"the {source.name} names a topic that is deleted, according to the {authority.name}"
            values = {source.name: name, authority.name: "deleted"}
        elif authority.topics.is_complete:
            text = f"the {source.name} names a topic that is not in the {authority.name}; is it of another cluster?"
            values = {source.name: name, authority.name: "absent"}
        else:
            continue
        yield FactConflict(text, values, topic_id=topic_id, topic=name)


def _partition_conflicts(facts: ClusterFacts, explicit: int | None) -> Iterator[FactConflict]:
    actual = facts.state_partitions
    if explicit is not None and actual is not None and explicit != actual:
        origin = facts.origins.get("state_partitions", "the metadata log")
        text = f"state_partitions is {explicit} in the call or its configuration, but {actual} by {origin}"
        yield FactConflict(f"{text}; {explicit} is used", {"configured": str(explicit), origin: str(actual)})
