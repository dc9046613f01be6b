"""Finds which records of a log are missing or unreadable, for both dialects, while its batches are read.

A state is suspect if records since its latest snapshot may be missing: `LossTracker` notes from which offsets
on, and `is_suspect` tells which states that concerns.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from share_state.fold.state_chains import NO_OFFSET
from share_state.kafka.record_batches import CONTROL, BatchStatus, missing_offsets
from share_state.sources.as_of import Window

_LEFT_OUT_OF_COPIES = (BatchStatus.CONFLICT, BatchStatus.UNREPLICATED)
"""Statuses of batches in whose place another copy is read."""


@dataclass(slots=True)
class Losses:
    """Where records of a log are missing or unreadable.

    Attributes:
        offsets: offsets from which records are missing.
        conflicting: for control records: offsets at which copies of the log differ.
    """

    offsets: list[int] = field(default_factory=list)
    conflicting: set[int] = field(default_factory=set)

    @property
    def last(self) -> int:
        """The latest of `offsets`, -1 for none."""
        return max(self.offsets, default=NO_OFFSET)

    @property
    def first(self) -> int:
        """The earliest of `offsets`, -1 for none."""
        return min(self.offsets, default=NO_OFFSET)

    def last_before(self, offsets: np.ndarray) -> np.ndarray:
        """The latest of `offsets` at or before each of some offsets, -1 for none."""
        lost = np.array([NO_OFFSET, *sorted(self.offsets)])
        return lost[np.searchsorted(lost, offsets, side="right") - 1]


class LossTracker:
    """Follows the batches of a log and notes where records are missing or unreadable.

    Attributes:
        losses: the losses up to the last record that the window selects; of the whole log if it selects by
            offset.
        gaps: (first missing offset, first offset after the gap, whether a damaged batch explains it).
        segment_gaps: those between two segments, where one may not have been copied: (first missing offset,
            end).
        next_offset: the offset after the last valid batch, -1 before the first.
        window_end: the offset after the last record that a time selects, -1 before the first.
        is_damaged: whether a damaged batch follows the last valid one.
    """

    def __init__(
        self,
        log_start_offset: int,
        window: Window,
        *,
        is_compacted: bool = False,
        is_sparse: bool = False,
        next_offset: int = NO_OFFSET,
        last_lost_offset: int = NO_OFFSET,
    ) -> None:
        """Begin at the start of a log, or where an earlier run stopped.

        Args:
            log_start_offset: first offset that a broker would load.
            window: selects the records that count.
            is_compacted: whether the log may be a compacted topic with control records: missing offsets are
                then a loss only behind a damaged batch, and only conflicts between control batches count.
            is_sparse: whether records of the log are elsewhere, so that no missing offset is a loss.
            next_offset, last_lost_offset: where an earlier run stopped, and the latest loss that it noted.
        """
        self.losses = Losses([] if last_lost_offset == NO_OFFSET else [last_lost_offset])
        self.gaps = list[tuple[int, int, bool]]()
        self.segment_gaps = list[tuple[int, int]]()
        self.next_offset = next_offset
        self.window_end = NO_OFFSET
        self.is_damaged = False
        self._is_torn = False
        self._last_segment = -1
        self._log_start_offset = log_start_offset
        self._window = window
        self._is_compacted = is_compacted
        self._is_sparse = is_sparse
        self._not_admitted = list[int]()

    def take_whole(self, batches: np.ndarray) -> bool:
        """Take a chunk of valid batches without gaps between them, if they follow what was taken before.

        Returns:
            Whether they do; else the chunk is for `take`.
        """
        if self.is_damaged or self._is_torn or batches[0]["base_offset"] != self._expected(batches[0]):
            return False
        self._set_end(batches[-1])
        return True

    def take(self, batches: np.ndarray) -> None:
        """Take the BATCH rows of a chunk that are inside the window, valid or not, in log order."""
        is_bad = batches["status"] != BatchStatus.VALID
        valid = np.flatnonzero(~is_bad)
        # A crash leaves a truncated batch at the end; log recovery removes it, so no record is missing there.
        is_torn = batches["status"] == BatchStatus.TRUNCATED
        is_damage = is_bad & ~is_torn & ~np.isin(batches["status"], _LEFT_OUT_OF_COPIES)
        if len(valid):
            self._note_gaps(batches[valid], _any_before(is_damage, valid), _any_before(is_torn, valid))
        rest = slice(valid[-1] + 1 if len(valid) else 0, None)
        self.is_damaged = bool(is_damage[rest].any()) or (self.is_damaged and not len(valid))
        self._is_torn = bool(is_torn[rest].any()) or (self._is_torn and not len(valid))
        self._note_conflicts(batches[batches["status"] == BatchStatus.CONFLICT])

    def _note_gaps(
        self, batches: np.ndarray, is_damage_before: np.ndarray, is_torn_before: np.ndarray
    ) -> None:
        if self._is_sparse:
            self._set_end(batches[-1])
            return
        base_offsets = batches["base_offset"]
        last_offsets = batches["last_offset"]
        expected = np.concatenate(([self._expected(batches[0])], last_offsets[:-1] + 1))
        is_damage_before[0] |= self.is_damaged
        is_torn_before[0] |= self._is_torn
        segments = np.concatenate(([self._last_segment], batches["segment"]))
        is_first_of_segment = (segments[1:] != segments[:-1]) & (segments[:-1] >= 0)
        for row in np.flatnonzero(base_offsets > expected):
            self.gaps.append((int(expected[row]), int(base_offsets[row]), bool(is_damage_before[row])))
            if is_first_of_segment[row]:
                self.segment_gaps.append((int(expected[row]), int(base_offsets[row])))
            if not self._is_compacted or is_damage_before[row] or is_torn_before[row]:
                self.note([int(expected[row])])
        self._set_end(batches[-1])

    def _note_conflicts(self, batches: np.ndarray) -> None:
        if not self._is_compacted:
            self.note(batches["base_offset"].tolist())
            return
        offsets = batches["base_offset"][batches["attributes"] & CONTROL != 0].tolist()
        self.losses.conflicting.update(offsets)
        self.note(offset + 1 for offset in offsets)

    def _expected(self, batch: np.ndarray) -> int:
        """The offset at which a batch must begin; the first batch may contain the log start offset."""
        return (
            self.next_offset
            if self.next_offset >= 0
            else min(int(batch["base_offset"]), self._log_start_offset)
        )

    def _set_end(self, batch: np.ndarray) -> None:
        end = int(batch["last_offset"]) + 1
        until = self._window.until_offset
        self.next_offset = end if until is None else min(end, until)
        self._last_segment = int(batch["segment"])

    def follow(self, end: int) -> None:
        """Go on after records that came without batches, up to an offset."""
        self.next_offset = end

    @property
    def first_offset(self) -> int:
        """The first offset that counts: that of the log, or of the window."""
        return max(self._log_start_offset, self._window.from_offset or 0)

    @property
    def last_lost_offset(self) -> int:
        """The latest offset, at or after the first that counts, from which records may be missing.

        -1 for none.
        """
        last = self.losses.last
        return last if last >= self.first_offset else NO_OFFSET

    @property
    def has_lost_records(self) -> bool:
        """Whether any record is missing or unreadable, also at the end of the log."""
        return bool(self.losses.offsets) or self.is_damaged

    def note_missing(self, batches: np.ndarray, records: np.ndarray) -> np.ndarray:
        """Note the offsets of the window that are missing inside batches.

        Args:
            batches, records: the BATCH and RECORD rows of a chunk that `take` took.
        Returns:
            int64 rows (first missing offset, first offset after the gap).
        """
        if self._is_sparse:
            return np.zeros((0, 2), np.int64)
        until = self.next_offset if self._window.until_offset is None else self._window.until_offset
        missing = np.clip(missing_offsets(batches, records), self.first_offset, until)
        missing = missing[missing[:, 0] < missing[:, 1]]
        self.note(missing[:, 0].tolist())
        return missing

    def note_unreadable(self, offsets: np.ndarray, is_lost: np.ndarray) -> None:
        """Note the records of a chunk that may be the newest of any share-partition.

        Args:
            offsets: those of all its records, in log order.
            is_lost: bool, whether each is such a record.
        """
        if is_lost.any():
            lost = np.concatenate(([False], is_lost, [False]))
            # The first and the last record of each run of lost records are enough.
            self.note(offsets[lost[1:-1] & ~(lost[:-2] & lost[2:])].tolist())

    def note(self, offsets: Iterable[int]) -> None:
        """Note offsets from which records are missing or unreadable."""
        self._not_admitted += offsets
        if self._window.until_time_ms is None:
            self.admit()

    def admit(self) -> None:
        """Count the losses noted so far.

        With a time, those up to the offset after the last record that it selects.
        """
        admitted = self._not_admitted
        self._not_admitted = []
        if self._window.until_time_ms is not None:
            self._not_admitted = [offset for offset in admitted if offset > self.window_end]
            admitted = [offset for offset in admitted if offset <= self.window_end]
        self.losses.offsets += admitted

    def note_open_damage(self) -> None:
        """Note a loss at the end of the log if no valid batch follows a damaged one."""
        if self.is_damaged:
            self.note([max(self.next_offset, 0)])
        self.admit()

    @property
    def end(self) -> int:
        """The offset after the last record.

        A time selects records, so batches after the last of them do not count.
        """
        end = self.next_offset if self._window.until_time_ms is None else self.window_end
        return max(end, self.first_offset)

    def gaps_before(self, end: int) -> list[tuple[int, int, bool]]:
        """The gaps that begin at or before an offset."""
        return [gap for gap in self.gaps if gap[0] <= end]


def is_suspect(chains: np.ndarray, last_lost_offset: int | np.ndarray, *, start_is_shown: bool) -> np.ndarray:
    """Whether records that each state of `__share_group_state` depends on are missing or unreadable.

    A delta names its predecessor, so share_state.fold.draft.control_chains decides it otherwise for control
    records.

    Args:
        chains: CHAIN rows of live share-partitions.
        last_lost_offset: the latest offset from which records may be missing, -1 for none; one for all, or
            per row.
        start_is_shown: whether no record of the broker's own log precedes the input; if not, the snapshot of
            a state that begins with an update may be there.
    Returns:
        bool, one per row.
    """
    suspect = (chains["suspect_offset"] != NO_OFFSET) | (last_lost_offset > chains["snapshot_offset"])
    return (
        suspect
        if start_is_shown
        else suspect | (chains["snapshot_offset"] == NO_OFFSET) & ~chains["was_deleted"]
    )


def _any_before(flags: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """bool, for each of some rows: whether a flag is set between it and the one before it."""
    return np.diff(np.cumsum(flags)[rows], prepend=0) > 0
