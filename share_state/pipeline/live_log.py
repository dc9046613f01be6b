"""A log partition of a stream in memory: its state, what is not written yet, and what became of deliveries."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from share_state.fold.checkpoint import FoldCheckpoint
from share_state.fold.history import OUTCOME_COLUMNS
from share_state.fold.outcomes import NO_TIME, blank_outcomes
from share_state.fold.states import key_columns
from share_state.kafka.share_partition_keys import KeyTable
from share_state.pipeline.live_tables import ShownLog
from share_state.pipeline.stream_changes import FoldedRecords, UnwrittenChanges, earlier_starts
from share_state.pipeline.stream_state import numbers_in, settled_state
from share_state.sources.partition_count import PartitionCount
from share_state.sources.topics import Topics


@dataclass(slots=True)
class LiveLog:
    """A log partition of the stream.

    Attributes:
        state: after the records read so far; None if the log has no record.
        unwritten: what changed since the tables were written.
        latest: the latest fold, which shows the present state; None before the first.
        count: how many partitions the topic has.
        outcomes: OUTCOMES rows since the stream began, one per share-partition of `latest`.
        judged: the states when the clock judged it last, and before that.
    """

    state: FoldCheckpoint | None
    unwritten: UnwrittenChanges
    latest: FoldedRecords | None = None
    count: PartitionCount = field(default_factory=PartitionCount)
    outcomes: np.ndarray = field(default_factory=lambda: blank_outcomes(0))
    judged: tuple[FoldCheckpoint | None, FoldCheckpoint | None] = (None, None)

    def take(self, folded: FoldedRecords) -> None:
        """Go on with a fold of new records."""
        self._move_outcomes(folded.log.keys)
        new = folded.log.outcomes
        if new is not None:
            self.outcomes[folded.log.numbers] = _added(self.outcomes[folded.log.numbers], new)
        state = folded.log.checkpoint
        self.state = None if state is None else settled_state(folded.log.log.name, state)
        self.latest = folded
        self.unwritten.add(folded)

    def show_judged(self, judged: FoldedRecords) -> None:
        """Show a fold that only judged every share-partition by the clock."""
        self._move_outcomes(judged.log.keys)
        self.latest, self.judged = judged, (self.state, self.judged[0])

    def unwritten_outcomes(self) -> np.ndarray | None:
        """OUTCOMES rows of the fold whose rows are written next; None if it was not shown."""
        unwritten = self.unwritten.judged or self.unwritten.latest
        return self.outcomes.copy() if unwritten is not None and unwritten is self.latest else None

    def shown(self) -> ShownLog | None:
        """What metrics show; None before the first fold."""
        if self.latest is None:
            return None
        starts = earlier_starts(self.latest.log, self.judged[1] or self.judged[0])
        return ShownLog(self.latest.log, starts, self.outcomes.copy())

    def new_outcomes(self) -> Iterator[pa.Table]:
        """What the latest fold of new records shows of deliveries: group_id and OUTCOME_COLUMNS."""
        if self.latest is not None and (new := self.latest.log.outcomes) is not None:
            folded = self.latest.log
            key = key_columns(folded.keys, folded.numbers, Topics())
            columns = {column: pa.array(new[name].copy()) for column, name in OUTCOME_COLUMNS.items()}
            yield pa.table({"group_id": key["group_id"]} | columns)

    def _move_outcomes(self, keys: KeyTable) -> None:
        """Give each share-partition of the next fold its outcomes so far."""
        rows = blank_outcomes(len(keys))
        if self.latest is not None:
            at = numbers_in(self.latest.log.keys, keys)
            rows[at[at >= 0]] = self.outcomes[at >= 0]
        self.outcomes = rows


def _added(before: np.ndarray, new: np.ndarray) -> np.ndarray:
    """OUTCOMES rows of two spans of time, one after the other."""
    rows = new.copy()
    for name in OUTCOME_COLUMNS.values():
        rows[name] += before[name]
    # An acknowledgement ends the time in which records were only given up.
    goes_on = (new["acknowledged"] == 0) & (before["failing_since"] != NO_TIME)
    rows["failing_since"] = np.where(goes_on, before["failing_since"], new["failing_since"])
    rows["failing_until"] = np.where(
        goes_on, np.maximum(before["failing_until"], new["failing_until"]), rows["failing_until"]
    )
    # Without a reset or a deletion the earlier reset stands; after another, the farther offset counts.
    is_reset, was_deleted = new["rewound_from"] > 0, new["rewound_from"] < 0
    farther = np.maximum(before["rewound_from"], new["rewound_from"])
    rows["rewound_from"] = np.where(was_deleted, new["rewound_from"], farther)
    rows["rewound_to"] = np.where(is_reset, new["rewound_to"], before["rewound_to"])
    return rows
