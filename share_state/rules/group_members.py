"""Members of share groups, their epochs, and what they are to read.

Records of `__consumer_offsets` about groups that cannot be read, or that a broker could not load.
"""

from collections import Counter
from collections.abc import Callable

from share_state.fold.group_replay import GroupFault, ShareGroup, ShareMember, pairs
from share_state.fold.groups import expected_sizes, sharing
from share_state.rules.group_context import AuditedGroups
from share_state.rules.registry import ERROR, INFO, WARNING, GroupFinding, Rules, RuleText, listed


def assigned_uninitialized(audited: AuditedGroups) -> list[GroupFinding]:
    """Share-partitions that a member is to read, or reads, before they have state."""
    findings = []
    for group, of_group in audited.listed():
        ready = pairs(of_group.initialized)
        holders: dict[tuple[str, int], set[str]] = {}
        for member_id, target in group.targets.items():
            for place in pairs(target) - ready:
                holders.setdefault(place, set()).add(member_id)
        for (topic_id, partition), members in sorted(holders.items()):
            text = f"assigned to {len(members)} members, and not initialized"
            findings.append(
                GroupFinding(text, group.group_id, topic_id, audited.names.get(topic_id), partition,
                             offset=of_group.offset, evidence={"members": listed(sorted(members))})
            )  # fmt: skip
    return findings


def epoch_ahead(audited: AuditedGroups) -> list[GroupFinding]:
    """Members at a later epoch than the assignment that they follow."""
    return [
        _of_group(group, f"member {member.member_id} is at epoch {member.member_epoch}, the assignment at"
                         f" {group.assignment_epoch}", member=member.member_id)
        for group in _live(audited)
        for member in _members(group)
        if group.assignment_epoch is not None and member.member_epoch > group.assignment_epoch
    ]  # fmt: skip


def group_over_cap(audited: AuditedGroups) -> list[GroupFinding]:
    """Groups with more members than the coordinator lets in."""
    most = audited.limits.members
    return [
        _of_group(group, f"{len(group.members)} members, and {most} are allowed", members=len(group.members), cap=most)
        for group in _live(audited)
        if len(group.members) > most
    ]


def group_type_clash(audited: AuditedGroups) -> list[GroupFinding]:
    """Group ids under which both a share group and a consumer group live; a group cannot change its type."""
    folded = audited.folded
    return [
        _of_group(group, "a consumer group of the same id lives in the log")
        for group in _live(audited)
        if group.group_id in folded.classic or group.group_id in folded.consumer_groups
    ]


def group_epoch_regression(audited: AuditedGroups) -> list[GroupFinding]:
    """Group epochs that fall, or stay; those that jump are info, as the log is compacted."""
    findings = []
    for step in audited.folded.epoch_steps:
        jumps = step.after > step.before
        text = f"the group epoch goes from {step.before} to {step.after}"
        findings.append(
            GroupFinding(f"{text}: the records between are compacted away" if jumps else text, step.group_id,
                         offset=step.offset, evidence={"before": step.before, "after": step.after},
                         severity=INFO if jumps else None)
        )  # fmt: skip
    return findings


def assignment_pending(audited: AuditedGroups) -> list[GroupFinding]:
    """Groups with members whose assignment is older than their epoch: a new one is due."""
    findings = []
    for group in _live(audited):
        if not group.members or group.epoch is None or (group.assignment_epoch or 0) >= group.epoch:
            continue
        age = audited.time - group.epoch_time
        answered = f"epoch {group.assignment_epoch}" if (group.assignment_epoch or 0) > 0 else "no epoch yet"
        text = f"the assignment answers {answered}, and the group is at {group.epoch} for {age} ms"
        findings.append(_of_group(group, text, age_ms=age))
    return findings


def overshared(audited: AuditedGroups) -> list[GroupFinding]:
    """Partitions that more members read than are needed to give each member one."""
    findings = []
    for group in _comparable(audited):
        readers = Counter(place for target in group.targets.values() for place in pairs(target))
        most = sharing(len(group.members), len(readers))
        findings += [
            GroupFinding(f"{count} members read it, and {most} would do", group.group_id, topic_id,
                         audited.names.get(topic_id), partition, evidence={"members": count, "sharing": most})
            for (topic_id, partition), count in sorted(readers.items())
            if count > most
        ]  # fmt: skip
    return findings


def unbalanced(audited: AuditedGroups) -> list[GroupFinding]:
    """Groups whose members have more unequal numbers of partitions than Kafka's own assignor gives.

    That of 4.1 is less even than that of 4.2 and later, and nothing in the log tells the two apart.
    """
    findings = []
    for group in _comparable(audited):
        sizes = sorted(len(pairs(group.targets.get(member_id, {}))) for member_id in group.members)
        partitions = len({place for target in group.targets.values() for place in pairs(target)})
        if not partitions:
            continue
        expected = sorted(expected_sizes(len(sizes), partitions))
        far = any(abs(size - due) > 1 for size, due in zip(sizes, expected, strict=True))
        if far or sizes[-1] - sizes[0] > 1:
            text = f"members have {listed(reversed(sizes))} partitions each, and {listed(reversed(expected))} is due"
            findings.append(_of_group(group, text, most=sizes[-1], least=sizes[0]))
    return findings


def _live(audited: AuditedGroups) -> list[ShareGroup]:
    return [group for _, group in sorted(audited.folded.live.items())]


def _members(group: ShareGroup) -> list[ShareMember]:
    return [member for _, member in sorted(group.members.items())]


def _comparable(audited: AuditedGroups) -> list[ShareGroup]:
    """Groups whose assignment is up to date, of members that want the same: only there the numbers are known."""
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


def _of_group(group: ShareGroup, message: str, **evidence: object) -> GroupFinding:
    return GroupFinding(message, group.group_id, offset=group.last_offset, evidence=evidence)


ASSIGNMENT_RULES: Rules[AuditedGroups] = (
    (
        RuleText("ASSIGNED_UNINITIALIZED", WARNING, "Only share-partitions that are initialized are assigned.", "K-78"),
        assigned_uninitialized,
    ),
    (
        RuleText("EPOCH_AHEAD", WARNING, "No member is ahead of its group's assignment.", "K-15"),
        epoch_ahead,
    ),
    (
        RuleText(
            "GROUP_OVER_CAP", WARNING, "A share group has no more members than group.share.max.size.", "K-01, K-25"
        ),
        group_over_cap,
    ),
    (
        RuleText("GROUP_TYPE_CLASH", WARNING, "A group id is that of one group, of one type.", "K-22"),
        group_type_clash,
    ),
    (
        RuleText("GROUP_EPOCH_REGRESSION", WARNING, "A group's epoch rises by one with each change.", "K-23"),
        group_epoch_regression,
    ),
    (
        RuleText("ASSIGNMENT_PENDING", INFO, "A group's assignment answers its epoch.", "K-24"),
        assignment_pending,
    ),
    (
        RuleText(
            "OVERSHARED",
            INFO,
            "A partition has no more readers than give each member one.",
            "K-30, K-33; SimpleAssignor",
        ),
        overshared,
    ),
    (
        RuleText(
            "UNBALANCED",
            INFO,
            "Members that want the same topics have equal numbers of partitions, give or take one.",
            "K-31 to K-34; SimpleAssignor",
        ),
        unbalanced,
    ),
)
"""Rules over members and assignments; the functions take AuditedGroups."""


Faults = tuple[GroupFault, ...]
"""What `fold_groups` and `fold_sticky` met."""

_TEXTS = (
    RuleText("TORN_TAIL", WARNING, "Every segment ends where a batch ends.", "Kafka LogSegment.recover"),
    RuleText("CRC_MISMATCH", ERROR, "The CRC-32C of every batch matches its bytes.", "Kafka DefaultRecordBatch"),
    RuleText("MAGIC_UNSUPPORTED", ERROR, "Every batch is of format version 2.", "Kafka RecordBatch"),
    RuleText(
        "BATCH_MALFORMED", ERROR, "The lengths and counts in every batch agree with its bytes.", "Kafka DefaultRecord"
    ),
    RuleText(
        "DUPLICATE_OFFSET_CONFLICT", ERROR, "Where an offset is found twice, both hold the same bytes.", "spec I41"
    ),
    RuleText(
        "UNKNOWN_RECORD_TYPE", INFO, "Every record is of a type that is known.", "Kafka GroupCoordinatorRecordSerde"
    ),
    RuleText("UNKNOWN_TAG", INFO, "No record of a share group carries a tagged field that is not known.", "KIP-482"),
    RuleText("LAYOUT_MIXED", WARNING, "All share groups are written by 4.0, or all by 4.1 and later.", "spec 7"),
    RuleText("KEY_MALFORMED", ERROR, "Every key of a group's record can be read.", "Kafka GroupCoordinatorRecordSerde"),
    RuleText(
        "VALUE_MALFORMED", ERROR, "Every value of a group's record is read to its last byte.", "Kafka MessageUtil"
    ),
    RuleText(
        "VALUE_VERSION_UNKNOWN",
        ERROR,
        "Every value is of a version that is known.",
        "Kafka GroupCoordinatorRecordSerde",
    ),
    RuleText(
        "GROUP_DELETED_IN_USE",
        ERROR,
        "A group is deleted after its members, a member after its assignment.",
        "Kafka GroupMetadataManager.replay",
    ),
)


def _of_code(code: str, harmless: str) -> Callable[[Faults], list[GroupFinding]]:
    def check(faults: Faults) -> list[GroupFinding]:
        return [
            GroupFinding(
                fault.message,
                fault.group_id,
                offset=fault.offset,
                evidence={} if fault.partition is None else {"group_partition": fault.partition},
                severity=harmless if fault.is_harmless else None,
            )
            for fault in faults
            if fault.code == code
        ]

    return check


RECORD_RULES: Rules[Faults] = tuple(
    (text, _of_code(text.code, INFO if text.severity == INFO else WARNING)) for text in _TEXTS
)
"""Rules over records and batches; the functions take the faults of FoldedGroups and FoldedSticky."""
