"""What a group coordinator holds of share groups: plain data, changed by one record after the other."""

from dataclasses import dataclass, field
from typing import Any

NOT_JOINED = -1
"""Epoch of a member without an assignment, and of an assignment that was never made."""

TopicPartitions = dict[str, tuple[int, ...]]
"""topic id -> partitions"""

MEMBER_STATES = {0: "STABLE", 1: "UNREVOKED_PARTITIONS", 2: "UNRELEASED_PARTITIONS", 127: "UNKNOWN"}


@dataclass(slots=True)
class ShareMember:
    """A member of a share group.

    Attributes:
        is_described: whether a record tells who it is; without one only its assignment is known.
        member_epoch: epoch of the assignment that it has reached.
        assigned: what it has.
    """

    member_id: str
    is_described: bool = False
    rack_id: str | None = None
    client_id: str | None = None
    client_host: str | None = None
    subscribed_topics: tuple[str, ...] = ()
    member_epoch: int = NOT_JOINED
    previous_member_epoch: int = NOT_JOINED
    state: int = 0
    assigned: TopicPartitions = field(default_factory=dict)


@dataclass(slots=True)
class ShareGroup:
    """A share group.

    Attributes:
        group_id: its name.
        partition: of `__consumer_offsets`, None where the log does not tell.
        is_live: False once its record was deleted and nothing of it is left.
        epoch: None where no record tells it: of a group that was only given offsets, up to 4.2 takes 0 and 4.3 takes 1.
        metadata_hash: over its topics; None where 4.0 wrote the record.
        epoch_time: ms, stamp of the record that told the epoch.
        assignment_epoch: epoch that its assignment answers, -1 for none, None where no record tells it.
        assignment_time: ms, 0 unknown.
        members: by member id.
        targets: member id -> what it is to have.
        topic_sizes: topic name -> number of partitions, which 4.0 alone writes.
        is_early: whether 4.0 wrote it, whose assignor shares every partition among all members.
        last_offset: of its latest record.
        last_time: ms, stamp of that.

    Source: Kafka ShareGroup, ModernGroup.
    """

    group_id: str
    partition: int | None
    is_live: bool = False
    epoch: int | None = None
    metadata_hash: int | None = None
    epoch_time: int = 0
    assignment_epoch: int | None = None
    assignment_time: int = 0
    members: dict[str, ShareMember] = field(default_factory=dict)
    targets: dict[str, TopicPartitions] = field(default_factory=dict)
    topic_sizes: dict[str, int] = field(default_factory=dict)
    is_early: bool = False
    last_offset: int = -1
    last_time: int = 0

    @property
    def state(self) -> str:
        """As Kafka derives it from the members. Source: Kafka ShareGroup.maybeUpdateGroupState."""
        if not self.is_live:
            return "Dead"
        return "Stable" if self.members else "Empty"

    def member(self, member_id: str) -> ShareMember:
        """The member of that id, made where there is none."""
        return self.members.setdefault(member_id, ShareMember(member_id))


@dataclass(slots=True)
class StatePartitions:
    """The share-partitions that a share group keeps state of.

    Attributes:
        partition: of `__consumer_offsets`, None where the log does not tell.
        initializing: share-partitions whose state is being made.
        initialized: share-partitions with state.
        deleting: ids of topics whose state is being deleted.
        names: topic id -> name.
        offset: of the record that says so.
        time: ms, its stamp.
    """

    partition: int | None
    initializing: TopicPartitions
    initialized: TopicPartitions
    deleting: tuple[str, ...]
    names: dict[str, str]
    offset: int
    time: int


def topic_partitions(structs: list[dict[str, Any]]) -> TopicPartitions:
    """Decoded structs of topic_id and partitions; a topic that is told twice has the partitions of both."""
    found: TopicPartitions = {}
    for struct in structs:
        found[struct["topic_id"]] = found.get(struct["topic_id"], ()) + tuple(struct["partitions"])
    return found


def pairs(partitions: TopicPartitions) -> set[tuple[str, int]]:
    """Every (topic id, partition)."""
    return {(topic_id, partition) for topic_id, of_topic in partitions.items() for partition in of_topic}
