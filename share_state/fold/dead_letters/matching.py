"""Matches dead letters with the offsets that were in ARCHIVING: the tables `dead_letters` and `lost_dead_letters`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isqrt

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.errors import InputError
from share_state.fold.dead_letters.archiving import milliseconds, row_codes
from share_state.fold.states import KEY, SHARE_GROUP_STATE, declared_table, to_timestamps
from share_state.kafka.buffers import range_rows
from share_state.kafka.state_records import LARGEST_OFFSET
from share_state.sources.dead_letter_topics import DeadLetters, DeadLetterSource, ReadSoFar
from share_state.sources.topics import TOPICS_HINT

LETTERS, LOST = "dead_letters", "lost_dead_letters"
_PLACE = ["dead_letter_topic", "dead_letter_partition"]

_CLOCK_SKEW_MS = 5_000
"""How much the clocks of the brokers that stamp dead letters and records of the state log may differ."""

_LONGEST_WRITE_MS = 2 * (5 * 30_000 + 18_000)
"""The longest time that a broker needs to write a dead letter: five requests of 30 s to create the topic and
five to produce, with pauses of 1, 2, 4 and 8 s and a jitter of a fifth. Source: Kafka
ShareGroupDLQStateManager."""

NEVER = LARGEST_OFFSET

_MOST_PARTITIONS = 100_000
"""Of a dead-letter topic; a damaged table may name more, and memory grows with their number."""

UNKNOWN = (
    f"the name of their topic is unknown; {TOPICS_HINT}",
    "they were reset, or their share-partition deleted, while they waited in ARCHIVING",
    "the dead-letter topic of their group is unknown, as no copy holds a dead letter of the group",
    "their partition of the dead-letter topic is not among the copies, or it is unknown which one is theirs",
    "records of that time were deleted from the dead-letter topic, or it was created since",
    "the dead-letter topic may have been copied before; give --dead-letters-copied-last if it was copied last",
)
"""Why it cannot be known whether a dead letter was written."""


@dataclass(frozen=True, slots=True)
class ReadLetters:
    """Dead letters that this run and earlier audits have read.

    Attributes:
        rows: columns of DEAD_LETTERS and `archived`.
        read: what this run has read of the topics.
        so_far: what earlier audits have read.
    """

    rows: pa.Table
    read: DeadLetters
    so_far: ReadSoFar


@dataclass(frozen=True, slots=True)
class MatchedLetters:
    """Dead letters matched with the ranges in ARCHIVING.

    Attributes:
        letters: the table `dead_letters`.
        lost: the table `lost_dead_letters`.
        unknown: why it cannot be known whether a dead letter was written (one of UNKNOWN) -> number of
            offsets.
    """

    letters: pa.Table
    lost: pa.Table
    unknown: Mapping[str, int]


def read_letters(source: DeadLetterSource, known: pa.Table) -> ReadLetters:
    """Read the new dead letters, and add those of earlier audits.

    Args:
        source: where to read them.
        known: the table `dead_letters` of the last audit, or an empty one.
    Raises:
        InputError: if they cannot be read.
    """
    newest = known.group_by(_PLACE).aggregate([("dead_letter_offset", "max")]).to_pylist()
    so_far = {(one[_PLACE[0]], one[_PLACE[1]]): one["dead_letter_offset_max"] + 1 for one in newest}
    read = source.read(so_far)
    new = read.rows.append_column("archived", pa.nulls(len(read.rows), pa.bool_()))
    times = pa.array(milliseconds(known["timestamp"]))
    old = known.set_column(known.schema.get_field_index("timestamp"), "timestamp", times)
    topics = pc.call_function("coalesce", [old["topic"], old["topic_id"]])
    old = old.set_column(old.schema.get_field_index("topic"), "topic", topics)
    return ReadLetters(pa.concat_tables([old.select(new.schema.names).cast(new.schema), new]), read, so_far)


def letters_of_offset(
    source: DeadLetterSource, group: str, topics: Sequence[str], partition: int, offset: int
) -> pa.Table:
    """The dead letters of one offset, by timestamp.

    Args:
        source: where to read them.
        group: id of the share group.
        topics: name and id of the topic.
        partition: partition of the topic.
        offset: offset in the partition.
    Returns:
        Topic, partition, offset, timestamp, delivery count and reason of each; columns of the table
        `dead_letters`.
    Raises:
        InputError: if they cannot be read.
    """
    rows = source.read({}).rows
    own = (pc.field("group_id") == group) & pc.field("topic").isin(topics)
    own &= (pc.field("partition") == partition) & (pc.field("offset") == offset)
    found = rows.filter(own).sort_by("timestamp")
    times = to_timestamps(found["timestamp"].to_numpy())
    names = [*_PLACE, "dead_letter_offset", "timestamp", "delivery_count", "reason"]
    return found.set_column(found.schema.get_field_index("timestamp"), "timestamp", times).select(names)


def match_letters(
    letters: ReadLetters,
    ranges: pa.Table,
    names: pa.Table,
    known: Mapping[int | None, tuple[int, int]],
    *,
    copied_last: bool,
    partitions: Mapping[str, int] | None = None,
    topic_of: Mapping[str, str] | None = None,
) -> MatchedLetters:
    """Match dead letters with the ranges of offsets that the state logs show in ARCHIVING.

    Args:
        letters: what was read.
        ranges: the table `archiving_ranges`, merged.
        names: columns `topic_id` and `topic` of known topics.
        known: state partition -> first and last time (ms) between which its log has every record; None for
            all others.
        copied_last: whether the dead-letter topics were copied after the state logs.
        partitions: topic -> number of its partitions, as far as they are known.
        topic_of: group -> the dead-letter topic that it is configured with, as far as that is known.
    """
    matched = _Match(ranges, letters.rows, names)
    counts = {**(partitions or {}), **letters.read.partitions}
    configured = {**(topic_of or {}), **letters.read.topic_of}
    lost, unknown = matched.lost(_Copies(letters, matched, counts, configured, copied_last=copied_last))
    return MatchedLetters(matched.letters(known), lost, unknown)


class _Copies:
    """What the copies of the dead-letter topics cover.

    A dead letter is written after the record that shows its offset in ARCHIVING, and before the one in
    ARCHIVED. So if ARCHIVED of one offset precedes ARCHIVING of another in a state log, their dead letters
    are in that order, too. Otherwise the times decide: a dead letter is stamped before the first attempt to
    write it.

    Source: Kafka SharePartition, ShareGroupDLQStateManager.
    """

    def __init__(
        self,
        letters: ReadLetters,
        matched: "_Match",
        partitions: Mapping[str, int],
        topic_of: Mapping[str, str],
        *,
        copied_last: bool,
    ) -> None:
        """Find what the copies cover; with `copied_last`, they were made after those of the state logs."""
        starts = letters.read.starts
        # An earlier audit may have read a topic that is not in the input now.
        known = letters.rows.group_by(_PLACE).aggregate([]).to_pylist()
        given = {*starts, *((row[_PLACE[0]], row[_PLACE[1]]) for row in known)}
        counts = dict.fromkeys(sorted({topic for topic, _ in given}), 1)
        counts |= {topic: partitions[topic] for topic in counts.keys() & partitions.keys()}
        for topic, number in given:
            counts[topic] = max(counts[topic], 1 + number)
        if (number := max(counts.values(), default=0)) > _MOST_PARTITIONS:
            raise InputError(
                f"dead letters: partition {number - 1}: no topic has so many; give the dead-letter topics"
            )
        self._counts, self._first = counts, np.cumsum([0, *counts.values()])
        self._known_counts, self._topic_of = {*partitions}, topic_of
        self._groups = {
            topic: pc.unique(letters.rows.filter(pc.field("dead_letter_topic") == topic)["group_id"])
            for topic in counts
        }
        places = [(topic, number) for topic, count in counts.items() for number in range(count)]
        logs = matched.logs
        self._given = np.array([place in starts for place in places], bool)
        # ms from which on, and up to which, every dead letter is known.
        self._known_from, self._known_to = np.full(len(places), NEVER), np.zeros(len(places), np.int64)
        # Offsets in each state log: the first ARCHIVED of a dead letter that is not deleted, the last
        # ARCHIVING of any.
        self._left = np.full((len(places), 1 + logs.max(initial=-1)), NEVER)
        self._entered = np.full(self._left.shape, -1)
        offsets, times = letters.rows["dead_letter_offset"].to_numpy(), letters.rows["timestamp"].to_numpy()
        topic_of_row = pc.index_in(
            letters.rows["dead_letter_topic"], pa.array(counts, pa.string())
        ).to_numpy()
        place_of = self._first[topic_of_row] + letters.rows["dead_letter_partition"].to_numpy()
        pairs = [letters.rows[name].to_numpy() for name in ("partition", "dead_letter_partition")]
        self._steps = {
            topic: _step(*(column[topic_of_row == number] for column in pairs))
            for number, topic in enumerate(counts)
        }
        order = np.lexsort((offsets, place_of))
        bounds = np.searchsorted(place_of[order], np.arange(len(places) + 1))
        began = milliseconds(matched.ranges["archiving_time"])
        exists_from = dict.fromkeys(counts, NEVER)
        for place_number, (topic, number) in enumerate(places):
            own = order[bounds[place_number] : bounds[place_number + 1]]
            self._known_to[place_number] = NEVER if copied_last else times[own].max(initial=0)
            ranges = matched.range_of[own]
            ranges = ranges[ranges >= 0]
            np.maximum.at(self._entered[place_number], logs[ranges], matched.entered_at[ranges])
            start = starts.get((topic, number), 0)
            first = _first_kept(offsets[own], start, letters.so_far.get((topic, number), 0))
            if first is not None:
                self._known_from[place_number] = (times[own[first:]] + _LONGEST_WRITE_MS).min(initial=NEVER)
            kept = own[first or 0 :]
            ranges = matched.range_of[kept]
            is_first = times[kept] == times[kept].min(initial=NEVER)
            if first is None and len(kept):
                # The topic, all its partitions, was there when the first range with a dead letter was
                # archived.
                since = np.append(began[ranges[(ranges >= 0) & is_first]], times[kept].min())
                exists_from[topic] = min(exists_from[topic], int(since[since > 0].min(initial=NEVER)))
            ranges = ranges[(ranges >= 0) & matched.is_archived[ranges]]
            np.minimum.at(self._left[place_number], logs[ranges], matched.left_at[ranges])
        for place_number, (topic, number) in enumerate(places):
            if not starts.get((topic, number), 0):
                self._known_from[place_number] = exists_from[topic] - 2 * _CLOCK_SKEW_MS

    def of(self, matched: "_Match", rows: np.ndarray) -> np.ndarray:
        """Whether the copies cover the dead letters of ranges.

        The dead-letter topic of a group is the one that it is configured with, and each that holds dead
        letters of it; all of them must cover the range. The partition is that of the source modulo their
        number.

        Returns:
            bool of shape (4, ranges): the topic is known; the partition is among the copies; the dead letters
            are not deleted from it; they were written before it was copied.
        """
        ranges, logs = matched.ranges.take(pa.array(rows)), matched.logs[rows]
        entered, left_times = milliseconds(ranges["archiving_time"]), milliseconds(ranges["left_time"])
        is_archived, group_ids = matched.is_archived[rows], ranges["group_id"]
        # The start offset may pass while the dead letter is being written.
        left_times += np.where(is_archived, 0, _LONGEST_WRITE_MS) + _CLOCK_SKEW_MS
        absent = [group for group, topic in self._topic_of.items() if topic not in self._counts]
        answers = np.ones((4, len(ranges)), bool)
        answers[1] = ~_is_among(group_ids, absent)
        answers[0] = ~answers[1]
        sources, source_of = np.unique(ranges["partition"].to_numpy(), return_inverse=True)
        for topic, first in zip(self._counts, self._first, strict=False):
            configured = [group for group, name in self._topic_of.items() if name == topic]
            of_topic = _is_among(group_ids, [*self._groups[topic].to_pylist(), *configured])
            answers[0] |= of_topic
            found = [self._partitions_of(topic, partition) for partition in sources.tolist()]
            places = [first + numbers for numbers, _ in found]
            given = [
                is_sure and self._given[at].all() for at, (_, is_sure) in zip(places, found, strict=True)
            ]
            given = np.array(given, bool)[source_of]
            known_from = np.array([self._known_from[at].max() for at in places], np.int64)[source_of]
            known_to = np.array([self._known_to[at].min() for at in places], np.int64)[source_of]
            first_left = _rows_of([self._left[at].max(axis=0) for at in places], self._left)[source_of, logs]
            last_entered = _rows_of([self._entered[at].min(axis=0) for at in places], self._left)[
                source_of, logs
            ]
            is_kept = (entered - _CLOCK_SKEW_MS >= known_from) | (matched.entered_at[rows] > first_left)
            is_copied = (left_times < known_to) | (is_archived & (matched.left_at[rows] < last_entered))
            answers[1:] &= np.stack((given, is_kept, is_copied)) | ~of_topic
        return answers

    def _partitions_of(self, topic: str, source: int) -> tuple[np.ndarray, bool]:
        """The partitions of a dead-letter topic that dead letters of a source partition may be in.

        Returns:
            Those among the copies, or all if there is none; whether no other is possible.
        """
        count, step = self._counts[topic], self._steps[topic]
        if topic in self._known_counts:
            return np.array([source % count]), True
        if step == 0:
            return (np.array([source]), True) if source < count else (np.array([*range(count)]), False)
        # The number of partitions, if it is not known, divides each difference of a source and its partition.
        found = sorted({source % number for number in _divisors(step) if number >= count})
        inside = [number for number in found if number < count]
        return np.array(inside or [*range(count)]), bool(found) and len(inside) == len(found)


def _divisors(number: int) -> set[int]:
    pairs = ((one, number // one) for one in range(1, isqrt(max(number, 0)) + 1) if number % one == 0)
    return {one for pair in pairs for one in pair}


def _step(sources: np.ndarray, partitions: np.ndarray) -> int:
    """The greatest common divisor of the differences of source and dead-letter partitions.

    -1 if none fits.
    """
    differences = sources.astype(np.int64) - partitions
    return -1 if (differences < 0).any() else int(np.gcd.reduce(differences, initial=0))


def _is_among(column: pa.ChunkedArray, values: Sequence[str]) -> np.ndarray:
    return np.asarray(pc.is_in(column, pa.array(values, pa.string())))


def _rows_of(rows: Sequence[np.ndarray], like: np.ndarray) -> np.ndarray:
    return np.array(rows) if rows else like[:0]


def _first_kept(offsets: np.ndarray, start: int, so_far: int) -> int | None:
    """Index of the first dead letter of a partition from which on none is missing; None if all are known."""
    if start == 0:
        return None
    if start > so_far:
        return int(np.searchsorted(offsets, start))
    # Records that were deleted between two audits leave a gap in the offsets.
    gaps = np.flatnonzero(np.diff(offsets, prepend=-1) > 1)
    return int(gaps[-1]) if len(gaps) else None


class _Match:
    """Assigns each dead letter to its range in ARCHIVING: the latest that began before it."""

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
        shown = pa.chunked_array(
            [pc.call_function("coalesce", [self.names, ranges["topic_id"].combine_chunks()])]
        )
        of_ranges = (ranges["group_id"], shown, ranges["partition"])
        pairs = zip(of_ranges, own, strict=True)
        codes = row_codes(*(pa.chunked_array([*one.chunks, *other.chunks], one.type) for one, other in pairs))
        count = len(ranges)
        self.key = codes[:count]
        self.letter_key = codes[count:]
        offsets = rows["offset"].to_numpy()
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
        # The first snapshot in an incomplete log may repeat older ranges, which have no archiving_time.
        is_seen = ranges["archiving_time"].is_valid().to_numpy()
        self.entered_at = np.where(is_seen, ranges["archiving_offset"].fill_null(-1).to_numpy(), -1)
        by_name = ids.take(pc.index_in(rows["topic"], texts).combine_chunks())
        by_range = ranges["topic_id"].combine_chunks().take(pa.array(self.range_of, mask=self.range_of < 0))
        self.topic_ids = pc.call_function("coalesce", [by_range, ids.take(is_id), by_name])

    def _places(self, order: np.ndarray, offsets: np.ndarray, bounds: np.ndarray) -> np.ndarray:
        """For each range, the number of letters in `order` before its key and bound."""
        keys = np.concatenate((self.letter_key, self.key))
        kind = np.concatenate((np.ones(len(order), np.int64), np.zeros(len(bounds), np.int64)))
        merged = np.lexsort((kind, np.concatenate((offsets, bounds)), keys))
        before = np.cumsum(merged < len(order))
        places = np.zeros(len(bounds), np.int64)
        is_range = merged >= len(order)
        places[merged[is_range] - len(order)] = before[is_range]
        return places

    def letters(self, known: Mapping[int | None, tuple[int, int]]) -> pa.Table:
        """The table `dead_letters`; `known` as for `match_letters`."""
        rows, times = self.rows, self.rows["timestamp"].to_numpy()
        order = np.lexsort((rows["dead_letter_offset"].to_numpy(), times, self.range_of, rows["offset"].to_numpy(),
                            self.letter_key))  # fmt: skip
        columns = np.column_stack((self.letter_key, rows["offset"].to_numpy(), self.range_of))[order]
        duplicate = np.zeros(len(rows), bool)
        duplicate[order[1:]] = (columns[1:] == columns[:-1]).all(1)
        found = self.range_of >= 0
        # Judge only dead letters whose offset the retained logs would show; ARCHIVED may follow much later.
        begin, end = (self._of_letters({number: one[side] for number, one in known.items()}, default)
                      for side, default in ((0, NEVER), (1, 0)))  # fmt: skip
        is_named = self.topic_ids.is_valid().to_numpy(zero_copy_only=False)
        judged = found | is_named & ((times >= begin) & (times <= end - _LONGEST_WRITE_MS - _CLOCK_SKEW_MS))
        archived = pc.call_function(
            "coalesce", [pa.array(found, mask=~judged), rows["archived"].combine_chunks()]
        )
        given = {
            name: rows[name] for name in rows.schema.names if name not in ("topic", "timestamp", "archived")
        }
        return declared_table(LETTERS, {
            "dialect": pa.repeat(SHARE_GROUP_STATE, len(rows)), "topic_id": self.topic_ids, "topic": self.topics,
            **given, "timestamp": to_timestamps(times), "duplicate": pa.array(duplicate), "archived": archived,
        })  # fmt: skip

    def _of_letters(self, by_partition: Mapping[int | None, int], default: int) -> np.ndarray:
        """The value for each letter's state partition, which the ranges of its share-partition show."""
        numbers = np.array([number for number in by_partition if number is not None] or [-1])
        values = np.array(
            [by_partition[number] for number in by_partition if number is not None] or [default]
        )
        order = np.argsort(numbers)
        at = np.searchsorted(numbers[order], self.logs)
        at = order[np.minimum(at, len(numbers) - 1)]
        keys = 1 + max(self.letter_key.max(initial=-1), self.key.max(initial=-1))
        of_key = np.full(keys, by_partition.get(None, default))
        of_key[self.key] = np.where(numbers[at] == self.logs, values[at], default)
        return of_key[self.letter_key]

    def lost(self, copies: _Copies) -> tuple[pa.Table, dict[str, int]]:
        """The table `lost_dead_letters`, and the number of offsets that cannot be judged, by UNKNOWN reason."""
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
        of = owners[gaps]
        begins = places[gaps] + 1
        ends = places[gaps + 1]
        is_named = self.names.is_valid().to_numpy(zero_copy_only=False)[of]
        is_named |= pc.is_in(ranges["topic_id"], self.topic_ids).to_numpy()[of]
        is_known, is_given, is_kept, is_copied = copies.of(self, of)
        doubts = [~is_named, left_by[of] == "RESET", ~is_known, ~is_given, ~is_kept, ~is_copied]
        why = np.select(doubts, list(UNKNOWN), "")
        sizes = ends - begins
        unknown = {reason: int(sizes[why == reason].sum()) for reason in UNKNOWN if (why == reason).any()}
        kept = np.flatnonzero(why == "")
        rows = ranges.take(pa.array(of[kept]))
        begins = begins[kept]
        ends = ends[kept]
        given = {name: rows[name] for name in (*KEY, "state_partition", "delivery_count", "archiving_time")}
        given["archived_time"] = pc.if_else(pa.array(self.is_archived[of[kept]]), rows["left_time"], None)
        given |= {"first_offset": pa.array(begins), "last_offset": pa.array(ends - 1)}
        return declared_table(LOST, given | {"record_count": pa.array(ends - begins)}), unknown
