"""Many share groups and the state of their share-partitions, made up without a log.

`python -m tests.fold.groups.many_stated GROUPS` says what judging them and making their tables takes.
"""

import resource
import sys
import time
from dataclasses import replace

import numpy as np
import pyarrow as pa

from share_state.fold.groups.group_replay import ShareGroup, StatePartitions
from share_state.fold.groups.group_tables import FoldedGroups
from share_state.fold.groups.sticky import fold_sticky
from share_state.kafka.classic_groups import read_generations
from share_state.pipeline.driver_side import GroupSide
from share_state.pipeline.plan import FoldPlan, GroupInput
from share_state.pipeline.task import Digest
from share_state.rules.group_context import STATE_COLUMNS
from share_state.schema.declarations import table_schema

TOPICS = [f"AAAAAAAAAAAAAAAAAAAA{number}A" for number in range(10)]
PARTITIONS = 100
"""Of each topic."""

EPOCH = 3


def many_groups(count: int) -> FoldedGroups:
    """Groups that list every partition of every topic, with a member for each topic."""
    folded = FoldedGroups(partitions=(0,), partition_count=1, has_given_count=True)
    for group_id in (f"share-group-{number:05d}" for number in range(count)):
        group = ShareGroup(group_id, 0, is_live=True, epoch=EPOCH, metadata_hash=1, assignment_epoch=EPOCH)
        listed = {topic_id: tuple(range(PARTITIONS)) for topic_id in TOPICS}
        for topic_id, partitions in listed.items():
            member = replace(group.member(topic_id), member_epoch=EPOCH, assigned={topic_id: partitions})
            group.members[topic_id], group.targets[topic_id] = member, member.assigned
        folded.groups[group_id] = group
        folded.state_partitions[group_id] = StatePartitions(0, {}, listed, (), dict.fromkeys(TOPICS, "orders"), 7, 0)
    return folded


def many_states(groups: FoldedGroups) -> pa.Table:
    """A live share-partition for each that they list, in no order: the columns that the rules look at."""
    ids, a_group = [*groups.groups], len(TOPICS) * PARTITIONS
    number = np.random.default_rng(1).permutation(len(ids) * a_group)
    group, within = np.divmod(number, a_group)
    columns = {
        "dialect": pa.array(["share_group_state"]).take(pa.array(np.zeros_like(number))),
        "group_id": pa.array(ids, pa.string()).take(pa.array(group)),
        "topic_id": pa.array(TOPICS).take(pa.array(within // PARTITIONS)),
        "topic": pa.array(["orders"]).take(pa.array(np.zeros_like(number))),
        "partition": within % PARTITIONS,
        "state_partition": number % 50,
        "state_epoch": np.full(len(number), EPOCH),
        "last_offset": number,
    }
    declared = table_schema("share_partition_state")
    return pa.table(columns).cast(pa.schema([declared.field(name) for name in STATE_COLUMNS]))


def _peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def main() -> None:
    """Judge them once, and make the group side's tables, as a run does."""
    groups = many_groups(int(sys.argv[1]))
    states, side = (
        many_states(groups),
        GroupSide(GroupInput(()), groups, fold_sticky(*read_generations(groups.classic))),
    )
    before, began = _peak_megabytes(), time.monotonic()
    findings = side.judge(states, FoldPlan([]))
    judged, of_judging = time.monotonic(), _peak_megabytes() - before
    digest = Digest()
    for table in side.tables().values():
        digest.take(table)
    written, of_tables = time.monotonic(), _peak_megabytes() - before
    sys.stdout.write(
        f"{len(states):,} share-partitions, {states.nbytes / 1e6:,.0f} MB, {len(findings)} findings;"
        f" judged in {judged - began:.1f} s and {of_judging:,.0f} MB more;"
        f" tables in {written - judged:.1f} s, {of_tables:,.0f} MB more in all\n"
    )


if __name__ == "__main__":
    main()
