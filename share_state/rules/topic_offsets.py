"""Rules that compare the folded state with what is known of topics: they exist, and where their logs begin and end."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from share_state.fold.state_log import FoldedLog
from share_state.fold.states import window_ends
from share_state.kafka.delivery_states import are_terminal
from share_state.rules.breaches import ERROR, NOTHING, WARNING, Breaches, at_share_partitions
from share_state.rules.registry import Scope, rule
from share_state.sources.topics import Topics

_UNKNOWN = -1
_STALE = "the topic was recreated or truncated, or what is known of it is older than the log"


@dataclass(frozen=True)
class StateOfTopics:
    """The live share-partitions of a state log, and what is known of their topics.

    Attributes:
        folded: the folded log partition.
        topics: names, partitions, and log start and end offsets of topics.
    """

    folded: FoldedLog
    topics: Topics

    @cached_property
    def keys(self) -> tuple[pa.Array, pa.Array]:
        """Topic id and partition of each live share-partition."""
        columns = self.folded.key_columns(self.folded.numbers, Topics())
        return columns["topic_id"], columns["partition"]

    @property
    def starts(self) -> np.ndarray:
        """int64, SPSO of each live share-partition; -1 before it is initialized."""
        return self.folded.chains.chains["start_offset"].copy()

    @property
    def log_ends(self) -> np.ndarray:
        """int64, end offset of the topic-partition of each live share-partition; -1 if unknown."""
        return self.topics.end_of(*self.keys).fill_null(_UNKNOWN).to_numpy()

    @property
    def log_starts(self) -> np.ndarray:
        """int64, log start offset of the topic-partition of each live share-partition; -1 if unknown."""
        return self.topics.start_of(*self.keys).fill_null(_UNKNOWN).to_numpy()


@rule(
    "RECORDS_LOST",
    Scope.TOPICS,
    WARNING,
    "Kafka retention.ms, retention.bytes; Admin.deleteRecords; KIP-932, SPSO",
)
def records_lost(state: StateOfTopics) -> Breaches:
    """No record is deleted from a topic before each share group has finished it.

    The broker moves the start offset to the log start of the topic at the next fetch.

    Do: raise `retention.ms` until the group has caught up. The broker moves the start offset at the group's
    next fetch.
    """
    if not len(state.topics.starts):
        return NOTHING
    chains, batches = state.folded.chains, state.folded.chains.batches
    starts, log_starts = state.starts, state.log_starts
    owner = np.repeat(np.arange(len(starts)), np.diff(chains.ends))
    first = np.maximum(batches["first"], starts[owner])
    end = np.minimum(batches["last"] + 1, log_starts[owner])
    is_finished = are_terminal(batches["state"])
    finished = np.zeros(len(starts), np.int64)
    np.add.at(finished, owner[is_finished], np.maximum(end - first, 0)[is_finished])
    lost = log_starts - starts - finished
    rows = np.flatnonzero((starts >= 0) & (log_starts > starts) & (lost > 0))
    noun = np.where(lost[rows] == 1, " unfinished record is gone", " unfinished records are gone")
    begin = ": the log of the topic begins at "
    text = (lost[rows], pa.array(noun), begin, log_starts[rows], ", after the start offset ", starts[rows])
    evidence = {"records": lost[rows], "start_offset": starts[rows], "log_start_offset": log_starts[rows]}
    return at_share_partitions(state.folded, rows, *text, **evidence)


@rule("START_BEYOND_END", Scope.TOPICS, ERROR, "KIP-932, share-partition start and end offset")
def start_beyond_end(state: StateOfTopics) -> Breaches:
    """The start and the end offset of a share-partition are at or before the end of its topic.

    It is a warning if the end comes from a topics file that was found beside the logs, because that may be old.

    Do: write the topics file again. If the topic did lose records, reset the offsets of the group.
    """
    if not len(state.topics.ends):
        return NOTHING
    starts = state.starts
    ends = window_ends(state.folded.chains)
    log_ends = state.log_ends
    rows = np.flatnonzero((starts >= 0) & (log_ends >= 0) & (np.maximum(starts, ends) > log_ends))
    is_start = starts[rows] > log_ends[rows]
    which = pa.array(np.where(is_start, "the start offset ", "the end offset "))
    offsets = np.where(is_start, starts[rows], ends[rows])
    text = (which, offsets, " is beyond the end of the topic, ", log_ends[rows], f": {_STALE}")
    evidence = {"start_offset": starts[rows], "end_offset": ends[rows], "topic_end_offset": log_ends[rows]}
    breaches = at_share_partitions(state.folded, rows, *text, **evidence)
    return (
        replace(breaches, severity=np.full(len(rows), WARNING, object))
        if state.topics.may_be_old
        else breaches
    )


@rule("TOPIC_GONE", Scope.TOPICS, WARNING, "KIP-932, DeleteShareGroupState")
def topic_gone(state: StateOfTopics) -> Breaches:
    """The topic and the partition of every share-partition exist.

    Judged if all topics are known. Brokers from 4.1 on delete the state of deleted topics.

    Do: write the topics file again. State of a deleted topic is harmless, but holds back the cutoff.
    """
    if not state.topics.is_complete:
        return NOTHING
    topic_ids, partitions = state.keys
    counts = state.topics.counts.combine_chunks()
    place = pc.index_in(topic_ids, counts["topic_id"])
    of_topic = counts["partitions"].take(place).fill_null(0).to_numpy()
    rows = np.flatnonzero(partitions.to_numpy() >= of_topic)
    has_topic = of_topic[rows] > 0
    what = np.where(has_topic, "the topic has no such partition", "no topic has this id")
    text = (pa.array(what), ": it was deleted, or what is known of topics is older than the log")
    return at_share_partitions(state.folded, rows, *text, partitions=of_topic[rows])
