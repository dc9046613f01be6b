"""The plan of `share-state repair`, from tables or logs: as Markdown, bash script and plain data."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow.compute as pc

from share_state.delta.committed import CommittedTables
from share_state.errors import ShareStateError, pluralize
from share_state.fold.history import HISTORY_TABLE, NO_MEMBERS
from share_state.fold.limits import Limits
from share_state.fold.states import CONTROL_RECORDS
from share_state.kafka.releases import refusal_of, release_of
from share_state.repairs.commands import KafkaTools
from share_state.repairs.plan_files import (
    ScriptCase,
    WrittenPlan,
    option_cases,
    option_sections,
    variable_lines,
)
from share_state.repairs.rehearsal import Effect, Ranges, count_offsets
from share_state.repairs.remedies import repairs
from share_state.repairs.status import Survey, survey, unknown_of
from share_state.repairs.subject import HARM, Option, Repair
from share_state.report.console import format_name, format_number, format_time
from share_state.report.share_partitions import ascending, latest_audit_filter

_MAX_RANGES = 20


@dataclass(frozen=True, slots=True, repr=False)
class RepairPlan(WrittenPlan):
    """Options for the share-partitions in trouble; the reader carries them out.

    Attributes:
        repairs: the most severe first.
        survey: what they are about, and how many more are in trouble.
        control_findings: what is wrong with control records, for which there is no plan, one line each.
        unknown: what the input cannot show of the groups, one line each.
    """

    repairs: tuple[Repair, ...]
    survey: Survey
    control_findings: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """The plan in a line."""
        return f"{pluralize(len(self.repairs), 'share-partition')} in trouble"

    def to_json(self) -> dict[str, Any]:
        """The plan as plain data."""
        repair_rows = []
        for one in self.repairs:
            row = one.status.row
            key = {
                name: row[name] for name in ("group_id", "topic_id", "topic", "partition", "state_partition")
            }
            options = [asdict(option) | {"harm": HARM[option.harm]} for option in one.options]
            repair_rows.append(
                key | {"trouble": one.trouble, "sentence": one.sentence, "also": one.also,
                       "suspect": "STATE_SUSPECT" in one.status.troubles, "now": one.now and asdict(one.now),
                       "options": options, "check": one.check}
            )  # fmt: skip
        head = {
            "inputs": list(self.survey.inputs),
            "time": self.survey.time,
            "releases": list(self.survey.releases),
            "unknown": list(self.unknown),
        }
        left_out = {"left_out": self.survey.left_out, "control_findings": list(self.control_findings)}
        return head | {"share_partitions": repair_rows} | left_out

    def _markdown(self) -> Iterator[str]:
        yield "# Repair plan"
        yield ""
        yield from self._head()
        for number, repair in enumerate(self.repairs, 1):
            yield f"## {number}. {_title(repair)}"
            yield ""
            yield f"**{repair.trouble}**: {repair.sentence}"
            yield ""
            facts = [f"- also {code}: {format_name(text)}" for code, text in repair.also.items()]
            facts += [f"- now: {describe_effect(repair.now)}"] if repair.now is not None else []
            yield from (*facts, "") if facts else ()
            yield from option_sections(number, repair.options, _option_lines)
            if repair.check:
                yield "Afterwards, export again and compare; the state at this plan is the earlier point:"
                yield from ("", "```bash", repair.check, "```", "")

    def _head(self) -> Iterator[str]:
        first, last = self.survey.releases[0], self.survey.releases[-1]
        writer = first if first == last else f"{first} to {last}, the log does not show which"
        time = f", up to {format_time(self.survey.time)}" if self.survey.time else ""
        inputs = ", ".join(map(format_name, self.survey.inputs))
        written = f"; written by Kafka {writer}" if self.repairs or not self.control_findings else ""
        yield f"From {inputs}{time}{written}. Nothing was changed."
        yield ""
        if without := self.survey.without_state:
            yield from _listed(without, "share-partitions without a state", _INITIALIZE)
        if self.control_findings:
            yield from _listed(self.control_findings, "control records", _NO_TOOL)
        if self.unknown:
            yield "Not known:"
            yield ""
            yield from (f"- {format_name(line)}" for line in self.unknown)
            yield ""
        if not self.repairs:
            yield self._nothing_to_do()
            return
        more = (
            f", and {self.survey.left_out:,} more that are left out (--most)" if self.survey.left_out else ""
        )
        count = pluralize(len(self.repairs), "share-partition")
        yield f"{count} in trouble{more}. Options are in order of harm; one is enough."
        yield ""
        yield from variable_lines(option.command for one in self.repairs for option in one.options)

    def _nothing_to_do(self) -> str:
        if self.control_findings:
            return "No other share-partition is in trouble."
        state = " that has a state" if self.survey.without_state else ""
        if others := self.survey.other_rules:
            counts = ", ".join(f"{rule} ({count:,})" for rule, count in others.items())
            return (
                f"No share-partition{state} is in trouble, but there are errors or warnings: {counts}. "
                f"`share-state rules {next(iter(others))}` says what to do."
            )
        if self.unknown:
            return f"No share-partition{state} is in trouble, as far as the input shows."
        return f"No share-partition{state} is in trouble: there is nothing{' else' if state else ''} to do."

    def _cases(self) -> Iterator[ScriptCase]:
        for number, one in enumerate(self.repairs, 1):
            yield from option_cases(number, one.options)
            yield ScriptCase(f"{number}.check", one.check)


_MAX_WITHOUT = 10
_INITIALIZE = (
    "The group coordinator requests their state again at a heartbeat of a member. Check that the group has a running "
    "member, that the brokers' logs show no error of InitializeShareGroupState, and that __share_group_state has "
    "leaders; `share-state groups` shows the group."
)
"""What to do about share-partitions without a state. Source: Kafka
GroupMetadataManager.shareGroupHeartbeat."""

_NO_TOOL = (
    "Control records are a draft (KIP-932): no broker reads them, and no tool moves or deletes their state, so each "
    "option would be a guess. Export the log again, from every replica, and fold it again; `share-state explain` shows "
    "the records of an offset, `share-state rules` what must hold. A share-partition whose chain is broken has the "
    "state of its last checkpoint, at most."
)
"""What to do about control records that break a rule."""


def _listed(findings: Sequence[str], about: str, advice: str) -> Iterator[str]:
    """Findings for which there is no plan, and what to do about them."""
    yield f"{pluralize(len(findings), 'finding')} about {about}, for which there is no plan:"
    yield ""
    yield from (f"- {format_name(line)}" for line in findings[:_MAX_WITHOUT])
    if len(findings) > _MAX_WITHOUT:
        yield f"- and {len(findings) - _MAX_WITHOUT:,} more"
    yield from ("", advice, "")


def check_release(release: str | None) -> None:
    """Refuse a release that is unknown; None is inferred.

    Raises:
        ShareStateError: naming those that are known.
    """
    if release is not None and release_of(release) is None:
        raise ShareStateError(f"release {refusal_of(release)}")


def is_by_wall_clock(clock: str | None, *, is_live: bool) -> bool:
    """Whether durations last until now; by default only those of a live cluster do.

    Raises:
        ShareStateError: if there is no such clock.
    """
    if clock not in (None, "log", "wall"):
        raise ShareStateError(f"clock {clock}: give one of log, wall")
    return is_live if clock is None else clock == "wall"


def make_plan(
    tables: CommittedTables,
    groups: Sequence[str] = (),
    *,
    limits: Limits | None = None,
    release: str | None = None,
    most: int = 50,
    tools: KafkaTools | None = None,
) -> RepairPlan:
    """Plan what to do about share-partitions in trouble; changes nothing.

    Args:
        tables: the tables of an audit or a reconstruct.
        groups: only these; all if there are none.
        limits: the limits of the cluster and its groups; by default those of the run.
        release: the release that wrote the log; by default inferred.
        most: maximum number of share-partitions.
        tools: the commands of the cluster.
    Raises:
        InputError: if a group is unknown.
        WarehouseError: if a table is gone.
    """
    found = survey(tables, groups, limits, release, most)
    options = repairs(found, tools or KafkaTools(), emptiness_of_groups(tables))
    return RepairPlan(options, found, _control_findings(tables, groups), unknown_of(tables, groups))


def emptiness_of_groups(tables: CommittedTables) -> dict[str, bool]:
    """Whether a group had no member when groups were read; without the groups of which that is not known."""
    if tables.holds("share_groups"):
        rows = tables.read("share_groups", columns=("group_id", "state"))
        states = zip(rows["group_id"].to_pylist(), rows["state"].to_pylist(), strict=True)
        return {group: state == "Empty" for group, state in states}
    if not tables.holds(HISTORY_TABLE):
        return {}
    # A stream follows the members of groups, and keeps the verdict alone.
    is_empty = latest_audit_filter(tables) & (pc.field("verdict") == NO_MEMBERS)
    return dict.fromkeys(tables.read(HISTORY_TABLE, is_empty, ("group_id",))["group_id"].to_pylist(), True)


def _control_findings(tables: CommittedTables, groups: Sequence[str]) -> tuple[str, ...]:
    """The errors and warnings of control records, one line each."""
    is_meant = (pc.field("dialect") == CONTROL_RECORDS) & pc.field("severity").isin(["error", "warning"])
    if groups:
        is_meant = is_meant & pc.field("group_id").isin(list(groups))
    columns = ("severity", "group_id", "topic", "topic_id", "partition", "rule", "message")
    rows = tables.read("findings", is_meant, columns).sort_by(ascending(*columns)).to_pylist()
    return tuple(
        f"{row['rule']}: group {row['group_id']} on {row['topic'] or row['topic_id']}-{row['partition']}: "
        f"{row['message']}"
        for row in rows
    )


def _title(one: Repair) -> str:
    row = one.status.row
    key = f"group {format_name(row['group_id'])}, topic {format_name(one.status.name)}, partition {row['partition']}"
    return (
        key if row["state_partition"] is None else f"{key} (in __share_group_state-{row['state_partition']})"
    )


def _option_lines(option: Option) -> Iterator[str]:
    yield format_name(option.what)
    if option.until is not None:
        yield f"- until: {format_time(option.until)}"
    if option.effect is None:
        return
    yield f"- then: {describe_effect(option.effect)}"
    for name, ranges in (
        ("skipped", option.effect.skipped),
        ("delivered again", option.effect.delivered_again),
    ):
        yield f"- {name}: {describe_ranges(ranges)}"


def describe_effect(effect: Effect) -> str:
    """The state that an option leaves, in words."""
    cutoff = f"cutoff {format_number(effect.cutoff)}"
    in_flight = ", ".join(f"{count:,} {state}" for state, count in effect.in_flight.items()) or "nothing"
    window = f"SPSO {format_number(effect.start_offset)}, SPEO {format_number(effect.end_offset)}"
    return f"{window}, in flight {in_flight}, lag {format_number(effect.lag)}, {cutoff}"


def describe_ranges(ranges: Ranges, most: int = _MAX_RANGES) -> str:
    """Ranges of offsets in words, at most `most` of them one by one."""
    if not ranges:
        return "none"
    listed = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges[:most])
    more = f" and {len(ranges) - most:,} more ranges (--json lists all)" if len(ranges) > most else ""
    return f"{pluralize(count_offsets(ranges), 'offset')}: {listed}{more}"
