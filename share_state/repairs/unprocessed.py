"""Which records of share groups were given up, rejected or lost: ranges of offsets, each with what shows it.

The log shows which offsets became ARCHIVED or ARCHIVING, also those that SPSO has passed since, as long as
its records are not pruned. The tables hold those in flight, dead letters, and the counts of all audits.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.config.input_spec import JUDGE_NONE
from share_state.delta.committed import CommittedTables
from share_state.fold.dead_letters.archiving import EVERY_GROUP, LEFT_BY, RANGES, RESET, RETURNED
from share_state.fold.dead_letters.matching import LETTERS, LOST
from share_state.fold.history import HISTORY_TABLE
from share_state.fold.limits import Limits
from share_state.fold.states import SHARE_GROUP_STATE
from share_state.kafka.delivery_states import ARCHIVED, ARCHIVING
from share_state.pipeline.driver_side import name_topics
from share_state.pipeline.local_executor import LocalExecutor
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.task import OutputSpec, returned_table
from share_state.repairs.rehearsal import Ranges, count_offsets

GIVEN_UP = "given_up"
REJECTED = "rejected"
"""Outcomes: at the delivery limit, and below it; there an offset may also have no record."""

WRITTEN = "written"
MISSING = "lost"
WAITING = "waiting"
UNKNOWN = "unknown"
NONE = "none"
"""What is known of the dead letter: it is in the copies; a later copy lacks it; its write has not finished; the
input does not tell; the log shows no dead-letter write."""

Key = tuple[str, str, int]
"""Group id, id of the topic (or name without one), partition."""

_ROW = ("group_id", "topic_id", "topic", "partition")
_RETURNED = "returned"
_RESET = LEFT_BY[RESET].as_py()


@dataclass(frozen=True, slots=True)
class DeadLetterRange:
    """Dead letters of consecutive offsets, at consecutive offsets of a dead-letter topic."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int


@dataclass(frozen=True, slots=True)
class UnprocessedRange:
    """Offsets of a topic-partition that a group finished without acknowledging them.

    Attributes:
        first_offset, last_offset: inclusive.
        delivery_count: deliveries.
        outcome: GIVEN_UP or REJECTED, by the delivery limit of the group.
        dead_letter: WRITTEN, MISSING, WAITING, UNKNOWN or NONE.
        record: offset of the record of the state log that archived them; None if only a dead letter or the
            state shows it.
        copies: their dead letters.
        is_retained: whether the topic still holds them; None if its log start is unknown.
    """

    first_offset: int
    last_offset: int
    delivery_count: int
    outcome: str
    dead_letter: str
    record: int | None
    copies: tuple[DeadLetterRange, ...] = ()
    is_retained: bool | None = None

    @property
    def count(self) -> int:
        """The number of offsets."""
        return self.last_offset - self.first_offset + 1


@dataclass(frozen=True, slots=True)
class UnprocessedRecords:
    """The records of a share-partition that its group did not process.

    Attributes:
        key: group_id, topic_id, topic, partition.
        ranges: ascending.
        returned: offsets that were archived, then unfinished again by a reset or a deletion: delivered again,
            unless SPSO was set past them.
        only_counted: how many more the audits counted as given up and rejected; no offset of them is known.
        state: its row of share_partition_state; None if it has no state any more.
        finished: finished offsets in flight, from where a leader would start.
    """

    key: Mapping[str, Any]
    ranges: tuple[UnprocessedRange, ...]
    returned: Ranges
    only_counted: int
    state: Mapping[str, Any] | None
    finished: Ranges

    def ranges_of(self, *dead_letters: str) -> tuple[UnprocessedRange, ...]:
        """The ranges of which that is known of the dead letter."""
        return tuple(one for one in self.ranges if one.dead_letter in dead_letters)

    @property
    def severity(self) -> tuple[int, int, int]:
        """Lost dead letters, then other offsets, then those that are only counted."""
        lost = sum(one.count for one in self.ranges_of(MISSING))
        return lost, sum(one.count for one in self.ranges), self.only_counted


def find_unprocessed(
    tables: CommittedTables, plan: FoldPlan | None, groups: Sequence[str], limits: Limits
) -> list[UnprocessedRecords]:
    """Find what groups did not process, the share-partitions with the most lost records first.

    Args:
        tables: of an audit or a reconstruct.
        plan: the logs that they were made of; None if those cannot be read.
        groups: only these; all if there are none.
        limits: of the groups.
    Raises:
        InputError: if a segment cannot be read.
        WarehouseError: if a table is gone.
    """
    where = pc.field("group_id").isin(list(groups)) if groups else pc.field("group_id").is_valid()
    states = _by_key(tables.read("share_partition_state", where & (pc.field("dialect") == SHARE_GROUP_STATE)))
    in_flight = _finished_in_flight(tables, where)
    archived = _archived_ranges(tables, plan, groups, where)
    letters, lost = _read_if_held(tables, LETTERS, where), _read_if_held(tables, LOST, where)
    counted = _counted(tables, where)
    names = dict[Key, Mapping[str, Any]]()
    for table in (states, in_flight, archived, letters, lost, counted):
        for key, rows in table.items():
            # The name of a topic may be known to some tables only.
            if names.get(key, {}).get("topic") is None:
                names[key] = {name: rows[0][name] for name in _ROW}
    unprocessed = list[UnprocessedRecords]()
    starts = _log_starts(plan, list(names))
    for key, row in names.items():
        limit = limits.of_group("delivery_count", key[0])
        state = next(iter(states.get(key, ())), None)
        start = None if state is None else state["effective_start_offset"]
        painted = _Painted(
            in_flight.get(key, ()),
            archived.get(key, ()),
            letters.get(key, ()),
            lost.get(key, ()),
            None if start is None or start < 0 else start,
        )
        ranges = tuple(_split_at(painted.ranges(limit), starts.get(key)))
        returned = painted.returned()
        # After a reset an offset may be archived, and counted, again.
        lives = tuple((one["first_offset"], one["last_offset"]) for one in archived.get(key, ()))
        shown = max(sum(one.count for one in ranges) + count_offsets(returned), count_offsets(lives))
        given = sum(one["given_up_records"] + one["rejected_records"] for one in counted.get(key, ()))
        more = max(0, given - shown)
        finished = tuple((one["first_offset"], one["last_offset"]) for one in in_flight.get(key, ()))
        if ranges or returned or more:
            unprocessed.append(UnprocessedRecords(row, ranges, returned, more, state, finished))
    return sorted(
        unprocessed, key=lambda one: [*(-number for number in one.severity), *map(str, one.key.values())]
    )


def _key_of(row: Mapping[str, Any]) -> Key:
    return row["group_id"], row["topic_id"] or row["topic"], row["partition"]


def _by_key(rows: pa.Table) -> dict[Key, list[dict[str, Any]]]:
    found = defaultdict[Key, list[dict[str, Any]]](list)
    for row in rows.to_pylist():
        found[_key_of(row)].append(row)
    return dict(found)


def _read_if_held(
    tables: CommittedTables, name: str, where: pc.Expression
) -> dict[Key, list[dict[str, Any]]]:
    return _by_key(tables.read(name, where)) if tables.holds(name) else {}


def _finished_in_flight(tables: CommittedTables, where: pc.Expression) -> dict[Key, list[dict[str, Any]]]:
    """The ranges in flight that are finished, or whose dead letter is being written."""
    is_finished = pc.field("terminal") | (pc.field("delivery_state") == ARCHIVING)
    is_finished &= pc.field("dialect") == SHARE_GROUP_STATE
    return _by_key(tables.read("in_flight", where & is_finished).sort_by("first_offset"))


def _archived_ranges(
    tables: CommittedTables, plan: FoldPlan | None, groups: Sequence[str], where: pc.Expression
) -> dict[Key, list[dict[str, Any]]]:
    """Rows of `archiving_ranges`: of all groups from the logs, or those that audits kept."""
    if plan is None:
        return _read_if_held(tables, RANGES, where)
    logs = tuple(log for log in plan.logs if log.partition is not None and log.has_offsets)
    named = name_topics(replace(plan, logs=logs))
    wanted = frozenset(groups) or EVERY_GROUP
    marked = named.with_options(archiving_groups=wanted, marks_returned=True)
    output = OutputSpec((RANGES,), incomplete=(RANGES,))
    rows = LocalExecutor().fold(replace(marked, judging=JUDGE_NONE, dead_letters=None), output)
    rows = returned_table(rows, RANGES, output)
    return _by_key(rows.filter(where))


def _counted(tables: CommittedTables, where: pc.Expression) -> dict[Key, list[dict[str, Any]]]:
    """What all audits counted as given up and rejected, where they did."""
    if not tables.holds(HISTORY_TABLE):
        return {}
    columns = ("given_up_records", "rejected_records")
    is_some = pc.field(columns[0]).is_valid() & ((pc.field(columns[0]) > 0) | (pc.field(columns[1]) > 0))
    return _by_key(tables.read(HISTORY_TABLE, where & is_some, (*_ROW, *columns)))


def _log_starts(plan: FoldPlan | None, keys: Sequence[Key]) -> dict[Key, int]:
    """The log start of the topic-partitions that are known."""
    if plan is None or not keys:
        return {}
    ids, partitions = pa.array([key[1] for key in keys], pa.string()), [key[2] for key in keys]
    starts = plan.options.topics.start_of(ids, pa.array(partitions, pa.int32())).to_pylist()
    return {key: start for key, start in zip(keys, starts, strict=True) if start is not None}


def _split_at(ranges: Sequence[UnprocessedRange], start: int | None) -> Iterator[UnprocessedRange]:
    """The ranges with what is known of their retention; `start` is the log start of their topic-partition."""
    for one in ranges:
        if start is None or one.last_offset < start or one.first_offset >= start:
            yield replace(one, is_retained=None if start is None else one.first_offset >= start)
            continue
        below = one.first_offset, start - 1
        above = start, one.last_offset
        for (first, last), is_retained in ((below, False), (above, True)):
            copies = tuple(_copies_between(one, first, last))
            yield replace(one, first_offset=first, last_offset=last, copies=copies, is_retained=is_retained)


def _copies_between(one: UnprocessedRange, first: int, last: int) -> Iterator[DeadLetterRange]:
    at = one.first_offset
    for copy in one.copies:
        end = at + copy.last_offset - copy.first_offset
        low, high = max(at, first), min(end, last)
        if low <= high:
            begin = copy.first_offset + low - at
            yield replace(copy, first_offset=begin, last_offset=begin + high - low)
        at = end + 1


class _Painted:
    """The offsets of a share-partition between the bounds of all rows about it, each with its newest row.

    Args:
        in_flight: finished ranges.
        archived: rows of `archiving_ranges`.
        letters, lost: rows of `dead_letters` and `lost_dead_letters`.
        start: where a leader would start: from there on, only what is in flight is finished. None if unknown.
    """

    def __init__(
        self,
        in_flight: Sequence[Mapping[str, Any]],
        archived: Sequence[Mapping[str, Any]],
        letters: Sequence[Mapping[str, Any]],
        lost: Sequence[Mapping[str, Any]],
        start: int | None,
    ) -> None:
        self._held = [one for one in in_flight if one["delivery_state"] in (ARCHIVED, ARCHIVING)]
        # A later life of an offset replaces earlier ones.
        self._archived = sorted(
            archived, key=lambda one: max(one["archiving_offset"] or 0, one["left_offset"] or 0)
        )
        self._letters = [*_letter_runs(letters), *lost]
        self._letters.sort(key=lambda one: _seconds(one.get("timestamp") or one.get("archived_time")))
        self._start = start
        rows = (*self._held, *self._archived, *self._letters)
        bounds = {one["first_offset"] for one in rows} | {one["last_offset"] + 1 for one in rows}
        if start is not None and bounds and min(bounds) < start < max(bounds):
            bounds.add(start)
        self._bounds = np.array(sorted(bounds), np.int64)
        self._in_flight = self._paint(self._held)
        self._history = self._paint(self._archived)
        self._letter = self._paint(self._letters)

    def _paint(self, rows: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """The number of the last row about each piece between two bounds, -1 for none."""
        numbers = np.full(max(len(self._bounds) - 1, 0), -1)
        for number, row in enumerate(rows):
            first, end = np.searchsorted(self._bounds, (row["first_offset"], row["last_offset"] + 1))
            numbers[first:end] = number
        return numbers

    def returned(self) -> Ranges:
        """The offsets that were archived and are unfinished again, neighbours joined."""
        return join_ranges((first, last) for first, last, fact in self._pieces() if fact == _RETURNED)

    def ranges(self, limit: int) -> list[UnprocessedRange]:
        """The other offsets, ascending; neighbours of the same facts are joined.

        Args:
            limit: the delivery limit of the group.
        """
        ranges = list[UnprocessedRange]()
        for first, last, fact in self._pieces():
            if fact == _RETURNED:
                continue
            count, letter, record, copy = fact
            copies = () if copy is None else (copy,)
            outcome = GIVEN_UP if count >= limit else REJECTED
            new = UnprocessedRange(first, last, count, outcome, letter, record, copies)
            if ranges and ranges[-1].last_offset == first - 1 and _facts(ranges[-1]) == _facts(new):
                new = replace(
                    new, first_offset=ranges[-1].first_offset, copies=_joined(ranges[-1].copies, copies)
                )
                ranges.pop()
            ranges.append(new)
        return ranges

    def _pieces(self) -> Iterator[tuple[int, int, Any]]:
        """First and last offset, and _RETURNED or what is known of them."""
        for piece in range(len(self._in_flight)):
            first, last = int(self._bounds[piece]), int(self._bounds[piece + 1]) - 1
            held, row, letter = (
                rows[number] if (number := numbers[piece]) >= 0 else None
                for rows, numbers in (
                    (self._held, self._in_flight),
                    (self._archived, self._history),
                    (self._letters, self._letter),
                )
            )
            if held is None and _is_returned(row):
                yield first, last, _RETURNED
            elif (known := held or row or letter) is not None:
                record = None if row is None else _record_of(row)
                copy = None if letter is None else _copy_of(letter, first, last)
                yield first, last, (known["delivery_count"], _dead_letter(held, row, letter), record, copy)


def _is_returned(row: Mapping[str, Any] | None) -> bool:
    """Whether a row of `archiving_ranges` says that its offsets are unfinished again."""
    return row is not None and (row.get(RETURNED.name) is not None or row["left_by"] == _RESET)


def _record_of(row: Mapping[str, Any]) -> int:
    """The offset of the record that archived a range."""
    has_archived = row["left_by"] == LEFT_BY[2].as_py()
    record = row["left_offset"] if has_archived else row["archiving_offset"]
    return row["left_offset"] if record is None else record


def _dead_letter(
    held: Mapping[str, Any] | None, row: Mapping[str, Any] | None, letter: Mapping[str, Any] | None
) -> str:
    """What is known of the dead letter of a piece."""
    is_waiting = (
        held["delivery_state"] == ARCHIVING if held is not None else bool(row) and row["left_by"] is None
    )
    if is_waiting:
        return WAITING
    if letter is not None:
        return WRITTEN if "dead_letter_topic" in letter else MISSING
    return NONE if row is not None and row["archiving_offset"] is None else UNKNOWN


def _copy_of(letter: Mapping[str, Any], first: int, last: int) -> DeadLetterRange | None:
    if "dead_letter_topic" not in letter:
        return None
    begin = letter["dead_letter_offset"] + first - letter["first_offset"]
    return DeadLetterRange(
        letter["dead_letter_topic"], letter["dead_letter_partition"], begin, begin + last - first
    )


def _facts(one: UnprocessedRange) -> tuple[Any, ...]:
    return one.delivery_count, one.outcome, one.dead_letter, one.record


def _joined(
    before: tuple[DeadLetterRange, ...], after: tuple[DeadLetterRange, ...]
) -> tuple[DeadLetterRange, ...]:
    """Neighbouring dead letters, joined where they lie side by side."""
    if not before or not after:
        return before + after
    last, first = before[-1], after[0]
    if (last.topic, last.partition, last.last_offset + 1) != (
        first.topic,
        first.partition,
        first.first_offset,
    ):
        return before + after
    return (*before[:-1], replace(last, last_offset=first.last_offset), *after[1:])


def _letter_runs(letters: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Dead letters of consecutive offsets as one row: first_offset, last_offset, and columns of the first."""
    run: dict[str, Any] | None = None
    place = ("dead_letter_topic", "dead_letter_partition")
    for row in sorted(letters, key=lambda one: [*(one[name] for name in place), one["dead_letter_offset"]]):
        # If the state log would show the offset in ARCHIVED and does not, it was delivered again.
        if row["duplicate"] or row["archived"] is False:
            continue
        follows = run is not None and all(row[name] == run[name] for name in (*place, "delivery_count"))
        if run is not None and follows and row["offset"] == run["last_offset"] + 1 and (
            row["dead_letter_offset"] - run["dead_letter_offset"] == row["offset"] - run["first_offset"]
        ):  # fmt: skip
            run["last_offset"] = row["offset"]
            continue
        if run is not None:
            yield run
        run = {**row, "first_offset": row["offset"], "last_offset": row["offset"]}
    if run is not None:
        yield run


def _seconds(time: datetime | None) -> float:
    return 0.0 if time is None else time.timestamp()


def join_ranges(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Ranges of ascending offsets, neighbours joined."""
    joined = list[tuple[int, int]]()
    for first, last in ranges:
        if joined and joined[-1][1] == first - 1:
            joined[-1] = joined[-1][0], last
        else:
            joined.append((first, last))
    return tuple(joined)
