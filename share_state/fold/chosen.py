"""Which share-partitions somebody asks for: by group, by topic (name or id), by partition."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.fold.topics import Topics
from share_state.wire.keys import KeyTable


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
