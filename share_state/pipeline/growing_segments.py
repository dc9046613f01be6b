"""Segments that grow, as in a broker's own data folder: a stream reads of each log what the next audit would."""

import logging
from collections.abc import Mapping
from dataclasses import replace

from share_state.errors import InputError
from share_state.fold.states import SHARE_GROUP_STATE
from share_state.pipeline.numbered_logs import check_numbered, numbered_logs
from share_state.sources.discovery import names_log
from share_state.sources.formats import ExportPaths
from share_state.sources.new_records import GrownLog, Listing, Read
from share_state.sources.partition_count import count_partitions
from share_state.sources.resume_point import KEPT_STATE, ResumePoint, ResumeStatus, resume
from share_state.sources.segments_format import FORMAT

_LOG = logging.getLogger("share_state")

_NOTHING_NEW = (ResumeStatus.UNCHANGED, *KEPT_STATE)


class GrowingSegments:
    """Reads what is appended to the segments of log partitions."""

    def __init__(self, folder: str, state_partitions: int | None = None) -> None:
        """Begin; nothing is read yet.

        Args:
            folder: the log directory of a broker or a copy of it, or the folder of one log partition.
            state_partitions: how many partitions `__share_group_state` has; by default what the folders show.
        """
        self._folder, self._state_partitions = folder, state_partitions
        self._has_read = self._is_away = False

    def read(self, marks: Mapping[int, ResumePoint]) -> Read:
        """The logs that have grown, or that were replaced.

        Raises:
            InputError: at first, if there is no log, or a log partition has no number.
        """
        try:
            logs = FORMAT.find(ExportPaths([self._folder], SHARE_GROUP_STATE)).logs
            count = count_partitions(logs, self._state_partitions)
            logs = numbered_logs(logs, count)
            check_numbered(logs, count)
            parts = list[GrownLog]()
            for log in logs:
                assert log.partition is not None
                mark = marks.get(log.partition)
                if mark is None or mark.position < 0:
                    # A state that another input has left has no position in these segments.
                    parts.append(GrownLog(log, None if mark is None else ResumeStatus.REREAD, count))
                    continue
                # Records that one broker's log lacks stay missing.
                point = mark if log.has_replicas else replace(mark, is_sound=True)
                left, status = resume(log, point)
                if status not in _NOTHING_NEW:
                    parts.append(GrownLog(left, status, count))
        except InputError as error:
            if not self._has_read:
                raise
            # Such as a segment that the broker has deleted meanwhile.
            if not self._is_away:
                _LOG.warning("%s; waiting for it", error)
            self._is_away = True
            return Read(is_away=True)
        self._has_read, self._is_away = True, False
        return Read([*parts], listing=Listing((*logs,), count, is_whole=not names_log(self._folder)))

    def close(self) -> None:
        """Nothing to close."""
