"""Share groups held against the state of their share-partitions: state without an owner, and the other way round.

Every rule over groups at once: share groups beside their state, classic consumer groups beside their claims.

Lists the rules over groups beside all others, so that they are explained and given severities like them.

Those over records and batches have the codes of the same rules over `__share_group_state`, and are one rule with them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from share_state.fold.group_replay import GroupFault, TopicPartitions, pairs
from share_state.fold.sticky import FoldedSticky
from share_state.rules.group_context import AuditedGroups, Listed
from share_state.rules.group_members import ASSIGNMENT_RULES, RECORD_RULES
from share_state.rules.registry import WARNING, GroupFinding, Rules, RuleText, judged, list_rule, registered
from share_state.rules.sticky import BYTES_RULES, CLAIM_RULES, OUTCOME_RULES
from share_state.sources.discovery import group_partition_of


def orphan_share_state(audited: AuditedGroups) -> list[GroupFinding]:
    """Share-partitions of groups that do not exist.

    Rests for groups whose log partition was not read. Where nobody said how many partitions there are, and most groups
    with state have no record, more are missing from the export than anybody lost: then it rests for all.
    """
    folded, stated = audited.folded, audited.stated
    live = folded.live
    lost = [group_id for group_id in stated.groups if group_id not in live and folded.covers(group_id)]
    if not folded.count_is_told and 2 * len(lost) > len(stated.groups):
        return []
    text = "the share group has no record in __consumer_offsets; its state is left over or the group was lost"
    return [_about(row, text) for row in stated.where(stated.of_groups(lost))]


def uninitialized_partition(audited: AuditedGroups) -> list[GroupFinding]:
    """Share-partitions that their group does not list; rests for groups of 4.0, which list none."""
    stated, of_groups = audited.stated, [(group.group_id, listed) for group, listed in audited.listed()]
    known = {group_id for group_id, _ in of_groups} | {
        group_id
        for group_id, group in audited.folded.live.items()
        if group.metadata_hash is not None and not group.is_early
    }
    listed = [(group_id, topics) for group_id, one in of_groups for topics in (one.initialized, one.initializing)]
    deleting = [(group_id, topic_id) for group_id, one in of_groups for topic_id in one.deleting]
    text = "the share-partition has state that its group does not list"
    unlisted = stated.of_groups(known) & ~stated.among(_by_topic(listed)) & ~stated.of_topics(deleting)
    return [_about(row, text) for row in stated.where(unlisted)]


def missing_share_state(audited: AuditedGroups) -> list[GroupFinding]:
    """Share-partitions that a group lists as initialized, of which `__share_group_state` holds nothing.

    Rests for groups of which no share-partition has state, and for those whose log partition was not read.
    """
    with_state = set(audited.stated.groups)
    of_groups = {group.group_id: one for group, one in audited.listed() if group.group_id in with_state}
    missing = audited.stated.missing(_by_topic((group_id, one.initialized) for group_id, one in of_groups.items()))
    return [
        GroupFinding(
            "the group lists the share-partition as initialized, and it has no state",
            group_id, topic_id, audited.names.get(topic_id), partition, offset=of_groups[group_id].offset,
        )
        for group_id, topic_id, partition in sorted({key for key in missing if audited.knows_state_of(*key)})
    ]  # fmt: skip


def state_epoch_ahead_of_group(audited: AuditedGroups) -> list[GroupFinding]:
    """Share-partitions that were initialised at a group epoch that their group has not reached."""
    stated = audited.stated
    epochs = {group_id: group.epoch for group_id, group in audited.folded.live.items() if group.epoch is not None}
    reached = stated.each(epochs, otherwise=np.iinfo(np.int64).max)
    findings = []
    for row in stated.where(stated.state_epochs > reached):
        state, group = row["state_epoch"], epochs[row["group_id"]]
        text = f"the state is of group epoch {state}, and the group is at {group}"
        findings.append(_about(row, text, state_epoch=state, group_epoch=group))
    return findings


def misplaced_group(audited: AuditedGroups) -> list[GroupFinding]:
    """Groups in a partition where no coordinator looks for them; rests where the number of partitions is not known."""
    count = audited.folded.partition_count
    if count is None:
        return []
    findings = []
    for partition, group_id in audited.folded.places:
        home = group_partition_of(group_id, count)
        if partition is not None and partition != home:
            text = f"the group lies in partition {partition} of __consumer_offsets and belongs to {home} of {count}"
            findings.append(GroupFinding(text, group_id, evidence={"partition": partition, "belongs_to": home}))
    return findings


def missing_init(audited: AuditedGroups) -> list[GroupFinding]:
    """Partitions of a topic that a member subscribes to, without state although there was time to make it."""
    ids: dict[str, list[str]] = {}
    for topic_id, name in audited.names.items():
        ids.setdefault(name, []).append(topic_id)
    findings = []
    for group, listed in audited.listed():
        age = audited.time - listed.time
        if age <= audited.limits.retry_ms:
            continue
        there = pairs(listed.initialized) | pairs(listed.initializing)
        wanted = {name for member in group.members.values() for name in member.subscribed_topics}
        for topic_id in sorted(topic_id for name in wanted for topic_id in ids.get(name, ())):
            for partition in range(audited.sizes.get(topic_id, 0)):
                if (topic_id, partition) not in there and topic_id not in listed.deleting:
                    text = f"the topic has {audited.sizes[topic_id]} partitions, and this one is not initialized"
                    findings.append(
                        GroupFinding(text, group.group_id, topic_id, audited.names[topic_id], partition,
                                     offset=listed.offset, evidence={"age_ms": age})
                    )  # fmt: skip
    return findings


def stuck_initializing(audited: AuditedGroups) -> list[GroupFinding]:
    """Share-partitions whose state was asked for and has not come; the age is that of the group's list."""
    findings = []
    for group, listed in audited.listed():
        age = audited.time - listed.time
        if age > audited.limits.retry_ms:
            findings += [
                GroupFinding(f"the share-partition has been initializing for {age} ms", group.group_id, topic_id,
                             audited.names.get(topic_id), partition, offset=listed.offset, evidence={"age_ms": age})
                for topic_id, partition in sorted(pairs(listed.initializing))
            ]  # fmt: skip
    return findings


def delete_incomplete(audited: AuditedGroups) -> list[GroupFinding]:
    """State of topics whose deletion was begun longer ago than the grace."""
    deleting = {
        (group.group_id, topic_id): audited.time - listed.time
        for group, listed in audited.listed()
        for topic_id in listed.deleting
        if audited.time - listed.time > audited.limits.delete_grace_ms
    }
    rows = audited.stated.where(audited.stated.of_topics(deleting))
    ages = [deleting[row["group_id"], row["topic_id"]] for row in rows]
    return [
        _about(row, f"the state is being deleted for {age} ms and is still there", age_ms=age)
        for row, age in zip(rows, ages, strict=True)
    ]


def _by_topic(listed: Iterable[tuple[str, TopicPartitions]]) -> Iterator[Listed]:
    return ((group_id, *one) for group_id, of_group in listed for one in of_group.items())


def _about(row: Mapping[str, Any], message: str, **evidence: int) -> GroupFinding:
    key = (row["group_id"], row["topic_id"], row["topic"], row["partition"], row["state_partition"])
    return GroupFinding(message, *key, offset=row["last_offset"], evidence=evidence)


GROUP_RULES: Rules[AuditedGroups] = (
    (
        RuleText(
            "ORPHAN_SHARE_STATE", WARNING, "Every share-partition with state is one of a live share group.", "K-08"
        ),
        orphan_share_state,
    ),
    (
        RuleText("UNINITIALIZED_PARTITION", WARNING, "A group lists every share-partition that has state.", "spec I33"),
        uninitialized_partition,
    ),
    (
        RuleText("MISSING_SHARE_STATE", WARNING, "A share-partition that is initialized has state.", "K-26"),
        missing_share_state,
    ),
    (
        RuleText("STATE_EPOCH_AHEAD_OF_GROUP", WARNING, "No state is of a later epoch than its group.", "spec I40"),
        state_epoch_ahead_of_group,
    ),
    (
        RuleText(
            "MISPLACED_GROUP",
            WARNING,
            "A group's records lie in the partition that its id hashes to.",
            "K-11; Kafka GroupCoordinatorService.partitionFor",
        ),
        misplaced_group,
    ),
    (
        RuleText("MISSING_INIT", WARNING, "Every partition of a subscribed topic is initialized in time.", "K-79"),
        missing_init,
    ),
    (
        RuleText(
            "STUCK_INITIALIZING", WARNING, "State that is asked for is made, or asked for again, in time.", "K-26"
        ),
        stuck_initializing,
    ),
    (
        RuleText("DELETE_INCOMPLETE", WARNING, "The state of a topic that is being deleted goes away.", "K-28"),
        delete_incomplete,
    ),
)
"""Rules over groups and states; the functions take AuditedGroups."""


def rule_texts() -> dict[str, RuleText]:
    """Every rule over groups by code; those over records and batches have the codes of the same rules over state."""
    rules = (*GROUP_RULES, *ASSIGNMENT_RULES, *CLAIM_RULES, *OUTCOME_RULES, *BYTES_RULES, *RECORD_RULES)
    return {text.code: text for text, _ in rules}


def judge_group_records(faults: Sequence[GroupFault], severities: Mapping[str, str] | None = None) -> pa.Table:
    """Run the rules over records and batches alone, where nothing is known of the state side.

    Args:
        faults: what `fold_groups` met.
        severities: code -> severity, or OFF, in place of the rule's own.
    Returns:
        The table `findings`, its run_id still null.
    """
    return judged(RECORD_RULES, tuple(faults), severities)


def judge_groups(audited: AuditedGroups, severities: Mapping[str, str] | None = None) -> pa.Table:
    """Run every rule over share groups and over the records that tell of them.

    Args:
        audited: the group side and the state side.
        severities: code -> severity, or OFF, in place of the rule's own.
    Returns:
        The table `findings`, its run_id still null.
    """
    over_records = judge_group_records(audited.folded.faults, severities)
    over_groups = judged((*GROUP_RULES, *ASSIGNMENT_RULES), audited, severities)
    return pa.concat_tables([over_records, over_groups])


def judge_sticky(sticky: FoldedSticky, severities: Mapping[str, str] | None = None) -> pa.Table:
    """Run every rule over the claims and assignments of classic consumer groups.

    Args:
        sticky: of `fold_sticky`.
        severities: code -> severity, or OFF, in place of the rule's own.
    Returns:
        The table `findings`, its run_id still null.
    """
    over_records = judged(RECORD_RULES, sticky.faults, severities)
    over_claims = judged((*CLAIM_RULES, *OUTCOME_RULES, *BYTES_RULES), sticky, severities)
    return pa.concat_tables([over_records, over_claims])


for _text in rule_texts().values():
    if _text.code not in registered():
        list_rule(_text.code, severity=_text.severity, source=_text.source, statement=_text.statement)
