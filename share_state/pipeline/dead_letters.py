"""Matches dead letters with the state logs: the tables `dead_letters`, `lost_dead_letters` and `archiving_ranges`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.delta.reader import CommittedTables, scan_foreign
from share_state.fold.archiving import RANGES, merge_ranges, milliseconds, row_codes
from share_state.fold.states import KEY, SHARE_GROUP_STATE, declared_table, to_timestamps
from share_state.kafka.buffers import range_rows
from share_state.kafka.state_records import LARGEST_OFFSET
from share_state.pipeline.inputs import data_files, detect_format
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.result import DEAD_LETTERS_NOTE, RunResult
from share_state.pipeline.resume import digest_of_logs
from share_state.pipeline.sink import Sink
from share_state.pipeline.task import Digest
from share_state.rules.dead_letters import AuditedDeadLetters
from share_state.rules.findings import findings
from share_state.rules.registry import Scope, listed
from share_state.schema.declarations import table_schema
from share_state.sources.dead_letters import (
    COLUMNS,
    DeadLetters,
    ReadSoFar,
    check_columns,
    find_live_dead_letters,
    parquet_batches,
    read_dead_letter_batches,
    read_dead_letters,
    read_live_dead_letters,
)
from share_state.sources.discovery import STATE_TOPIC, LogPartition, Segment, find_topic_logs
from share_state.sources.kafka_client import KAFKA_FORM, find_cluster_address
from share_state.sources.object_stores import InputPath, expand_paths

LETTERS, LOST = "dead_letters", "lost_dead_letters"
_PLACE = ["dead_letter_topic", "dead_letter_partition"]

_CLOCK_SKEW_MS = 5_000
"""The clocks of the brokers that stamp a dead letter and the records of the state log may differ."""

_LONGEST_WRITE_MS = 2 * (5 * 30_000 + 18_000)
"""The brokers need no longer to write a dead letter: five requests of 30 s to create the topic and five to produce,
with 1, 2, 4 and 8 s and a jitter of a fifth between them. Source: Kafka ShareGroupDLQStateManager."""

_NEVER = LARGEST_OFFSET


@dataclass(frozen=True, slots=True)
class DeadLetterSide:
    """The dead letters of a run.

    Attributes:
        rows: columns of DEAD_LETTERS and `archived`, of the last audit and new ones.
        read: what was read of the topics.
        ranges: the last audit's `archiving_ranges`.
        so_far: what the last audit has read.
    """

    rows: pa.Table
    read: DeadLetters
    ranges: pa.Table
    so_far: ReadSoFar


def read_dead_letter_side(plan: FoldPlan, before: CommittedTables | None = None) -> tuple[DeadLetterSide, FoldPlan]:
    """Read the dead letters of a plan.

    Args:
        plan: of a run; of a live cluster, it holds the ends of the state logs.
        before: tables of the last audit, whose rows stay.
    Returns:
        The dead letters; the plan, which now collects `archiving_ranges`.
    Raises:
        InputError: if a log or a table cannot be read.
    """
    known = {name: before.read(name) if before is not None and before.holds(name) else table_schema(name).empty_table()
             for name in (LETTERS, RANGES)}  # fmt: skip
    newest = known[LETTERS].group_by(_PLACE).aggregate([("dead_letter_offset", "max")]).to_pylist()
    so_far = {(one[_PLACE[0]], one[_PLACE[1]]): one["dead_letter_offset_max"] + 1 for one in newest}
    read = _read(plan.dead_letters, so_far, plan.dead_letter_properties)
    new = read.rows.append_column("archived", pa.nulls(len(read.rows), pa.bool_()))
    times, old = pa.array(milliseconds(known[LETTERS]["timestamp"])), known[LETTERS]
    old = old.set_column(old.schema.get_field_index("timestamp"), "timestamp", times)
    topics = pc.call_function("coalesce", [old["topic"], old["topic_id"]])
    old = old.set_column(old.schema.get_field_index("topic"), "topic", topics)
    rows = pa.concat_tables([old.select(new.schema.names).cast(new.schema), new])
    groups = frozenset(pc.unique(rows["group_id"]).to_pylist())
    return DeadLetterSide(rows, read, known[RANGES], so_far), replace(plan, archiving_groups=groups)


def _read(given: Sequence[str], so_far: ReadSoFar, properties: str | None = None) -> DeadLetters:
    if (address := find_cluster_address(given)) is not None:
        return read_live_dead_letters(address, properties, so_far)
    if detect_format(given) == "table":
        return read_dead_letter_batches(_table_batches(given), so_far)
    return read_dead_letters(find_topic_logs(given), so_far)


def _table_batches(given: Sequence[str]) -> Iterator[pa.RecordBatch]:
    for path in (one for text in given for one in expand_paths(text)):
        if (path / "_delta_log").is_dir():
            yield from scan_foreign(str(path), COLUMNS, check_columns)
        else:
            yield from parquet_batches(data_files(path))


def digest_of_dead_letters(given: Sequence[str], properties: str | None) -> str:
    """A hash that changes if the dead-letter topics change.

    Raises:
        InputError: if a file cannot be read.
    """
    if (address := find_cluster_address(given)) is not None:
        logs, topics = find_live_dead_letters(address, properties)
        ends = [(log.name, log.log_start_offset, getattr(log.source, "end_offset", None)) for log in logs]
        return sha256(json.dumps([ends, topics.topics, topics.unusable]).encode()).hexdigest()[:16]
    if detect_format(given) != "table":
        return digest_of_logs(find_topic_logs(given))
    files: list[InputPath] = [file for text in given for path in expand_paths(text) for file in _table_files(path)]
    segments = tuple(Segment(str(file), 0, file.stat().st_size) for file in files)
    return digest_of_logs([LogPartition(LETTERS, None, segments, 0)])


def _table_files(path: InputPath) -> list[InputPath]:
    log = path / "_delta_log"
    return sorted(log.glob("*.json"), key=str) if log.is_dir() else data_files(path)


def find_dead_letters(
    given: Sequence[str], group: str, topics: Sequence[str], partition: int, offset: int, properties: str | None = None
) -> list[dict[str, Any]]:
    """The dead letters of one offset, in the order of their timestamps; `topics` are its name and its id.

    Raises:
        InputError: if the dead-letter topics cannot be read.
    """
    rows = _read(given, {}, properties).rows
    own = (pc.field("group_id") == group) & pc.field("topic").isin(topics)
    own &= (pc.field("partition") == partition) & (pc.field("offset") == offset)
    found = rows.filter(own).sort_by("timestamp")
    names = [*_PLACE, "dead_letter_offset", "timestamp", "delivery_count", "reason"]
    times = to_timestamps(found["timestamp"].to_numpy())
    return found.set_column(found.schema.get_field_index("timestamp"), "timestamp", times).select(names).to_pylist()


def match_dead_letters(
    side: DeadLetterSide, plan: FoldPlan, result: RunResult, sink: Sink
) -> tuple[RunResult, list[pa.Table], dict[str, pa.Table]]:
    """Match the dead letters of a plan with the offsets that the state logs show in ARCHIVING.

    Args:
        side: of `read_dead_letter_side`.
        plan: what was folded; an audit's holds only what is new in the state logs.
        result: of the fold.
        sink: of the run; its tasks staged `archiving_ranges`.
    Returns:
        The result with the findings counted and a run_id of both sides; the findings; the tables by name.
    """
    ranges = merge_ranges([side.ranges, sink.take(RANGES)])
    matched = _Match(ranges, side.rows, plan.topics.names)
    letters = matched.letters(_known_times(plan, result))
    # The ends of a live cluster's state logs were taken before; segments in place may grow.
    forms = {None if log.source is None else log.source.form for log in plan.logs}
    is_last = plan.dead_letters_copied_last or (side.read.is_live and forms == {KAFKA_FORM})
    copies = _Copies(side, matched, is_last=is_last)
    lost, unknown = matched.lost(copies)
    groups = pc.unique(pa.concat_arrays([*letters["group_id"].chunks, *_archiving(ranges)["group_id"].chunks]))
    tables = {LETTERS: letters, LOST: lost, RANGES: ranges.filter(pc.is_in(ranges["group_id"], groups))}
    found = findings(Scope.DEAD_LETTERS, AuditedDeadLetters(letters, lost, side.read.unusable), plan.severities)
    digest = Digest()
    for table in (*tables.values(), found):
        digest.take(table.combine_chunks())
    run_id = sha256(f"{result.run_id} {digest.text}".encode()).hexdigest()[:16]
    notes = (*result.notes, *_notes(letters, side.read, unknown))
    return replace(result.with_findings(found), run_id=run_id, notes=notes), [found], tables


def _archiving(ranges: pa.Table) -> pa.Table:
    return ranges.filter(pc.field("archiving_offset").is_valid())


def _known_times(plan: FoldPlan, result: RunResult) -> dict[int | None, tuple[int, int]]:
    """State partition -> the times (ms) from and to which its log shows every record; None for a log of unknown number.

    A dead letter of an unknown share-partition is judged where every log is complete.
    """
    numbers = {log.name: log.partition for log in plan.logs if log.topic == STATE_TOPIC}
    known = dict[int | None, tuple[int, int]]()
    for name, (since, newest) in result.complete_times.items():
        if name in numbers:
            known[numbers[name]] = (_NEVER, 0) if since is None else (since, newest)
    if plan.state_partitions is not None and len(known) == plan.state_partitions:
        known[None] = max(one for one, _ in known.values()), min(one for _, one in known.values())
    return known


class _Copies:
    """How far the copies of the dead-letter topics reach.

    A dead letter is written after the record that shows its offset in ARCHIVING, and before the one in ARCHIVED. So if
    ARCHIVED of one offset precedes ARCHIVING of another in a state log, their dead letters are in that order, too. Else
    the times decide: a dead letter is stamped before the first attempt to write it.

    Source: Kafka SharePartition, ShareGroupDLQStateManager.
    """

    def __init__(self, side: DeadLetterSide, matched: "_Match", *, is_last: bool) -> None:
        """Measure the copies; `is_last` says that they were made after those of the state logs."""
        starts = side.read.starts
        # Dead letters that an earlier audit read may be of a topic that is not there now.
        known = side.rows.group_by(_PLACE).aggregate([]).to_pylist()
        given = {*starts, *((row[_PLACE[0]], row[_PLACE[1]]) for row in known)}
        counts = dict.fromkeys(sorted({topic for topic, _ in given}), 1) | dict(side.read.partitions)
        for topic, number in given:
            counts[topic] = max(counts[topic], 1 + number)
        self._counts, self._first = list(counts.values()), np.cumsum([0, *counts.values()])
        self._groups = [
            pc.unique(side.rows.filter(pc.field("dead_letter_topic") == topic)["group_id"]) for topic in counts
        ]
        places, logs = [(topic, number) for topic, count in counts.items() for number in range(count)], matched.logs
        self._given = np.array([place in starts for place in places], bool)
        # ms from which on every dead letter is known, and up to which.
        self._kept_from, self._reach = np.zeros(len(places), np.int64), np.zeros(len(places), np.int64)
        # Offsets in each state log: the first ARCHIVED of a dead letter that was kept, the last ARCHIVING of any.
        self._left = np.full((len(places), 1 + logs.max(initial=-1)), _NEVER)
        self._entered = np.full(self._left.shape, -1)
        offsets, times = side.rows["dead_letter_offset"].to_numpy(), side.rows["timestamp"].to_numpy()
        topic_of = pc.index_in(side.rows["dead_letter_topic"], pa.array(counts, pa.string())).to_numpy()
        place_of = self._first[topic_of] + side.rows["dead_letter_partition"].to_numpy()
        order = np.lexsort((offsets, place_of))
        bounds = np.searchsorted(place_of[order], np.arange(len(places) + 1))
        for at, (topic, number) in enumerate(places):
            own = order[bounds[at] : bounds[at + 1]]
            self._reach[at] = _NEVER if is_last else times[own].max(initial=0)
            ranges = matched.range_of[own]
            ranges = ranges[ranges >= 0]
            np.maximum.at(self._entered[at], logs[ranges], matched.entered_at[ranges])
            start = starts.get((topic, number), 0)
            first = _first_kept(offsets[own], start, side.so_far.get((topic, number), 0))
            if first is not None:
                self._kept_from[at] = (times[own[first:]] + _LONGEST_WRITE_MS).min(initial=_NEVER)
                ranges = matched.range_of[own[first:]]
                ranges = ranges[(ranges >= 0) & matched.is_archived[ranges]]
                np.minimum.at(self._left[at], logs[ranges], matched.left_at[ranges])

    def of(self, matched: "_Match", rows: np.ndarray) -> np.ndarray:
        """What is known of the dead letters of some ranges.

        The topic of a group is the one with its dead letters; of several, and of a group without any, each must do. The
        partition is that of the source modulo their number.

        Returns:
            bool, 3 by ranges: their partition is among the copies; they are not deleted from it; they were written
            before it was copied.
        """
        ranges, logs = matched.ranges.take(pa.array(rows)), matched.logs[rows]
        entered, left = milliseconds(ranges["archiving_time"]), milliseconds(ranges["left_time"])
        is_archived = matched.is_archived[rows]
        # The start offset may pass while the dead letter is being written.
        left += np.where(is_archived, 0, _LONGEST_WRITE_MS) + _CLOCK_SKEW_MS
        named = [pc.is_in(ranges["group_id"], groups).to_numpy() for groups in self._groups]
        nowhere = ~np.any(named, axis=0) if named else np.ones(len(ranges), bool)
        answers = np.full((3, len(ranges)), bool(named))
        for of_topic, first, count in zip(named, self._first, self._counts, strict=False):
            at = first + ranges["partition"].to_numpy() % count
            is_kept = (self._kept_from[at] == 0) | (entered - _CLOCK_SKEW_MS >= self._kept_from[at])
            is_kept |= matched.entered_at[rows] > self._left[at, logs]
            is_reached = (left < self._reach[at]) | (is_archived & (matched.left_at[rows] < self._entered[at, logs]))
            answers &= np.stack((self._given[at], is_kept, is_reached)) | ~(of_topic | nowhere)
        return answers


def _first_kept(offsets: np.ndarray, start: int, so_far: int) -> int | None:
    """The first of the dead letters of a partition, by offset, before which none is missing; None if all are known."""
    if start == 0:
        return None
    if start > so_far:
        return int(np.searchsorted(offsets, start))
    # What was deleted between two audits left a hole.
    holes = np.flatnonzero(np.diff(offsets, prepend=-1) > 1)
    return int(holes[-1]) if len(holes) else None


class _Match:
    """Assigns each dead letter to the range in ARCHIVING that it is of: the latest that began before it."""

    def __init__(self, ranges: pa.Table, rows: pa.Table, names: pa.Table) -> None:
        """Match rows of `archiving_ranges` and columns of DEAD_LETTERS; `names` has topic ids and names."""
        self.ranges, self.rows = ranges, rows
        ids, texts = names["topic_id"].combine_chunks(), names["topic"].combine_chunks()
        of_id = pc.index_in(ranges["topic_id"], ids)
        known = texts.take(of_id.combine_chunks())
        self.names = pc.call_function("coalesce", [known, ranges["topic"].combine_chunks()])
        # A broker that does not know the name of a topic writes its id.
        is_id = pc.index_in(rows["topic"], ids).combine_chunks()
        self.topics = pc.call_function("coalesce", [texts.take(is_id), rows["topic"].combine_chunks()])
        own = (rows["group_id"], pa.chunked_array([self.topics]), rows["partition"])
        shown = pa.chunked_array([pc.call_function("coalesce", [self.names, ranges["topic_id"].combine_chunks()])])
        of_ranges = (ranges["group_id"], shown, ranges["partition"])
        pairs = zip(of_ranges, own, strict=True)
        codes = row_codes(*(pa.chunked_array([*one.chunks, *other.chunks], one.type) for one, other in pairs))
        count = len(ranges)
        self.key, self.letter_key, offsets = codes[:count], codes[count:], rows["offset"].to_numpy()
        first, end = ranges["first_offset"].to_numpy(), ranges["last_offset"].to_numpy() + 1
        order = np.lexsort((offsets, self.letter_key))
        low, high = self._places(order, offsets, first), self._places(order, offsets, end)
        sizes = high - low
        of_range = np.repeat(np.arange(count), sizes)
        letter = order[range_rows(low, sizes)]
        began = milliseconds(ranges["archiving_time"])[of_range]
        precedes = began <= rows["timestamp"].to_numpy()[letter] + _CLOCK_SKEW_MS
        best = np.lexsort((np.where(precedes, began, -began), precedes, letter))
        self.range_of = np.full(len(rows), -1, np.int64)
        self.range_of[letter[best]] = of_range[best]
        self.logs = ranges["state_partition"].to_numpy()
        self.is_archived = pc.fill_null(pc.equal(ranges["left_by"], "ARCHIVED"), False).to_numpy()
        self.left_at = ranges["left_offset"].fill_null(-1).to_numpy()
        # A snapshot at the beginning of the log may repeat what was known before.
        is_seen = ranges["archiving_time"].is_valid().to_numpy()
        self.entered_at = np.where(is_seen, ranges["archiving_offset"].fill_null(-1).to_numpy(), -1)
        by_name = ids.take(pc.index_in(rows["topic"], texts).combine_chunks())
        by_range = ranges["topic_id"].combine_chunks().take(pa.array(self.range_of, mask=self.range_of < 0))
        self.topic_ids = pc.call_function("coalesce", [by_range, ids.take(is_id), by_name])

    def _places(self, order: np.ndarray, offsets: np.ndarray, bounds: np.ndarray) -> np.ndarray:
        """For each range how many letters, in `order`, come before its key and bound."""
        keys = np.concatenate((self.letter_key, self.key))
        kind = np.concatenate((np.ones(len(order), np.int64), np.zeros(len(bounds), np.int64)))
        merged = np.lexsort((kind, np.concatenate((offsets, bounds)), keys))
        before = np.cumsum(merged < len(order))
        places = np.zeros(len(bounds), np.int64)
        is_range = merged >= len(order)
        places[merged[is_range] - len(order)] = before[is_range]
        return places

    def letters(self, known: Mapping[int | None, tuple[int, int]]) -> pa.Table:
        """The table `dead_letters`; `known` of `_known_times`."""
        rows, times = self.rows, self.rows["timestamp"].to_numpy()
        order = np.lexsort((rows["dead_letter_offset"].to_numpy(), times, self.range_of, rows["offset"].to_numpy(),
                            self.letter_key))  # fmt: skip
        columns = np.column_stack((self.letter_key, rows["offset"].to_numpy(), self.range_of))[order]
        duplicate = np.zeros(len(rows), bool)
        duplicate[order[1:]] = (columns[1:] == columns[:-1]).all(1)
        found = self.range_of >= 0
        # Only what the retained logs would show is judged; ARCHIVED may follow the dead letter late.
        begin, end = (self._of_letters({number: one[side] for number, one in known.items()}, default)
                      for side, default in ((0, _NEVER), (1, 0)))  # fmt: skip
        is_named = self.topic_ids.is_valid().to_numpy(zero_copy_only=False)
        judged = found | is_named & ((times >= begin) & (times <= end - _LONGEST_WRITE_MS - _CLOCK_SKEW_MS))
        archived = pc.call_function("coalesce", [pa.array(found, mask=~judged), rows["archived"].combine_chunks()])
        given = {name: rows[name] for name in rows.schema.names if name not in ("topic", "timestamp", "archived")}
        return declared_table(LETTERS, {
            "dialect": pa.repeat(SHARE_GROUP_STATE, len(rows)), "topic_id": self.topic_ids, "topic": self.topics,
            **given, "timestamp": to_timestamps(times), "duplicate": pa.array(duplicate), "archived": archived,
        })  # fmt: skip

    def _of_letters(self, by_partition: Mapping[int | None, int], default: int) -> np.ndarray:
        """A value for the state partition of each letter, which its share-partition's ranges show."""
        numbers = np.array([number for number in by_partition if number is not None] or [-1])
        values = np.array([by_partition[number] for number in by_partition if number is not None] or [default])
        order = np.argsort(numbers)
        at = np.searchsorted(numbers[order], self.logs)
        at = order[np.minimum(at, len(numbers) - 1)]
        keys = 1 + max(self.letter_key.max(initial=-1), self.key.max(initial=-1))
        of_key = np.full(keys, by_partition.get(None, default))
        of_key[self.key] = np.where(numbers[at] == self.logs, values[at], default)
        return of_key[self.letter_key]

    def lost(self, copies: _Copies) -> tuple[pa.Table, dict[str, int]]:
        """The table `lost_dead_letters`, and how many offsets without a dead letter are not judged, by why."""
        ranges = self.ranges
        left_by = ranges["left_by"].fill_null("").to_numpy(zero_copy_only=False)
        left = ranges["archiving_offset"].is_valid().to_numpy() & (left_by != "")
        first, end = ranges["first_offset"].to_numpy(), ranges["last_offset"].to_numpy() + 1
        chosen, has_letter = np.flatnonzero(left), np.flatnonzero(self.range_of >= 0)
        owners = np.concatenate((chosen, self.range_of[has_letter], chosen))
        places = np.concatenate((first[chosen] - 1, self.rows["offset"].to_numpy()[has_letter], end[chosen]))
        order = np.lexsort((places, owners))
        owners, places = owners[order], places[order]
        gaps = np.flatnonzero((owners[1:] == owners[:-1]) & (np.diff(places) > 1) & left[owners[1:]])
        of, begins, ends = owners[gaps], places[gaps] + 1, places[gaps + 1]
        is_named = self.names.is_valid().to_numpy(zero_copy_only=False)[of]
        is_named |= pc.is_in(ranges["topic_id"], self.topic_ids).to_numpy()[of]
        is_given, is_kept, is_reached = copies.of(self, of)
        doubts = [~is_named, left_by[of] == "RESET", ~is_given, ~is_kept, ~is_reached]
        why = np.select(doubts, list(_UNKNOWN), "")
        sizes = ends - begins
        unknown = {reason: int(sizes[why == reason].sum()) for reason in _UNKNOWN if (why == reason).any()}
        kept = np.flatnonzero(why == "")
        rows, begins, ends = ranges.take(pa.array(of[kept])), begins[kept], ends[kept]
        given = {name: rows[name] for name in (*KEY, "state_partition", "delivery_count", "archiving_time")}
        given["archived_time"] = pc.if_else(pa.array(self.is_archived[of[kept]]), rows["left_time"], None)
        given |= {"first_offset": pa.array(begins), "last_offset": pa.array(ends - 1)}
        return declared_table(LOST, given | {"record_count": pa.array(ends - begins)}), unknown


_UNKNOWN = (
    "their topic has no known name; give topics",
    "they were reset, or their share-partition deleted, while they waited in ARCHIVING",
    "the partition of the dead-letter topic that takes them is not among the copies",
    "the dead-letter topic has deleted records of that time",
    "the copy of the dead-letter topic may have been made before; give --dead-letters-copied-last if it was not",
)


def _notes(letters: pa.Table, read: DeadLetters, unknown: Mapping[str, int]) -> tuple[str, ...]:
    notes, unnamed = list[str](), letters.filter(pc.field("topic_id").is_null())
    if len(unnamed):
        names = listed(sorted(pc.unique(unnamed["topic"]).to_pylist()), 3)
        notes.append(f"the ids of {names} are unknown, so {len(unnamed):,} are not matched; give topics")
    if read.others:
        notes.append(f"{read.others:,} records without the headers of dead letters are skipped")
    for why, count in unknown.items():
        notes.append(f"it cannot be known whether those of {count:,} archived offsets were written: {why}")
    if open_count := pc.sum(letters["archived"].is_null()).as_py():
        why = "the state log does not reach back, has a loss, or ends before them"
        notes.append(f"it cannot be known whether the offsets of {open_count:,} were archived: {why}")
    return tuple(f"{DEAD_LETTERS_NOTE}: {note}" for note in notes)
