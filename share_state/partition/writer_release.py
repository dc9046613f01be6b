"""How the coordinators of each Kafka release write, as one table."""

from dataclasses import dataclass, replace

from share_state.partition.simulation_error import SimulationError


@dataclass(frozen=True, slots=True)
class WriterRelease:
    """What one release does differently from the others when it turns requests into records.

    Attributes:
        name: as typed: 4.0 to 4.4.
        layout: of its values, as schemas/records declares it.
        tells_complete_count: whether values carry the delivery complete count (tag 0).
        has_initialize: whether share-partitions are initialized, deleted and snapshotted when cold; where not, the
            first read or write makes the state.
        counts_first_update: whether the first update after the creation counts towards the next snapshot.
        takes_epochs_of_request: whether a write records the epochs of its request, not those of the state.
        snapshots_higher_state_epoch: whether a write with a higher state epoch becomes a snapshot.
        exempts_reads_without_epoch: whether a read with leader epoch -1 passes the fence.
        refuses_negative_epochs: whether requests with epochs below 0 are invalid.
        carries_start: whether updates carry the greater start, and the count that belongs to it.
        joins_neighbours: whether merged lists come out in maximal runs (the sweep line).
    Source: Kafka ShareCoordinatorShard of 4.0.2, 4.1.2, 4.2.1, 4.3.1 and 4.4.0.
    """

    name: str
    layout: str = "4.1+"
    tells_complete_count: bool = True
    has_initialize: bool = True
    counts_first_update: bool = True
    takes_epochs_of_request: bool = False
    snapshots_higher_state_epoch: bool = False
    exempts_reads_without_epoch: bool = True
    refuses_negative_epochs: bool = False
    carries_start: bool = False
    joins_neighbours: bool = False


_BEFORE_4_2 = WriterRelease(
    "",
    tells_complete_count=False,
    counts_first_update=False,
    takes_epochs_of_request=True,
    exempts_reads_without_epoch=False,
)

RELEASES = {
    release.name: release
    for release in (
        replace(_BEFORE_4_2, name="4.0", layout="4.0", has_initialize=False),
        replace(_BEFORE_4_2, name="4.1", snapshots_higher_state_epoch=True),
        WriterRelease("4.2", exempts_reads_without_epoch=False),
        WriterRelease("4.3"),
        WriterRelease("4.4", refuses_negative_epochs=True, carries_start=True, joins_neighbours=True),
    )
}
"""Name -> release."""

LATEST = RELEASES["4.4"]


def writer_release(name: str) -> WriterRelease:
    """The release of a name.

    Raises:
        SimulationError: if there is none.
    """
    if name not in RELEASES:
        raise SimulationError(f"release {name!r} is not known; use one of {', '.join(RELEASES)}")
    return RELEASES[name]
