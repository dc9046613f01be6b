"""What a group coordinator holds of share groups: plain data, changed by one record after the other.

What is met while `__consumer_offsets` is replayed, and is judged or read later.

Replays the records of one partition of `__consumer_offsets` into what its group coordinator holds.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from share_state.kafka.codec import UNKNOWN_TAGS
from share_state.kafka.group_records import (
    GroupKey,
    GroupRecord,
    GroupRecordError,
    GroupRecordType,
    read_key,
    read_value,
)

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


@dataclass(frozen=True, slots=True)
class GroupFault:
    """Something in the log that cannot be read or should not be there.

    Attributes:
        code: the rule that it breaks.
        partition: of `__consumer_offsets`, None where the log does not tell.
        offset: where it is, -1 where it has none.
        message: what is wrong, in a sentence.
        group_id: whom it is about, where that is known.
        is_harmless: whether Kafka reads it in spite of it.
    """

    code: str
    partition: int | None
    offset: int
    message: str
    group_id: str | None = None
    is_harmless: bool = False


@dataclass(frozen=True, slots=True)
class EpochStep:
    """A share group's epoch that is not its predecessor's plus one."""

    group_id: str
    offset: int
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Generation:
    """One record of a group of the classic protocol, still bytes.

    Attributes:
        group_id: the group.
        partition: of `__consumer_offsets`, None where the log does not tell.
        offset: of the record.
        time: ms, its stamp.
        value: a GroupMetadataValue, its version in front.
    """

    group_id: str
    partition: int | None
    offset: int
    time: int
    value: bytes


_STICKY = b"sticky"


@dataclass(slots=True)
class GroupReplay:
    """What the coordinator of one partition holds, and what was met on the way.

    Attributes:
        partition: of `__consumer_offsets`, None where the log does not tell.
        groups: share groups by id, deleted ones among them.
        state_partitions: by group id.
        classic: latest record of every live group of the classic protocol.
        sticky: every record of a group whose assignor may be a sticky one, in offset order, deleted groups included.
        consumer_groups: ids of live consumer groups of the newer protocol, and the offset of their latest record.
        names: topic id -> latest name.
        faults: what is wrong, in log order.
        epoch_steps: epochs that do not rise by one.
        newest_time: ms, stamp of the latest record of a group.
    """

    partition: int | None
    groups: dict[str, ShareGroup] = field(default_factory=dict)
    state_partitions: dict[str, StatePartitions] = field(default_factory=dict)
    classic: dict[str, Generation] = field(default_factory=dict)
    sticky: list[Generation] = field(default_factory=list)
    consumer_groups: dict[str, int] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    faults: list[GroupFault] = field(default_factory=list)
    epoch_steps: list[EpochStep] = field(default_factory=list)
    newest_time: int = 0
    _seen: dict[str, tuple[int, int]] = field(default_factory=dict)  # what is told once: first offset and number

    def apply(self, told: GroupRecord) -> None:
        """Replay one record; one that cannot be read is noted and left out.

        Source: Kafka GroupMetadataManager.replay.
        """
        try:
            key = read_key(told)
            if key is None:
                self._note(f"type {told.type}", told.offset)
                return
            self.newest_time = max(self.newest_time, told.timestamp)
            if told.type == GroupRecordType.CLASSIC_GROUP:
                self._classic_group(key, told)
            elif told.type == GroupRecordType.CONSUMER_GROUP:
                self._consumer_group(key, told)
            elif told.value is None:
                self._deleted(key, told)
            else:
                self._told(key, told, told.value)
        except GroupRecordError as error:
            self.faults.append(GroupFault(error.code, self.partition, told.offset, str(error)))

    def _classic_group(self, key: GroupKey, told: GroupRecord) -> None:
        if told.value is None:
            self.classic.pop(key.group_id, None)
            return
        generation = Generation(key.group_id, self.partition, told.offset, told.timestamp, told.value)
        self.classic[key.group_id] = generation
        if _STICKY in told.value:
            self.sticky.append(generation)

    def _consumer_group(self, key: GroupKey, told: GroupRecord) -> None:
        if told.value is None:
            self.consumer_groups.pop(key.group_id, None)
        else:
            self.consumer_groups[key.group_id] = told.offset

    def _deleted(self, key: GroupKey, told: GroupRecord) -> None:
        group = self._touched(key.group_id, told)
        if told.type == GroupRecordType.SHARE_STATE_PARTITIONS:
            self.state_partitions.pop(key.group_id, None)
        elif told.type == GroupRecordType.SHARE_GROUP:
            self._delete_group(group, told)
        elif told.type == GroupRecordType.SHARE_MEMBER:
            self._delete_member(group, key.member_id, told)
        elif told.type == GroupRecordType.SHARE_TARGET_EPOCH:
            if group.targets:
                self._in_use("the assignment", f"{len(group.targets)} members have one", group, told)
            group.assignment_epoch, group.assignment_time = NOT_JOINED, 0
        elif told.type == GroupRecordType.SHARE_TARGET_MEMBER:
            group.targets.pop(key.member_id, None)
        elif told.type == GroupRecordType.SHARE_CURRENT_MEMBER and key.member_id in group.members:
            member = group.members[key.member_id]
            member.member_epoch = member.previous_member_epoch = NOT_JOINED
            member.assigned = {}
        elif told.type == GroupRecordType.SHARE_PARTITION_METADATA:
            group.topic_sizes = {}

    def _delete_group(self, group: ShareGroup, told: GroupRecord) -> None:
        if group.members or group.targets or group.assignment_epoch not in (None, NOT_JOINED):
            left = f"{len(group.members)} members and {len(group.targets)} assignments are left"
            self._in_use("the group", left, group, told)
        self.groups[group.group_id] = ShareGroup(
            group.group_id, self.partition, last_offset=told.offset, last_time=told.timestamp
        )

    def _delete_member(self, group: ShareGroup, member_id: str, told: GroupRecord) -> None:
        member = group.members.pop(member_id, None)
        if member is not None and (member.member_epoch != NOT_JOINED or member_id in group.targets):
            self._in_use(f"member {member_id}", f"it is at epoch {member.member_epoch}", group, told)

    def _in_use(self, what: str, left: str, group: ShareGroup, told: GroupRecord) -> None:
        text = f"{what} is deleted while {left}; the broker could not load this"
        self.faults.append(GroupFault("GROUP_DELETED_IN_USE", self.partition, told.offset, text, group.group_id))

    def _touched(self, group_id: str, told: GroupRecord) -> ShareGroup:
        group = self.groups.setdefault(group_id, ShareGroup(group_id, self.partition))
        group.last_offset, group.last_time = told.offset, told.timestamp
        return group

    def _told(self, key: GroupKey, told: GroupRecord, value: bytes) -> None:
        read = read_value(told.type, value)
        if read.trailing:
            self.faults.append(
                GroupFault("VALUE_MALFORMED", self.partition, told.offset,
                           f"{read.trailing} bytes behind the value, which Kafka ignores", key.group_id, True)
            )  # fmt: skip
        if _has_unknown_tags(read.fields):
            self._note("tags", told.offset)
        if told.type in (GroupRecordType.SHARE_GROUP, GroupRecordType.SHARE_STATE_PARTITIONS):
            self._note("early" if read.is_early else "current", told.offset)
        group = self._touched(key.group_id, told)
        group.is_live = True
        group.is_early |= read.is_early
        _APPLY[GroupRecordType(told.type)](self, group, key, read.fields, told)

    def _share_group(self, group: ShareGroup, _: GroupKey, fields: dict[str, Any], told: GroupRecord) -> None:
        if group.epoch is not None and fields["epoch"] != group.epoch + 1:
            self.epoch_steps.append(EpochStep(group.group_id, told.offset, group.epoch, fields["epoch"]))
        group.epoch, group.epoch_time = fields["epoch"], told.timestamp
        group.metadata_hash = fields.get("metadata_hash")

    def _member(self, group: ShareGroup, key: GroupKey, fields: dict[str, Any], _: GroupRecord) -> None:
        member = group.member(key.member_id)
        member.is_described = True
        member.rack_id = fields["rack_id"]
        member.client_id, member.client_host = fields["client_id"], fields["client_host"]
        member.subscribed_topics = tuple(fields["subscribed_topic_names"])

    def _target_epoch(self, group: ShareGroup, _: GroupKey, fields: dict[str, Any], _told: GroupRecord) -> None:
        group.assignment_epoch = fields["assignment_epoch"]
        group.assignment_time = fields["assignment_timestamp"]

    def _target_member(self, group: ShareGroup, key: GroupKey, fields: dict[str, Any], _: GroupRecord) -> None:
        group.targets[key.member_id] = topic_partitions(fields["topic_partitions"])

    def _current_member(self, group: ShareGroup, key: GroupKey, fields: dict[str, Any], _: GroupRecord) -> None:
        member: ShareMember = group.member(key.member_id)
        member.member_epoch, member.previous_member_epoch = fields["member_epoch"], fields["previous_member_epoch"]
        member.state = fields["state"]
        member.assigned = topic_partitions(fields["assigned_partitions"])

    def _partition_metadata(self, group: ShareGroup, _: GroupKey, fields: dict[str, Any], _told: GroupRecord) -> None:
        group.topic_sizes = {one["topic_name"]: one["num_partitions"] for one in fields["topics"]}
        self.names.update({one["topic_id"]: one["topic_name"] for one in fields["topics"]})

    def _state_partitions(self, _: ShareGroup, key: GroupKey, fields: dict[str, Any], told: GroupRecord) -> None:
        initializing = fields.get("initializing_topics", [])
        every = [*initializing, *fields["initialized_topics"], *fields["deleting_topics"]]
        names = {one["topic_id"]: one["topic_name"] for one in every}
        self.names.update(names)
        self.state_partitions[key.group_id] = StatePartitions(
            self.partition,
            topic_partitions(initializing),
            topic_partitions(fields["initialized_topics"]),
            tuple(one["topic_id"] for one in fields["deleting_topics"]),
            names,
            told.offset,
            told.timestamp,
        )

    def _note(self, what: str, offset: int) -> None:
        first, count = self._seen.get(what, (offset, 0))
        self._seen[what] = (first, count + 1)

    def finish(self) -> None:
        """Add the faults that are told once a log."""
        for what, (offset, count) in self._seen.items():
            if what.startswith("type "):
                text = f"{count} records of unknown {what} were skipped, the first here"
                self.faults.append(GroupFault("UNKNOWN_RECORD_TYPE", self.partition, offset, text, is_harmless=True))
            elif what == "tags":
                text = f"{count} records carry unknown tagged fields, the first here"
                self.faults.append(GroupFault("UNKNOWN_TAG", self.partition, offset, text, is_harmless=True))
        if "early" in self._seen and "current" in self._seen:
            offset = max(self._seen["early"][0], self._seen["current"][0])
            text = "groups of 4.0 and of later releases in one log; neither can load the other's"
            self.faults.append(GroupFault("LAYOUT_MIXED", self.partition, offset, text))
        self._seen = {}

    def forget_offsets(self) -> None:
        """Set offsets to -1: the form of the export has none, and records were numbered as they came.

        Generations of classic groups keep their numbers, which tell them apart.
        """
        for group in self.groups.values():
            group.last_offset = -1
        self.state_partitions = {name: replace(listed, offset=-1) for name, listed in self.state_partitions.items()}
        self.faults = [replace(fault, offset=-1) for fault in self.faults]
        self.epoch_steps = [replace(step, offset=-1) for step in self.epoch_steps]


_Apply = Callable[[GroupReplay, ShareGroup, GroupKey, dict[str, Any], GroupRecord], None]

_APPLY: dict[GroupRecordType, _Apply] = {
    GroupRecordType.SHARE_PARTITION_METADATA: GroupReplay._partition_metadata,
    GroupRecordType.SHARE_MEMBER: GroupReplay._member,
    GroupRecordType.SHARE_GROUP: GroupReplay._share_group,
    GroupRecordType.SHARE_TARGET_EPOCH: GroupReplay._target_epoch,
    GroupRecordType.SHARE_TARGET_MEMBER: GroupReplay._target_member,
    GroupRecordType.SHARE_CURRENT_MEMBER: GroupReplay._current_member,
    GroupRecordType.SHARE_STATE_PARTITIONS: GroupReplay._state_partitions,
}


def _has_unknown_tags(fields: dict[str, Any]) -> bool:
    return UNKNOWN_TAGS in fields or any(
        isinstance(one, dict) and _has_unknown_tags(one)
        for value in fields.values()
        if isinstance(value, list)
        for one in value
    )
