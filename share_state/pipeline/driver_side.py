"""What the driver of a run reads itself, beside the logs that tasks fold: the group side and the dead letters."""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from share_state.config.input_spec import JUDGE_NONE
from share_state.config.sections import HISTORY
from share_state.delta.committed import CommittedTables
from share_state.delta.warehouse_place import CLAIM_TABLES, GROUP_TABLES
from share_state.errors import InputError
from share_state.fold.dead_letters.archiving import RANGES
from share_state.fold.dead_letters.matching import LETTERS, ReadLetters, read_letters
from share_state.fold.groups.group_tables import (
    FoldedGroups,
    add_topic_names,
    fold_groups,
    partition_counts_by_name,
    read_topic_names,
    set_column,
)
from share_state.fold.groups.sticky import FoldedSticky, fold_sticky
from share_state.kafka.classic_groups import read_generations
from share_state.pipeline.plan import FoldPlan, GroupInput
from share_state.rules.findings import findings
from share_state.rules.group_context import AuditedGroups
from share_state.rules.registry import Scope
from share_state.rules.share_groups import judge_groups, judge_sticky
from share_state.schema.declarations import table_schema
from share_state.sources.group_configs import GroupConfigs
from share_state.sources.input_contents import names_unknown
from share_state.sources.log_partition import STATE_TOPIC

if TYPE_CHECKING:
    pass

_LOG = logging.getLogger("share_state")


@dataclass(frozen=True, slots=True)
class GroupSide:
    """The folded group side.

    Attributes:
        read: the logs, and the limits of the rules.
        folded: share groups, and the consumer groups as bytes.
        sticky: claims and assignments of classic consumer groups.
        configs: what is known of the configs of share groups.
    """

    read: GroupInput
    folded: FoldedGroups
    sticky: FoldedSticky
    configs: GroupConfigs = field(default_factory=GroupConfigs)

    def tables(self) -> dict[str, pa.Table]:
        """The tables of share groups, and those of claims that have rows."""
        written = {name: getattr(self.folded, name) for name in GROUP_TABLES}
        groups = written[GROUP_TABLES[0]]
        configs = [
            [asdict(one) for one in self.configs.effective(group)] for group in groups["group_id"].to_pylist()
        ]
        written[GROUP_TABLES[0]] = set_column(
            groups, "configs", pa.array(configs, groups.schema.field("configs").type)
        )
        claims = {name: getattr(self.sticky, name) for name in CLAIM_TABLES}
        return written | {name: table for name, table in claims.items() if len(table)}

    def judge(
        self, states: pa.Table, plan: FoldPlan, now_ms: int | None = None, extended: Sequence[str] = ()
    ) -> pa.Table:
        """The findings of every rule over groups.

        If the state side ends at as-of offsets, or later than planned, its time differs from that of the
        groups: then only the rules over groups alone apply.

        Args:
            states: live share-partitions, at least STATE_COLUMNS of rules/group_context.py.
            plan: what was read of the state side.
            now_ms: the time up to which ages are measured; by default that of the newest record of any group.
            extended: the result of `extended_logs`.
        Returns:
            The table `findings`, its run_id still null.
        """
        if plan.judging == JUDGE_NONE:
            return table_schema("findings").empty_table()
        if extended or any(window.until_offset is not None for window in plan.windows.values()):
            found = [findings(Scope.GROUP_RECORDS, self.folded.faults, plan.severities)]
        else:
            numbers = [log.partition for log in plan.logs if log.topic == STATE_TOPIC]
            audited = AuditedGroups(
                self.folded,
                states,
                plan.options.topics,
                None if now_ms is None else max(now_ms, self.folded.newest_time),
                self.read.limits,
                plan.state_partitions,
                frozenset(number for number in numbers if number is not None),
            )
            found = [judge_groups(audited, plan.severities)]
        found.append(judge_sticky(self.sticky, plan.severities))
        return pa.concat_tables([table_schema("findings").empty_table(), *found])


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
    counts = partition_counts_by_name(plan.options.topics) or None
    sticky = fold_sticky(generations, unreadable, counts, history=history)
    named = plan.with_options(topics=add_topic_names(plan.options.topics, folded.names))
    return GroupSide(plan.groups, folded, sticky, plan.group_configs), replace(named, groups=None)


def name_topics(plan: FoldPlan) -> FoldPlan:
    """A plan without its group side, with the topic names that the groups hold added to those given.

    A log that cannot be read is noted.
    """
    names = dict[str, str]()
    for log in plan.groups.logs if plan.groups else ():
        try:
            names |= read_topic_names(log, plan.window)
        except InputError as error:
            _LOG.info("%s", names_unknown(error))
    named = plan.with_options(topics=add_topic_names(plan.options.topics, names))
    return replace(named, groups=None)


@dataclass(frozen=True, slots=True)
class DriverSide:
    """The inputs that the driver reads in addition to the logs that tasks fold.

    Attributes:
        groups: the group side; None if there is none.
        letters: dead letters; None if none are given.
        ranges: `archiving_ranges` of the last audit.
        noted_from: ms since when `ranges` holds every range; 0 if it always did.
    """

    groups: GroupSide | None = None
    letters: ReadLetters | None = None
    ranges: pa.Table = field(default_factory=lambda: table_schema(RANGES).empty_table())
    noted_from: int = 0

    @property
    def staged(self) -> tuple[str, ...]:
        """Tables that the fold collects for the dead letters."""
        return () if self.letters is None else (RANGES,)

    def empty_groups(self, extended: Sequence[str]) -> list[str]:
        """The share groups without members; none if the groups are not known, or are as of an earlier time.

        Args:
            extended: the result of `extended_logs`.
        """
        if self.groups is None or extended:
            return []
        groups = self.groups.folded.share_groups
        return groups.filter(pc.field("members") == 0)["group_id"].to_pylist()

    @property
    def newest_time(self) -> int | None:
        """Ms, timestamp of the newest record of the logs of groups and of the dead letters; None for none."""
        times = [] if self.groups is None else [self.groups.folded.newest_time]
        if self.letters is not None and len(self.letters.rows):
            newest = pc.max(self.letters.rows["timestamp"].cast(pa.int64())).as_py()
            times.append((newest or 0) // 1000)
        return max(times, default=0) or None


def read_driver_side(
    plan: FoldPlan, before: CommittedTables | None = None, noted_from: int = 0
) -> tuple[DriverSide, FoldPlan]:
    """Read the groups and the dead letters of a plan.

    Args:
        plan: the plan of a run; for a live cluster, it holds the ends of the state logs.
        before: tables of the last audit, which hold the dead letters that it read.
        noted_from: as in DriverSide.
    Returns:
        Both; and the plan without them, which collects `archiving_ranges` if there are dead letters.
    Raises:
        InputError: if a log or a table cannot be read.
    """
    if plan.dead_letters is None:
        groups, plan = read_groups(plan)
        return DriverSide(groups), plan
    known, ranges = (before.read(name) if before is not None and before.holds(name)
                     else table_schema(name).empty_table() for name in (LETTERS, RANGES))  # fmt: skip
    letters = read_letters(plan.dead_letters, known)
    archiving = frozenset(pc.unique(letters.rows["group_id"]).to_pylist())
    groups, plan = read_groups(replace(plan, dead_letters=None).with_options(archiving_groups=archiving))
    return DriverSide(groups, letters, ranges, noted_from), plan
