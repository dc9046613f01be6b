"""Matches dead letters with what the state logs show in ARCHIVING, and judges them: once, or while both sides grow."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import pyarrow as pa
import pyarrow.compute as pc

from share_state.errors import pluralize
from share_state.fold.dead_letters.archiving import RANGES, merge_ranges
from share_state.fold.dead_letters.matching import (
    LETTERS,
    LOST,
    NEVER,
    MatchedLetters,
    ReadLetters,
    match_letters,
    read_letters,
)
from share_state.pipeline.result import DEAD_LETTERS_NOTE
from share_state.rules.breaches import listed
from share_state.rules.dead_letter_losses import AuditedDeadLetters
from share_state.rules.findings import findings
from share_state.rules.registry import Scope
from share_state.schema.declarations import table_schema
from share_state.sources.dead_letter_topics import DeadLetterSource


@dataclass(frozen=True, slots=True)
class JudgedLetters:
    """Dead letters that are matched with the state logs, and judged.

    Attributes:
        tables: LETTERS, LOST, and RANGES of the groups with dead letters or ARCHIVING.
        findings: findings of the rules over dead letters.
        notes: what cannot be known, one line each.
    """

    tables: dict[str, pa.Table]
    findings: pa.Table
    notes: tuple[str, ...]


def judge_letters(
    letters: ReadLetters,
    ranges: pa.Table,
    names: pa.Table,
    known: Mapping[int | None, tuple[int, int]],
    severities: Mapping[str, str],
    *,
    copied_last: bool,
    partitions: Mapping[str, int] | None = None,
    topic_of: Mapping[str, str] | None = None,
) -> JudgedLetters:
    """Match dead letters with the state logs, and apply the rules over them.

    Arguments as for `match_letters`.
    """
    matched = match_letters(
        letters, ranges, names, known, copied_last=copied_last, partitions=partitions, topic_of=topic_of
    )
    rows = AuditedDeadLetters(matched.letters, matched.lost, letters.read.unusable)
    tables = {LETTERS: matched.letters, LOST: matched.lost, RANGES: ranges_of_groups(ranges, matched.letters)}
    return JudgedLetters(tables, findings(Scope.DEAD_LETTERS, rows, severities), _notes(letters, matched))


def ranges_of_groups(ranges: pa.Table, letters: pa.Table) -> pa.Table:
    """Rows of `archiving_ranges` of groups with dead letters or ARCHIVING."""
    archiving = ranges.filter(pc.field("archiving_offset").is_valid())["group_id"]
    kept = pc.unique(pa.concat_arrays([*letters["group_id"].chunks, *archiving.chunks]))
    return ranges.filter(pc.is_in(ranges["group_id"], kept))


class StreamLetters:
    """The dead letters of a stream: read and matched again from time to time, while both sides grow.

    Attributes:
        tables: LETTERS, LOST and RANGES as of the last match; RANGES with what was noted since then, of all
            groups.
        notes: the notes of the last match.
    """

    def __init__(
        self,
        find: Callable[[], DeadLetterSource],
        *,
        severities: Mapping[str, str] | None = None,
        state_partitions: int | None = None,
        copied_last: bool = False,
        seconds: float = 60.0,
    ) -> None:
        """Begin without any dead letter.

        Args:
            find: finds the dead-letter topics as they are now.
            severities, state_partitions: as in FoldPlan.
            copied_last: as `dead_letters_copied_last` of FoldPlan; a live cluster is read after the state
                logs.
            seconds: between two matches.
        """
        self._find = find
        self._severities = severities or {}
        self._state_partitions = state_partitions
        self._copied_last = copied_last
        self._seconds = seconds
        self._due = time.monotonic() if seconds < inf else inf
        self.tables = {name: table_schema(name).empty_table() for name in (LETTERS, LOST, RANGES)}
        self.notes: tuple[str, ...] = ()

    @property
    def is_due(self) -> bool:
        """Whether the dead letters are to be read again."""
        return time.monotonic() >= self._due

    def note(self, ranges: Sequence[pa.Table]) -> bool:
        """Add the rows of `archiving_ranges` of a micro-batch; returns whether they are to be written."""
        before = self.noted
        self.tables[RANGES] = merge_ranges([self.tables[RANGES], *ranges])
        return not self.noted.equals(before)

    @property
    def noted(self) -> pa.Table:
        """RANGES of the groups with dead letters or ARCHIVING."""
        return ranges_of_groups(self.tables[RANGES], self.tables[LETTERS])

    def match(self, names: pa.Table, complete: Mapping[int | None, tuple[int | None, int]]) -> pa.Table:
        """Read what is new, match it with what was noted, and set `tables`.

        Args:
            names: columns `topic_id` and `topic` of known topics.
            complete: as for `known_times`.
        Returns:
            The findings about dead letters.
        Raises:
            ShareStateError: if they cannot be read; the next try is due later.
        """
        self._due = time.monotonic() + self._seconds
        letters = read_letters(self._find(), self.tables[LETTERS])
        judged = judge_letters(
            letters,
            self.tables[RANGES],
            names,
            known_times(complete, self._state_partitions),
            self._severities,
            copied_last=self._copied_last or letters.read.is_live,
        )
        self.tables, self.notes = judged.tables, judged.notes
        return judged.findings


def known_times(
    complete: Mapping[int | None, tuple[int | None, int]], state_partitions: int | None
) -> dict[int | None, tuple[int, int]]:
    """State partition -> the times (ms) between which its log shows every record.

    None for a log of unknown number.

    A dead letter of an unknown share-partition is judged where every log is complete.

    Args:
        complete: state partition -> since when every record is folded, None if some may be missing; time of
            the newest.
        state_partitions: number of partitions of the topic; None if unknown.
    """
    known = {
        number: (NEVER, 0) if since is None else (since, newest)
        for number, (since, newest) in complete.items()
    }
    if state_partitions is not None and len(known) == state_partitions:
        known[None] = max(one for one, _ in known.values()), min(one for _, one in known.values())
    return known


def _notes(letters: ReadLetters, matched: MatchedLetters) -> tuple[str, ...]:
    notes, unnamed = list[str](), matched.letters.filter(pc.field("topic_id").is_null())
    if len(unnamed):
        names = listed(sorted(pc.unique(unnamed["topic"]).to_pylist()), 3)
        dead = pluralize(len(unnamed), "dead letter")
        notes.append(f"no match for {dead}: the ids of {names} are unknown; give topics")
    if letters.read.others:
        notes.append(
            f"skipped {pluralize(letters.read.others, 'record')} without the headers of dead letters"
        )
    for why, count in matched.unknown.items():
        offsets = pluralize(count, "archived offset")
        notes.append(f"it cannot be known whether dead letters were written for {offsets}: {why}")
    if open_count := pc.sum(matched.letters["archived"].is_null()).as_py():
        dead = pluralize(open_count, "dead letter")
        why = "the state log begins too late, has a loss, or ends too early"
        notes.append(f"it cannot be known whether the offsets of {dead} were archived: {why}")
    return tuple(f"{DEAD_LETTERS_NOTE}: {note}" for note in notes)
