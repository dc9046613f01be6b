"""Rules over the members of share groups, their epochs and assignments, and over faulty records about groups."""

from collections import Counter
from collections.abc import Iterator, Sequence

from share_state.fold.durations import duration_text
from share_state.fold.groups.group_replay import GroupFault, ShareGroup, to_pairs
from share_state.fold.groups.group_tables import expected_assignment_sizes, members_per_partition
from share_state.fold.log_stats import BATCH_FAULTS
from share_state.rules import batches, records  # noqa: F401  their rules apply to group records, too
from share_state.rules.breaches import ERROR, INFO, WARNING, GroupBreach, listed
from share_state.rules.group_context import AuditedGroups
from share_state.rules.registry import Scope, register, registered, rule


@rule("ASSIGNED_UNINITIALIZED", Scope.GROUPS, WARNING, "Kafka GroupMetadataManager.shareGroupHeartbeat")
def assigned_uninitialized(audited: AuditedGroups) -> Iterator[GroupBreach]:
    """Only initialized share-partitions are assigned.

    While the assignment is behind the group's epoch, as after a topic was deleted, it has `retry_ms` to
    follow.

    Do: check the broker's assignor.
    """
    for group, of_group in audited.listed():
        is_behind = group.epoch is not None and (group.assignment_epoch or 0) < group.epoch
        if is_behind and audited.time - group.epoch_time <= audited.limits.retry_ms:
            continue
        ready = to_pairs(of_group.initialized)
        holders: dict[tuple[str, int], set[str]] = {}
        for member_id, target in group.targets.items():
            for place in to_pairs(target) - ready:
                holders.setdefault(place, set()).add(member_id)
        for (topic_id, partition), members in sorted(holders.items()):
            text = f"assigned to {len(members)} members, but not initialized"
            yield GroupBreach(text, group.group_id, topic_id, audited.names.get(topic_id), partition,
                offset=of_group.offset, evidence={"members": listed(sorted(members))})  # fmt: skip


@rule("EPOCH_AHEAD", Scope.GROUPS, WARNING, "KIP-932, member epoch")
def epoch_ahead(audited: AuditedGroups) -> list[GroupBreach]:
    """No member's epoch is ahead of its group's assignment epoch.

    Do: compare the replicas.
    """
    return [
        _of_group(group, f"member {member.member_id} is at epoch {member.member_epoch}, the assignment at"
                         f" {group.assignment_epoch}", member=member.member_id)
        for group in _live(audited)
        for _, member in sorted(group.members.items())
        if group.assignment_epoch is not None and member.member_epoch > group.assignment_epoch
    ]  # fmt: skip


@rule("GROUP_OVER_CAP", Scope.GROUPS, WARNING, "Kafka group.share.max.size")
def group_over_cap(audited: AuditedGroups) -> list[GroupBreach]:
    """A share group has no more members than group.share.max.size.

    Do: set it to the broker's `group.share.max.size`.
    """
    most = audited.limits.members
    return [
        _of_group(
            group, f"{len(group.members)} members; the limit is {most}", members=len(group.members), cap=most
        )
        for group in _live(audited)
        if len(group.members) > most
    ]


@rule(
    "GROUP_TYPE_CLASH",
    Scope.GROUPS,
    WARNING,
    "Kafka GroupMetadataManager.shareGroup (GroupIdNotFoundException)",
)
def group_type_clash(audited: AuditedGroups) -> list[GroupBreach]:
    """A group id belongs to one group, of one type.

    Do: separate the inputs.
    """
    folded = audited.folded
    return [
        _of_group(group, "the log also has a live consumer group with this id")
        for group in _live(audited)
        if group.group_id in folded.classic or group.group_id in folded.consumer_groups
    ]


@rule("GROUP_EPOCH_REGRESSION", Scope.GROUPS, WARNING, "KIP-932, group epoch")
def group_epoch_regression(audited: AuditedGroups) -> Iterator[GroupBreach]:
    """A group's epoch increases by one with each change.

    An increase by more is info, because the log is compacted.

    Do: compare the replicas.
    """
    for step in audited.folded.epoch_steps:
        jumps = step.after > step.before
        text = f"the group epoch goes from {step.before} to {step.after}"
        yield GroupBreach(f"{text}: the records between are compacted away" if jumps else text, step.group_id,
            offset=step.offset, evidence={"before": step.before, "after": step.after},
            severity=INFO if jumps else None)  # fmt: skip


@rule("ASSIGNMENT_PENDING", Scope.GROUPS, INFO, "KIP-932, assignment epoch")
def assignment_pending(audited: AuditedGroups) -> Iterator[GroupBreach]:
    """A group's assignment epoch equals its group epoch.

    Do: nothing, unless it persists.
    """
    for group in _live(audited):
        if not group.members or group.epoch is None or (group.assignment_epoch or 0) >= group.epoch:
            continue
        age = audited.time - group.epoch_time
        answered = f"epoch {group.assignment_epoch}" if (group.assignment_epoch or 0) > 0 else "no epoch yet"
        text = (
            f"the assignment has {answered}, but the group has been at {group.epoch} for {duration_text(age)}"
        )
        yield _of_group(group, text, age_ms=age)


@rule("OVERSHARED", Scope.GROUPS, INFO, "Kafka SimpleAssignor")
def overshared(audited: AuditedGroups) -> Iterator[GroupBreach]:
    """No partition has more readers than are needed to give each member one partition.

    Do: nothing.
    """
    for group in _comparable(audited):
        readers = Counter(place for target in group.targets.values() for place in to_pairs(target))
        most = members_per_partition(len(group.members), len(readers))
        yield from [
            GroupBreach(f"{count} members read it; {most} would be enough", group.group_id, topic_id,
                         audited.names.get(topic_id), partition, evidence={"members": count, "sharing": most})
            for (topic_id, partition), count in sorted(readers.items())
            if count > most
        ]  # fmt: skip


@rule("UNBALANCED", Scope.GROUPS, INFO, "Kafka SimpleAssignor")
def unbalanced(audited: AuditedGroups) -> Iterator[GroupBreach]:
    """Members with the same subscription have equal numbers of partitions, plus or minus one.

    Reports groups whose numbers differ by more than Kafka's assignor would cause. The assignor of 4.1 is less
    even than that of 4.2 and later, and the log does not show which one ran.

    Do: nothing.
    """
    for group in _comparable(audited):
        sizes = sorted(len(to_pairs(group.targets.get(member_id, {}))) for member_id in group.members)
        partitions = len({place for target in group.targets.values() for place in to_pairs(target)})
        if not partitions:
            continue
        expected = sorted(expected_assignment_sizes(len(sizes), partitions))
        is_uneven = any(
            abs(size - expected_size) > 1 for size, expected_size in zip(sizes, expected, strict=True)
        )
        if is_uneven or sizes[-1] - sizes[0] > 1:
            text = f"members have {listed(reversed(sizes))} partitions each; expected: {listed(reversed(expected))}"
            yield _of_group(group, text, most=sizes[-1], least=sizes[0])


def _live(audited: AuditedGroups) -> list[ShareGroup]:
    return [group for _, group in sorted(audited.folded.live.items())]


def _comparable(audited: AuditedGroups) -> list[ShareGroup]:
    """Groups with a current assignment and equal subscriptions: the expected numbers are known only for these."""
    return [
        group
        for group in _live(audited)
        if group.members
        and not group.is_early
        and group.epoch is not None
        and group.assignment_epoch == group.epoch
        and group.targets.keys() <= group.members.keys()
        and len({frozenset(member.subscribed_topics) for member in group.members.values()}) == 1
    ]


def _of_group(group: ShareGroup, message: str, **evidence: object) -> GroupBreach:
    return GroupBreach(message, group.group_id, offset=group.last_offset, evidence=evidence)


# Faulty records and batches of `__consumer_offsets`. Most of these rules apply to `__share_group_state`, too.


def _register(code: str, severity: str, source: str, statement: str, do: str = "") -> None:
    """Register a rule over the faults that `fold_groups` and `fold_sticky` report under its code."""
    harmless = INFO if severity == INFO else WARNING

    def check(faults: Sequence[GroupFault]) -> list[GroupBreach]:
        return [
            GroupBreach(
                fault.message,
                fault.group_id,
                offset=fault.offset,
                evidence={} if fault.partition is None else {"group_partition": fault.partition},
                severity=harmless if fault.is_harmless else None,
            )
            for fault in faults
            if fault.code == code
        ]

    register(code, Scope.GROUP_RECORDS, check, severity, source, statement, do)


_SERDE = "Kafka GroupCoordinatorRecordSerde"
_register("UNKNOWN_RECORD_TYPE", INFO, _SERDE, "Every record of a group has a known type.")
_register("UNKNOWN_TAG", INFO, "KIP-482", "No record of a share group has an unknown tagged field.")
_register(
    "LAYOUT_MIXED",
    WARNING,
    "Kafka ShareGroupMetadataValue.json of 4.0 and 4.1",
    "All share groups are written by 4.0, or all by 4.1 and later.",
)
_register("KEY_MALFORMED", ERROR, _SERDE, "Every key of a group's record can be read.")
_register("VALUE_MALFORMED", ERROR, _SERDE, "Every value of a group's record is read to its last byte.")
_register("VALUE_VERSION_UNKNOWN", ERROR, _SERDE, "Every value of a group's record has a known version.")
_register(
    "GROUP_DELETED_IN_USE",
    ERROR,
    "Kafka GroupMetadataManager.replay",
    "A group is deleted after its members, a member after its assignment.",
    "restore the log from a replica.",
)
for _code, _ in BATCH_FAULTS.values():
    _shared = registered()[_code]
    _register(_code, _shared.severity, _shared.source, _shared.statement)
