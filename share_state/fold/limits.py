"""The limits of a cluster and of its share groups; rules check a log against them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.kafka.compression import MAX_BODY_SIZE
from share_state.kafka.releases import RELEASE_HISTORY, Release, release_of, releases_of_line

GROUP_LIMITS = ("delivery_count", "record_locks")
"""Limits that a share group may set for itself (share.delivery.count.limit,
share.partition.max.record.locks)."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits that rules check a log against; the defaults are Kafka's.

    Attributes:
        delivery_count: deliveries before a record is archived (group.share.delivery.count.limit).
        record_locks: in-flight records per share-partition (group.share.partition.max.record.locks).
        updates_per_snapshot: updates between two snapshots
            (share.coordinator.snapshot.update.records.per.snapshot).
        chain_length: control records since the latest checkpoint above which a chain is reported as long.
        stall_minutes: minutes that a start offset may stay in place while later offsets finish.
        pinned_records: records that one share-partition may prevent from being deleted before it is reported.
        writer_version: the release that wrote the log, a line or a patch level of it; None to infer it.
        archiving_seconds: seconds that an offset may stay in ARCHIVING; most dead-letter writes take less
            than one.
        giving_up_minutes: minutes for which a share-partition may only give up records and acknowledge none.
        poison_ratio: share of the records finished since the last audit that may be given up without a
            finding.
        retention_ratio: share of retention.ms that the first unfinished record may be old without a finding.
        export_age: hours that the newest record of an audited export may be old; 0 for any age (audits set
            36).
        groups: share group -> limits that it sets for itself (name in GROUP_LIMITS -> value).
        batch_bytes: bytes that a decompressed record batch may have.
    """

    delivery_count: int = 5
    record_locks: int = 2000
    updates_per_snapshot: int = 500
    chain_length: int = 500
    stall_minutes: float = 30
    pinned_records: int = 10_000
    writer_version: str | None = None
    archiving_seconds: float = 60
    giving_up_minutes: float = 10
    poison_ratio: float = 0.01
    retention_ratio: float = 0.8
    export_age: float = 0
    groups: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    batch_bytes: int = MAX_BODY_SIZE

    @property
    def writer(self) -> Release | None:
        """The release that wrote the log; None to infer it."""
        return None if self.writer_version is None else release_of(self.writer_version)

    def possible_writers(self, archiving_since: int = -1) -> tuple[Release, ...]:
        """The releases that may have written the log, with their patch levels.

        Args:
            archiving_since: as for `written_by_4_4_after`.
        """
        if self.writer is not None:
            return releases_of_line(self.writer.name) or (self.writer,)
        return tuple(one for one in RELEASE_HISTORY if archiving_since < 0 or one.dead_letters)

    def of_group(self, limit: str, group: str) -> int:
        """The value of one of GROUP_LIMITS for a share group."""
        return self.groups.get(group, {}).get(limit, getattr(self, limit))

    def of_groups(self, limit: str, groups: pa.Array | pa.ChunkedArray) -> np.ndarray:
        """The value of one of GROUP_LIMITS for each share group, int64."""
        return self.values(limit)[self.group_rows(groups)]

    def at_least(self, deliveries: Mapping[str, int]) -> "Limits":
        """The limits with a greater delivery limit for groups whose log shows more deliveries.

        Args:
            deliveries: share group -> deliveries that its delivery limit allows at least.
        """
        more = {
            group: count
            for group, count in deliveries.items()
            if count > self.of_group("delivery_count", group)
        }
        if not more:
            return self
        own = {
            group: {**self.groups.get(group, {}), "delivery_count": count} for group, count in more.items()
        }
        return replace(self, groups={**self.groups, **own})

    def values(self, limit: str) -> np.ndarray:
        """The values of one of GROUP_LIMITS, int64: the cluster's first, then one per entry of `groups`."""
        default: int = getattr(self, limit)
        return np.array(
            [default, *(group_limits.get(limit, default) for group_limits in self.groups.values())], np.int64
        )

    def group_rows(self, groups: pa.Array | pa.ChunkedArray) -> np.ndarray:
        """The row in `values` for each share group: 0 if it sets no limits for itself."""
        if not self.groups:
            return np.zeros(len(groups), np.int64)
        places = pc.call_function(
            "index_in", [groups], pc.SetLookupOptions(pa.array(self.groups, pa.string()))
        )
        return places.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64) + 1

    def written_by_4_4_after(self, archiving_since: int) -> int | None:
        """The offset after which 4.4 or later wrote every record; None if unknown.

        Args:
            archiving_since: offset of the first record that only 4.4 or later can have written, -1 for none.
        """
        if self.writer is not None:
            return -1 if self.writer.dead_letters else None
        return None if archiving_since < 0 else archiving_since


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """Limits for the rules over share groups; the defaults are Kafka's.

    Attributes:
        members: maximum number of members of a share group (group.share.max.size).
        retry_ms: ms after which a heartbeat requests missing state again.
        delete_grace_ms: ms that the state of a topic may remain while the topic is being deleted.
    """

    members: int = 200
    retry_ms: int = 30_000
    delete_grace_ms: int = 300_000
