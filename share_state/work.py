"""What a command is asked to fold, and how: plain data that travels to the tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from share_state.fold.log import FoldedLog, fold_log
from share_state.fold.topics import Topics
from share_state.wire.log_folder import LogPartition, Window


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be folded, and how.

    Attributes:
        logs: the log partitions.
        windows: state partition -> which of its records count.
        window: the window of the partitions that `windows` does not name.
        topics: names and end offsets that are known.
        state_partitions: how many partitions the state topic has, None where unknown.
        severities: rule -> severity or "off".
        verify: prove each cutoff by folding without what lies before it.
    """

    logs: Sequence[LogPartition]
    windows: Mapping[int, Window] = field(default_factory=dict)
    window: Window = field(default_factory=Window)
    topics: Topics = field(default_factory=Topics)
    state_partitions: int | None = None
    severities: Mapping[str, str] = field(default_factory=dict)
    verify: bool = False

    def window_of(self, log: LogPartition) -> Window:
        """Which records of one of the logs count."""
        return self.windows.get(log.partition, self.window) if log.partition is not None else self.window

    def fold(self, log: LogPartition) -> FoldedLog:
        """Fold one of the logs."""
        return fold_log(log, self.window_of(log), topics=self.topics, state_partitions=self.state_partitions)
