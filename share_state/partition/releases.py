"""In what the releases of Kafka differ, as far as a live share-partition shows it."""

from dataclasses import dataclass
from typing import Literal

from share_state.errors import ShareStateError


class UnknownReleaseError(ShareStateError):
    """Raised when a release has no entry here."""


@dataclass(frozen=True, slots=True)
class Release:
    """One release line.

    Args:
        name: "4.0" to "4.4".
        fetches_load_gaps: after a load, offsets that no recorded batch covers are fetched again.
        refuses_inverted_batches: a loaded batch with last < first fails the share-partition.
        counts_completed: writes carry the delivery complete count (KIP-1226).
        renews: acknowledge type 4 is known (KIP-1222).
        limits_records: the acquire mode that keeps to the number of records asked for (KIP-1206).
        throttles: batches are delivered in ever smaller parts as they near the delivery count limit.
        leave_lowers_count: records of a member that leaves lose the delivery they had.
        archiving: a loaded batch in state 3 is refused, kept as it is, or sent to the dead letter queue again.
        dead_letters: rejected and exhausted records may go to a dead letter queue (KIP-1191).
    Source: the same methods of kafka.server.share.SharePartition, release by release.
    """

    name: str
    fetches_load_gaps: bool
    refuses_inverted_batches: bool
    counts_completed: bool
    renews: bool
    limits_records: bool
    throttles: bool
    leave_lowers_count: bool
    archiving: Literal["refused", "kept", "resumed"]
    dead_letters: bool


#               name  gaps   inverted  count  renew  limits throttles leave  archiving  dead letters
_TABLE = (
    Release("4.0", False, False, False, False, False, False, True, "refused", False),
    Release("4.1", True, False, False, False, False, False, True, "refused", False),
    Release("4.2", True, True, True, True, True, True, False, "refused", False),
    Release("4.3", True, True, True, True, True, True, False, "kept", False),
    Release("4.4", True, True, True, True, True, True, False, "resumed", True),
)

RELEASES = {release.name: release for release in _TABLE}


def release_of(version: str) -> Release:
    """The release line of a version.

    Args:
        version: "4.3" or "4.3.1".
    Returns:
        Its entry.
    Raises:
        UnknownReleaseError: where there is none.
    """
    line = ".".join(version.split(".")[:2])
    if line not in RELEASES:
        raise UnknownReleaseError(
            f"release {version}: not one whose share-partitions are known; give {', '.join(RELEASES)}"
        )
    return RELEASES[line]
