"""What `share-state why` says: the cause, what SPSO waits for, its history, and what to do about it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from share_state.config.input_spec import JUDGE_ALL
from share_state.delta.committed import CommittedTables
from share_state.errors import InputError, pluralize
from share_state.fold.fold_options import SharePartitionFilter
from share_state.fold.history import HISTORY_TABLE, NO_MEMBERS, OUTCOME_COLUMNS
from share_state.fold.limits import Limits
from share_state.fold.states import CONTROL_RECORDS, SHARE_GROUP_STATE
from share_state.incidents.offset_story import OffsetStory, Reset, read_story
from share_state.kafka.delivery_states import state_name
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.resume import COMMAND
from share_state.repairs.commands import quote
from share_state.repairs.opened_input import OpenedInput
from share_state.repairs.remedies import repairs
from share_state.repairs.repair_plan import emptiness_of_groups
from share_state.repairs.status import NO_VERDICTS, SharePartitionStatus, Survey, survey, unknown_of
from share_state.repairs.subject import HARM, Option, Repair
from share_state.report.broken_rules import summarize_findings
from share_state.report.console import format_duration
from share_state.report.diff import compare_states, fold_point, read_counted_states
from share_state.report.share_partitions import IDENTITY_COLUMNS, STATE
from share_state.report.troubles import TROUBLES, WaitsFor, cause, worst_trouble
from share_state.simulator.types import find_release
from share_state.sources.log_partition import STATE_TOPIC

HOUR = timedelta(hours=1)
_STARTS = ("start_offset", "effective_start_offset")
_MOST = 1000
"""Share-partitions of a group that are looked at."""


@dataclass(frozen=True, slots=True)
class Incident:
    """What is wrong with a group, told of its worst share-partition.

    Attributes:
        group_id: the group.
        status: the share-partition.
        trouble: code of TROUBLES, a rule that it breaks, or None if it is healthy.
        cause: what is wrong, or what shows that nothing is, in one phrase.
        since: when it began; None if that is not known.
        time: up to when durations are measured.
        limit: the delivery limit; `limit_is_observed`: the log shows more deliveries than configured.
        story: the history of the offset that SPSO waits for; None if the logs were not read, or there is
            none.
        outcomes: field of OUTCOMES -> records of the group in the last hour; None if the logs do not show it.
        outcomes_since: since when they are counted.
        repair: what can be done; None without trouble.
        option: the first, least harmful option of the repair.
        others: name and trouble of the other share-partitions of the group in trouble.
        healthy: how many share-partitions of the group are in no trouble.
        unknown: what the input cannot show.
        commands: what to type next, as shells take it.
        is_judged: whether an audit applied all rules to it; only then does no trouble mean that it is OK.
    """

    group_id: str
    status: SharePartitionStatus
    trouble: str | None
    cause: str
    since: datetime | None
    time: datetime | None
    limit: int
    limit_is_observed: bool
    story: OffsetStory | None
    outcomes: Mapping[str, int] | None
    outcomes_since: datetime | None
    repair: Repair | None
    option: Option | None
    others: tuple[tuple[str, str], ...]
    healthy: int
    unknown: tuple[str, ...]
    commands: tuple[str, ...]
    is_judged: bool

    @property
    def heading(self) -> str:
        """The trouble in one word, or that there is none."""
        return self.trouble or ("OK" if self.is_judged else "NO TROUBLE SHOWN")

    @property
    def waits_for(self) -> WaitsFor | None:
        """What SPSO waits for."""
        return self.status.waits_for

    @property
    def name(self) -> str:
        """The share-partition as `topic-partition`."""
        return f"{self.status.name}-{self.status.row['partition']}"

    def to_json(self) -> dict[str, Any]:
        """The incident as plain data."""
        row, waits = self.status.row, self.waits_for
        key = ("group_id", "topic", "topic_id", "partition", "state_partition")
        state = ("start_offset", "effective_start_offset", "end_offset", "topic_end_offset", "lag", "verdict")
        story = self.story
        return {
            **{name: row[name] for name in key},
            "trouble": self.trouble,
            "cause": self.cause,
            "since": self.since,
            "time": self.time,
            # -1 is no offset, as for `show`.
            **{name: None if name in _STARTS and row[name] == -1 else row[name] for name in state},
            "waits_for": waits and asdict(waits) | {"state": state_name(waits.state)},
            "delivery_limit": self.limit,
            "delivery_limit_observed": self.limit_is_observed,
            "history": list(story.sentences) if story else [],
            "reset": story and story.reset and asdict(story.reset),
            "last_hour": self.outcomes and dict(self.outcomes) | {"since": self.outcomes_since},
            "also": self.repair.also if self.repair else {},
            "option": self.option and asdict(self.option) | {"harm": HARM[self.option.harm]},
            "others": [{"share_partition": name, "trouble": code} for name, code in self.others],
            "healthy": self.healthy,
            "unknown": list(self.unknown),
            "commands": list(self.commands),
        }


def find_incident(opened: OpenedInput, selection: SharePartitionFilter) -> Incident:
    """Find what is wrong with a group.

    Args:
        opened: the tables of an audit or a reconstruct, and their logs.
        selection: the group, and maybe a share-partition of it.
    Raises:
        InputError: if the group is unknown.
        WarehouseError: if a table is gone.
    """
    tables, plan = opened.tables, opened.plan
    surveyed = _surveyed(tables, selection, opened.limits)
    judged = _worst_first(surveyed.found, _findings(tables, selection))
    troubled = [(one, worst) for one, _, worst in judged if worst is not None]
    # The worst come first: if all of these are in trouble, others that are left out may be, too.
    is_cut = surveyed.left_out > 0 and len(troubled) == len(judged)
    first, findings, _ = judged[0]
    status = first
    story = None
    unknown = [f"its history and the last hour: {opened.lacks_logs}"] if opened.lacks_logs else []
    if is_cut:
        unknown.append(
            f"whether {pluralize(surveyed.left_out, 'more share-partition')} of the group are in trouble"
        )
    offset = _offset_of_story(status)
    if plan is not None and offset is not None:
        # Locks of the draft are not renewed.
        renews = bool(surveyed.releases) and find_release(surveyed.releases[-1]).renews
        story = read_story(plan, status, offset, renews=renews)
    repair = None
    if status.troubles and status.row["dialect"] == SHARE_GROUP_STATE:
        asked = replace(surveyed, found=(status,))
        (repair,) = repairs(asked, opened.tools, emptiness_of_groups(tables))
    elif status.troubles:
        unknown.append("what mends it: `repair` has no plan for control records of the draft")
    if repair is not None and repair.trouble not in status.troubles:
        # Only a rehearsal shows that no leader can load the state.
        status = replace(status, troubles={repair.trouble: repair.sentence, **status.troubles})
    worst = worst_trouble(status.troubles, findings)
    trouble = worst[0] if worst else None
    if trouble not in status.troubles:
        # `repair` has an option for NO_MEMBERS, which is not what the screen is about.
        repair = None
    outcomes, since = (
        _last_hour(plan, tables, selection.group_id, surveyed.time) if plan is not None else (None, None)
    )
    group = status.row["group_id"]
    return Incident(
        group_id=group,
        status=status,
        trouble=trouble,
        cause=_healthy(status, story, surveyed) if worst is None else _cause(status, *worst, story, surveyed),
        since=_since(status, trouble, story, surveyed.time),
        time=surveyed.time,
        limit=surveyed.limits.of_group("delivery_count", group),
        limit_is_observed=group in surveyed.observed,
        story=story,
        outcomes=outcomes,
        outcomes_since=since,
        repair=repair,
        option=next(iter(repair.options), None) if repair else None,
        others=tuple(
            (f"{one.name}-{one.row['partition']}", worst[0]) for one, worst in troubled if one is not first
        ),
        healthy=0 if is_cut else len(surveyed.found) - max(len(troubled), 1) + surveyed.left_out,
        unknown=tuple(dict.fromkeys((*unknown, *_unknown(status, surveyed), *unknown_of(tables, (group,))))),
        commands=_commands(status, trouble, opened.words, offset),
        # A stream leaves rules to audits that may show a trouble.
        is_judged=status.row["verdict"] is not None and tables.run["command"] == COMMAND,
    )


def _surveyed(tables: CommittedTables, selection: SharePartitionFilter, limits: Limits | None) -> Survey:
    """The share-partitions of a group, of the log of the coordinator or of the draft's control records.

    Raises:
        InputError: if there is none.
    """
    for dialect in (SHARE_GROUP_STATE, CONTROL_RECORDS):
        surveyed = survey(tables, (), limits, most=_MOST, selection=selection, dialect=dialect)
        if surveyed.found:
            return surveyed
    raise InputError(
        f"group {selection.group_id}: no share-partition of it has state in the input; "
        "`share-state groups` shows what its members say"
    )


_Findings = dict[tuple[Any, ...], list[dict[str, Any]]]


def _findings(tables: CommittedTables, selection: SharePartitionFilter) -> _Findings:
    """The findings of each share-partition by rule, as an audit shows them, by IDENTITY_COLUMNS."""
    found = _Findings()
    for row in summarize_findings(tables, (), selection.of_rows).to_pylist():
        found.setdefault(tuple(row[name] for name in IDENTITY_COLUMNS), []).append(row)
    return found


def _worst_first(
    statuses: Sequence[SharePartitionStatus], findings: _Findings
) -> list[tuple[SharePartitionStatus, list[dict[str, Any]], tuple[str, str] | None]]:
    """Share-partitions with their findings and the code and message of `worst_trouble`, in the order of an audit."""
    judged = []
    for status in statuses:
        own = findings.get(tuple(status.row[name] for name in IDENTITY_COLUMNS), [])
        judged.append((status, own, worst_trouble(status.troubles, own)))

    def rank(worst: tuple[str, str] | None) -> int:
        if worst is None:
            return 3
        return 2 if worst[0] == NO_MEMBERS else int(worst[0] not in TROUBLES)

    return sorted(judged, key=lambda one: rank(one[2]))


def _offset_of_story(status: SharePartitionStatus) -> int | None:
    waits = status.waits_for
    if waits is not None:
        return waits.first
    start = status.row["effective_start_offset"]
    return None if start is None or start < 0 else start


def _moved(reset: Reset) -> str:
    return f"SPSO went from {reset.before:,} to {reset.after:,}"


def _cause(
    status: SharePartitionStatus, trouble: str, message: str, story: OffsetStory | None, surveyed: Survey
) -> str:
    """The cause in one phrase: as an audit names it, and what the log adds."""
    limit = surveyed.limits.of_group("delivery_count", status.row["group_id"])
    text = cause(trouble, message, status.waits_for, limit)
    if story is None:
        return text
    if trouble == "REWIND" and story.reset is not None and not story.reset.by_reset:
        return f"{text}; no reset did that"
    if trouble in ("REWIND", "STOP", NO_MEMBERS):
        return text + _reset_before(story, text)
    is_waiting = trouble in ("STALL", "IN_FLIGHT_LIMIT") and text != message
    if is_waiting and story.held is not None:
        return f"{text}; a consumer holds it, and renews its lock"
    return text


def _reset_before(story: OffsetStory | None, text: str) -> str:
    """The reset that made SPSO wait for an offset again, as the end of a text; empty if there was none."""
    if story is None or story.reset is None or not story.reset.by_reset:
        return ""
    moved = _moved(story.reset)
    # The last audit may have been before some of it.
    return "; its offsets were reset" if moved in text else f"; its offsets were reset: {moved}"


def _healthy(status: SharePartitionStatus, story: OffsetStory | None, surveyed: Survey) -> str:
    row = status.row
    behind = "the lag is unknown" if row["lag"] is None else f"lag {row['lag']:,}"
    active = ""
    if surveyed.time is not None and row["active_time"] is not None:
        age = format_duration(row["active_time"], surveyed.time)
        active = f", consumers last changed its state {age} before the end of the input"
    text = f"no trouble: {behind}{active}"
    return text + _reset_before(story, text)


def _since(
    status: SharePartitionStatus, trouble: str | None, story: OffsetStory | None, time: datetime | None
) -> datetime | None:
    row = status.row
    if trouble == "REWIND":
        return story.reset.time if story is not None and story.reset is not None else None
    if trouble == "ARCHIVING_STUCK" and time is not None and status.archiving_ms:
        return time - timedelta(milliseconds=status.archiving_ms)
    if trouble == "STOP":
        return row["active_time"]
    if trouble in ("STALL", "IN_FLIGHT_LIMIT", NO_MEMBERS):
        return row["moved_time"]
    if trouble == "POISON_RECORDS" and story is not None:
        return story.failures[0] if story.failures else None
    return None


def _last_hour(
    plan: FoldPlan, tables: CommittedTables, group: str | None, time: datetime | None
) -> tuple[dict[str, int] | None, datetime | None]:
    """What became of the deliveries of a group in the last hour, from its records.

    Only the logs that hold them are folded: up to an hour ago, and to the end unless that is what the tables
    are of.
    """
    if time is None:
        return None, None
    begin = time - HOUR
    until = round(begin.timestamp() * 1000)
    selection = SharePartitionFilter(group)
    plan = _with_logs_of(plan, tables, selection)
    windows = {log.name: replace(plan.window_of(log), until_time_ms=until) for log in plan.logs}
    before = replace(plan, windows={**plan.windows, **windows}, outside=None, judging=JUDGE_ALL)
    earlier = fold_point(before, selection)
    # Only the fold with rules over records counts what became of deliveries.
    later = (
        read_counted_states(tables, selection)
        if _counts_from_the_start(tables)
        else fold_point(replace(plan, judging=JUDGE_ALL), selection)
    )
    totals = dict.fromkeys(OUTCOME_COLUMNS.values(), 0)
    for row in compare_states(earlier, later)["changed"]:
        if row["deliveries"] is None:
            return None, None
        for name, count in row["deliveries"].items():
            totals[name] += count
    return totals, begin


def _counts_from_the_start(tables: CommittedTables) -> bool:
    """Whether the tables are of a first audit, whose counts of deliveries begin with the log."""
    run = tables.run
    return run["command"] == COMMAND and tables.holds(HISTORY_TABLE) and run["sequence"] == 0


def _with_logs_of(plan: FoldPlan, tables: CommittedTables, selection: SharePartitionFilter) -> FoldPlan:
    """The plan with the logs that hold records of share-partitions; all, if one does not show its number."""
    rows = tables.read(STATE, selection.of_rows, ["state_partition"])
    numbers = set(rows["state_partition"].to_pylist())
    own = [log for log in plan.logs if log.topic != STATE_TOPIC or log.partition in numbers]
    is_known = None not in numbers and all(log.partition is not None for log in plan.logs)
    return replace(plan, logs=own) if is_known and own else plan


def _unknown(status: SharePartitionStatus, found: Survey) -> list[str]:
    """What the input cannot show of the share-partition."""
    row, lines = status.row, list[str]()
    if row["lag"] is None and row["topic_end_offset"] is None:
        lines.append("the lag: the end of the topic is not known (--topics names a file)")
    if row["verdict"] is None:
        lines.append(NO_VERDICTS)
    if len(found.releases) > 1:
        lines.append(f"the release that wrote the log: {found.releases[0]} to {found.releases[-1]}")
    return lines


def _commands(
    status: SharePartitionStatus, trouble: str | None, words: Sequence[str], offset: int | None
) -> tuple[str, ...]:
    """The commands to go on, as a shell takes them."""
    row = status.row
    place = [
        "--group",
        row["group_id"],
        "--topic",
        row["topic"] or row["topic_id"],
        "--partition",
        str(row["partition"]),
    ]
    commands = []
    if trouble is not None and row["dialect"] == SHARE_GROUP_STATE:
        commands.append(["share-state", "repair", *words, "--group", row["group_id"]])
    if trouble is not None:
        commands.append(["share-state", "rules", trouble])
    if offset is not None:
        commands.append(["share-state", "explain", *words, *place, "--offset", str(offset)])
    return tuple(" ".join(map(quote, one)) for one in commands)
