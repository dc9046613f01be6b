"""What a command is asked to fold, and how: plain data that travels to the tasks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from share_state.cores import cores_here
from share_state.declarations import table_schema
from share_state.fold.carried import Carried, restored
from share_state.fold.chosen import Chosen
from share_state.fold.control_decoded import decoded_control_tables
from share_state.fold.control_log import ControlOptions, FoldedControlLog, fold_control_log
from share_state.fold.control_timeline import control_timeline_tables
from share_state.fold.control_verify import verify_control_cutoff
from share_state.fold.decoded import decoded_tables
from share_state.fold.limits import Limits
from share_state.fold.log import FoldedLog, fold_log
from share_state.fold.timeline import timeline_tables
from share_state.fold.topics import Topics
from share_state.fold.verify import Proof, verify_cutoff
from share_state.group_input import GroupInput
from share_state.rules import judge, judge_records
from share_state.table_files import asking, rows_of
from share_state.wire.log_folder import STATE_TOPIC, LogPartition, Window
from share_state.wire.resume import Fate
from share_state.wire.share_snapshot_file import IndexEntry

_CARRIED = "carried_share_partitions"


@dataclass(frozen=True, slots=True)
class Resumed:
    """How an audit goes on with one log partition.

    Attributes:
        fate: what became of it since the last audit.
        carried: its row of `carried_logs`; None where it is read from its start.
        files: Parquet files that hold its rows of `carried_share_partitions`, maybe beside those of others.
    """

    fate: Fate
    carried: str | None = None
    files: tuple[str, ...] = ()

    def restore(self, log: LogPartition) -> Callable[[], Carried] | None:
        """Gives what the last audit left for a log partition, a new one at each call; None where it left nothing."""
        return None if self.carried is None else partial(_restored, self.carried, self.files, log.name)


def _restored(carried: str, files: Sequence[str], log: str) -> Carried:
    if not files:
        return restored(carried, table_schema(_CARRIED).empty_table())
    with asking(files[0]):
        return restored(carried, rows_of(_CARRIED, files).to_table(filter=pc.field("log") == log))


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be folded, and how.

    Attributes:
        logs: the log partitions; `__share_group_state` holds state records, any other topic control records.
        windows: name of a log partition -> which of its records count.
        window: the window of the log partitions that `windows` does not name.
        topics: names and end offsets that are known.
        state_partitions: how many partitions the state topic has, None where unknown.
        control: how control records are folded.
        indexes: name of a log partition -> entries of its share snapshot file, to be held against the log.
        severities: rule -> severity or "off".
        verify: prove each cutoff by folding without what lies before it.
        limits: what the rules hold the logs against.
        audited: name of a log partition -> how an audit goes on with it; None where this is no audit.
        timeline: the share-partitions whose state after every record is wanted; None for no timeline.
        groups: the group side, None where there is none.
        cores: name of a log partition -> how many cores fold it; one where none is named.
    """

    logs: Sequence[LogPartition]
    windows: Mapping[str, Window] = field(default_factory=dict)
    window: Window = field(default_factory=Window)
    topics: Topics = field(default_factory=Topics)
    state_partitions: int | None = None
    control: ControlOptions = field(default_factory=ControlOptions)
    indexes: Mapping[str, Sequence[IndexEntry]] = field(default_factory=dict)
    severities: Mapping[str, str] = field(default_factory=dict)
    verify: bool = False
    limits: Limits = field(default_factory=Limits)
    audited: Mapping[str, Resumed] | None = None
    timeline: Chosen | None = None
    groups: GroupInput | None = None
    cores: Mapping[str, int] = field(default_factory=dict)

    def window_of(self, log: LogPartition) -> Window:
        """Which records of one of the logs count."""
        return self.windows.get(log.name, self.window)

    def fold(self, log: LogPartition) -> FoldedLog | FoldedControlLog:
        """Fold one of the logs, by the dialect of its topic."""
        if log.topic == STATE_TOPIC:
            known = {"topics": self.topics, "state_partitions": self.state_partitions, "limits": self.limits}
            known |= {"cores": self.cores_of(log)}
            if self.audited is None:
                return fold_log(log, self.window_of(log), **known)
            resumed = self.audited[log.name]
            judge = partial(judge_records, severities=self.severities)
            return fold_log(log, restore=resumed.restore(log), fate=resumed.fate, judge=judge, **known)
        control = self.control
        return fold_control_log(
            log,
            self.window_of(log),
            mode=control.mode,
            subscriptions=control.subscriptions,
            ignore_uncheckpointed=control.ignore_uncheckpointed,
            index=self.indexes.get(log.name),
        )

    def cores_of(self, log: LogPartition) -> int:
        """How many cores are for one of the logs, where this runs."""
        return min(self.cores.get(log.name, 1), cores_here())

    def alone(self) -> "Work":
        """This work where one log is folded after the other: each has all cores."""
        return replace(self, cores={log.name: cores_here() for log in self.logs})

    def each(self) -> Iterator[FoldedLog | FoldedControlLog]:
        """Fold the logs here, one after the other."""
        return map(self.alone().fold, self.logs)

    def judge(self, folded: FoldedLog | FoldedControlLog) -> pa.Table:
        """The findings of a folded log."""
        traced = folded.judged if isinstance(folded, FoldedLog) else ()
        return judge(folded, self.severities, self.topics, traced)

    def prove(self, folded: FoldedLog | FoldedControlLog) -> Proof | None:
        """Fold again without what lies before the cutoff, and compare."""
        window = self.window_of(folded.log)
        if isinstance(folded, FoldedControlLog):
            return verify_control_cutoff(folded, window)
        return verify_cutoff(folded, window, self.topics)

    def states_of(self, log: LogPartition) -> Iterator[pa.Table]:
        """The table `timeline` of one of the logs, piece by piece."""
        if self.timeline is None:
            return
        if log.topic == STATE_TOPIC:
            yield from timeline_tables(log, self.window_of(log), self.timeline, self.topics)
        else:
            yield from control_timeline_tables(log, self.window_of(log), self.timeline, self.control.mode)

    def decode(self, log: LogPartition) -> Iterator[pa.Table]:
        """The decoded records of one of the logs, a table a chunk."""
        if log.topic == STATE_TOPIC:
            return decoded_tables(log, self.window_of(log), self.topics)
        return decoded_control_tables(log, self.window_of(log))
