"""The limits that a cluster works under, as far as they decide what is normal in its log."""

from dataclasses import dataclass

RELEASES = ("4.0", "4.1", "4.2", "4.3", "4.4")


@dataclass(frozen=True, slots=True)
class Limits:
    """What the rules hold a log against; the defaults are Kafka's own.

    Attributes:
        delivery_count: deliveries before a record is archived (group.share.delivery.count.limit).
        record_locks: records in flight a share-partition (group.share.partition.max.record.locks).
        updates_per_snapshot: updates between two snapshots (share.coordinator.snapshot.update.records.per.snapshot).
        chain_length: control records since the latest checkpoint before a chain is long.
        stall_minutes: minutes that a start offset may stay while later offsets finish.
        pinned_records: records that one share-partition may keep from being cleaned before it is worth a word.
        writer_version: the release that wrote the log, one of RELEASES; None where it is to be inferred.
    """

    delivery_count: int = 5
    record_locks: int = 2000
    updates_per_snapshot: int = 500
    chain_length: int = 500
    stall_minutes: float = 30
    pinned_records: int = 10_000
    writer_version: str | None = None

    def since_4_4(self, archiving_since: int) -> int | None:
        """The offset behind which a writer of 4.4 or later made every record; None where none is known to have.

        Args:
            archiving_since: offset of the first record that must be of such a writer, -1 for none.
        """
        if self.writer_version is not None:
            return -1 if self.writer_version == "4.4" else None
        return None if archiving_since < 0 else archiving_since
