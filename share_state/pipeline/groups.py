"""The group side of a run: share groups and claims of `__consumer_offsets`, as tables and findings."""

import hashlib
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.config.inputs import HISTORY, JUDGE_NONE
from share_state.delta.files import TableFiles
from share_state.delta.warehouse import CLAIM_TABLES, GROUP_TABLES
from share_state.fold.groups import FoldedGroups, add_topic_names, fold_groups, partition_counts_by_name
from share_state.fold.states import KEY, key_texts, split_keys
from share_state.fold.sticky import FoldedSticky, fold_sticky
from share_state.kafka.classic_groups import read_generations
from share_state.pipeline.plan import FoldPlan, GroupInput
from share_state.pipeline.result import RunResult
from share_state.pipeline.task import FINDINGS, IN_FLIGHT, STATE, SUMMARY, Digest
from share_state.rules.group_context import STATE_COLUMNS, AuditedGroups
from share_state.rules.groups import judge_group_records, judge_groups, judge_sticky
from share_state.rules.registry import Scope, findings
from share_state.schema.declarations import table_schema
from share_state.sources.discovery import STATE_TOPIC


@dataclass(frozen=True, slots=True)
class GroupSide:
    """The folded group side.

    Attributes:
        read: the logs, and the limits of the rules.
        folded: share groups, and the groups of consumers as bytes.
        sticky: claims and assignments of classic consumer groups.
    """

    read: GroupInput
    folded: FoldedGroups
    sticky: FoldedSticky

    def tables(self) -> dict[str, pa.Table]:
        """The tables of share groups, and those of claims that have rows."""
        written = {name: getattr(self.folded, name) for name in GROUP_TABLES}
        claims = {name: getattr(self.sticky, name) for name in CLAIM_TABLES}
        return written | {name: table for name, table in claims.items() if len(table)}

    def judge(self, states: pa.Table, plan: FoldPlan, now_ms: int | None = None) -> pa.Table:
        """The findings of every rule over groups.

        If the state side ends at as-of offsets, its time differs from that of the groups: then only the rules over
        groups alone apply.

        Args:
            states: live share-partitions, at least STATE_COLUMNS of rules/group_context.py.
            plan: what was read of the state side.
            now_ms: the time up to which ages are measured; by default that of the newest record of any group.
        Returns:
            The table `findings`, its run_id still null.
        """
        if plan.judging == JUDGE_NONE:
            return table_schema("findings").empty_table()
        if any(window.until_offset is not None for window in plan.windows.values()):
            found = [judge_group_records(self.folded.faults, plan.severities)]
        else:
            numbers = [log.partition for log in plan.logs if log.topic == STATE_TOPIC]
            audited = AuditedGroups(
                self.folded,
                states,
                plan.topics,
                None if now_ms is None else max(now_ms, self.folded.newest_time),
                self.read.limits,
                plan.state_partitions,
                frozenset(number for number in numbers if number is not None),
            )
            found = [judge_groups(audited, plan.severities)]
        found.append(judge_sticky(self.sticky, plan.severities))
        return pa.concat_tables([table_schema("findings").empty_table(), *found])


def settle_tables(plan: FoldPlan, rows: pa.Table, tables: dict[str, pa.Table]) -> dict[str, pa.Table]:
    """Leave only the state that counts of a key in several state partitions, or mark all as suspect; with SPLIT_KEY.

    Args:
        plan: what was folded.
        rows: of `LocalExecutor.fold`, in the order of the logs.
        tables: the tables of these rows.
    """
    states, split = tables[STATE], split_keys(tables[STATE], plan.state_partitions)
    if not len(split):
        return tables
    ends, has_ranges = (pc.is_valid(rows[name]).to_numpy() for name in (SUMMARY, IN_FLIGHT))
    numbers = pa.array([log.partition for log in plan.logs], pa.int32()).take(pa.array(np.cumsum(ends) - ends))
    ranges = tables[IN_FLIGHT].append_column("state_partition", numbers.filter(pa.array(has_ranges)))
    doubtful = key_texts(split.filter(pc.field("home").is_null()), "state_partition").combine_chunks()
    suspect = pc.or_(states["suspect"], pc.is_in(key_texts(states, "state_partition"), doubtful))
    states = states.set_column(states.schema.get_field_index("suspect"), "suspect", suspect)
    found = [] if plan.judging == JUDGE_NONE else [findings(Scope.STATES, split, plan.severities)]
    return tables | {
        STATE: _without_strays(states, split),
        IN_FLIGHT: _without_strays(ranges, split).drop_columns("state_partition"),
        FINDINGS: pa.concat_tables([tables[FINDINGS], *found]),
    }


def settle_timeline(timeline: pa.Table, state_partitions: int | None) -> pa.Table:
    """The rows of a timeline without those of state that does not count, as its key has state in another partition."""
    last = timeline.group_by([*KEY, "state_partition"], use_threads=False).aggregate([("kind", "last")])
    return _without_strays(timeline, split_keys(last.filter(pc.field("kind_last") != "tombstone"), state_partitions))


def _without_strays(rows: pa.Table, split: pa.Table) -> pa.Table:
    strays = key_texts(split.filter(pc.field("home") != pc.field("state_partition")), "state_partition")
    return rows.filter(pc.invert(pc.is_in(key_texts(rows, "state_partition"), strays.combine_chunks())))


def read_groups(plan: FoldPlan) -> tuple[GroupSide | None, FoldPlan]:
    """Fold the group side of a plan, if it has one.

    Returns:
        The group side; the plan without it, with the topic names that the groups hold added to those given.
    Raises:
        InputError: if a segment cannot be read.
    """
    if plan.groups is None:
        return None, plan
    folded = fold_groups(plan.groups.logs, plan.window, partition_count=plan.groups.partitions)
    history = plan.groups.claims == HISTORY
    generations, unreadable = read_generations(folded.classic, folded.sticky if history else ())
    sticky = fold_sticky(generations, unreadable, partition_counts_by_name(plan.topics) or None, history=history)
    topics = add_topic_names(plan.topics, folded.names)
    return GroupSide(plan.groups, folded, sticky), replace(plan, topics=topics, groups=None)


def judge_group_side(
    side: GroupSide | None, plan: FoldPlan, result: RunResult, files: TableFiles, now_ms: int | None = None
) -> tuple[RunResult, pa.Table]:
    """Cross-check the group side and the folded state.

    Args:
        side: None if the input has no group side; then nothing changes.
        plan: what was folded.
        result: of the state side alone.
        files: of the run; the driver reads a few columns of every share-partition.
        now_ms: the time up to which ages are measured.
    Returns:
        The result with the groups' findings counted and a run_id of both sides; those findings.
    """
    if side is None:
        return result, table_schema("findings").empty_table()
    states = files.read(STATE, [file["path"] for file in result.files_of(STATE)], STATE_COLUMNS)
    found = side.judge(states, plan, now_ms)
    digest = Digest()
    for table in (*side.tables().values(), found):
        digest.take(table)
    run_id = hashlib.sha256(f"{result.run_id} {digest.text}".encode()).hexdigest()[:16]
    return replace(result.with_findings(found), run_id=run_id), found
