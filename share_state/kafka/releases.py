"""The Kafka releases that this version knows: what each writes, refuses and offers.

Reader, rules, simulator, repair and docs/releases.md take these facts from here, and no other module compares
releases. A new release is one more entry of RELEASE_HISTORY, with what differs from the one before it.
"""

import re
from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields, replace
from typing import Any, Literal

WRITES = "writes"
REFUSES = "refuses"
OFFERS = "offers"


def _fact(about: str, doc: str, default: object) -> Any:
    """A field of Release: what a release `about` (WRITES, REFUSES or OFFERS), and what 4.0 does."""
    return field(default=default, metadata={"about": about, "doc": doc})


@dataclass(frozen=True, slots=True)
class Release:
    """What partition leaders, coordinators and tools of one Kafka release do; the defaults are those of 4.0.

    Size: one field per fact in which releases differ.

    Args:
        name: its line, such as "4.4"; the version of a patch level that differs from the newest one of its line.
        patch: the first version that does all this, such as "4.4.0".
    Source: Kafka SharePartition, ShareCoordinatorShard, GroupMetadataManager and ShareGroupCommand of 4.0.2,
        4.1.2, 4.2.0 to 4.2.2, 4.3.1 and 4.4.0.
    """

    name: str
    patch: str
    layout: str = _fact(WRITES, "layout of record values, as in [records.md](records.md)", "4.0")
    has_times: bool = _fact(WRITES, "snapshots have the times of their creation and last write", False)
    uses_request_epochs: bool = _fact(
        WRITES, "a write records the request's epochs instead of the state's", True
    )
    snapshots_higher_state_epoch: bool = _fact(
        WRITES, "a write with a higher state epoch becomes a snapshot", False
    )
    counts_completed: bool = _fact(
        WRITES, "requests and values have the delivery complete count (KIP-1226)", False
    )
    counts_first_update: bool = _fact(
        WRITES,
        "the first update counts towards the next snapshot; otherwise the first cycle has one more",
        False,
    )
    takes_snapshots_when_cold: bool = _fact(
        WRITES, "share-partitions without writes for 5 minutes get a cold snapshot", False
    )
    skips_cold_job: bool = _fact(
        WRITES, "the job of cold snapshots is skipped while any update is pending (a bug)", False
    )
    reset_raises_epoch: bool = _fact(
        WRITES,
        "a reset of offsets raises the group epoch, which is the state epoch that it writes; otherwise several "
        "resets of an empty group write the same one",
        False,
    )
    skips_equal_initialize: bool = _fact(
        WRITES, "an initialize with the state epoch and start offset of the state writes nothing", False
    )
    leave_decrements_count: bool = _fact(
        WRITES, "the records of a member that leaves get their last delivery uncounted", False
    )
    dead_letters: bool = _fact(
        WRITES, "records on their way to a dead-letter queue are in state 3, ARCHIVING (KIP-1191)", False
    )
    keeps_greater_start: bool = _fact(
        WRITES, "updates have the greater start offset, and its delivery complete count", False
    )
    merges_neighbours: bool = _fact(WRITES, "merged ranges of equal state are joined", False)
    first_group_epoch: int = _fact(WRITES, "epoch of a group before its first member", 0)
    times_assignments: bool = _fact(WRITES, "the time at which an assignment was computed", False)
    assigns_to_nobody: bool = _fact(
        WRITES, "the epoch of the assignment follows when the last member has left", False
    )
    refuses_inverted_batches: bool = _fact(
        REFUSES, "a range that ends before it begins fails the share-partition", False
    )
    limits_values: bool = _fact(
        REFUSES, "a value with more than 1,000,000 ranges or 10,000 tags fails the state partition", False
    )
    refuses_negative_epochs: bool = _fact(REFUSES, "requests with negative epochs", False)
    exempts_reads_without_epoch: bool = _fact(
        REFUSES, "reads are fenced by their leader epoch only if they have one", False
    )
    archiving: Literal["refused", "kept", "resumed"] = _fact(
        REFUSES,
        "state 3 in a loaded state: refused, kept for ever, or resumed (sent to the dead-letter queue again)",
        "refused",
    )
    has_initialize: bool = _fact(
        OFFERS,
        "share-partitions are initialized and deleted; otherwise the first read or write creates the state",
        False,
    )
    fetches_load_gaps: bool = _fact(OFFERS, "offsets that no loaded range covers are fetched again", False)
    resets_to_latest: bool = _fact(
        OFFERS, "kafka-share-groups.sh --reset-offsets moves a start offset to the end of the topic", False
    )
    assigns_evenly: bool = _fact(
        OFFERS, "the assignor gives members equal numbers of partitions, plus or minus one", False
    )
    renews: bool = _fact(OFFERS, "acknowledgement type 4, RENEW (KIP-1222)", False)
    limits_records: bool = _fact(OFFERS, "acquire mode RECORD_LIMIT (KIP-1206)", False)
    throttles: bool = _fact(OFFERS, "ranges near the delivery limit are delivered in smaller parts", False)
    sets_group_limits: bool = _fact(
        OFFERS, "a group may set its own delivery and lock limits, and disallow renewals", False
    )
    resets_to_offset: bool = _fact(
        OFFERS, "kafka-share-groups.sh --reset-offsets takes an offset or a file (KIP-1323)", False
    )


def _version(name: str) -> list[int]:
    return [*map(int, name.split("."))]


_4_0 = Release("4.0", "4.0.2")
_4_1 = replace(
    _4_0,
    name="4.1",
    patch="4.1.2",
    layout="4.1+",
    has_times=True,
    snapshots_higher_state_epoch=True,
    takes_snapshots_when_cold=True,
    leave_decrements_count=True,
    has_initialize=True,
    fetches_load_gaps=True,
)
_4_2_0 = replace(
    _4_1,
    name="4.2.0",
    patch="4.2.0",
    uses_request_epochs=False,
    snapshots_higher_state_epoch=False,
    counts_completed=True,
    leave_decrements_count=False,
    refuses_inverted_batches=True,
    resets_to_latest=True,
    assigns_evenly=True,
    renews=True,
    limits_records=True,
    throttles=True,
)
_4_2_1 = replace(_4_2_0, name="4.2.1", patch="4.2.1", counts_first_update=True)
_4_2 = replace(_4_2_1, name="4.2", patch="4.2.2", limits_values=True)
_4_3 = replace(
    _4_2_1,
    name="4.3",
    patch="4.3.0",
    archiving="kept",
    exempts_reads_without_epoch=True,
    first_group_epoch=1,
    times_assignments=True,
    sets_group_limits=True,
)
_4_4 = replace(
    _4_3,
    name="4.4",
    patch="4.4.0",
    exempts_reads_without_epoch=False,
    archiving="resumed",
    skips_cold_job=True,
    dead_letters=True,
    assigns_to_nobody=True,
    keeps_greater_start=True,
    merges_neighbours=True,
    limits_values=True,
    refuses_negative_epochs=True,
    resets_to_offset=True,
)

_4_5 = replace(
    _4_4,
    name="4.5",
    patch="4.5.0",
    skips_cold_job=False,
    reset_raises_epoch=True,
    skips_equal_initialize=True,
)

RELEASE_HISTORY = (_4_0, _4_1, _4_2_0, _4_2_1, _4_2, _4_3, _4_4)
"""All releases that differ, ascending; of a line, its patch levels."""

LATEST = RELEASE_HISTORY[-1]

RELEASES = {release.name: release for release in RELEASE_HISTORY if release.name.count(".") == 1}
"""Release line -> its newest patch level."""

UNRELEASED: Release | None = _4_5
"""The release whose merged changes no rule calls a fault, but which is not out: nobody can write its logs yet.
None if there is none; a release that is out is in RELEASE_HISTORY."""

SIMULATED = tuple(release.name for release in sorted(RELEASE_HISTORY, key=lambda one: _version(one.name)))
"""The names of releases that differ."""


def unreleased_note(version: str) -> str:
    """Why a version is not among the releases, as the beginning of a hint; empty if it is none that is announced."""
    if UNRELEASED is None or line_of(version) != UNRELEASED.name:
        return ""
    return f"Kafka {UNRELEASED.name} is not out, so what its brokers will write is not known; "


def refusal_of(version: str) -> str:
    """Why a version cannot be chosen, after the name of the option or argument that has it."""
    return f"{version}: {unreleased_note(version)}give one of {', '.join(SIMULATED)}"


_VERSION = re.compile(r"\d+\.\d+(\.\d+)?", re.ASCII)


def line_of(version: str) -> str:
    """The release line of a version: "4.2" of "4.2.0"."""
    return ".".join(version.split(".")[:2])


def release_of(version: str) -> Release | None:
    """The release of a version such as "4.3" or "4.2.0"; None if its line is unknown.

    A line, and a patch level that has no entry, stands for the newest patch level.
    """
    if not _VERSION.fullmatch(version):
        return None
    own = next((release for release in RELEASE_HISTORY if release.name == version), None)
    return own or RELEASES.get(line_of(version))


def releases_of_line(name: str) -> tuple[Release, ...]:
    """The entries of RELEASE_HISTORY of a release line."""
    return releases_with(lambda release: line_of(release.name) == name)


def releases_with(has: Callable[[Release], object]) -> tuple[Release, ...]:
    """The releases of RELEASE_HISTORY for which something holds."""
    return tuple(release for release in RELEASE_HISTORY if has(release))


def first_with(has: Callable[[Release], object]) -> str:
    """The name of the first release for which something holds; it must hold for one."""
    return _first_version(releases_with(has)[0])


def versions_with(has: Callable[[Release], object]) -> str:
    """The first version of each run of releases for which something holds, such as "4.2.2 and 4.4"."""
    begins, held = list[str](), False
    for release in RELEASE_HISTORY:
        holds = bool(has(release))
        begins += [_first_version(release)] * (holds and not held)
        held = holds
    return " and ".join(begins)


def _first_version(release: Release) -> str:
    """The line of a release if the release begins it, else the patch level."""
    line = line_of(release.name)
    return line if releases_of_line(line)[0] is release else release.patch


ARCHIVING_SINCE = first_with(lambda release: release.dead_letters)
"""The first release that writes state 3, which shows the writer."""


def column_name(release: Release) -> str:
    """The release as a column of a table: its line, or the patch level where the line has several."""
    line = line_of(release.name)
    return release.patch if len(releases_of_line(line)) > 1 else line


def facts() -> tuple["Field[Any]", ...]:
    """The facts about a release, each with `about` and `doc` in its metadata."""
    return tuple(one for one in fields(Release) if one.metadata)
