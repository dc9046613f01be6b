"""The limits that a cluster works under, as far as they decide what is normal in its log.

Which share-partitions somebody asks for: by group, by topic (name or id), by partition.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.kafka.share_partition_keys import KeyTable
from share_state.sources.topics import Topics

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


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a share-partition must match; None matches all.

    Attributes:
        group_id: the share group.
        topic: name or id of the topic; a name only where it is known.
        partition: of the topic.
    """

    group_id: str | None = None
    topic: str | None = None
    partition: int | None = None

    def of(self, keys: KeyTable, topics: Topics) -> np.ndarray:
        """Whether each share-partition of a log is asked for: bool, entry n for number n."""
        groups, ids, partitions = keys.columns()
        chosen = np.ones(len(keys), bool)
        if self.group_id is not None:
            chosen &= _equal(groups, self.group_id)
        if self.partition is not None:
            chosen &= partitions.to_numpy() == self.partition
        if self.topic is not None:
            chosen &= _equal(ids, self.topic) | _equal(topics.name_of(ids), self.topic)
        return chosen


def _equal(column: pa.Array, text: str) -> np.ndarray:
    same = pc.call_function("equal", [column, pa.scalar(text, pa.string())])
    return same.fill_null(False).to_numpy(zero_copy_only=False)
