"""A log partition of a stream in memory: its state, and what is not written yet."""

from dataclasses import dataclass

from share_state.fold.checkpoint import FoldCheckpoint
from share_state.pipeline.live_rows import ShownLog
from share_state.pipeline.stream_changes import FoldedRecords, UnwrittenChanges, earlier_starts
from share_state.pipeline.stream_state import settled_state
from share_state.sources.partition_count import PartitionCount


@dataclass(slots=True)
class LiveLog:
    """A log partition of the stream.

    Attributes:
        state: after the records read so far; None if the log has no record.
        unwritten: what changed since the tables were written.
        latest: the latest fold, which shows the present state; None before the first.
        count: how many partitions the topic has; before this process has read it, the number by which the
            tables leave states out, or None.
        judged: the states when the clock judged it last, and before that.
        times_read_anew: how often it was read from its start.
    """

    state: FoldCheckpoint | None
    unwritten: UnwrittenChanges
    latest: FoldedRecords | None = None
    count: PartitionCount | None = None
    judged: tuple[FoldCheckpoint | None, FoldCheckpoint | None] = (None, None)
    times_read_anew: int = 0

    @classmethod
    def resumed(cls, state: FoldCheckpoint, counted: int | None) -> "LiveLog":
        """A log partition as an earlier process has left it.

        Args:
            state: its state.
            counted: number of state partitions by which its rows leave states out; None for none.
        """
        count = None if counted is None else PartitionCount(counted)
        return cls(state, UnwrittenChanges(state, counted), count=count)

    def take(self, folded: FoldedRecords) -> None:
        """Go on with a fold of new records."""
        state = folded.log.checkpoint
        self.state = None if state is None else settled_state(folded.log.log.name, state)
        self.latest = folded
        self.times_read_anew += folded.is_read_anew
        self.unwritten.add(folded)

    def show_judged(self, judged: FoldedRecords) -> None:
        """Show a fold that only judged every share-partition by the clock."""
        self.latest, self.judged = judged, (self.state, self.judged[0])

    def shown(self) -> ShownLog | None:
        """What metrics show; None before the first fold."""
        if self.latest is None:
            return None
        starts = earlier_starts(self.latest.log, self.judged[1] or self.judged[0])
        return ShownLog(self.latest.log, starts, self.times_read_anew)
