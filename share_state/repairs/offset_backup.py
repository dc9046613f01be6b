"""Start offsets of share groups as a file that Kafka's tool takes, and what its restore would deliver again."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import pyarrow.compute as pc

from share_state.delta.committed import CommittedTables
from share_state.errors import ShareStateError, pluralize
from share_state.fold.states import KEY, SHARE_GROUP_STATE
from share_state.repairs.commands import KafkaTools
from share_state.repairs.rehearsal import Ranges, count_offsets, delivered_again, skipped
from share_state.repairs.repair_plan import describe_ranges
from share_state.repairs.status import can_be_named, survey
from share_state.report.absent_states import absent_states, possibly_absent_states
from share_state.report.console import check_suffix, format_time, print_line, print_table, write_report
from share_state.report.diff import InFlightWindow, StateTables, compare_windows, windows_by_key
from share_state.report.share_partitions import STATE
from share_state.sources.topics import TOPICS_HINT

SUFFIXES = (".csv",)
_MOST = 2**31
_MOST_COMMANDS = 2
_STATE_COLUMNS = (*KEY, "start_offset", "effective_start_offset", "end_offset")


@dataclass(frozen=True, slots=True)
class BackedUpOffset:
    """The start offset of a share-partition.

    Attributes:
        offset: SPSO, where a leader that loads the state starts.
        delivered_again: finished offsets that are delivered again if it is set now.
        skipped: unfinished offsets that are not delivered any more.
    """

    group_id: str
    topic: str
    partition: int
    offset: int
    delivered_again: Ranges = ()
    skipped: Ranges = ()


@dataclass(frozen=True, slots=True)
class OffsetBackup:
    """Start offsets at one moment.

    Attributes:
        offsets: sorted by group, topic and partition.
        left_out: why share-partitions are not among them, one line each.
        is_complete: whether every share-partition that is known to have a start offset is among them.
        time: of the newest record that they include.
        unknown: why there may be others, one line each.
    """

    offsets: tuple[BackedUpOffset, ...]
    left_out: tuple[str, ...]
    is_complete: bool
    time: datetime | None
    unknown: tuple[str, ...] = ()

    @property
    def groups(self) -> list[str]:
        """The groups, sorted."""
        return sorted({one.group_id for one in self.offsets})

    def csv(self) -> str:
        """The file: topic, partition, offset; the group before them if there are several.

        Source: Kafka CsvUtils, GroupOffsetsResetter.parseResetPlan.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        has_group = len(self.groups) > 1
        for one in self.offsets:
            writer.writerow([one.group_id] * has_group + [one.topic, one.partition, one.offset])
        return text.getvalue()

    def restores(self, path: str, tools: KafkaTools | None = None) -> dict[str, str]:
        """Group -> the command that restores it from the file, and checks that it did."""
        groups = self.groups
        return {
            group: (tools or KafkaTools()).reset_from_file(group, path, has_group=len(groups) > 1)
            for group in groups
        }

    def to_json(self, path: str) -> dict[str, Any]:
        """The backup as plain data."""
        return {
            "file": path,
            "time": self.time,
            "offsets": [asdict(one) for one in self.offsets],
            "left_out": list(self.left_out),
            "unknown": list(self.unknown),
            "restore": self.restores(path),
        }


def back_up_offsets(
    tables: CommittedTables, groups: Sequence[str] = (), now: StateTables | None = None
) -> OffsetBackup:
    """The start offsets of groups.

    Args:
        tables: the tables of an audit or a reconstruct, at the moment of the backup.
        groups: only these; all if there are none.
        now: the state when they are to be restored; by default that of `tables`.
    Raises:
        InputError: if a group is unknown.
        ShareStateError: if there is no start offset.
        WarehouseError: if a table is gone.
    """
    surveyed = survey(tables, groups, most=_MOST)
    suspects = {
        _place(one.row): one.troubles["STATE_SUSPECT"]
        for one in surveyed.found
        if "STATE_SUSPECT" in one.troubles
    }
    where = pc.field("dialect") == SHARE_GROUP_STATE
    if groups:
        where = where & pc.field("group_id").isin(list(groups))
    if now is None:
        in_flight = tables.read("in_flight", where)
        now = (tables.read(STATE, where, (*_STATE_COLUMNS, "suspect")), in_flight, in_flight)
    windows = windows_by_key(now[0], now[1])
    rows = tables.read(STATE, where, _STATE_COLUMNS)
    rows = rows.sort_by([(name, "ascending") for name in ("group_id", "topic", "topic_id", "partition")])
    offsets = list[BackedUpOffset]()
    left_out, waiting = list[str](), list[str]()
    for row in rows.to_pylist():
        name = f"{row['group_id']} {row['topic'] or row['topic_id']}-{row['partition']}"
        if row["start_offset"] < 0:
            waiting.append(f"{name}: has no start offset yet")
        elif (reason := _reason(row, suspects)) is not None:
            left_out.append(f"{name}: {reason}")
        else:
            key = (row["dialect"], row["group_id"], row["topic_id"] or row["topic"], row["partition"])
            offsets.append(_backed_up(row, windows.get(key)))
    if not offsets:
        said = "; ".join((left_out + waiting)[:3])
        raise ShareStateError(f"no start offset can be written: {said or 'no share-partition has a state'}")
    left_out += absent_states(tables, groups)
    unknown = tuple(possibly_absent_states(tables, groups))
    return OffsetBackup(tuple(offsets), tuple(left_out + waiting), not left_out, surveyed.time, unknown)


def _place(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["group_id"], row["topic_id"] or row["topic"], row["partition"]


def _reason(row: Mapping[str, Any], suspects: Mapping[tuple[Any, ...], str]) -> str | None:
    """Why a start offset is not written; None if it is."""
    if (message := suspects.get(_place(row))) is not None:
        return f"its state cannot be trusted: {message}"
    if not can_be_named(row["group_id"]) or any(not one.isprintable() for one in row["group_id"]):
        return "the group id cannot be written in a line"
    if not can_be_named(row["topic"]):
        return f"the topic's name is unknown; {TOPICS_HINT}"
    return None


def _backed_up(row: Mapping[str, Any], window: InFlightWindow | None) -> BackedUpOffset:
    start = row["effective_start_offset"]
    offset = row["start_offset"] if start is None else max(start, row["start_offset"])
    changes = compare_windows(window, InFlightWindow(offset, offset, ()))
    again, lost = delivered_again(changes), skipped(changes)
    return BackedUpOffset(row["group_id"], row["topic"], row["partition"], offset, again, lost)


def write_backup(backup: OffsetBackup, path: str) -> None:
    """Write the CSV file, completely or not at all.

    Raises:
        ReportError: if it cannot be written.
    """
    check_suffix(path, SUFFIXES)
    write_report(path, backup.csv())


def print_backup(backup: OffsetBackup, path: str) -> None:
    """Print what was written, what is left out, what a restore does and its commands."""
    rows = [
        [one.group_id, one.topic, one.partition, one.offset,
         count_offsets(one.delivered_again), count_offsets(one.skipped)]
        for one in backup.offsets
    ]  # fmt: skip
    numeric = ("PARTITION", "START-OFFSET", "DELIVERED-AGAIN", "SKIPPED")
    print_table(["GROUP", "TOPIC", *numeric], rows, numeric=numeric)
    print_line()
    moment = f", as of {format_time(backup.time)}" if backup.time else ""
    print_line(f"{path}: {pluralize(len(backup.offsets), 'start offset')}{moment}")
    for line in backup.left_out:
        print_line(f"left out: {line}")
    for line in backup.unknown:
        print_line(f"not known: {line}")
    print_line()
    _print_effects(backup)
    print_line("To restore it, once the group is empty (Kafka 4.4):")
    commands = list(backup.restores(path).values())
    for command in commands[:_MOST_COMMANDS]:
        print_line()
        for line in command.split("\n"):
            print_line(line)
    if (more := len(commands) - _MOST_COMMANDS) > 0:
        print_line()
        print_line(f"and {pluralize(more, 'more group')} (--json has the command of each)")


def _print_effects(backup: OffsetBackup) -> None:
    for one in backup.offsets:
        effects = {"delivers again": one.delivered_again, "skips": one.skipped}
        if said := [f"{verb} {describe_ranges(ranges)}" for verb, ranges in effects.items() if ranges]:
            print_line(f"{one.group_id} {one.topic}-{one.partition}: the restore {', and '.join(said)}")
    if not any(one.delivered_again or one.skipped for one in backup.offsets):
        print_line("Nothing that is finished would be delivered again.")
    print_line()
