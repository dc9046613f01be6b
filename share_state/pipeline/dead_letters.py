"""Matches dead letters with the state logs: the tables `dead_letters`, `lost_dead_letters` and `archiving_ranges`."""

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.delta.reader import CommittedTables
from share_state.fold.interval_merge import ARCHIVED, ARCHIVING
from share_state.fold.log import decode_log
from share_state.fold.log_stats import Losses
from share_state.fold.states import KEY, SHARE_GROUP_STATE, declared_table, key_columns, to_timestamps
from share_state.kafka.state_records import LARGEST_OFFSET, Kind
from share_state.pipeline.inputs import data_files, detect_format
from share_state.pipeline.plan import FoldPlan
from share_state.pipeline.result import DEAD_LETTERS_NOTE, RunResult
from share_state.pipeline.resume import digest_of_logs
from share_state.pipeline.sink import Sink
from share_state.pipeline.task import IN_FLIGHT, Digest
from share_state.rules.dead_letters import AuditedDeadLetters
from share_state.rules.findings import findings
from share_state.rules.registry import Scope, listed
from share_state.schema.declarations import table_schema
from share_state.sources.dead_letters import (
    DeadLetters,
    ReadSoFar,
    find_dead_letter_logs,
    read_dead_letter_tables,
    read_dead_letters,
)
from share_state.sources.discovery import STATE_TOPIC, LogPartition, Segment
from share_state.sources.object_stores import InputPath, expand_paths

LETTERS, LOST, RANGES = "dead_letters", "lost_dead_letters", "archiving_ranges"
_EVENT = np.dtype([("key", "i8"), ("first", "i8"), ("end", "i8"), ("at", "i8"), ("time", "i8"), ("state", "i8"),
                   ("count", "i8")])  # fmt: skip
"""Offsets first to end - 1 of a share-partition are in `state` in the record at offset `at` of the state log."""
_PLACE = ["dead_letter_topic", "dead_letter_partition", "dead_letter_offset"]
_CLOCK_SKEW_MS = 5_000
"""The brokers that stamp a dead letter and the record in ARCHIVING before it may differ."""


def match_dead_letters(
    plan: FoldPlan, result: RunResult, sink: Sink, before: CommittedTables | None = None
) -> tuple[RunResult, pa.Table, dict[str, pa.Table]]:
    """Read the dead letters of a plan, and match them with the offsets that the state logs show in ARCHIVING.

    Args:
        plan: what was folded; an audit's holds only what is new in the state logs.
        result: of the fold.
        sink: of the run; ranges that still wait in ARCHIVING are read from it.
        before: tables of the last audit, whose rows stay.
    Returns:
        The result with the findings counted and a run_id of both sides; the findings; the tables by name.
    Raises:
        InputError: if a log or a table cannot be read.
    """
    earlier = {name: before.read(name) for name in (LETTERS, RANGES) if before is not None and before.holds(name)}
    ranges, since = _archiving_ranges(plan, sink, earlier.get(RANGES))
    rows, read = _letters(plan, earlier.get(LETTERS))
    names = {row["topic"]: row["topic_id"] for row in plan.topics.names.to_pylist()}
    matched = _Match(ranges, rows, names, plan.topics.names)
    letters = matched.letters(since, result)
    lost, unknown = matched.lost(_deleted_until(letters, read))
    notes = _notes(letters, read, unknown)
    groups = pc.unique(pa.concat_arrays([*letters["group_id"].chunks, *_archived(ranges)["group_id"].chunks]))
    tables = {LETTERS: letters, LOST: lost, RANGES: ranges.filter(pc.is_in(ranges["group_id"], groups))}
    found = findings(Scope.DEAD_LETTERS, AuditedDeadLetters(letters, lost), plan.severities)
    digest = Digest()
    for table in (*tables.values(), found):
        digest.take(table.combine_chunks())
    run_id = sha256(f"{result.run_id} {digest.text}".encode()).hexdigest()[:16]
    result = replace(result.with_findings(found), run_id=run_id, notes=(*result.notes, *notes))
    return result, found, tables


def _archived(ranges: pa.Table) -> pa.Table:
    return ranges.filter(pc.field("archiving_time").is_valid())


def _letters(plan: FoldPlan, earlier: pa.Table | None) -> tuple[pa.Table, DeadLetters]:
    """The rows of the last audit and the new ones, and what was read of the topics."""
    place = _PLACE[:2]
    so_far: ReadSoFar = {}
    if earlier is not None:
        newest = earlier.group_by(place).aggregate([("dead_letter_offset", "max")]).to_pylist()
        so_far = {(one[place[0]], one[place[1]]): one["dead_letter_offset_max"] + 1 for one in newest}
    read = _read(plan.dead_letters, so_far)
    if earlier is None:
        return read.rows.append_column("archived", pa.nulls(len(read.rows), pa.bool_())), read
    times = earlier["timestamp"].cast(pa.int64())
    topics = pc.call_function("coalesce", [earlier["topic"], earlier["topic_id"]])
    old = earlier.set_column(earlier.schema.get_field_index("topic"), "topic", topics)
    old = old.set_column(old.schema.get_field_index("timestamp"), "timestamp", pc.divide(times, 1000))
    old = old.select([*read.rows.schema.names, "archived"])
    new = read.rows.append_column("archived", pa.nulls(len(read.rows), pa.bool_()))
    return pa.concat_tables([old.cast(new.schema), new]), read


def _read(given: Sequence[str], so_far: ReadSoFar) -> DeadLetters:
    if detect_format(given) == "table":
        return read_dead_letter_tables(_table_files(given), so_far)
    return read_dead_letters(find_dead_letter_logs(given), so_far)


def _table_files(given: Sequence[str]) -> list[InputPath]:
    return [file for path in given for one in expand_paths(path) for file in data_files(one)]


def digest_of_dead_letters(given: Sequence[str]) -> str:
    """A hash that changes if the dead-letter topics change.

    Raises:
        InputError: if a file cannot be read.
    """
    if detect_format(given) != "table":
        return digest_of_logs(find_dead_letter_logs(given))
    segments = tuple(Segment(str(file), 0, file.stat().st_size) for file in _table_files(given))
    return digest_of_logs([LogPartition(LETTERS, None, segments, 0)])


def find_dead_letters(
    given: Sequence[str], group: str, topics: Sequence[str], partition: int, offset: int
) -> list[dict[str, Any]]:
    """The dead letters of one offset, in the order of their timestamps; `topics` are its name and its id.

    Raises:
        InputError: if the dead-letter topics cannot be read.
    """
    rows = _read(given, {}).rows
    own = (pc.field("group_id") == group) & pc.field("topic").isin(topics)
    own &= (pc.field("partition") == partition) & (pc.field("offset") == offset)
    found = rows.filter(own).sort_by("timestamp")
    names = [*_PLACE, "timestamp", "delivery_count", "reason"]
    times = to_timestamps(found["timestamp"].to_numpy())
    return found.set_column(found.schema.get_field_index("timestamp"), "timestamp", times).select(names).to_pylist()


def _archiving_ranges(plan: FoldPlan, sink: Sink, earlier: pa.Table | None) -> tuple[pa.Table, dict[int, int | None]]:
    """The table `archiving_ranges`, and since when (ms) each state log is known; None for one with a loss."""
    empty = table_schema(RANGES).empty_table()
    parts, since = list[tuple[np.ndarray, pa.Table]](), dict[int, int | None]()
    for log in plan.logs:
        if log.topic != STATE_TOPIC or log.partition is None:
            continue
        losses, times, events, keys = Losses(), list[int](), [np.zeros(0, _EVENT)], None
        for records, keys in decode_log(log, plan.window_of(log), losses):  # noqa: B007
            times += records.rows["timestamp"][:1].tolist()
            events.append(_events_of_records(records.rows, records.batches))
        times += _ms(_archived(earlier or empty).filter(pc.field("state_partition") == log.partition)).tolist()
        since[log.partition] = None if losses.offsets else 0 if log.log_start_offset == 0 else min(times, default=None)
        if keys is not None:
            of_log = np.concatenate(events)
            distinct, of_log["key"] = np.unique(of_log["key"], return_inverse=True)
            columns = key_columns(keys, distinct, plan.topics)
            number = pa.repeat(pa.scalar(log.partition, pa.int32()), len(distinct))
            parts.append((of_log, pa.table({**columns, "state_partition": number})))
    rows = sink.read(IN_FLIGHT)
    waiting = rows.filter((pc.field("delivery_state") == ARCHIVING) & (pc.field("dialect") == SHARE_GROUP_STATE))
    number = pa.nulls(len(waiting), pa.int32())
    parts.append((_events_of_rows(waiting, ARCHIVING), waiting.select(KEY).append_column("state_partition", number)))
    for state, name in ((ARCHIVING, "archiving"), (ARCHIVED, "archived")) if earlier is not None else ():
        known = (earlier or empty).filter(pc.field(f"{name}_offset").is_valid())
        parts.append((_events_of_rows(known, state, name), known.select([*KEY, "state_partition"])))
    return _resolve(parts), since


def _ms(rows: pa.Table, name: str = "archiving_time") -> np.ndarray:
    return rows[name].cast(pa.int64()).fill_null(0).to_numpy() // 1000


def _events_of_records(rows: np.ndarray, batches: np.ndarray) -> np.ndarray:
    states = batches["state"]
    numbers = np.flatnonzero(((states == ARCHIVING) | (states == ARCHIVED)) & (batches["first"] <= batches["last"]))
    owners = rows[np.searchsorted(np.cumsum(rows["batch_count"]), numbers, side="right")]
    found, chosen = np.zeros(len(numbers), _EVENT), batches[numbers]
    found["key"], found["at"], found["time"] = owners["key"], owners["offset"], owners["timestamp"]
    found["first"], found["end"] = chosen["first"], np.minimum(chosen["last"], LARGEST_OFFSET - 1) + 1
    found["state"], found["count"] = chosen["state"], chosen["count"]
    # A snapshot repeats what is known: the first record of a range and state counts, until the offsets are reset.
    order = np.lexsort((rows["offset"], rows["key"]))
    snapshots = order[(rows["kind"][order] != Kind.UPDATE) & (rows["key"][order] >= 0)]
    resets = np.zeros(len(rows), np.int64)
    resets[snapshots[1:]] = np.diff(rows["state_epoch"][snapshots]) != 0
    generations = np.zeros(len(rows), np.int64)
    generations[order] = np.cumsum(resets[order])
    same = np.column_stack([found[name] for name in ("key", "first", "end", "state", "count")])
    owner = generations[np.searchsorted(np.cumsum(rows["batch_count"]), numbers, side="right")]
    _, first = np.unique(np.column_stack((same, owner)), axis=0, return_index=True)
    return found[np.sort(first)]


def _events_of_rows(rows: pa.Table, state: int, name: str | None = None) -> np.ndarray:
    """Events of rows of archiving_ranges; without a name of rows of in_flight, which hold at the end of the log."""
    found = np.zeros(len(rows), _EVENT)
    found["key"], found["state"] = np.arange(len(rows)), state
    found["first"], found["end"] = rows["first_offset"].to_numpy(), rows["last_offset"].to_numpy() + 1
    found["count"] = rows["delivery_count"].to_numpy()
    found["at"] = LARGEST_OFFSET if name is None else rows[f"{name}_offset"].to_numpy()
    found["time"] = 0 if name is None else _ms(rows, f"{name}_time")
    return found


def _resolve(parts: Sequence[tuple[np.ndarray, pa.Table]]) -> pa.Table:
    """The table `archiving_ranges` of events; the key of an event is its row in the table beside it."""
    shifts = np.cumsum([0, *(len(table) for _, table in parts)])
    events = np.concatenate([events for events, _ in parts])
    events["key"] += np.repeat(shifts[:-1], [len(one) for one, _ in parts])
    keys = pa.concat_tables([table.select([*KEY, "state_partition"]).cast(_KEYS) for _, table in parts])
    codes = _codes(keys["group_id"], keys["topic_id"], keys["partition"])
    # The row with a state partition names the key.
    order = np.lexsort((keys["state_partition"].is_null().to_numpy(), codes))
    distinct, rows = np.unique(codes[order], return_index=True)
    names, events["key"] = keys.take(pa.array(order[rows])), np.searchsorted(distinct, codes[events["key"]])
    # Offsets between two neighbouring ends of ranges have one history.
    edges = np.concatenate([events[["key", "first"]].tolist(), events[["key", "end"]].tolist()]).reshape(-1, 2)
    cuts, place = np.unique(edges, axis=0, return_inverse=True) if len(edges) else (edges, np.zeros(0, np.int64))
    place = place.reshape(-1)
    begin, end = place[: len(events)], place[len(events) :]
    spread = np.repeat(np.arange(len(events)), end - begin)
    piece = np.repeat(begin - np.cumsum(end - begin) + (end - begin), end - begin) + np.arange(len(spread))
    order = np.lexsort((events["state"][spread], events["at"][spread], piece))
    piece, found = piece[order], events[spread[order]]
    is_new = np.diff(piece, prepend=-1) != 0
    is_new |= (found["state"] == ARCHIVING) & (np.roll(found["state"], 1) == ARCHIVED)
    starts = np.flatnonzero(is_new)
    count = len(found)
    numbers, is_done = np.arange(count), found["state"] == ARCHIVED
    done = np.minimum.reduceat(np.where(is_done, numbers, count), starts) if count else numbers
    waits = np.maximum.reduceat(found["at"], starts) == LARGEST_OFFSET if count else numbers.astype(bool)
    first, has_done = found[starts], done < count
    last = found[np.minimum(done, max(count - 1, 0))] if count else first
    was_seen = (first["state"] == ARCHIVING) & (first["at"] != LARGEST_OFFSET)
    columns = np.column_stack((
        first["key"], np.where(was_seen, first["at"], -1), np.where(has_done, last["at"], -1), first["count"], waits,
        np.where(was_seen, first["time"], 0), np.where(has_done, last["time"], 0),
        cuts[piece[starts], 1] if count else numbers, cuts[piece[starts] + 1, 1] if count else numbers,
    ))  # fmt: skip
    columns = columns[np.lexsort((columns[:, 7], *columns[:, 6::-1].T))]
    # Neighbouring pieces of one history are one range.
    joins = (columns[1:, :7] == columns[:-1, :7]).all(1) & (columns[1:, 7] == columns[:-1, 8])
    heads = np.flatnonzero(np.concatenate((np.ones(min(len(columns), 1), bool), ~joins)))
    rows, ends = columns[heads], columns[np.append(heads[1:], len(columns)) - 1, 8] if len(columns) else columns[:, 8]
    return declared_table(
        RANGES,
        {
            **{name: names[name].take(pa.array(rows[:, 0])) for name in _KEYS.names},
            "first_offset": pa.array(rows[:, 7]),
            "last_offset": pa.array(ends - 1),
            "delivery_count": pa.array(rows[:, 3]),
            "archiving_offset": pa.array(rows[:, 1], mask=rows[:, 1] < 0),
            "archiving_time": to_timestamps(rows[:, 5]),
            "archived_offset": pa.array(rows[:, 2], mask=rows[:, 2] < 0),
            "archived_time": to_timestamps(rows[:, 6]),
            "waiting": pa.array(rows[:, 4] != 0),
        },
    )


_KEYS = pa.schema(
    [*((name, pa.string()) for name in KEY[:4]), ("partition", pa.int32()), ("state_partition", pa.int32())]
)


def _codes(*columns: pa.ChunkedArray) -> np.ndarray:
    """A number for each row: equal for equal rows."""
    texts = [pc.fill_null(column.cast(pa.string()), "\1") for column in columns]
    joined = pc.call_function("binary_join_element_wise", [*texts, pa.scalar("\0")])
    encoded = joined.combine_chunks().dictionary_encode()
    return np.asarray(encoded.indices).astype(np.int64)


class _Match:
    """Assigns each dead letter to the range in ARCHIVING that it is of: the latest that began before it."""

    def __init__(self, ranges: pa.Table, rows: pa.Table, ids: dict[str, str], names: pa.Table) -> None:
        """Match the rows of `archiving_ranges` and columns of DEAD_LETTERS; `ids` gives topic ids by name."""
        self.ranges, self.rows = ranges, rows
        # A broker that does not know the name of a topic writes its id.
        known = pc.unique(pa.concat_arrays([*ranges["topic_id"].chunks, *names["topic_id"].cast(pa.string()).chunks]))
        is_id = pc.is_in(rows["topic"], known)
        by_name = pa.array([ids.get(name) for name in rows["topic"].to_pylist()], pa.string())
        self.topic_ids = pc.if_else(is_id, rows["topic"], by_name)
        is_named = pc.index_in(self.topic_ids, names["topic_id"].combine_chunks())
        self.topics = pc.if_else(is_id, names["topic"].combine_chunks().take(is_named), rows["topic"])
        count = len(ranges)
        own = {"group_id": rows["group_id"], "topic_id": _chunked(self.topic_ids), "partition": rows["partition"]}
        both = (pa.chunked_array([*ranges[name].chunks, *column.chunks]) for name, column in own.items())
        codes = _codes(*both)
        self.key, self.letter_key, offsets = codes[:count], codes[count:], rows["offset"].to_numpy()
        first, end = ranges["first_offset"].to_numpy(), ranges["last_offset"].to_numpy() + 1
        order = np.lexsort((offsets, self.letter_key))
        low, high = self._places(order, offsets, first), self._places(order, offsets, end)
        sizes = high - low
        of_range = np.repeat(np.arange(count), sizes)
        letter = order[np.repeat(low - np.cumsum(sizes) + sizes, sizes) + np.arange(len(of_range))]
        began = _ms(ranges)[of_range]
        precedes = began <= rows["timestamp"].to_numpy()[letter] + _CLOCK_SKEW_MS
        best = np.lexsort((np.where(precedes, began, -began), precedes, letter))
        self.range_of = np.full(len(rows), -1, np.int64)
        self.range_of[letter[best]] = of_range[best]

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

    def letters(self, since: dict[int, int | None], result: RunResult) -> pa.Table:
        """The table `dead_letters`."""
        rows, times = self.rows, self.rows["timestamp"].to_numpy()
        order = np.lexsort((rows["dead_letter_offset"].to_numpy(), times, self.range_of, rows["offset"].to_numpy(),
                            self.letter_key))  # fmt: skip
        columns = np.column_stack((self.letter_key, rows["offset"].to_numpy(), self.range_of))[order]
        duplicate = np.zeros(len(rows), bool)
        duplicate[order[1:]] = (columns[1:] == columns[:-1]).all(1)
        found, newest = self.range_of >= 0, result.log_time or int(_ms(self.ranges).max(initial=0))
        numbers = dict(zip(self.key.tolist(), self.ranges["state_partition"].to_pylist(), strict=True))
        starts = {key: since.get(number) for key, number in numbers.items()}
        # Only what the retained log would show is judged.
        known = np.array([starts.get(key) if starts.get(key) is not None else LARGEST_OFFSET
                          for key in self.letter_key.tolist()], np.int64)  # fmt: skip
        judged = found | ((times >= known) & (times <= newest))
        archived = pc.call_function("coalesce", [pa.array(found, mask=~judged), rows["archived"].combine_chunks()])
        given = {name: rows[name] for name in rows.schema.names if name not in ("topic", "timestamp", "archived")}
        return declared_table(LETTERS, {
            "dialect": pa.repeat(SHARE_GROUP_STATE, len(rows)), "topic_id": self.topic_ids, "topic": self.topics,
            **given, "timestamp": to_timestamps(times), "duplicate": pa.array(duplicate), "archived": archived,
        })  # fmt: skip

    def lost(self, deleted_until: int) -> tuple[pa.Table, int]:
        """The table `lost_dead_letters`, and how many offsets are not judged as their dead letters may be deleted."""
        ranges = self.ranges
        left = ranges["archiving_offset"].is_valid().to_numpy() & ~ranges["waiting"].to_numpy()
        is_named = pc.or_(ranges["topic"].is_valid(), pc.is_in(ranges["topic_id"], _chunked(self.topic_ids))).to_numpy()
        first, end = ranges["first_offset"].to_numpy(), ranges["last_offset"].to_numpy() + 1
        is_known = is_named & (_ms(ranges) >= deleted_until)
        chosen, has_letter = np.flatnonzero(left), np.flatnonzero(self.range_of >= 0)
        owners = np.concatenate((chosen, self.range_of[has_letter], chosen))
        places = np.concatenate((first[chosen] - 1, self.rows["offset"].to_numpy()[has_letter], end[chosen]))
        order = np.lexsort((places, owners))
        owners, places = owners[order], places[order]
        gaps = np.flatnonzero((owners[1:] == owners[:-1]) & (np.diff(places) > 1) & left[owners[1:]])
        of, begins, ends = owners[gaps], places[gaps] + 1, places[gaps + 1]
        unknown = int((ends - begins)[~is_known[of]].sum())
        of, begins, ends = of[is_known[of]], begins[is_known[of]], ends[is_known[of]]
        rows = ranges.take(pa.array(of))
        given = {name: rows[name] for name in (*KEY, "state_partition", "delivery_count", "archiving_time",
                                               "archived_time")}  # fmt: skip
        return declared_table(LOST, {**given, "first_offset": pa.array(begins), "last_offset": pa.array(ends - 1),
                                     "record_count": pa.array(ends - begins)}), unknown  # fmt: skip


def _chunked(column: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    return column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])


def _deleted_until(letters: pa.Table, read: DeadLetters) -> int:
    """The time (ms) of the earliest dead letter that is known in each topic that was cleaned, the latest of them."""
    times = [0]
    for topic, partition in read.deleted:
        own = (pc.field("dead_letter_topic") == topic) & (pc.field("dead_letter_partition") == partition)
        times.append(int(_ms(letters.filter(own), "timestamp").min(initial=LARGEST_OFFSET)))
    return max(times)


def _notes(letters: pa.Table, read: DeadLetters, unknown: int) -> tuple[str, ...]:
    notes, unnamed = list[str](), letters.filter(pc.field("topic_id").is_null())
    if len(unnamed):
        names = listed(sorted(pc.unique(unnamed["topic"]).to_pylist()), 3)
        notes.append(f"the ids of {names} are unknown, so {len(unnamed):,} are not matched; give topics")
    if read.others:
        notes.append(f"{read.others:,} records without the headers of dead letters are skipped")
    if unknown:
        why = "their topic has no known name, or the dead-letter topic has deleted records of that time"
        notes.append(f"it cannot be known whether those of {unknown:,} archived offsets were written: {why}")
    if open_count := pc.sum(letters["archived"].is_null()).as_py():
        why = "the state log does not reach back, has a loss, or ends before them"
        notes.append(f"it cannot be known whether the offsets of {open_count:,} were archived: {why}")
    return tuple(f"{DEAD_LETTERS_NOTE}: {note}" for note in notes)
