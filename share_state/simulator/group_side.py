"""The group side of a simulated cluster: logs of `__consumer_offsets`, and what events do to share groups."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from share_state.kafka.primitives import partition_for
from share_state.kafka.releases import Release
from share_state.simulator.events import (
    CreatePartitions,
    Delete,
    EventResult,
    GroupEvent,
    Init,
    Join,
    LeaveGroup,
    SharePartitionEvent,
    Subscribe,
    to_json_line,
)
from share_state.simulator.group_coordinator import GroupCoordinator, SimulatedGroup
from share_state.simulator.group_values import GroupValue
from share_state.simulator.log_writer import LogWriter
from share_state.simulator.types import ErrorCode
from share_state.sources.log_partition import GROUP_TOPIC

GROUP_PARTITIONS = 50
"""Partitions of `__consumer_offsets`, offsets.topic.num.partitions."""

GROUP_TRUTH = "group-truth.jsonl"


class GroupSide:
    """The share groups of a simulated cluster and their logs.

    Args:
        folder: the broker's log directory.
        partitions: of `__consumer_offsets`.
        codec, segment_bytes: see LogWriter.
        topic_id, release, max_size: see GroupCoordinator.
    """

    def __init__(
        self,
        folder: Path,
        topic_id: Callable[[str], str],
        release: Release,
        *,
        max_size: int,
        partitions: int,
        codec: str,
        segment_bytes: int,
    ) -> None:
        self.logs = [
            LogWriter(folder / f"{GROUP_TOPIC}-{number}", codec=codec, segment_bytes=segment_bytes)
            for number in range(partitions)
        ]
        self.coordinator = GroupCoordinator(self.append, topic_id, release, max_size)
        self.topic_id = topic_id
        self.records = 0

    def log_of(self, group_id: str) -> LogWriter:
        """The log of a group."""
        return self.logs[partition_for(group_id, len(self.logs))]

    def append(self, group_id: str, record: GroupValue, now_ms: int) -> None:
        """Append a group's record."""
        self.log_of(group_id).append(now_ms, *record)
        self.records += 1

    def apply(self, event: GroupEvent) -> dict[str, Any]:
        """Apply an event of a group or a topic; returns its result as plain data."""
        coordinator = self.coordinator
        result: dict[str, Any] = {"seq": event.seq, "ts_ms": event.ts_ms}
        match event:
            case CreatePartitions():
                coordinator.set_partitions(event.topic, event.partitions, event.ts_ms)
                return result | {"topic": event.topic, "cause": event.event, "error": ErrorCode.NONE.name}
            case Subscribe():
                error = coordinator.subscribe(event.group, event.member, event.topics, event.ts_ms)
            case LeaveGroup():
                error = ErrorCode.NONE
                coordinator.leave(event.group, event.member, event.ts_ms)
        result |= {"group": event.group, "cause": event.event, "member": event.member, "error": error.name}
        member = coordinator.member(event.group, event.member)
        return result | ({"member_epoch": member.epoch, "assigned": member.assigned} if member else {})

    def before(self, event: SharePartitionEvent) -> None:
        """What the group coordinator does before an event of a share-partition."""
        if isinstance(event, Init):
            self.coordinator.begin_initialize(*event.key, event.state_epoch, event.ts_ms)

    def after(self, event: SharePartitionEvent, result: EventResult) -> None:
        """What follows for the group from a result of an event; a consumer may be refused by its group."""
        coordinator = self.coordinator
        if result.member:
            coordinator.leave(result.key.group, result.member, result.ts_ms)
        if result.cause != event.event or result.error is not ErrorCode.NONE:
            return
        match event:
            case Init():
                coordinator.finish_initialize(*event.key, event.ts_ms)
            case Delete():
                coordinator.delete(*event.key, event.ts_ms)
            case Join():
                topics = {event.topic, *coordinator.topics_of(event.group, event.member)}
                result.error = coordinator.subscribe(event.group, event.member, sorted(topics), event.ts_ms)
            case _:
                """Members fetch and acknowledge without their group coordinator."""

    def write_truth(self, folder: Path) -> None:
        """Write the live groups at the end to group-truth.jsonl."""
        rows = [self._row(group) for _, group in sorted(self.coordinator.groups.items())]
        (folder / GROUP_TRUTH).write_text("".join(f"{to_json_line(row)}\n" for row in rows), encoding="utf-8")

    def _row(self, group: SimulatedGroup) -> dict[str, Any]:
        listed = {"initializing": group.initializing, "initialized": group.initialized}
        return {
            "group": group.group_id,
            "groupEpoch": group.epoch,
            "assignmentEpoch": group.assignment_epoch,
            "members": [
                {"member": name, "topics": member.topics, "epoch": member.epoch, "assigned": member.assigned}
                for name, member in sorted(group.members.items())
            ],
        } | {
            status: {self.topic_id(topic): sorted(of_topic) for topic, of_topic in topics.items() if of_topic}
            for status, topics in listed.items()
        }
