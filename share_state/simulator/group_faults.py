"""Faults in records of share groups: what a healthy group coordinator would not write to `__consumer_offsets`."""

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from share_state.kafka.group_records import GroupRecordType
from share_state.kafka.primitives import partition_for
from share_state.simulator.assignor import Assigned
from share_state.simulator.group_coordinator import SimulatedGroup
from share_state.simulator.group_side import GroupSide
from share_state.simulator.group_values import (
    GROUP_RECORDS,
    MEMBER_RECORDS,
    GroupValue,
    current,
    encode_key,
    encode_value,
    group_metadata,
    group_record,
    member_metadata,
    state_partitions,
    target,
    target_epoch,
)
from share_state.simulator.record_faults import Fault
from share_state.simulator.state_values import StateKey

_RETRY_MS, _GRACE_MS = 31_000, 301_000
"""Longer than the audit's default `retry_seconds` and `delete_grace_seconds`."""

_MANY_MEMBERS = 201
"""One more than the default of group.share.max.size."""

_FOREIGN_TYPE, _FOREIGN_VERSION = 99, 9
_FOREIGN_TAG = (7, b"\xab\xcd")
_NO_PARTITION = 9_999


class SharePartition(NamedTuple):
    """The topic and the partition of a share-partition of the group."""

    topic_id: str
    topic: str
    partition: int


class GroupFaultRecord(NamedTuple):
    """A record to append, and its timestamp in ms after the time of the simulation."""

    record: GroupValue
    after_ms: int = 0


@dataclass(frozen=True, slots=True)
class GroupFaultTarget:
    """A group in which a fault can be planted.

    Attributes:
        state_epoch: of `place`, -1 if it has no state.
        place: one of its initialized share-partitions, None if it has none.
        now_ms: time of the simulation.
    """

    side: GroupSide
    group: SimulatedGroup
    state_epoch: int
    place: SharePartition | None
    now_ms: int

    @property
    def group_id(self) -> str:
        """The group's id."""
        return self.group.group_id

    @property
    def key(self) -> StateKey | None:
        """The key of the share-partition that the fault concerns, None if the group has none."""
        return self.place and StateKey(self.group_id, self.place.topic_id, self.place.partition)

    @property
    def number(self) -> int:
        """The partition of `__consumer_offsets` that has the group."""
        return partition_for(self.group_id, len(self.side.logs))

    @property
    def chosen(self) -> SharePartition:
        """The share-partition that the fault concerns."""
        assert self.place
        return self.place

    @property
    def partitions(self) -> list[SharePartition]:
        """The share-partitions that the group's members read."""
        places = {
            (topic_id, partition)
            for member in self.group.targets.values()
            for topic_id, numbers in member.items()
            for partition in numbers
        }
        return [SharePartition(topic_id, "", partition) for topic_id, partition in sorted(places)]

    @property
    def is_shared_by_equals(self) -> bool:
        """Whether several members with the same topics read several share-partitions."""
        members = self.group.members.values()
        return (
            len(members) > 1 and len({member.topics for member in members}) == 1 and len(self.partitions) > 1
        )

    @property
    def stranger(self) -> str:
        """A group id that belongs to another partition of `__consumer_offsets`."""
        count = len(self.side.logs)
        names = (f"astray-{number}" for number in range(64 * count))
        return next(name for name in names if partition_for(name, count) != self.number)

    def listed(
        self, initialized: Iterable[SharePartition], *, initializing: bool = False, deleting: bool = False
    ) -> GroupFaultRecord:
        """The list of share-partitions, with the chosen one moved to another status."""
        chosen = self.chosen
        record = state_partitions(
            self.group_id,
            _by_topic(initialized),
            {chosen.topic_id: [chosen.partition]} if initializing else {},
            [chosen.topic_id] if deleting else [],
            {one.topic_id: one.topic for one in self.initialized},
        )
        return GroupFaultRecord(record)

    @property
    def initialized(self) -> list[SharePartition]:
        """The share-partitions that the group lists as initialized."""
        return initialized_of(self.side, self.group)

    @property
    def others(self) -> list[SharePartition]:
        """Those without the chosen one."""
        return [one for one in self.initialized if one != self.chosen]

    def later(self, after_ms: int) -> GroupFaultRecord:
        """A record that changes nothing, so that time has passed."""
        epoch = self.group.assignment_epoch
        return GroupFaultRecord(
            target_epoch(self.group_id, self.group.epoch if epoch is None else epoch), after_ms
        )

    def tombstone(self, record_type: GroupRecordType, member: str | None = None) -> GroupFaultRecord:
        """A record without a value."""
        return GroupFaultRecord(group_record(record_type, self.group_id, member))

    def epoch(self, epoch: int) -> GroupFaultRecord:
        """Another epoch of the group."""
        return GroupFaultRecord(group_metadata(self.group_id, epoch, 0))

    def targets(self, assigned: Iterable[list[SharePartition]]) -> list[GroupFaultRecord]:
        """Other targets of the group's members, in order."""
        return [
            GroupFaultRecord(target(self.group_id, member, _by_topic(places)))
            for member, places in zip(self.group.members, assigned, strict=True)
        ]

    def deleted_members(self) -> list[GroupFaultRecord]:
        """The members leave, without a new epoch."""
        return [self.tombstone(one, member) for member in self.group.members for one in MEMBER_RECORDS]


def initialized_of(side: GroupSide, group: SimulatedGroup) -> list[SharePartition]:
    """The share-partitions that a group lists as initialized."""
    return [
        SharePartition(side.topic_id(topic), topic, partition)
        for topic, partitions in sorted(group.initialized.items())
        for partition in sorted(partitions)
    ]


def _by_topic(places: Iterable[SharePartition]) -> Assigned:
    by_topic: Assigned = {}
    for topic_id, _, partition in places:
        by_topic.setdefault(topic_id, []).append(partition)
    return by_topic


Subject = tuple[str, str | None, int | None]
"""Group id, topic id and partition that a finding names; None where it names none."""


def _group(target: GroupFaultTarget) -> Subject:
    return target.group_id, None, None


def _place(target: GroupFaultTarget) -> Subject:
    return target.group_id, target.chosen.topic_id, target.chosen.partition


@dataclass(frozen=True, slots=True)
class GroupFault(Fault):
    """A fault in the records of a share group.

    Attributes:
        build: returns the records to append, the faulty one first.
        applies_to: whether a group can be its target.
        subject: what the finding names; None if it names the log.
        is_of_records: whether the same finding is made of state records, so that the fault's name has a prefix.
    """

    dialects: ClassVar[tuple[str, ...]] = ("consumer_offsets",)

    build: Callable[[GroupFaultTarget], list[GroupFaultRecord]]
    applies_to: Callable[[GroupFaultTarget], bool] = lambda target: target.place is not None
    subject: Callable[[GroupFaultTarget], Subject | None] = _group
    is_of_records: bool = False

    @property
    def name(self) -> str:
        """The option value."""
        name = self.finding.lower().replace("_", "-")
        return f"group-{name}" if self.is_of_records else name


def _has_members(target: GroupFaultTarget) -> bool:
    return target.place is not None and bool(target.group.members)


def _has_epoch_and_members(target: GroupFaultTarget) -> bool:
    return _has_members(target) and target.group.assignment_epoch == target.group.epoch


def _orphaned(target: GroupFaultTarget) -> list[GroupFaultRecord]:
    return [*target.deleted_members(), *map(target.tombstone, GROUP_RECORDS)]


def _first_member(target: GroupFaultTarget) -> str:
    return next(iter(target.group.members))


def _reads_uninitialized(fault: GroupFaultTarget) -> list[GroupFaultRecord]:
    member = _first_member(fault)
    assigned = fault.group.targets.get(member, {})
    topic_id = fault.chosen.topic_id
    more = {**assigned, topic_id: [*assigned.get(topic_id, []), _NO_PARTITION]}
    return [GroupFaultRecord(target(fault.group_id, member, more))]


def _too_many_members(fault: GroupFaultTarget) -> list[GroupFaultRecord]:
    topics = next(iter(fault.group.members.values())).topics
    return [
        GroupFaultRecord(
            member_metadata(fault.group_id, f"one-more-{number}", topics, "client", "/127.0.0.1")
        )
        for number in range(_MANY_MEMBERS)
    ]


def _raw(
    fault: GroupFaultTarget, *, key: bytes | None = None, value: bytes | None = None
) -> list[GroupFaultRecord]:
    """A record of the group's epoch with another key or value."""
    own = fault.epoch(fault.group.epoch).record
    return [
        GroupFaultRecord(GroupValue(own.key if key is None else key, own.value if value is None else value))
    ]


def _epoch_key(fault: GroupFaultTarget) -> bytes:
    return encode_key(GroupRecordType.SHARE_GROUP, fault.group_id)


def _epoch_value(fault: GroupFaultTarget) -> bytes:
    return fault.epoch(fault.group.epoch).record.value or b""


def _tagged(fault: GroupFaultTarget) -> list[GroupFaultRecord]:
    fields = {"epoch": fault.group.epoch + 1, "metadata_hash": 0, "unknown_tags": [_FOREIGN_TAG]}
    return _raw(fault, value=encode_value(GroupRecordType.SHARE_GROUP, **fields))


def _early(fault: GroupFaultTarget) -> list[GroupFaultRecord]:
    value = encode_value(GroupRecordType.SHARE_GROUP, releases="4.0", epoch=fault.group.epoch + 1)
    return _raw(fault, value=value)


def _no_subject(target: GroupFaultTarget) -> None:
    """The finding names the log."""


def _of_consumers(fault: GroupFaultTarget) -> list[GroupFaultRecord]:
    """A consumer group's record: version 0, epoch 1, no tags."""
    key = encode_key(GroupRecordType.CONSUMER_GROUP, fault.group_id)
    return [GroupFaultRecord(GroupValue(key, struct.pack(">hi", 0, 1) + b"\0"))]


GROUP_FAULTS = (
    GroupFault("ORPHAN_SHARE_STATE", "a group that is deleted although its state is left", _orphaned, subject=_place),
    GroupFault("UNINITIALIZED_PARTITION", "a share-partition with state that its group does not list",
               lambda v: [v.listed(v.others)], subject=_place),
    GroupFault("MISSING_SHARE_STATE", "a listed share-partition that never had state",
               lambda v: [v.listed([*v.initialized, v.chosen._replace(partition=_NO_PARTITION)])],
               subject=lambda v: (v.group_id, v.chosen.topic_id, _NO_PARTITION)),
    GroupFault("STATE_EPOCH_AHEAD_OF_GROUP", "a group epoch below the state epochs",
               lambda v: [v.epoch(v.state_epoch - 1)], lambda v: v.place is not None and v.state_epoch > 0,
               subject=_place),
    GroupFault("MISPLACED_GROUP", "a group in the wrong partition of __consumer_offsets",
               lambda v: [GroupFaultRecord(group_metadata(v.stranger, 1, 0))],
               lambda v: len(v.side.logs) > 1, subject=lambda v: (v.stranger, None, None)),
    GroupFault("MISSING_INIT", "a partition of a subscribed topic that is not initialized for half a minute",
               lambda v: [v.listed(v.others), v.later(_RETRY_MS)], _has_members, subject=_place),
    GroupFault("STUCK_INITIALIZING", "a share-partition that is initializing for half a minute",
               lambda v: [v.listed(v.others, initializing=True), v.later(_RETRY_MS)], subject=_place),
    GroupFault("DELETE_INCOMPLETE", "a topic whose state is being deleted for five minutes",
               lambda v: [v.listed([one for one in v.others if one.topic_id != v.chosen.topic_id], deleting=True),
                          v.later(_GRACE_MS)], subject=_place),
    GroupFault("ASSIGNED_UNINITIALIZED", "a member that is to read a share-partition without state",
               _reads_uninitialized, _has_members,
               subject=lambda v: (v.group_id, v.chosen.topic_id, _NO_PARTITION)),
    GroupFault("EPOCH_AHEAD", "a member ahead of the assignment",
               lambda v: [GroupFaultRecord(current(v.group_id, _first_member(v), v.group.epoch + 3, {}))],
               _has_members),
    GroupFault("GROUP_OVER_CAP", "more members than group.share.max.size", _too_many_members, _has_members),
    GroupFault("GROUP_TYPE_CLASH", "a consumer group with the id of a share group", _of_consumers),
    GroupFault("GROUP_EPOCH_REGRESSION", "a group epoch that decreases",
               lambda v: [v.epoch(v.group.epoch - 1)], _has_members),
    GroupFault("ASSIGNMENT_PENDING", "a group epoch without an assignment",
               lambda v: [v.epoch(v.group.epoch + 1)], _has_members),
    GroupFault("OVERSHARED", "an assignment that gives every member everything",
               lambda v: v.targets([v.partitions] * len(v.group.members)),
               lambda v: _has_epoch_and_members(v) and v.is_shared_by_equals,
               subject=lambda v: (v.group_id, v.partitions[0].topic_id, v.partitions[0].partition)),
    GroupFault("UNBALANCED", "an assignment that gives one member everything",
               lambda v: v.targets([v.partitions, *[[]] * (len(v.group.members) - 1)]),
               lambda v: _has_epoch_and_members(v) and v.is_shared_by_equals),
    GroupFault("GROUP_DELETED_IN_USE", "a group that is deleted before its members",
               lambda v: [v.tombstone(GroupRecordType.SHARE_GROUP)], _has_members),
    GroupFault("UNKNOWN_RECORD_TYPE", "a group record of an unknown type",
               lambda v: _raw(v, key=struct.pack(">h", _FOREIGN_TYPE) + _epoch_key(v)[2:]),
               subject=_no_subject, is_of_records=True),
    GroupFault("UNKNOWN_TAG", "a group epoch with an unknown tag", _tagged, subject=_no_subject, is_of_records=True),
    GroupFault("LAYOUT_MIXED", "a group epoch in the layout of 4.0", _early, subject=_no_subject,
               is_of_records=True),
    GroupFault("KEY_MALFORMED", "a group's key that ends early", lambda v: _raw(v, key=_epoch_key(v)[:-2]),
               subject=_no_subject, is_of_records=True),
    GroupFault("VALUE_MALFORMED", "a group epoch that ends early", lambda v: _raw(v, value=_epoch_value(v)[:-3]),
               subject=_no_subject, is_of_records=True),
    GroupFault("VALUE_VERSION_UNKNOWN", "a group epoch of version 9",
               lambda v: _raw(v, value=struct.pack(">h", _FOREIGN_VERSION) + _epoch_value(v)[2:]),
               subject=_no_subject, is_of_records=True),
)  # fmt: skip
