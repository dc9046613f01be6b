"""The plan of `share-state repair --redrive`: how records that groups did not process are delivered again."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

import pyarrow.compute as pc

from share_state.errors import pluralize
from share_state.fold.fold_options import SharePartitionFilter
from share_state.fold.states import SHARE_GROUP_STATE
from share_state.repairs.commands import KafkaTools
from share_state.repairs.opened_input import OpenedInput
from share_state.repairs.plan_files import (
    ScriptCase,
    WrittenPlan,
    option_cases,
    option_sections,
    variable_lines,
)
from share_state.repairs.rehearsal import Ranges, count_offsets
from share_state.repairs.repair_plan import describe_ranges
from share_state.repairs.status import can_be_named, limits_of_run, releases_of
from share_state.repairs.subject import AGAIN, HARM, Option
from share_state.repairs.unprocessed import (
    GIVEN_UP,
    MISSING,
    NONE,
    REJECTED,
    UNKNOWN,
    WAITING,
    WRITTEN,
    DeadLetterRange,
    UnprocessedRange,
    UnprocessedRecords,
    find_unprocessed,
    join_ranges,
)
from share_state.report.absent_states import unknown_states
from share_state.report.console import format_name, format_time
from share_state.report.share_partitions import STATE, check_known
from share_state.report.troubles import shown_limits
from share_state.simulator.types import find_release
from share_state.sources.topics import TOPICS_HINT

_MAX_LINES = 20
_DEAD_LETTERS = {
    WRITTEN: "a dead letter was written",
    MISSING: "the dead letter is lost",
    WAITING: "the dead letter is being written: not part of a redrive",
    UNKNOWN: "the input does not show whether a dead letter was written",
    NONE: "the log shows no dead-letter write",
}
_OUTCOMES = {
    GIVEN_UP: "given up",
    REJECTED: "rejected, or without a record (transaction markers, compaction)",
}


@dataclass(frozen=True, slots=True)
class SharePartitionRedrive:
    """What a group did not process of a topic-partition, and how it is delivered again."""

    unprocessed: UnprocessedRecords
    options: tuple[Option, ...]

    @property
    def title(self) -> str:
        """The share-partition."""
        key = self.unprocessed.key
        topic = format_name(key["topic"] or key["topic_id"])
        return f"group {format_name(key['group_id'])}, topic {topic}, partition {key['partition']}"

    def to_json(self) -> dict[str, Any]:
        """All of it as plain data."""
        records = self.unprocessed
        ranges = [asdict(one) | {"record_count": one.count} for one in records.ranges]
        options = [asdict(one) | {"harm": HARM[one.harm]} for one in self.options]
        return {
            **records.key,
            "ranges": ranges,
            "returned": records.returned,
            "only_counted": records.only_counted,
            "options": options,
        }


@dataclass(frozen=True, slots=True, repr=False)
class RedrivePlan(WrittenPlan):
    """Records that groups did not process, and options to deliver them again; the reader carries them out.

    Attributes:
        redrives: those with the most lost dead letters first.
        left_out: how many more share-partitions there are.
        inputs: what was read.
        time: of the newest record.
        notes: what the input cannot show.
    """

    redrives: tuple[SharePartitionRedrive, ...]
    left_out: int
    inputs: tuple[str, ...]
    time: datetime | None
    notes: tuple[str, ...]

    @property
    def summary(self) -> str:
        """The plan in a line."""
        return f"{pluralize(len(self.redrives), 'share-partition')} with records that were not processed"

    def to_json(self) -> dict[str, Any]:
        """The plan as plain data."""
        return {
            "inputs": list(self.inputs),
            "time": self.time,
            "share_partitions": [one.to_json() for one in self.redrives],
            "left_out": self.left_out,
            "notes": list(self.notes),
        }

    def _markdown(self) -> Iterator[str]:
        yield "# Redrive plan"
        yield ""
        yield from self._head()
        for number, one in enumerate(self.redrives, 1):
            yield f"## {number}. {one.title}"
            yield ""
            yield from _fact_lines(one.unprocessed)
            yield ""
            yield from option_sections(number, one.options, lambda option: (option.what,))

    def _head(self) -> Iterator[str]:
        time = f", up to {format_time(self.time)}" if self.time else ""
        yield f"From {', '.join(map(format_name, self.inputs))}{time}. Nothing was changed."
        yield ""
        for note in self.notes:
            yield format_name(note)
            yield ""
        if not self.redrives:
            yield (
                "The input shows no record that was given up or rejected. What records that are pruned from "
                "__share_group_state showed is not known."
            )
            return
        more = f", and {self.left_out:,} more that are left out (--most)" if self.left_out else ""
        yield f"{self.summary}{more}."
        yield ""
        yield from variable_lines(option.command for one in self.redrives for option in one.options)

    def _cases(self) -> Iterator[ScriptCase]:
        for number, one in enumerate(self.redrives, 1):
            yield from option_cases(number, one.options)


def plan_redrive(
    opened: OpenedInput, groups: Sequence[str] = (), *, release: str | None = None, most: int = 50
) -> RedrivePlan:
    """Plan how records that groups did not process are delivered again; changes nothing.

    Args:
        opened: the tables of an audit or a reconstruct, and their logs.
        groups: only these; all if there are none.
        release: of the brokers; by default inferred from the log.
        most: maximum number of share-partitions.
    Raises:
        InputError: if a group is unknown, or a segment cannot be read.
        WarehouseError: if a table is gone.
    """
    tables = opened.tables
    for group in groups:
        check_known([tables], SharePartitionFilter(group))
    where = pc.field("group_id").isin(list(groups)) if groups else None
    limits = opened.limits or limits_of_run(dict(tables.run["options"]))
    limits, _ = shown_limits(tables, tables.in_flight_counts(where), limits)
    found = find_unprocessed(tables, opened.plan, groups, limits)
    writer = release or releases_of(tables, tables.read(STATE, pc.field("dialect") == SHARE_GROUP_STATE))[0]
    redrives = tuple(
        SharePartitionRedrive(one, tuple(_options(one, opened.tools, writer))) for one in found[:most]
    )
    notes = list[str]()
    if opened.lacks_logs:
        notes.append(
            f"Only what the tables hold is known, because {opened.lacks_logs}: records that SPSO has "
            "passed are known for groups with dead letters alone, and a reset since may have delivered them again."
        )
    notes += [f"Not known: {line}." for line in unknown_states(tables, groups)]
    return RedrivePlan(
        redrives, max(0, len(found) - most), tuple(tables.run["inputs"]), tables.run["log_time"], tuple(notes)
    )


def _fact_lines(records: UnprocessedRecords) -> Iterator[str]:
    """What is known, and what shows it."""
    for (outcome, letter), ranges in _grouped(records.ranges):
        places = _places(ranges)
        yield f"- {_OUTCOMES[outcome]}, {_DEAD_LETTERS[letter]}: {describe_ranges(places)}"
        copies = [copy for one in ranges for copy in one.copies]
        yield from (f"  - {line}" for line in _copy_lines(copies))
    number = "" if records.state is None else f"-{records.state['state_partition']}"
    offsets = sorted({one.record for one in records.ranges if one.record is not None})
    if offsets:
        listed = ", ".join(map(str, offsets[:_MAX_LINES])) + ", ..." * (len(offsets) > _MAX_LINES)
        yield f"- shown by {pluralize(len(offsets), 'record')} of __share_group_state{number}: {listed}"
    deleted = _places(one for one in records.ranges if one.is_retained is False)
    if deleted:
        yield f"- deleted from the topic since: {describe_ranges(deleted)}"
    if records.returned:
        yield (
            "- left out, because a reset or a deletion made them deliverable again: "
            f"{describe_ranges(records.returned)}"
        )
    if records.only_counted:
        yield (
            f"- {records.only_counted:,} more were given up or rejected by the count of audits; which offsets "
            "is not known: the records that showed them are pruned, or are text without offsets"
        )
    if records.state is not None and records.state["suspect"]:
        yield "- records of the state log are missing or unreadable: more may have been given up"


def _grouped(
    ranges: Sequence[UnprocessedRange],
) -> Iterator[tuple[tuple[str, str], list[UnprocessedRange]]]:
    """The ranges of each outcome and dead letter, the lost ones first."""

    def facts(one: UnprocessedRange) -> tuple[str, str]:
        return one.outcome, one.dead_letter

    def order(one: UnprocessedRange) -> tuple[int, str]:
        return (MISSING, UNKNOWN, NONE, WRITTEN, WAITING).index(one.dead_letter), one.outcome

    for key, rows in groupby(sorted(ranges, key=order), facts):
        yield key, list(rows)


def _copy_lines(copies: Sequence[DeadLetterRange]) -> Iterator[str]:
    by_place = groupby(
        sorted(copies, key=lambda one: (one.topic, one.partition, one.first_offset)),
        lambda one: (one.topic, one.partition),
    )
    for (topic, partition), ranges in by_place:
        places = _places(ranges)
        yield f"in {format_name(topic)}-{partition}: {describe_ranges(places)}"


def _places(ranges: Iterable[UnprocessedRange | DeadLetterRange]) -> Ranges:
    """First and last offsets of ranges, neighbours joined."""
    return join_ranges((one.first_offset, one.last_offset) for one in ranges)


def _options(records: UnprocessedRecords, tools: KafkaTools, writer: str) -> Iterator[Option]:
    """The ways to deliver the records again, the most exact first."""
    there = [one for one in records.ranges if one.dead_letter != WAITING and one.is_retained is not False]
    lost = [one for one in there if one.dead_letter == MISSING]
    if lost and len(lost) < len(there):
        yield _named(records, _copy_option("COPY_LOST", lost, records, tools, "whose dead letters are lost"))
    if there:
        yield _named(records, _copy_option("COPY_ALL", there, records, tools, "that were not processed"))
    copies = [copy for one in records.ranges if one.dead_letter == WRITTEN for copy in one.copies]
    if copies:
        yield _copy_dead_letters(copies, records, tools)
    is_trusted = records.state is not None and not records.state["suspect"]
    if there and is_trusted and find_release(writer).has_initialize:
        yield _named(records, _reset_option(there, records, tools, writer))


def _named(records: UnprocessedRecords, option: Option) -> Option:
    """The option without its command if that cannot name the group or the topic."""
    if can_be_named(records.key["topic"]) and (
        can_be_named(records.key["group_id"]) or option.action != "RESET_START"
    ):
        return option
    why = f"the topic's name is unknown; {TOPICS_HINT}"
    if can_be_named(records.key["topic"]):
        why = "the group id is not UTF-8"
    return Option(option.action, option.harm, f"{option.what} No command can name it: {why}.")


_COPIES = (
    "The copies keep key, value, headers and timestamp. Offsets without a committed record are passed over, "
    "and counted. Every consumer of that topic receives the copies: use a topic that only the application that "
    "processes them reads, not {name} itself."
)


def _copy_option(
    action: str,
    ranges: Sequence[UnprocessedRange],
    records: UnprocessedRecords,
    tools: KafkaTools,
    which: str,
) -> Option:
    name = format_name(records.key["topic"] or records.key["topic_id"])
    places = _places(ranges)
    what = (
        f"Copy the records of {pluralize(count_offsets(places), 'offset')} {which} from {name} to the topic "
        f"REDRIVE_TOPIC: {describe_ranges(places)}. {_COPIES.format(name=name)}"
    )
    if any(one.is_retained is None for one in ranges):
        what += " The log start of the topic is unknown: some may be deleted."
    command = tools.copy_records(records.key["topic"] or "", records.key["partition"], places)
    return Option(action, AGAIN, what, command)


def _copy_dead_letters(
    copies: Sequence[DeadLetterRange], records: UnprocessedRecords, tools: KafkaTools
) -> Option:
    gone = count_offsets(_places(one for one in records.ranges if one.is_retained is False and one.copies))
    ordered = sorted(copies, key=lambda one: (one.topic, one.partition, one.first_offset))
    commands = list[str]()
    for (topic, partition), ranges in groupby(ordered, lambda one: (one.topic, one.partition)):
        places = _places(ranges)
        commands.append(tools.copy_records(topic, partition, places))
    count = sum(one.last_offset - one.first_offset + 1 for one in copies)
    only = (
        f" It is the only way for {pluralize(gone, 'offset')} that the topic no longer holds." if gone else ""
    )
    what = (
        f"Copy {pluralize(count, 'dead letter')} to the topic REDRIVE_TOPIC.{only} They hold the records only if "
        "the group has errors.deadletterqueue.copy.record.enable=true; otherwise they have headers alone, and the "
        "command says how many have no value."
    )
    return Option("COPY_DEAD_LETTERS", AGAIN, what, "\n".join(commands))


def _reset_option(
    ranges: Sequence[UnprocessedRange], records: UnprocessedRecords, tools: KafkaTools, writer: str
) -> Option:
    """Move SPSO back to the first of the records: everything after it is delivered again."""
    assert records.state is not None
    key = records.key
    first = ranges[0].first_offset
    start = max(records.state["effective_start_offset"] or 0, records.state["start_offset"])
    meant = count_offsets(_places(ranges))
    below = max(0, start - first)
    in_flight = sum(max(0, last + 1 - max(one, first, start)) for one, last in records.finished)
    again = below + in_flight
    what = (
        f"Move SPSO to {first:,}, once the group is empty: until then, brokers refuse. This delivers every "
        f"finished offset from there on again, {pluralize(again, 'offset')}, of which only {meant:,} are meant; "
        "and it forgets all delivery counts after it."
    )
    command = tools.set_start(
        find_release(writer), key["group_id"], key["topic"] or "", key["partition"], first
    )
    return Option("RESET_START", AGAIN, what, command)
