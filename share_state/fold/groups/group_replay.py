"""Replays the records of one partition of `__consumer_offsets` into the share groups of its coordinator."""

from dataclasses import dataclass, field, replace
from typing import Any

from share_state.kafka.classic_groups import Generation
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
"""Epoch of a member without an assignment, and of an assignment that was never computed."""

TopicPartitions = dict[str, tuple[int, ...]]
"""topic id -> partitions"""

MEMBER_STATES = {0: "STABLE", 1: "UNREVOKED_PARTITIONS", 2: "UNRELEASED_PARTITIONS", 127: "UNKNOWN"}


@dataclass(slots=True)
class ShareMember:
    """A member of a share group.

    Attributes:
        is_described: whether a member record exists; without one only its assignment is known.
        member_epoch: epoch of its current assignment.
        assigned: its current assignment.
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
        partition: partition of `__consumer_offsets`, None if unknown.
        is_live: False after its deletion.
        epoch: group epoch; None without a group record. A group that only has offsets starts at 0 up to 4.2,
            at 1 in 4.3.
        metadata_hash: hash of the metadata of its topics; None if 4.0 wrote the record.
        epoch_time, assignment_time: ms, when the epoch was recorded and the assignment computed; 0 if
            unknown.
        assignment_epoch: epoch of its target assignment, -1 for none, None without a record.
        targets: member id -> target assignment.
        is_early: whether 4.0 wrote the group; its assignor assigns every partition to all members.
        last_offset, last_time: offset and timestamp in ms of its latest record.

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
    is_early: bool = False
    last_offset: int = -1
    last_time: int = 0

    @property
    def state(self) -> str:
        """Group state, derived from the members. Source: Kafka ShareGroup.maybeUpdateGroupState."""
        if not self.is_live:
            return "Dead"
        return "Stable" if self.members else "Empty"

    def member(self, member_id: str) -> ShareMember:
        """The member with an id; created if missing."""
        return self.members.setdefault(member_id, ShareMember(member_id))


@dataclass(slots=True)
class StatePartitions:
    """The share-partitions for which a share group has state.

    Attributes:
        partition: partition of `__consumer_offsets`, None if unknown.
        initializing: share-partitions whose state is being created.
        initialized: share-partitions with state.
        deleting: ids of topics whose state is being deleted.
        names: topic id -> name.
        offset, time: offset and timestamp (ms) of the record.
    """

    partition: int | None
    initializing: TopicPartitions
    initialized: TopicPartitions
    deleting: tuple[str, ...]
    names: dict[str, str]
    offset: int
    time: int


def topic_partitions(structs: list[dict[str, Any]]) -> TopicPartitions:
    """Convert decoded structs of topic_id and partitions; combines entries of the same topic."""
    partitions: TopicPartitions = {}
    for struct in structs:
        partitions[struct["topic_id"]] = partitions.get(struct["topic_id"], ()) + tuple(struct["partitions"])
    return partitions


def to_pairs(partitions: TopicPartitions) -> set[tuple[str, int]]:
    """Every (topic id, partition)."""
    return {(topic_id, partition) for topic_id, of_topic in partitions.items() for partition in of_topic}


@dataclass(frozen=True, slots=True)
class GroupFault:
    """A record or batch that cannot be read or should not exist.

    Attributes:
        code: the rule that reports it.
        partition: partition of `__consumer_offsets`, None if unknown.
        offset: offset of the record, -1 if it has none.
        is_harmless: whether Kafka can read it.
    """

    code: str
    partition: int | None
    offset: int
    message: str
    group_id: str | None = None
    is_harmless: bool = False


@dataclass(frozen=True, slots=True)
class EpochStep:
    """A group epoch of a share group that is not the epoch before it plus one."""

    group_id: str
    offset: int
    before: int
    after: int


_STICKY = b"sticky"


@dataclass(slots=True)
class ReplayedGroups:
    """The groups of `__consumer_offsets`, and irregularities found while replaying it.

    Attributes:
        groups: share groups by id, including deleted ones.
        state_partitions: the share-partitions of each group, by group id.
        classic: latest record of every live group of the classic protocol, by group id.
        sticky: every record of groups that may use a sticky assignor, deleted groups included, by partition
            and offset.
        consumer_groups: ids of live groups of the consumer protocol.
        names: topic id -> latest name.
        faults: records and batches that cannot be read or should not exist.
        epoch_steps: group epochs that do not increase by one.
        newest_time: ms, latest timestamp of any group record.
    """

    groups: dict[str, ShareGroup] = field(default_factory=dict)
    state_partitions: dict[str, StatePartitions] = field(default_factory=dict)
    classic: dict[str, Generation] = field(default_factory=dict)
    sticky: list[Generation] = field(default_factory=list)
    consumer_groups: set[str] = field(default_factory=set)
    names: dict[str, str] = field(default_factory=dict)
    faults: list[GroupFault] = field(default_factory=list)
    epoch_steps: list[EpochStep] = field(default_factory=list)
    newest_time: int = 0


@dataclass(slots=True)
class GroupReplay(ReplayedGroups):
    """Replays one partition of `__consumer_offsets`; its number is None if unknown."""

    partition: int | None = None
    _seen: dict[str, tuple[int, int]] = field(default_factory=dict)  # reported once: first offset and count

    def apply(self, record: GroupRecord) -> None:
        """Replay one record; an unreadable record becomes a fault.

        Source: Kafka GroupMetadataManager.replay.
        """
        try:
            key = read_key(record)
            if key is None:
                self._note(f"type {record.type}", record.offset)
                return
            self.newest_time = max(self.newest_time, record.timestamp)
            if record.type == GroupRecordType.CLASSIC_GROUP:
                self._classic_group(key, record)
            elif record.type == GroupRecordType.CONSUMER_GROUP:
                if record.value is None:
                    self.consumer_groups.discard(key.group_id)
                else:
                    self.consumer_groups.add(key.group_id)
            elif record.value is None:
                self._deleted(key, record)
            else:
                self._apply_value(key, record, record.value)
        except GroupRecordError as error:
            self.faults.append(GroupFault(error.code, self.partition, record.offset, str(error)))

    def _classic_group(self, key: GroupKey, record: GroupRecord) -> None:
        if record.value is None:
            self.classic.pop(key.group_id, None)
            return
        generation = Generation(key.group_id, self.partition, record.offset, record.timestamp, record.value)
        self.classic[key.group_id] = generation
        if _STICKY in record.value:
            self.sticky.append(generation)

    def _deleted(self, key: GroupKey, record: GroupRecord) -> None:
        group = self._touch(key.group_id, record)
        if record.type == GroupRecordType.SHARE_STATE_PARTITIONS:
            self.state_partitions.pop(key.group_id, None)
        elif record.type == GroupRecordType.SHARE_GROUP:
            self._delete_group(group, record)
        elif record.type == GroupRecordType.SHARE_MEMBER:
            self._delete_member(group, key.member_id, record)
        elif record.type == GroupRecordType.SHARE_TARGET_EPOCH:
            if group.targets:
                self._in_use("the assignment", f"{len(group.targets)} members have one", group, record)
            group.assignment_epoch, group.assignment_time = NOT_JOINED, 0
        elif record.type == GroupRecordType.SHARE_TARGET_MEMBER:
            group.targets.pop(key.member_id, None)
        elif record.type == GroupRecordType.SHARE_CURRENT_MEMBER and key.member_id in group.members:
            member = group.members[key.member_id]
            member.member_epoch = member.previous_member_epoch = NOT_JOINED
            member.assigned = {}

    def _delete_group(self, group: ShareGroup, record: GroupRecord) -> None:
        if group.members or group.targets or group.assignment_epoch not in (None, NOT_JOINED):
            left = f"{len(group.members)} members and {len(group.targets)} assignments are left"
            self._in_use("the group", left, group, record)
        self.groups[group.group_id] = ShareGroup(
            group.group_id, self.partition, last_offset=record.offset, last_time=record.timestamp
        )

    def _delete_member(self, group: ShareGroup, member_id: str, record: GroupRecord) -> None:
        member = group.members.pop(member_id, None)
        if member is not None and (member.member_epoch != NOT_JOINED or member_id in group.targets):
            self._in_use(f"member {member_id}", f"it is at epoch {member.member_epoch}", group, record)

    def _in_use(self, what: str, left: str, group: ShareGroup, record: GroupRecord) -> None:
        text = f"{what} is deleted while {left}; the broker could not load this"
        self.faults.append(
            GroupFault("GROUP_DELETED_IN_USE", self.partition, record.offset, text, group.group_id)
        )

    def _touch(self, group_id: str, record: GroupRecord) -> ShareGroup:
        group = self.groups.setdefault(group_id, ShareGroup(group_id, self.partition))
        group.last_offset, group.last_time = record.offset, record.timestamp
        return group

    def _apply_value(self, key: GroupKey, record: GroupRecord, value: bytes) -> None:
        read = read_value(record.type, value)
        if read.trailing:
            self.faults.append(
                GroupFault("VALUE_MALFORMED", self.partition, record.offset,
                           f"{read.trailing} bytes after the value, which Kafka ignores", key.group_id, True)
            )  # fmt: skip
        if _has_unknown_tags(read.fields):
            self._note("tags", record.offset)
        if record.type in (GroupRecordType.SHARE_GROUP, GroupRecordType.SHARE_STATE_PARTITIONS):
            self._note("early" if read.is_early else "current", record.offset)
        group = self._touch(key.group_id, record)
        group.is_live = True
        group.is_early |= read.is_early
        fields = read.fields
        match record.type:
            case GroupRecordType.SHARE_PARTITION_METADATA:
                self.names.update({one["topic_id"]: one["topic_name"] for one in fields["topics"]})
            case GroupRecordType.SHARE_MEMBER:
                member = group.member(key.member_id)
                member.is_described = True
                member.rack_id = fields["rack_id"]
                member.client_id, member.client_host = fields["client_id"], fields["client_host"]
                member.subscribed_topics = tuple(fields["subscribed_topic_names"])
            case GroupRecordType.SHARE_GROUP:
                if group.epoch is not None and fields["epoch"] != group.epoch + 1:
                    self.epoch_steps.append(
                        EpochStep(group.group_id, record.offset, group.epoch, fields["epoch"])
                    )
                group.epoch, group.epoch_time = fields["epoch"], record.timestamp
                group.metadata_hash = fields.get("metadata_hash")
            case GroupRecordType.SHARE_TARGET_EPOCH:
                group.assignment_epoch = fields["assignment_epoch"]
                group.assignment_time = fields["assignment_timestamp"]
            case GroupRecordType.SHARE_TARGET_MEMBER:
                group.targets[key.member_id] = topic_partitions(fields["topic_partitions"])
            case GroupRecordType.SHARE_CURRENT_MEMBER:
                member = group.member(key.member_id)
                member.member_epoch = fields["member_epoch"]
                member.previous_member_epoch = fields["previous_member_epoch"]
                member.state = fields["state"]
                member.assigned = topic_partitions(fields["assigned_partitions"])
            case GroupRecordType.SHARE_STATE_PARTITIONS:
                self._state_partitions(key.group_id, fields, record)

    def _state_partitions(self, group_id: str, fields: dict[str, Any], record: GroupRecord) -> None:
        initializing = fields.get("initializing_topics", [])
        every = [*initializing, *fields["initialized_topics"], *fields["deleting_topics"]]
        names = {one["topic_id"]: one["topic_name"] for one in every}
        self.names.update(names)
        self.state_partitions[group_id] = StatePartitions(
            self.partition,
            topic_partitions(initializing),
            topic_partitions(fields["initialized_topics"]),
            tuple(one["topic_id"] for one in fields["deleting_topics"]),
            names,
            record.offset,
            record.timestamp,
        )

    def _note(self, what: str, offset: int) -> None:
        first, count = self._seen.get(what, (offset, 0))
        self._seen[what] = (first, count + 1)

    def finish(self, *, has_offsets: bool = True) -> None:
        """Add the faults that are reported once per log.

        If the input has no offsets, records were numbered in order of reading. These numbers become -1,
        except in generations of classic groups, which they distinguish.
        """
        for what, (offset, count) in self._seen.items():
            code = "UNKNOWN_RECORD_TYPE"
            text = f"{count} records of unknown {what} were skipped; this is the first"
            if what == "tags":
                code, text = "UNKNOWN_TAG", f"{count} records have unknown tagged fields; this is the first"
            if what not in ("early", "current"):
                self.faults.append(GroupFault(code, self.partition, offset, text, is_harmless=True))
        if "early" in self._seen and "current" in self._seen:
            offset = max(self._seen["early"][0], self._seen["current"][0])
            text = "one log has records of 4.0 and of later releases; neither can load the other's"
            self.faults.append(GroupFault("LAYOUT_MIXED", self.partition, offset, text))
        self._seen = {}
        if has_offsets:
            return
        for group in self.groups.values():
            group.last_offset = -1
        self.state_partitions = {
            name: replace(listed, offset=-1) for name, listed in self.state_partitions.items()
        }
        self.faults = [replace(fault, offset=-1) for fault in self.faults]
        self.epoch_steps = [replace(step, offset=-1) for step in self.epoch_steps]


def _has_unknown_tags(fields: dict[str, Any]) -> bool:
    return UNKNOWN_TAGS in fields or any(
        isinstance(one, dict) and _has_unknown_tags(one)
        for value in fields.values()
        if isinstance(value, list)
        for one in value
    )
