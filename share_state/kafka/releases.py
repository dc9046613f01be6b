"""The Kafka releases that this version knows, and what their brokers do.

A new release is one more entry here.
"""

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True, slots=True)
class Release:
    """Features of the partition leaders and share coordinators of one Kafka release.

    Args:
        name: such as "4.4".
        layout: layout of record values, as in schemas/records.
        has_initialize: share-partitions are initialized, deleted and snapshotted when cold; otherwise the
            first read or write creates the state.
        fetches_load_gaps: offsets that no loaded batch covers are fetched again.
        leave_decrements_count: records of a member that leaves get their last delivery uncounted.
        uses_request_epochs: a write records the request's epochs instead of the state's.
        snapshots_higher_state_epoch: a write with a higher state epoch becomes a snapshot.
        refuses_inverted_batches: a loaded batch with last < first fails the share-partition.
        counts_completed: writes and values carry the delivery complete count (KIP-1226).
        counts_first_update: the first update counts towards the next snapshot.
        is_first_update_counted: whether that is so in every patch level of the release line.
        renews: acknowledgement type 4 is supported (KIP-1222).
        limits_records: acquire mode RECORD_LIMIT is supported (KIP-1206).
        throttles: batches near the delivery count limit are delivered in smaller parts.
        archiving: whether a loaded batch in state 3 is refused, kept, or resumed (sent to the dead letter
            queue again).
        exempts_reads_without_epoch: a read with leader epoch -1 is not fenced.
        dead_letters: rejected and exhausted records may go to a dead letter queue (KIP-1191).
        refuses_negative_epochs: requests with negative epochs are invalid.
        keeps_greater_start: updates keep the greater start and its delivery complete count.
        merges_neighbours: merged batches are maximal runs (the sweep-line combiner).
    Source: Kafka SharePartition and ShareCoordinatorShard of 4.0.2, 4.1.2, 4.2.0, 4.2.1, 4.3.1 and 4.4.0.
    """

    name: str
    layout: str = "4.1+"
    has_initialize: bool = True
    fetches_load_gaps: bool = True
    leave_decrements_count: bool = False
    uses_request_epochs: bool = False
    snapshots_higher_state_epoch: bool = False
    refuses_inverted_batches: bool = True
    counts_completed: bool = True
    counts_first_update: bool = True
    is_first_update_counted: bool = True
    renews: bool = True
    limits_records: bool = True
    throttles: bool = True
    archiving: Literal["refused", "kept", "resumed"] = "refused"
    exempts_reads_without_epoch: bool = False
    dead_letters: bool = False
    refuses_negative_epochs: bool = False
    keeps_greater_start: bool = False
    merges_neighbours: bool = False

    def is_before(self, name: str) -> bool:
        """Whether this release is older than another."""
        return _version(self.name) < _version(name)


def _version(name: str) -> list[int]:
    return [*map(int, name.split("."))]


_4_1 = Release(
    "4.1",
    leave_decrements_count=True,
    uses_request_epochs=True,
    snapshots_higher_state_epoch=True,
    refuses_inverted_batches=False,
    counts_completed=False,
    counts_first_update=False,
    is_first_update_counted=False,
    renews=False,
    limits_records=False,
    throttles=False,
)
_4_0 = replace(_4_1, name="4.0", layout="4.0", has_initialize=False, fetches_load_gaps=False,
               snapshots_higher_state_epoch=False)  # fmt: skip
_4_3 = Release("4.3", archiving="kept", exempts_reads_without_epoch=True)
LATEST = replace(_4_3, name="4.4", archiving="resumed", dead_letters=True, refuses_negative_epochs=True,
                 keeps_greater_start=True, merges_neighbours=True)  # fmt: skip

_4_2 = Release("4.2", is_first_update_counted=False)

RELEASES = {release.name: release for release in (_4_0, _4_1, _4_2, _4_3, LATEST)}
"""Release line -> its newest patch level."""

_PATCH_LEVELS = {"4.2.0": replace(_4_2, counts_first_update=False)}
"""Patch levels that differ from the newest one of their line."""

UNRELEASED = "4.5"
"""The release whose merged changes no rule calls a fault, but which is not out: nobody can write its logs yet."""


def unreleased_note(version: str) -> str:
    """Why a version is not among the releases, as the beginning of a hint; empty if it is none that is announced."""
    is_announced = version.split(".")[:2] == UNRELEASED.split(".")
    return (
        f"Kafka {UNRELEASED} is not out, so what its brokers will write is not known; "
        if is_announced
        else ""
    )


SIMULATED = tuple(sorted((*RELEASES, *_PATCH_LEVELS), key=_version))
"""The names of releases that differ."""


def release_of(version: str) -> Release | None:
    """The release of a version such as "4.3" or "4.2.0"; None if its line is unknown.

    A line stands for its newest patch level.
    """
    return _PATCH_LEVELS.get(version) or RELEASES.get(".".join(version.split(".")[:2]))
