"""How far the fold of a log has read it: the mark from which a later audit resumes."""

from dataclasses import replace

import numpy as np

from share_state.fold.state_chains import NO_OFFSET
from share_state.sources.log_partition import LogPartition
from share_state.sources.resume_point import KEPT_STATE, ResumePoint, ResumeStatus
from share_state.sources.segments import RecordIndex


class LogMark:
    """The last valid batch of a log, and what the input shows of the log's beginning and end.

    Attributes:
        before: where this fold resumed; None if it began at the start of the log.
        newest_time: ms, timestamp of the newest record of the window; -1 for none.
        folded_from: the log start offset of the first fold, which may be an earlier audit; -1 if it is unknown.
    """

    def __init__(
        self, log: LogPartition, before: ResumePoint | None, status: ResumeStatus | None, first_offset: int
    ) -> None:
        """Begin where an earlier audit stopped, or at the first offset that counts.

        Args:
            log: the log partition.
            before: where the earlier audit stopped; None for none.
            status: how the log has changed since; None without an earlier audit.
            first_offset: the first offset that counts, -1 if it is unknown.
        """
        self.before = before
        self.newest_time = before.newest_time if before else NO_OFFSET
        self.folded_from = before.folded_from if before else first_offset
        self._log = log
        self._keeps_state = before is not None and status in KEPT_STATE
        self._last: np.void | None = None

    @property
    def next_offset(self) -> int:
        """The offset at which this fold resumed, -1 if it began at the start."""
        return self.before.next_offset if self.before else NO_OFFSET

    @property
    def start_is_recorded(self) -> bool:
        """As in LogPartition; from the earlier audit if the input shows nothing that it had not read."""
        return (
            self.before.start_is_recorded
            if self.before and self._keeps_state
            else self._log.start_is_recorded
        )

    @property
    def committed_end(self) -> int | None:
        """As in LogPartition; from the earlier audit if the input shows nothing that it had not read."""
        return self.before.committed_end if self.before and self._keeps_state else self._log.committed_end

    @property
    def start_is_shown(self) -> bool:
        """Whether no record of the broker's own log, which it would load, precedes the input."""
        is_known = self._log.log_start_offset == 0 or self.start_is_recorded
        return self._log.has_offsets and self._log.holds_all and is_known

    @property
    def has_sizes(self) -> bool:
        """Whether the sizes of all batches since the first fold are known."""
        return self._log.has_sizes and (self.before is None or self.before.position >= 0)

    def take(self, part: RecordIndex) -> None:
        """Keep the last valid batch of a chunk, which has one."""
        self._last = last = part.part.batches[part.summary.last].copy()
        if not self._log.holds_all:
            self.note_time(int(part.records["timestamp"].max(initial=NO_OFFSET)))
        elif part.records is part.located:
            self.newest_time = int(last["max_timestamp"])
        elif len(part.records):
            of_last_batch = part.records["batch"] == part.records["batch"][-1]
            self.newest_time = int(part.records["timestamp"][of_last_batch].max())

    def note_time(self, newest: int) -> None:
        """Take the newest timestamp (ms) of records that came without batches, or only with a part of them."""
        self.newest_time = max(self.newest_time, newest)

    def point(self, *, is_sound: bool) -> ResumePoint | None:
        """Where a later audit resumes; where this one did if it found no valid batch.

        None if nothing can resume.

        Args:
            is_sound: whether no record is missing or unreadable.
        """
        last = self._last
        topic_id = self._log.topic_id or (self.before.topic_id if self.before else None)
        if last is None:
            return self.before and replace(
                self.before,
                log_start_offset=self._log.log_start_offset,
                is_sound=is_sound,
                topic_id=topic_id,
                start_is_recorded=self.start_is_recorded,
                committed_end=self.committed_end,
            )
        if self._log.partition is None:
            return None
        is_segment = self._log.source is None
        return ResumePoint(
            segment=self._log.segments[last["segment"]].base_offset if is_segment else -1,
            position=int(last["file_position"]) if is_segment else -1,
            size=int(last["size"]) if is_segment else 0,
            base_offset=int(last["base_offset"]),
            leader_epoch=int(last["leader_epoch"]),
            crc=int(last["crc"]),
            next_offset=int(last["last_offset"]) + 1,
            folded_from=self.folded_from,
            log_start_offset=self._log.log_start_offset,
            newest_time=self.newest_time,
            is_sound=is_sound,
            topic_id=topic_id,
            start_is_recorded=self.start_is_recorded,
            committed_end=self.committed_end,
        )
