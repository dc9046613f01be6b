"""The two dialects; timeline, explain, decode and the verification of a cutoff build on them.

A dialect is the way in which a release of Kafka, or a draft of KIP-932, writes share-partition state: its
records, its chain of snapshots and changes, its rules. `dialect_of` is the only function that selects one.
`verify_cutoff` verifies that a cutoff is safe: it folds the log again without the records before it, and
compares the states.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.fold.draft.control_log import FoldedControlLog, fold_control_log
from share_state.fold.draft.control_replay import open_control_log
from share_state.fold.fold_options import FoldOptions, SharePartitionFilter
from share_state.fold.log_stats import Folded
from share_state.fold.state_log import fold_log
from share_state.fold.state_replay import open_state_log
from share_state.fold.states import RecordStates, RecordView
from share_state.kafka.control_records import ControlFault
from share_state.kafka.state_records import Fault
from share_state.sources.as_of import Window
from share_state.sources.log_partition import STATE_TOPIC, LogPartition


class LogReader(Protocol):
    """Follows the share-partitions of one log record by record; numbers them in order of first appearance.

    Attributes:
        state_partition: number of the log partition, None for an ordinary topic.
        place_without_state: the `explain.Place` of an offset while its share-partition has records but no
            state.
        epochs: columns of a state that `explain` shows -> fields of its chain.
    """

    state_partition: int | None
    place_without_state: str
    epochs: Mapping[str, str]

    def __len__(self) -> int:
        """Number of share-partitions so far."""
        ...

    def may_match(self, key_filter: SharePartitionFilter) -> bool:
        """Whether the log can hold a share-partition that the filter selects."""
        ...

    def chunks(self) -> Iterator[Any]:
        """The decoded records, chunk by chunk: StateRecords or ControlRecords."""
        ...

    def selected(self, key_filter: SharePartitionFilter) -> np.ndarray:
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
        """Yield the states after each readable record of the selected share-partitions.

        Chunks come in log order.
        """
        ...

    def state_table(self, states: RecordStates) -> pa.Table:
        """States that exist as rows of `share_partition_state`."""
        ...

    def suspect_at_end(self) -> np.ndarray:
        """bool, one per replayed share-partition: whether its state after the last chunk is suspect."""
        ...

    def windows(self, states: RecordStates) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For each state: whether it has a start offset, its SPEO, and where a leader that loads it starts."""
        ...


@dataclass(frozen=True, slots=True)
class Dialect:
    """How share-partition state is written.

    Attributes:
        kinds: names of the kinds of records, by code.
        faults: bits of the faults of a record.
        fold: folds a log; returns a `Folded`.
        open: opens a log to follow it record by record.
        comparable: returns the rows of `share_partition_state` of a folded log that must survive deletion up
            to its cutoff.
    """

    kinds: tuple[str, ...]
    faults: type[IntEnum]
    fold: Callable[[LogPartition, Window, FoldOptions], Any]
    open: Callable[[LogPartition, Window, FoldOptions], LogReader]
    comparable: Callable[[Any, pa.Table], pa.Table]


def _with_subscription(folded: FoldedControlLog, states: pa.Table) -> pa.Table:
    subscribed = folded.checkpoints.filter(folded.checkpoints["subscribes"])["group_id"]
    return states.filter(pc.call_function("is_in", [states["group_id"]], pc.SetLookupOptions(subscribed)))


STATE_DIALECT = Dialect(
    ("snapshot", "update", "tombstone", "skipped"), Fault, fold_log, open_state_log, lambda _, states: states
)
CONTROL_DIALECT = Dialect(
    ("checkpoint", "delta", "skipped"), ControlFault, fold_control_log, open_control_log, _with_subscription
)


def dialect_of(log: LogPartition) -> Dialect:
    """The dialect of a log: `__share_group_state` has its own dialect.

    Any other topic may hold control records.
    """
    return STATE_DIALECT if log.topic == STATE_TOPIC else CONTROL_DIALECT


NOT_COMPARED = ("max_leader_epoch", "max_state_epoch", "redundant_retained", "unfinished_offsets")
"""Columns that may differ: a broker that loads the shorter log knows only the epochs of the remaining
records, and the number of redundant records is not part of the state, nor is the end of the user data."""


@dataclass(frozen=True, slots=True)
class CutoffVerification:
    """Result of `verify_cutoff`.

    Attributes:
        compared: number of share-partitions in the full fold.
        differing: "group:topic_id:partition" of share-partitions whose state differs; the topic name if it
            has no id.
    """

    compared: int
    differing: tuple[str, ...]


def verify_cutoff(folded: Folded, window: Window, options: FoldOptions) -> CutoffVerification | None:
    """Fold only the records at or after the cutoff and compare the states with those of the full fold.

    Groups without a subscription are not compared if their state may be deleted (control records).

    Args:
        folded, window, options: the full fold of a log, its window and its options.
    Returns:
        None if the log has no cutoff.
    """
    offset = folded.cutoff["cutoff_offset"][0].as_py()
    if offset is None:
        return None
    dialect = dialect_of(folded.log)
    options = replace(options, restore=None, resume_status=None, judge=None)
    shorter = dialect.fold(folded.log, replace(window, from_offset=offset), options)
    by_key = [(name, "ascending") for name in ("group_id", "topic_id", "partition")]
    full, remaining = (
        dialect.comparable(folded, one.states)
        .drop_columns(list(NOT_COMPARED))
        .sort_by(by_key)
        .combine_chunks()
        for one in (folded, shorter)
    )
    if len(full) == len(remaining):
        # Without the damaged records before the cutoff that make a state suspect, it is not suspect.
        is_suspect = pc.call_function("or", [full["suspect"], remaining["suspect"]])
        remaining = remaining.set_column(
            remaining.schema.get_field_index("suspect"), full.schema.field("suspect"), is_suspect
        )
    if full.equals(remaining):
        return CutoffVerification(len(full), ())
    # Name the differences only if there are any: this is slow.
    states = [
        {
            f"{row['group_id']}:{row['topic_id'] or row['topic']}:{row['partition']}": row
            for row in table.to_pylist()
        }
        for table in (full, remaining)
    ]
    differing = sorted(
        name for name in {*states[0], *states[1]} if states[0].get(name) != states[1].get(name)
    )
    return CutoffVerification(len(full), tuple(differing))
