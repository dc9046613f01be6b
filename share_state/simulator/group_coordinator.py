"""The share groups of a cluster as their coordinators keep them, and the records that these write."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from share_state.kafka.releases import Release
from share_state.simulator.assignor import Assigned, Assignment, assign
from share_state.simulator.group_values import (
    GROUP_RECORDS,
    MEMBER_RECORDS,
    GroupValue,
    current,
    group_metadata,
    group_record,
    member_metadata,
    state_partitions,
    target,
    target_epoch,
)
from share_state.simulator.metadata_hash import group_hash, topic_hash
from share_state.simulator.types import ErrorCode

_HOST = "/127.0.0.1"
_NO_TIME = 0

Append = Callable[[str, GroupValue, int], None]
"""Appends a record to the log partition of a group: group id, record, time in ms."""

Partitions = dict[str, set[int]]
"""Topic -> partitions."""


@dataclass(slots=True)
class SimulatedMember:
    """A member of a share group: its topics by name, and what it reads, by topic id, since its epoch."""

    topics: tuple[str, ...]
    epoch: int = 0
    assigned: Assigned = field(default_factory=dict)


@dataclass(slots=True)
class SimulatedGroup:
    """A share group.

    Attributes:
        epoch: group epoch.
        assignment_epoch: epoch of the assignment; None if none was computed.
        targets: the assignment.
        initializing, initialized: partitions by topic, whose state is requested, and has been made.
    """

    group_id: str
    epoch: int
    assignment_epoch: int | None = None
    members: dict[str, SimulatedMember] = field(default_factory=dict)
    targets: Assignment = field(default_factory=dict)
    initializing: Partitions = field(default_factory=dict)
    initialized: Partitions = field(default_factory=dict)

    def lists(self, topic: str, partition: int) -> bool:
        """Whether a share-partition has state, or its state is requested."""
        return any(partition in one.get(topic, ()) for one in (self.initializing, self.initialized))


class GroupCoordinator:
    """Plays heartbeats and administration of share groups, and writes what they change.

    A change is followed at once by what Kafka does with the next heartbeats: the assignment is computed anew,
    and every member reaches it.

    Args:
        append: writes a record.
        topic_id: the id of a topic, by name.
        release: of the brokers; it must assign evenly.
        max_size: most members of a group, group.share.max.size.
    Source: Kafka GroupMetadataManager.shareGroupHeartbeat, shareGroupLeave,
        maybeCreateInitializeShareGroupStateRequest.
    """

    def __init__(
        self, append: Append, topic_id: Callable[[str], str], release: Release, max_size: int
    ) -> None:
        self._append, self._topic_id = append, topic_id
        self._release, self._max_size = release, max_size
        self.partitions: dict[str, int] = {}
        self.groups: dict[str, SimulatedGroup] = {}

    def epoch(self, group_id: str) -> int:
        """The epoch of a group; of one that does not exist, the epoch that it will have."""
        group = self.groups.get(group_id)
        return self._release.first_group_epoch if group is None else group.epoch

    def member(self, group_id: str, member: str) -> SimulatedMember | None:
        """A member of a group, None if there is none."""
        group = self.groups.get(group_id)
        return group.members.get(member) if group else None

    def topics_of(self, group_id: str, member: str) -> tuple[str, ...]:
        """The topics that a member subscribes to; none if there is no such member."""
        known = self.member(group_id, member)
        return known.topics if known else ()

    def readers(self, group_id: str, topic: str, partition: int) -> list[str]:
        """The members that read a share-partition, sorted."""
        group = self.groups.get(group_id)
        members = {} if group is None else group.members
        topic_id = self._topic_id(topic)
        return sorted(name for name, one in members.items() if partition in one.assigned.get(topic_id, ()))

    def set_partitions(self, topic: str, count: int, now_ms: int) -> None:
        """A topic is created, or gets more partitions."""
        if self.partitions.get(topic, 0) >= count:
            return
        self.partitions[topic] = count
        for group in self.groups.values():
            if any(topic in member.topics for member in group.members.values()):
                self._raise_epoch(group, now_ms)
                self._reassign(group, now_ms)
                self._request_state(group, now_ms)

    def subscribe(self, group_id: str, member: str, topics: Sequence[str], now_ms: int) -> ErrorCode:
        """A member heartbeats with these topics: it joins, or changes its subscription."""
        group = self._group(group_id)
        known = group.members.get(member)
        if known is None and len(group.members) >= self._max_size:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if known is not None and set(known.topics) == set(topics):
            return ErrorCode.NONE
        if known is None:
            known = group.members[member] = SimulatedMember(())
        known.topics = tuple(sorted(set(topics)))
        self._append(
            group_id, member_metadata(group_id, member, known.topics, f"client-{member}", _HOST), now_ms
        )
        self._raise_epoch(group, now_ms)
        self._reassign(group, now_ms)
        self._request_state(group, now_ms)
        return ErrorCode.NONE

    def leave(self, group_id: str, member: str, now_ms: int) -> None:
        """A member leaves, or its session has expired."""
        group = self.groups.get(group_id)
        if group is None or group.members.pop(member, None) is None:
            return
        group.targets.pop(member, None)
        for record_type in MEMBER_RECORDS:
            self._append(group_id, group_record(record_type, group_id, member), now_ms)
        self._raise_epoch(group, now_ms)
        if group.members:
            self._reassign(group, now_ms)
        elif self._release.assigns_to_nobody:
            self._record_assignment_epoch(group, now_ms, _NO_TIME)

    def begin_initialize(
        self, group_id: str, topic: str, partition: int, state_epoch: int, now_ms: int
    ) -> None:
        """The state of a share-partition is requested, with a state epoch that the group has reached by then."""
        group = self._group(group_id)
        self.partitions[topic] = max(self.partitions.get(topic, 0), partition + 1)
        if state_epoch > group.epoch:
            group.epoch = state_epoch
            self._record_epoch(group, now_ms)
        if partition not in group.initializing.get(topic, ()):
            group.initializing.setdefault(topic, set()).add(partition)
            self._record_partitions(group, now_ms)

    def finish_initialize(self, group_id: str, topic: str, partition: int, now_ms: int) -> None:
        """The state of a share-partition has been made; members get it with their next heartbeat."""
        group = self.groups[group_id]
        group.initializing[topic].discard(partition)
        is_new = partition not in group.initialized.get(topic, ())
        group.initialized.setdefault(topic, set()).add(partition)
        self._record_partitions(group, now_ms)
        if is_new and group.members:
            self._raise_epoch(group, now_ms)
            self._reassign(group, now_ms)

    def delete(self, group_id: str, topic: str, partition: int, now_ms: int) -> None:
        """The state of a share-partition is deleted; with the last one of a group without members, the group is."""
        group = self.groups.get(group_id)
        if group is None or not group.lists(topic, partition):
            return
        for listed in (group.initializing, group.initialized):
            listed.get(topic, set()).discard(partition)
        if group.members or any([*group.initializing.values(), *group.initialized.values()]):
            self._record_partitions(group, now_ms)
            return
        for record_type in GROUP_RECORDS:
            self._append(group_id, group_record(record_type, group_id), now_ms)
        del self.groups[group_id]

    def _group(self, group_id: str) -> SimulatedGroup:
        first = self._release.first_group_epoch
        return self.groups.setdefault(group_id, SimulatedGroup(group_id, first))

    def _raise_epoch(self, group: SimulatedGroup, now_ms: int) -> None:
        group.epoch += 1
        self._record_epoch(group, now_ms)

    def _record_epoch(self, group: SimulatedGroup, now_ms: int) -> None:
        names = {
            topic for member in group.members.values() for topic in member.topics
        } & self.partitions.keys()
        hashes = {
            name: topic_hash(self._topic_id(name), name, [()] * self.partitions[name]) for name in names
        }
        record = group_metadata(group.group_id, group.epoch, group_hash(hashes))
        self._append(group.group_id, record, now_ms)

    def _record_assignment_epoch(self, group: SimulatedGroup, now_ms: int, time_ms: int) -> None:
        group.assignment_epoch = group.epoch
        time_ms = time_ms if self._release.times_assignments else _NO_TIME
        self._append(group.group_id, target_epoch(group.group_id, group.epoch, time_ms), now_ms)

    def _reassign(self, group: SimulatedGroup, now_ms: int) -> None:
        """Compute the assignment, and let every member reach it."""
        subscriptions = {
            name: [self._topic_id(topic) for topic in member.topics if topic in self.partitions]
            for name, member in group.members.items()
        }
        assignable = {
            self._topic_id(topic): sorted(partitions) for topic, partitions in group.initialized.items()
        }
        targets = assign(subscriptions, assignable, group.targets)
        for name, assigned in targets.items():
            if assigned != group.targets.get(name):
                self._append(group.group_id, target(group.group_id, name, assigned), now_ms)
        group.targets = targets
        self._record_assignment_epoch(group, now_ms, now_ms)
        for name, member in group.members.items():
            record = current(group.group_id, name, group.epoch, targets[name], member.epoch)
            self._append(group.group_id, record, now_ms)
            member.epoch, member.assigned = group.epoch, targets[name]

    def _request_state(self, group: SimulatedGroup, now_ms: int) -> None:
        """Request the state of every partition of a subscribed topic that has none."""
        wanted = [
            (topic, partition)
            for topic in sorted({topic for member in group.members.values() for topic in member.topics})
            for partition in range(self.partitions.get(topic, 0))
            if not group.lists(topic, partition)
        ]
        for topic, partition in wanted:
            group.initializing.setdefault(topic, set()).add(partition)
        if wanted:
            self._record_partitions(group, now_ms)

    def _record_partitions(self, group: SimulatedGroup, now_ms: int) -> None:
        names = {self._topic_id(topic): topic for topic in {*group.initialized, *group.initializing}}
        initialized, initializing = self._by_id(group.initialized), self._by_id(group.initializing)
        record = state_partitions(group.group_id, initialized, initializing, (), names)
        self._append(group.group_id, record, now_ms)

    def _by_id(self, partitions: Mapping[str, Iterable[int]]) -> dict[str, list[int]]:
        return {
            self._topic_id(topic): sorted(of_topic)
            for topic, of_topic in sorted(partitions.items())
            if of_topic
        }
