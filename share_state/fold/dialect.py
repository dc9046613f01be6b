"""What timeline, explain, decode and verify need of a log, whichever dialect its records are written in.

A dialect is the way in which a release of Kafka, or a draft of KIP-932, writes share-partition state: its records, its
chain of snapshots and changes, its rules. `dialect_of` is the only place that chooses one.
"""

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from share_state.fold.control_records import ControlRecordDialect
from share_state.fold.options import FoldOptions, SharePartitionFilter
from share_state.fold.share_group_state import ShareGroupState
from share_state.fold.states import RecordStates, RecordView
from share_state.sources.as_of import Window
from share_state.sources.discovery import STATE_TOPIC, LogPartition


class LogReader(Protocol):
    """Follows the share-partitions of one log record by record; they have numbers in order of first appearance.

    Attributes:
        state_partition: number of the log partition, None for an ordinary topic.
        place_without_state: where an offset is (`explain.Place`) while its share-partition has records but no state.
        epochs: columns of a state -> fields of its chain, of those that `explain` shows.
    """

    state_partition: int | None
    place_without_state: str
    epochs: Mapping[str, str]

    def __len__(self) -> int:
        """Number of share-partitions so far."""
        ...

    def may_match(self, chosen: SharePartitionFilter) -> bool:
        """Whether the log can hold a share-partition that the filter selects."""
        ...

    def chunks(self) -> Iterator[Any]:
        """The decoded records, chunk by chunk: StateRecords or ControlRecords."""
        ...

    def selected(self, chosen: SharePartitionFilter) -> np.ndarray:
        """bool, which of the share-partitions so far match."""
        ...

    def key_columns(self, numbers: np.ndarray) -> dict[str, pa.Array]:
        """Key columns by share-partition number, -1 for none."""
        ...

    def view(self, rows: np.ndarray, records: Any) -> RecordView:
        """The common fields of records; `records` is their chunk."""
        ...

    def value_columns(self, rows: np.ndarray) -> dict[str, pa.Array]:
        """Columns of `decoded_records` that depend on the dialect."""
        ...

    def replay(self, records: Any, selected: np.ndarray) -> Iterator[RecordStates]:
        """The states after each readable record of the selected share-partitions; chunks in log order."""
        ...

    def state_table(self, states: RecordStates) -> pa.Table:
        """States that exist as rows of `share_partition_state`."""
        ...

    def suspect_at_end(self) -> np.ndarray:
        """Bool by number, after the last chunk: whether the state cannot be trusted; of replayed share-partitions."""
        ...

    def windows(self, states: RecordStates) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """bool, int64, int64: whether each state has a start offset, its SPEO, where a leader that loads it starts."""
        ...


class Dialect(Protocol):
    """How share-partition state is written.

    Attributes:
        name: as in the column `dialect`.
        kinds: names of the kinds of records, by code.
        faults: bits of the faults of a record.
    """

    name: str
    kinds: tuple[str, ...]
    faults: type[IntEnum]

    def fold(self, log: LogPartition, window: Window, options: FoldOptions) -> Any:
        """Fold a log; returns a `Folded`."""
        ...

    def open(self, log: LogPartition, window: Window, options: FoldOptions) -> LogReader:
        """Open a log to follow it record by record."""
        ...

    def comparable(self, folded: Any, states: pa.Table) -> pa.Table:
        """The rows of `share_partition_state` that must survive deletion up to the cutoff of a folded log."""
        ...


SHARE_GROUP_STATE: Dialect = ShareGroupState()
CONTROL_RECORDS: Dialect = ControlRecordDialect()


def dialect_of(log: LogPartition) -> Dialect:
    """The dialect of a log: `__share_group_state` has one of its own, any other topic may hold control records."""
    return SHARE_GROUP_STATE if log.topic == STATE_TOPIC else CONTROL_RECORDS
