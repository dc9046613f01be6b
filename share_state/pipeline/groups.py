"""The group side of a run: share groups and consumers' claims, folded, as tables and as findings."""

import hashlib
from collections import Counter
from dataclasses import dataclass, replace

import pyarrow as pa

from share_state.delta.files import TableFiles
from share_state.delta.warehouse import OF_CLAIMS, OF_GROUPS
from share_state.fold.groups import FoldedGroups, completed, fold_groups, sizes_by_name
from share_state.fold.sticky import FoldedSticky, fold_sticky
from share_state.pipeline.plan import HISTORY, GroupInput, Work
from share_state.pipeline.result import Outcome
from share_state.pipeline.task import STATE, Digest
from share_state.rules.group_context import STATE_COLUMNS, AuditedGroups
from share_state.rules.groups import judge_group_records, judge_groups, judge_sticky
from share_state.schema.declarations import table_schema
from share_state.sources.discovery import STATE_TOPIC


@dataclass(frozen=True, slots=True)
class GroupSide:
    """What `__consumer_offsets` tells.

    Attributes:
        read: what was read, and how it is judged.
        folded: share groups, and the groups of consumers as bytes.
        sticky: claims and assignments of classic consumer groups.
    """

    read: GroupInput
    folded: FoldedGroups
    sticky: FoldedSticky

    def tables(self) -> dict[str, pa.Table]:
        """The tables of share groups, and those of claims where there are any."""
        written = {name: getattr(self.folded, name) for name in OF_GROUPS}
        claims = {name: getattr(self.sticky, name) for name in OF_CLAIMS}
        return written | {name: table for name, table in claims.items() if len(table)}

    def judge(self, states: pa.Table, work: Work, now_ms: int | None = None) -> pa.Table:
        """The findings of every rule over groups.

        Where the state side is cut at offsets it is of another time than the groups: then only what the groups alone
        tell is judged.

        Args:
            states: live share-partitions, at least STATE_COLUMNS of rules/groups_stated.py.
            work: what was read of the state side.
            now_ms: the time that ages are counted to; by default that of the newest record of any group.
        Returns:
            The table `findings`, its run_id still null.
        """
        if any(window.until_offset is not None for window in work.windows.values()):
            found = [judge_group_records(self.folded.faults, work.severities)]
        else:
            numbers = [log.partition for log in work.logs if log.topic == STATE_TOPIC]
            audited = AuditedGroups(
                self.folded,
                states,
                work.topics,
                None if now_ms is None else max(now_ms, self.folded.newest_time),
                self.read.limits,
                work.state_partitions,
                frozenset(number for number in numbers if number is not None),
            )
            found = [judge_groups(audited, work.severities)]
        found.append(judge_sticky(self.sticky, work.severities))
        return pa.concat_tables([table_schema("findings").empty_table(), *found])


def read_groups(work: Work) -> tuple[GroupSide | None, Work]:
    """Fold the group side of the work, if it has one.

    Args:
        work: with its groups.
    Returns:
        The group side; the work with the names that the groups tell, those that were given unchanged.
    Raises:
        InputError: if a segment cannot be read.
    """
    if work.groups is None:
        return None, work
    folded = fold_groups(work.groups.logs, work.window, partition_count=work.groups.partitions)
    sticky = fold_sticky(folded, sizes_by_name(work.topics) or None, history=work.groups.claims == HISTORY)
    topics = completed(work.topics, folded.names)
    return GroupSide(work.groups, folded, sticky), replace(work, topics=topics, groups=None)


def judged_groups(
    side: GroupSide | None, work: Work, outcome: Outcome, files: TableFiles, now_ms: int | None = None
) -> tuple[Outcome, pa.Table]:
    """Hold the group side against the folded state.

    Args:
        side: None where the input has no group side; then nothing changes.
        work: what was folded.
        outcome: what the state side alone gave.
        files: what the tasks wrote; of every share-partition a few columns come to the driver.
        now_ms: the time that ages are counted to.
    Returns:
        The outcome with the groups' findings counted, its run_id that of both sides; those findings.
    """
    if side is None:
        return outcome, table_schema("findings").empty_table()
    states = files.read(STATE, [file["path"] for file in outcome.files_of(STATE)], STATE_COLUMNS)
    findings = side.judge(states, work, now_ms)
    own = Counter(zip(findings["severity"].to_pylist(), findings["rule"].to_pylist(), strict=True))
    digest = Digest()
    for table in (*side.tables().values(), findings):
        digest.take(table)
    run_id = hashlib.sha256(f"{outcome.run_id} {digest.text}".encode()).hexdigest()[:16]
    both = dict(sorted((Counter(outcome.findings) + own).items()))
    return replace(outcome, findings=both, run_id=run_id), findings
