"""Rules over share groups and the state of their share-partitions, and the evaluation of all rules over groups."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from share_state.errors import pluralize
from share_state.fold.durations import duration_text
from share_state.fold.groups.group_replay import TopicPartitions, to_pairs
from share_state.fold.groups.sticky import FoldedSticky
from share_state.kafka.primitives import partition_for
from share_state.rules.breaches import INFO, WARNING, GroupBreach
from share_state.rules.findings import findings
from share_state.rules.group_context import AuditedGroups, Listed
from share_state.rules.registry import Scope, rule
from share_state.sources.as_of import time_text
from share_state.sources.topics import BEFORE_THE_LOG


@rule(
    "ORPHAN_SHARE_STATE",
    Scope.GROUPS,
    WARNING,
    "KIP-932, share coordinator; Kafka GroupCoordinatorService.onPartitionsDeleted, deleteGroups",
)
def orphan_share_state(audited: AuditedGroups) -> list[GroupBreach]:
    """Every share-partition with state belongs to a live share group.

    Skips groups whose log partition was not read. If the number of partitions is not configured and most
    groups with state have no record, the export is incomplete, and the rule skips all groups.

    Do: `share-state repair`. Brokers refuse `--delete-offsets` and `--delete` for a group that does not
    exist; joining it creates it anew.
    """
    folded, live = audited.folded, audited.live
    live_groups = folded.live
    lost = [group_id for group_id in live.groups if group_id not in live_groups and folded.covers(group_id)]
    if not folded.has_given_count and 2 * len(lost) > len(live.groups):
        return []
    text = "the share group has no record in __consumer_offsets: its state was not deleted, or the group was lost"
    return [_about(row, text) for row in live.where(live.of_groups(lost))]


@rule("UNINITIALIZED_PARTITION", Scope.GROUPS, WARNING, "Kafka ShareGroupStatePartitionMetadataValue.json")
def uninitialized_partition(audited: AuditedGroups) -> list[GroupBreach]:
    """A group lists every share-partition that has state.

    Skips groups of 4.0, which list none.

    Do: nothing if a member subscribes again, which repairs it; otherwise delete the group's offsets of the
    topic.
    """
    live, of_groups = audited.live, [(group.group_id, listed) for group, listed in audited.listed()]
    listing_groups = {group_id for group_id, _ in of_groups} | {
        group_id
        for group_id, group in audited.folded.live.items()
        if group.metadata_hash is not None and not group.is_early
    }
    listed = [
        (group_id, topics) for group_id, one in of_groups for topics in (one.initialized, one.initializing)
    ]
    deleting = [(group_id, topic_id) for group_id, one in of_groups for topic_id in one.deleting]
    text = "the share-partition has state that its group does not list"
    unlisted = live.of_groups(listing_groups) & ~live.among(_by_topic(listed)) & ~live.of_topics(deleting)
    return [_about(row, text) for row in live.where(unlisted)]


@rule(
    "MISSING_SHARE_STATE",
    Scope.GROUPS,
    WARNING,
    "Kafka ShareGroupStatePartitionMetadataValue.json, InitializedTopics",
)
def missing_share_state(audited: AuditedGroups) -> list[GroupBreach]:
    """A share-partition that its group lists as initialized has state.

    Skips groups without any state, and share-partitions whose state partition was not read.

    Do: delete and initialize the group's offsets of the topic.
    """
    with_state = set(audited.live.groups)
    of_groups = {group.group_id: one for group, one in audited.listed() if group.group_id in with_state}
    missing = audited.live.missing(
        _by_topic((group_id, one.initialized) for group_id, one in of_groups.items())
    )
    return [
        GroupBreach(
            "the group lists the share-partition as initialized, but it has no state",
            group_id, topic_id, audited.names.get(topic_id), partition, offset=of_groups[group_id].offset,
        )
        for group_id, topic_id, partition in sorted({key for key in missing if audited.knows_state_of(*key)})
    ]  # fmt: skip


@rule(
    "STATE_EPOCH_AHEAD_OF_GROUP",
    Scope.GROUPS,
    WARNING,
    "Kafka GroupMetadataManager.maybeCreateInitializeShareGroupStateRequest",
)
def state_epoch_ahead_of_group(audited: AuditedGroups) -> Iterator[GroupBreach]:
    """The state epoch of a share-partition is at most its group's epoch.

    The state epoch is the group epoch at which the share-partition was initialized.

    Do: compare the replicas; the group catches up with its next epochs.
    """
    live = audited.live
    epochs = {
        group_id: group.epoch for group_id, group in audited.folded.live.items() if group.epoch is not None
    }
    group_epochs = live.each(epochs, otherwise=np.iinfo(np.int64).max)
    for row in live.where(live.state_epochs > group_epochs):
        state, group = row["state_epoch"], epochs[row["group_id"]]
        text = f"the state epoch is {state}, but the group epoch is {group}"
        yield _about(row, text, state_epoch=state, group_epoch=group)


@rule("MISPLACED_GROUP", Scope.GROUPS, WARNING, "Kafka GroupCoordinatorService.partitionFor")
def misplaced_group(audited: AuditedGroups) -> Iterator[GroupBreach]:
    """A group's records are in the partition that its id hashes to.

    No coordinator looks for it in any other. Needs the number of partitions.

    Do: never change that number.
    """
    count = audited.folded.partition_count
    if count is None:
        return
    for partition, group_id in audited.folded.places:
        owner = partition_for(group_id, count)
        if partition is not None and partition != owner:
            text = f"the group is in partition {partition} of __consumer_offsets, but belongs to {owner} of {count}"
            yield GroupBreach(text, group_id, evidence={"partition": partition, "belongs_to": owner})


@rule(
    "MISSING_INIT",
    Scope.GROUPS,
    WARNING,
    "Kafka GroupMetadataManager.maybeCreateInitializeShareGroupStateRequest",
)
def missing_init(audited: AuditedGroups) -> Iterator[GroupBreach]:
    """Every partition of a subscribed topic is initialized in time.

    The time is `retry_ms`, from the record that lists the others, and from the creation of the partition if
    the metadata log shows it.

    Do: check the broker that leads the `__share_group_state` partition.
    """
    ids: dict[str, list[str]] = {}
    for topic_id, name in audited.names.items():
        ids.setdefault(name, []).append(topic_id)
    for group, listed in audited.listed():
        age = audited.time - listed.time
        if age <= audited.limits.retry_ms:
            continue
        listed_partitions = to_pairs(listed.initialized) | to_pairs(listed.initializing)
        subscribed = {name for member in group.members.values() for name in member.subscribed_topics}
        for topic_id in sorted(topic_id for name in subscribed for topic_id in ids.get(name, ())):
            if audited.time - audited.extended.get(topic_id, BEFORE_THE_LOG) <= audited.limits.retry_ms:
                continue
            for partition in range(audited.sizes.get(topic_id, 0)):
                if (topic_id, partition) not in listed_partitions and topic_id not in listed.deleting:
                    text = (
                        f"the topic has {audited.sizes[topic_id]} partitions, but this one is not initialized"
                    )
                    yield GroupBreach(text, group.group_id, topic_id, audited.names[topic_id], partition,
                        offset=listed.offset, evidence={"age_ms": age})  # fmt: skip


@rule(
    "ADDED_PARTITION_UNINITIALIZED",
    Scope.GROUPS,
    INFO,
    "Kafka GroupMetadataManager.maybeCreateInitializeShareGroupStateRequest, GroupConfig share.auto.offset.reset",
)
def added_partition_uninitialized(audited: AuditedGroups) -> Iterator[GroupBreach]:
    """Partitions that were added to a topic are initialized for the groups that use it and have no members.

    A group initializes them once a member joins. Then it starts at the end of a partition, past the records
    that wait in it, unless `share.auto.offset.reset` of the group says otherwise. Needs the metadata log.
    MISSING_INIT judges groups with members that subscribe to the topic.

    Do: set `share.auto.offset.reset=earliest` for the group (`kafka-configs.sh --entity-type groups`) if it
    must not skip records.
    """
    for group, listed in audited.listed():
        subscribed = {name for member in group.members.values() for name in member.subscribed_topics}
        known = to_pairs(listed.initialized) | to_pairs(listed.initializing)
        for topic_id in sorted(listed.initialized.keys() & audited.extended.keys() - {*listed.deleting}):
            extended, name = audited.extended[topic_id], audited.names.get(topic_id)
            if name in subscribed or audited.time - extended <= audited.limits.retry_ms:
                continue
            added = [number for number in range(audited.sizes[topic_id]) if (topic_id, number) not in known]
            if added:
                since = f" since {time_text(extended)}" if extended else ""
                text = (
                    f"the topic has {audited.sizes[topic_id]} partitions{since}, and the group has not initialized"
                    f" {pluralize(len(added), 'partition')} of them, from {added[0]} on: it does once a member joins,"
                    " at the end of the partition unless its share.auto.offset.reset says otherwise"
                )
                yield GroupBreach(
                    text, group.group_id, topic_id, name, added[0], offset=listed.offset,
                    evidence={"partitions": len(added), "last_partition": added[-1]},
                )  # fmt: skip


@rule(
    "STUCK_INITIALIZING",
    Scope.GROUPS,
    WARNING,
    "Kafka ShareGroupStatePartitionMetadataValue.json, InitializingTopics",
)
def stuck_initializing(audited: AuditedGroups) -> Iterator[GroupBreach]:
    """Requested state is initialized, or requested again, in time.

    The time is `retry_ms`, measured from the record that lists the share-partition.

    Do: check the broker that leads the `__share_group_state` partition.
    """
    for group, listed in audited.listed():
        age = audited.time - listed.time
        if age > audited.limits.retry_ms:
            text = f"the share-partition has been initializing for {duration_text(age)}"
            yield from [
                GroupBreach(text, group.group_id, topic_id,
                             audited.names.get(topic_id), partition, offset=listed.offset, evidence={"age_ms": age})
                for topic_id, partition in sorted(to_pairs(listed.initializing))
            ]  # fmt: skip


@rule(
    "DELETE_INCOMPLETE",
    Scope.GROUPS,
    WARNING,
    "Kafka ShareGroupStatePartitionMetadataValue.json, DeletingTopics",
)
def delete_incomplete(audited: AuditedGroups) -> list[GroupBreach]:
    """The state of a topic that is being deleted is removed in time.

    The time is `delete_grace_ms`.

    Do: delete the offsets again.
    """
    deleting = {
        (group.group_id, topic_id): audited.time - listed.time
        for group, listed in audited.listed()
        for topic_id in listed.deleting
        if audited.time - listed.time > audited.limits.delete_grace_ms
    }
    rows = audited.live.where(audited.live.of_topics(deleting))
    ages = [deleting[row["group_id"], row["topic_id"]] for row in rows]
    return [
        _about(
            row,
            f"deletion of the state began {duration_text(age)} ago, but the state still exists",
            age_ms=age,
        )
        for row, age in zip(rows, ages, strict=True)
    ]


def _by_topic(listed: Iterable[tuple[str, TopicPartitions]]) -> Iterator[Listed]:
    return ((group_id, *one) for group_id, of_group in listed for one in of_group.items())


def _about(row: Mapping[str, Any], message: str, **evidence: int) -> GroupBreach:
    key = (row["group_id"], row["topic_id"], row["topic"], row["partition"], row["state_partition"])
    return GroupBreach(message, *key, offset=row["last_offset"], evidence=evidence)


def judge_groups(audited: AuditedGroups, severities: Mapping[str, str] | None = None) -> pa.Table:
    """The table `findings` of every rule over share groups and their records; arguments as for `findings`."""
    over_records = findings(Scope.GROUP_RECORDS, audited.folded.faults, severities)
    return pa.concat_tables([over_records, findings(Scope.GROUPS, audited, severities)])


def judge_sticky(sticky: FoldedSticky, severities: Mapping[str, str] | None = None) -> pa.Table:
    """The table `findings` of all rules over claims and assignments of classic consumer groups; like `judge_groups`."""
    over_records = findings(Scope.GROUP_RECORDS, sticky.faults, severities)
    return pa.concat_tables([over_records, findings(Scope.CLAIMS, sticky, severities)])
