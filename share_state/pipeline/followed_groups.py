"""Share groups while a stream runs: which have no members, and what limits they set.

`FollowedGroups` reads what is new in a thread of its own, because the first read may take long.
`AdjacentGroups` follows the logs beside growing segments, `live_groups.LiveGroups` a running cluster.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Lock, Thread

from share_state.errors import ShareStateError
from share_state.fold.groups.group_tables import GroupLogFold, add_topic_names
from share_state.fold.limits import Limits
from share_state.fold.log_mark import LogMark
from share_state.fold.states import SHARE_GROUP_STATE
from share_state.pipeline.facts import SettledFacts, settle_facts
from share_state.pipeline.stream_findings import KnownGroups
from share_state.sources.as_of import Window
from share_state.sources.cluster_facts import ClusterFacts, read_cluster_facts
from share_state.sources.discovery import find_data_folders, segment_folders
from share_state.sources.formats import ExportPaths
from share_state.sources.input_detection import adjacent_group_logs
from share_state.sources.log_partition import LogPartition
from share_state.sources.resume_point import ResumePoint, ResumeStatus, resume
from share_state.sources.segments import read_chunks
from share_state.sources.segments_format import FORMAT
from share_state.sources.topics import Topics, TopicSource

SECONDS = 20.0
"""From one refresh to the next, once it is known whom to follow."""
_FACTS_SECONDS = 60.0


class FollowedGroups:
    """Share groups, as of the latest `refresh`.

    Attributes:
        known: what is known of them.
        limits: the limits of the cluster and of its groups.
        origins: as in SettledFacts.
    """

    def __init__(self, limits: Limits) -> None:
        """Begin; no group is known yet.

        Args:
            limits: the limits that hold until others are read.
        """
        self._stopped, self._lock = Event(), Lock()
        self.known = KnownGroups()
        self.limits = limits
        self.origins: Mapping[str, str] = {}

    @property
    def pause(self) -> float:
        """Seconds from one refresh to the next."""
        return SECONDS

    def start(self, groups: Callable[[], frozenset[str]]) -> Callable[[], None]:
        """Follow the groups.

        Args:
            groups: returns those that have state.
        Returns:
            A function that ends it.
        """

        def run() -> None:
            while not self._stopped.is_set():
                with suppress(ShareStateError):
                    self.refresh(groups())
                self._stopped.wait(self.pause)

        Thread(target=run, name="share-state-groups", daemon=True).start()
        return self._stopped.set

    def refresh(self, groups: frozenset[str]) -> None:
        """Read what is new.

        Args:
            groups: those that have state.
        Raises:
            ShareStateError: if it cannot be read now.
        """
        with self._lock:
            self._refresh(groups)

    def _refresh(self, groups: frozenset[str]) -> None:
        raise NotImplementedError


def known_groups(folds: Sequence[GroupLogFold]) -> KnownGroups:
    """The groups of some logs; forgets what else their folds hold and nobody needs."""
    for fold in folds:
        # They grow with each record of a group, also of groups of other kinds.
        for kept in (fold.replay.classic, fold.replay.sticky, fold.replay.faults, fold.replay.epoch_steps):
            kept.clear()
    replayed = (group for fold in folds for group in fold.replay.groups.values() if group.is_live)
    newest = max((fold.replay.newest_time for fold in folds), default=-1)
    return KnownGroups({group.group_id: len(group.members) for group in replayed}, newest)


@dataclass(slots=True)
class _Followed:
    """A partition of `__consumer_offsets`: its replay so far, and its last batch."""

    fold: GroupLogFold
    point: ResumePoint | None


class AdjacentGroups(FollowedGroups):
    """Follows the partitions of `__consumer_offsets` and what a data folder says, beside growing segments.

    Attributes:
        topics: names and ends of topics.
    """

    def __init__(
        self,
        folder: str,
        limits: Limits,
        explicit_limits: frozenset[str],
        named: Sequence[TopicSource],
        adjacent: TopicSource | None,
    ) -> None:
        """Read what the data folder says.

        Args:
            folder: the folder of the segments.
            limits: limits of the call, Kafka's defaults for the rest.
            explicit_limits: names of those that the call sets.
            named: the topics file that the call names.
            adjacent: the topics file beside the logs.
        """
        super().__init__(limits)
        self._folder, self._own_limits = folder, limits
        self._explicit_limits = explicit_limits
        self._named, self._adjacent = named, adjacent
        self._logs = dict[int | None, _Followed]()
        self._facts_at = 0.0
        self._settled = self._settle(ClusterFacts(()))
        self.topics: Topics = self._settled.topics
        with suppress(ShareStateError):
            self._take_facts(self._state_logs())

    def _refresh(self, groups: frozenset[str]) -> None:
        del groups
        logs = self._state_logs()
        if time.monotonic() >= self._facts_at:
            self._take_facts(logs)
        found = adjacent_group_logs([self._folder], logs)
        for log in found:
            self._follow(log)
        folds = [self._logs[log.partition].fold for log in found]
        names = {topic_id: name for fold in folds for topic_id, name in fold.replay.names.items()}
        self.topics = add_topic_names(self._settled.topics, names)
        self.known = known_groups(folds)

    def _state_logs(self) -> list[LogPartition]:
        return FORMAT.find(ExportPaths([self._folder], SHARE_GROUP_STATE)).logs

    def _take_facts(self, logs: Sequence[LogPartition]) -> None:
        self._facts_at = time.monotonic() + _FACTS_SECONDS
        if folders := find_data_folders(segment_folders(logs)):
            self._settled = self._settle(read_cluster_facts(folders))
            self.topics, self.limits = self._settled.topics, self._settled.limits
            self.origins = self._settled.origins

    def _settle(self, facts: ClusterFacts) -> SettledFacts:
        return settle_facts(
            facts,
            topics=self._named,
            adjacent=self._adjacent,
            limits=self._own_limits,
            explicit_limits=self._explicit_limits,
            state_partitions=None,
            explicit_state_partitions=None,
        )

    def _follow(self, log: LogPartition) -> None:
        """Replay what is new of a log.

        All of it if its last batch is gone: the broker's cleaner may remove any.
        """
        known = self._logs.get(log.partition)
        if known is not None and known.point is not None:
            left, status = resume(log, known.point)
            if status == ResumeStatus.UNCHANGED:
                return
            if status == ResumeStatus.GROWN:
                self._read(left, known)
                return
        self._read(log, _Followed(GroupLogFold(log, Window()), None))

    def _read(self, log: LogPartition, known: _Followed) -> None:
        """Replay the rest of a log; if it cannot be read, the next refresh begins anew."""
        self._logs.pop(log.partition, None)
        known.fold.log = log
        mark = LogMark(log, known.point, None, log.log_start_offset)
        for chunk in read_chunks(log, merge=True):
            part = known.fold.prepare(chunk)
            if part.summary.valid:
                mark.take(part)
            known.fold.take(part)
        known.point = mark.point(is_sound=True)
        self._logs[log.partition] = known
