"""Whether a fold from the earliest checkpoint on equals the fold of the whole log, and the times that it lacks.

The share snapshot file names the latest checkpoint of each group at the time of the last audit. What that audit knew
of earlier records completes the fold; where it does not, or the log contradicts the file, the whole log is read.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.kafka.control_records import ControlKind
from share_state.sources.share_snapshots import ShareSnapshotEntry

NEEDED_OF_LAST_AUDIT = ("group_id", "start_offset", "end_offset", "moved_time", "active_time")


def complete_times(
    groups: Sequence[str | None],
    chains: np.ndarray,
    links: np.ndarray,
    entries: Sequence[ShareSnapshotEntry],
    last_audit: pa.Table,
    audited_to: int,
) -> bool:
    """Complete the times of chains that were folded from the earliest checkpoint of the entries on.

    Args:
        groups: the groups of the part that was read.
        chains: CONTROL_CHAIN, one per group; start_advanced_at and last_consumed_at are set.
        links: LINK rows of that part.
        entries: the share snapshot file.
        last_audit: NEEDED_OF_LAST_AUDIT, one row per group.
        audited_to: the offset up to which that audit read the log.
    Returns:
        Whether the chains are those of the whole log. They are not if the file and the log differ, a group lacks
        its checkpoint, or a group had offsets in flight at the last audit and has not moved its start since: when
        these were first delivered is not known then.
    """
    numbers = {group: number for number, group in enumerate(groups)}
    named = {entry.group for entry in entries}
    before = {row["group_id"]: row for row in _times_in_ms(last_audit).to_pylist()}
    if not _has_checkpoints(numbers, links, entries) or not chains["exists"].all() or before.keys() != named:
        return False
    firsts = links[np.unique(links["group"], return_index=True)[1]]
    begins_late = firsts["kind"] != ControlKind.CHECKPOINT
    if {groups[number] for number in firsts["group"][begins_late].tolist()} - named:
        return False
    has_delta = np.zeros(len(groups), np.bool_)
    has_delta[links["group"][links["kind"] == ControlKind.DELTA]] = True
    is_late = links["offset"] >= audited_to
    has_moved = _moved_at(links[is_late], chains)
    has_stayed = _moved_at(links[~is_late], chains)
    for group, row in before.items():
        number = numbers[group]
        # Groups without a subscription have no consumers, and no time of their last one.
        has_consumers = chains["last_consumed_at"][number] > 0
        if row["moved_time"] is None or (has_consumers and row["active_time"] is None):
            return False
        if not has_moved[number]:
            if (
                chains["start_offset"][number] != row["start_offset"]
                or row["end_offset"] != row["start_offset"]
            ):
                return False
            chains["start_advanced_at"][number] = row["moved_time"]
        if has_consumers and not has_delta[number]:
            chains["last_consumed_at"][number] = row["active_time"]
    # A start that left and came back was set by a late record, if no earlier one has its time.
    return not (has_moved & has_stayed).any()


def _moved_at(links: np.ndarray, chains: np.ndarray) -> np.ndarray:
    """bool, one per chain: whether one of these records has the time at which its start was set."""
    moved = np.zeros(len(chains), np.bool_)
    moved[links["group"][links["timestamp"] == chains["start_advanced_at"][links["group"]]]] = True
    return moved


def _has_checkpoints(
    numbers: dict[str | None, int], links: np.ndarray, entries: Sequence[ShareSnapshotEntry]
) -> bool:
    """Whether the log has each checkpoint that the share snapshot file names."""
    found = links[links["kind"] == ControlKind.CHECKPOINT]
    checkpoints = set(zip(*(found[name].tolist() for name in ("offset", "group", "epoch")), strict=True))
    return all(
        (entry.checkpoint_offset, numbers.get(entry.group), entry.checkpoint_epoch) in checkpoints
        for entry in entries
    )


def _times_in_ms(last_audit: pa.Table) -> pa.Table:
    for name in ("moved_time", "active_time"):
        place = last_audit.schema.get_field_index(name)
        milliseconds = pc.cast(last_audit[name], pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
        last_audit = last_audit.set_column(place, name, milliseconds)
    return last_audit
