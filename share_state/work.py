"""What a command is asked to fold, and how: plain data that travels to the tasks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from share_state.fold.control_decoded import decoded_control_tables
from share_state.fold.control_log import ControlOptions, FoldedControlLog, fold_control_log
from share_state.fold.control_verify import verify_control_cutoff
from share_state.fold.decoded import decoded_tables
from share_state.fold.log import FoldedLog, fold_log
from share_state.fold.topics import Topics
from share_state.fold.verify import Proof, verify_cutoff
from share_state.wire.log_folder import STATE_TOPIC, LogPartition, Window
from share_state.wire.share_snapshot_file import IndexEntry


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

    def window_of(self, log: LogPartition) -> Window:
        """Which records of one of the logs count."""
        return self.windows.get(log.name, self.window)

    def fold(self, log: LogPartition) -> FoldedLog | FoldedControlLog:
        """Fold one of the logs, by the dialect of its topic."""
        if log.topic == STATE_TOPIC:
            return fold_log(log, self.window_of(log), topics=self.topics, state_partitions=self.state_partitions)
        control = self.control
        return fold_control_log(
            log,
            self.window_of(log),
            mode=control.mode,
            subscriptions=control.subscriptions,
            ignore_uncheckpointed=control.ignore_uncheckpointed,
            index=self.indexes.get(log.name),
        )

    def prove(self, folded: FoldedLog | FoldedControlLog) -> Proof | None:
        """Fold again without what lies before the cutoff, and compare."""
        window = self.window_of(folded.log)
        if isinstance(folded, FoldedControlLog):
            return verify_control_cutoff(folded, window)
        return verify_cutoff(folded, window, self.topics)

    def decode(self, log: LogPartition) -> Iterator[pa.Table]:
        """The decoded records of one of the logs, a table a chunk."""
        if log.topic == STATE_TOPIC:
            return decoded_tables(log, self.window_of(log), self.topics)
        return decoded_control_tables(log, self.window_of(log))
