"""The rule over facts about the cluster for which two sources disagree."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from share_state.rules.registry import WARNING, GroupBreach, Scope, rule


@dataclass(frozen=True, slots=True)
class FactConflict:
    """A fact about the cluster for which two sources disagree.

    Attributes:
        message: the fact, its values, and which of them is used.
        values: source -> value.
        group_id, topic_id, topic: the subject of the fact, if it is a group or a topic.
    """

    message: str
    values: Mapping[str, str] = field(default_factory=dict)
    group_id: str | None = None
    topic_id: str | None = None
    topic: str | None = None


@rule("CLUSTER_FACTS_DISAGREE", Scope.CLUSTER_FACTS, WARNING, "Kafka metadata records, DynamicBrokerConfig")
def cluster_facts_disagree(conflicts: Sequence[FactConflict]) -> Iterator[GroupBreach]:
    """The call, the topics file, the metadata log and the brokers' settings agree on names, partitions and limits.

    The first of them that knows a fact is used. Ends of topics are not compared, because they grow.
    """
    for one in conflicts:
        yield GroupBreach(one.message, one.group_id, one.topic_id, one.topic, evidence=one.values, dialect=None)
