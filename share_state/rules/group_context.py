"""Input of the rules over share groups: the groups of a cluster, and the state of their share-partitions.

Share-partitions stay in Arrow columns until a rule reports them: there may be millions.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.fold.groups.group_replay import ShareGroup, StatePartitions
from share_state.fold.groups.group_tables import FoldedGroups, partition_counts_by_id, topic_names
from share_state.fold.limits import GroupLimits
from share_state.fold.log_stats import dictionary_encoded_column
from share_state.fold.states import KEY, SHARE_GROUP_STATE
from share_state.kafka.primitives import partition_for
from share_state.sources.topics import Topics

STATE_COLUMNS = (*KEY, "state_partition", "state_epoch", "last_offset")
"""Columns of `share_partition_state` that the rules need."""

Listed = tuple[str, str, Sequence[int]]
"""Group id, topic id, partitions of that topic."""

_KEY = ["group", "topic", "partition"]
_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class LiveSharePartitions:
    """Live share-partitions of `__share_group_state`.

    Attributes:
        rows: one row per share-partition, in input order; STATE_COLUMNS, texts dictionary-encoded.
    """

    rows: pa.Table

    @classmethod
    def of(cls, states: pa.Table) -> "LiveSharePartitions":
        """Select them from a table with at least STATE_COLUMNS; rows of control records are dropped."""
        is_state = pc.call_function("equal", [states["dialect"], pa.scalar(SHARE_GROUP_STATE)])
        columns = {
            name: dictionary_encoded_column(states[name].filter(is_state)).combine_chunks()
            for name in STATE_COLUMNS
        }
        return cls(pa.table(columns))

    @cached_property
    def groups(self) -> list[str]:
        """The distinct groups with state."""
        return self._ids("group_id").dictionary.to_pylist()

    @property
    def state_epochs(self) -> np.ndarray:
        """State epoch of each row; the smallest int32 if unknown."""
        return self.rows["state_epoch"].fill_null(np.iinfo(np.int32).min).to_numpy()

    def each(self, of_groups: Mapping[str, int], otherwise: int) -> np.ndarray:
        """The number of the group of each row.

        Args:
            of_groups: group id -> number.
            otherwise: number for other groups.
        """
        numbers = np.array([of_groups.get(group_id, otherwise) for group_id in self.groups], np.int64)
        return numbers[self._ids("group_id").indices.to_numpy()]

    def of_groups(self, group_ids: Iterable[str]) -> np.ndarray:
        """Whether each row belongs to one of these groups."""
        return self.each(dict.fromkeys(group_ids, 1), 0) > 0

    def among(self, listed: Iterable[Listed]) -> np.ndarray:
        """Whether each row is one of the listed share-partitions."""
        return self._is_in(self._numbered(list(listed)).select(_KEY))

    def of_topics(self, topics: Iterable[tuple[str, str]]) -> np.ndarray:
        """Whether each row's group id and topic id are one of those pairs."""
        return self._is_in(self._numbered([(*pair, (0,)) for pair in topics]).select(_KEY[:2]))

    def where(self, broken: np.ndarray) -> list[dict[str, Any]]:
        """The rows that a mask selects, as Python objects."""
        return self.rows.filter(pa.array(broken)).to_pylist()

    def missing(self, listed: Iterable[Listed]) -> Iterator[tuple[str, str, int]]:
        """Yield group id, topic id and partition of listed share-partitions without a row, in any order."""
        topics = list(listed)
        for batch in (
            self._numbered(topics)
            .join(self._keys.select(_KEY), _KEY, join_type="left anti")
            .to_batches(_AT_ONCE)
        ):
            for place, partition in zip(
                batch["listed"].to_pylist(), batch["partition"].to_pylist(), strict=True
            ):
                yield *topics[place][:2], partition

    @cached_property
    def _keys(self) -> pa.Table:
        columns = {
            "group": self._ids("group_id").indices,
            "topic": self._ids("topic_id").indices,
            "partition": self.rows["partition"],
            "row": pa.array(np.arange(len(self.rows))),
        }
        return pa.table(columns)

    def _ids(self, column: str) -> pa.DictionaryArray:
        return self.rows[column].chunk(0)

    def _numbered(self, listed: Sequence[Listed]) -> pa.Table:
        """One row per listed share-partition, with the dictionary numbers of its ids in `rows`; -1 if absent."""
        groups, topics = (_numbers(self._ids(column)) for column in ("group_id", "topic_id"))
        counts = np.array([len(partitions) for _, _, partitions in listed], np.int64)
        columns = {
            "group": [groups.get(group_id, -1) for group_id, _, _ in listed],
            "topic": [topics.get(topic_id, -1) for _, topic_id, _ in listed],
            "listed": range(len(listed)),
        }
        columns_by_row = {
            name: np.repeat(np.array(values, np.int32), counts) for name, values in columns.items()
        }
        partitions = chain.from_iterable(partitions for _, _, partitions in listed)
        return pa.table(columns_by_row | {"partition": np.fromiter(partitions, np.int32, counts.sum())})

    def _is_in(self, numbered: pa.Table) -> np.ndarray:
        """Mask of the rows whose key is in a table; a join does not preserve the order."""
        mask = np.zeros(len(self.rows), bool)
        mask[self._keys.join(numbered, numbered.column_names, join_type="left semi")["row"].to_numpy()] = True
        return mask


def _numbers(ids: pa.DictionaryArray) -> dict[str, int]:
    return {one: number for number, one in enumerate(ids.dictionary.to_pylist())}


@dataclass(frozen=True)
class AuditedGroups:
    """The groups of a cluster, and the state of their share-partitions.

    Attributes:
        folded: result of `fold_groups`.
        states: the table `share_partition_state` of every state partition.
        topics: names and end offsets from the user; they show the partitions of each topic.
        now_ms: the time of the audit, ms since 1970; by default the newest timestamp of any record of a
            group.
        limits: limits for the rules over share groups.
        state_partition_count: number of partitions of `__share_group_state`, None if unknown.
        state_partitions: the partitions that were read; None for all.
    """

    folded: FoldedGroups
    states: pa.Table
    topics: Topics = field(default_factory=Topics)
    now_ms: int | None = None
    limits: GroupLimits = field(default_factory=GroupLimits)
    state_partition_count: int | None = None
    state_partitions: frozenset[int] | None = None

    @property
    def time(self) -> int:
        """The time of the audit, ms since 1970."""
        return self.folded.newest_time if self.now_ms is None else self.now_ms

    @cached_property
    def live(self) -> LiveSharePartitions:
        """Live share-partitions."""
        return LiveSharePartitions.of(self.states)

    def knows_state_of(self, group_id: str, topic_id: str, partition: int) -> bool:
        """Whether the state partition of a share-partition was read; if not, missing state is not a fault.

        Source: Kafka SharePartitionKey.asCoordinatorKey, ShareCoordinatorService.partitionFor.
        """
        if self.state_partitions is None:
            return True
        if self.state_partition_count is None:
            return False
        owner = partition_for(f"{group_id}:{topic_id}:{partition}", self.state_partition_count)
        return owner in self.state_partitions

    @cached_property
    def names(self) -> dict[str, str]:
        """Topic id -> name: from the user, otherwise from the records of groups."""
        return self.folded.names | topic_names(self.topics)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Topic id -> number of partitions, if the topics from the user show it."""
        return partition_counts_by_id(self.topics)

    @cached_property
    def extended(self) -> dict[str, int]:
        """Topic id -> ms, when its last partition was created, as far as the metadata log shows it; see Topics."""
        counts = self.topics.counts.filter(self.topics.counts["extended"].is_valid())
        return dict(zip(counts["topic_id"].to_pylist(), counts["extended"].to_pylist(), strict=True))

    def listed(self) -> Iterator[tuple[ShareGroup, StatePartitions]]:
        """Live groups that list their share-partitions; groups of 4.0 do not."""
        for group_id, group in sorted(self.folded.live.items()):
            if group_id in self.folded.state_partitions:
                yield group, self.folded.state_partitions[group_id]
