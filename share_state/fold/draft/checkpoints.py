"""The table of the checkpoints of a log with control records, and the entries of its share snapshot file."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from share_state.fold.state_chains import NO_OFFSET
from share_state.kafka.control_records import UNREADABLE_CONTROL_FAULTS, ControlKind
from share_state.sources.share_snapshots import ShareSnapshotEntry

LINK = np.dtype(
    [
        ("offset", "i8"),
        ("back_offset", "i8"),  # -1 in a checkpoint
        ("timestamp", "i8"),
        ("group", "i4"),
        ("epoch", "i4"),
        ("fault", "i2"),
        ("kind", "i1"),
    ]
)
"""One row per checkpoint or delta whose group is known, in log order; input of the chain rules."""

CHECKPOINTS = pa.schema(
    [
        ("group_id", pa.string()),
        ("subscribes", pa.bool_()),  # if so, its checkpoint limits the cutoff
        ("checkpoint_offset", pa.int64()),  # SCO; null without a checkpoint
        ("checkpoint_epoch", pa.int32()),
        ("last_control_offset", pa.int64()),
        ("record_count", pa.int64()),  # number of its control records in the log
        (
            "redundant_retained",
            pa.int64(),
        ),  # number of them at or after the cutoff that its checkpoint supersedes
    ]
)
"""One row per share group of the log."""

_INDEX_COLUMNS = ("group_id", "checkpoint_offset", "checkpoint_epoch", "last_control_offset")


def checkpoints_table(
    groups: pa.Array, subscribes: np.ndarray, rows: np.ndarray, links: np.ndarray, earliest: int | None
) -> pa.Table:
    """The table CHECKPOINTS.

    Args:
        groups: ids of all groups of the log.
        subscribes: bool, whether each has a subscription.
        rows: CONTROL_CHAIN, one per group.
        links: LINK rows of the log.
        earliest: the cutoff; None for none.
    """
    snapshot_offsets = rows["snapshot_offset"][links["group"]]
    retained = (links["offset"] < snapshot_offsets) & (
        links["offset"] >= (np.iinfo(np.int64).max if earliest is None else earliest)
    )
    return pa.table(
        {
            "group_id": groups,
            "subscribes": subscribes,
            "checkpoint_offset": pa.array(rows["snapshot_offset"].copy(), mask=~rows["exists"]),
            "checkpoint_epoch": pa.array(rows["epoch"].copy(), mask=~rows["exists"]),
            "last_control_offset": rows["newest_offset"].copy(),
            "record_count": np.bincount(links["group"], minlength=len(groups)),
            "redundant_retained": np.bincount(links["group"][retained], minlength=len(groups)),
        },
        schema=CHECKPOINTS,
    )


def index_entries(
    with_checkpoint: pa.Table,
    entries: Sequence[ShareSnapshotEntry],
    groups: pa.Array,
    rows: np.ndarray,
    links: np.ndarray,
) -> list[ShareSnapshotEntry]:
    """The entries of the share snapshot file of a log: those of its groups, and those given that it contradicts.

    Args:
        with_checkpoint: rows of CHECKPOINTS with a checkpoint.
        entries: those of the existing file.
        groups, rows, links: as for `checkpoints_table`.
    """
    of_groups = (
        ShareSnapshotEntry(*(row[name] for name in _INDEX_COLUMNS)) for row in with_checkpoint.to_pylist()
    )
    return [*of_groups, *_contradicted(entries, groups, rows, links)]


def _contradicted(
    entries: Sequence[ShareSnapshotEntry], groups: pa.Array, rows: np.ndarray, links: np.ndarray
) -> Iterator[ShareSnapshotEntry]:
    """The entries of a share snapshot file that this log contradicts.

    Deleted records do not contradict an entry.
    """
    if not entries:
        return
    numbers = {group: number for number, group in enumerate(groups.to_pylist())}
    named = links[np.isin(links["offset"], [entry.checkpoint_offset for entry in entries])]
    is_checkpoint = (named["kind"] == ControlKind.CHECKPOINT) & (
        named["fault"] & UNREADABLE_CONTROL_FAULTS == 0
    )
    epochs = np.where(is_checkpoint, named["epoch"], NO_OFFSET)
    found = zip(named["group"].tolist(), epochs.tolist(), strict=True)
    checkpoints = dict(zip(named["offset"].tolist(), found, strict=True))
    for entry in entries:
        number = numbers.get(entry.group)
        expected = number, entry.checkpoint_epoch
        # A checkpoint before the latest one may be deleted already.
        if (
            number is None
            or entry.checkpoint_offset > rows["snapshot_offset"][number]
            or not entry.checkpoint_offset <= entry.last_offset <= rows["newest_offset"][number]
            or checkpoints.get(entry.checkpoint_offset, expected) != expected
        ):
            yield replace(entry, is_contradicted=True)
