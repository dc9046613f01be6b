"""A simulated cluster: leaders, share coordinators that write real logs, and the files with the expected state.

The files hold the durable state at the end and, if traced, after each record.
"""

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from share_state.kafka.releases import Release
from share_state.simulator.control_record_writer import ControlState, DraftWriter
from share_state.simulator.coordinator import CoordinatorEntry, ShareCoordinator
from share_state.simulator.events import (
    Ack,
    Acquire,
    CreatePartitions,
    Event,
    EventError,
    EventResult,
    GroupEvent,
    Poll,
    Prune,
    to_json_line,
    write_event,
)
from share_state.simulator.group_side import GroupSide
from share_state.simulator.log_writer import LogWriter, StateTopic, StateTopicSettings, flush_logs
from share_state.simulator.player import EventPlayer
from share_state.simulator.settings import AckBatch, AckType, PlayerSettings
from share_state.simulator.state_values import StateKey, StateRecord
from share_state.simulator.types import SharePartitionKey

EVENTS = "events.jsonl"
RESULTS = "results.jsonl"
TOPICS = "topics.json"
TRUTH = "truth.jsonl"
REDUNDANT = "redundant.json"
DELETED = "deleted-keys.jsonl"
CONTROL_TRUTH = "control-truth.jsonl"
HISTORY, CONTROL_HISTORY = "history.jsonl", "control-history.jsonl"


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Settings of a simulated cluster.

    Attributes:
        player: settings of the event player.
        state_topic: settings of the state topic.
        version_prefix: see DraftWriter.
        control_offsets_as_gaps: whether fetches acquire the offsets of control records, and members
            acknowledge them as gaps, as with Kafka's own control records; otherwise they are not acquired, as
            in the draft.
        seed: seed of the topic ids; None if topics are named by their ids.
        group_partitions: partitions of `__consumer_offsets`; None if the group side is not written.
    """

    player: PlayerSettings
    state_topic: StateTopicSettings = field(default_factory=StateTopicSettings)
    version_prefix: bool = False
    control_offsets_as_gaps: bool = False
    seed: int | None = 0
    group_partitions: int | None = None


class SimulatedCluster:
    """Plays events and writes everything to a folder: logs, events.jsonl, and at the end the expected state.

    Size: the logs of three kinds, of state, of groups and of topics, and the files beside them.
    """

    def __init__(self, folder: Path, settings: ClusterSettings) -> None:
        self.folder, self.settings = folder, settings
        self._files = ExitStack()
        self._events = self._open(EVENTS)
        traces, dialect = settings.player.traces, settings.player.dialect
        self._results = self._open(RESULTS) if traces else None
        history = self._open(HISTORY) if traces and dialect != "control_records" else None
        self.record_counter = RecordCounter(settings.state_topic.release, history)
        self.state_topic: StateTopic | None = None
        if dialect != "control_records":
            self.state_topic = StateTopic(folder, settings.state_topic, self.record_counter.observe)
        self.group_side: GroupSide | None = None
        if settings.group_partitions is not None:
            self.group_side = GroupSide(
                folder,
                self.topic_id,
                settings.player.release,
                max_size=settings.player.configs.max_size,
                partitions=settings.group_partitions,
                codec=settings.state_topic.codec,
                segment_bytes=settings.state_topic.segment_bytes,
            )
        self.topic_logs: dict[tuple[str, int], DraftWriter] = {}
        self.has_control_records = dialect != "share_group_state"
        self._control_history = self._open(CONTROL_HISTORY) if traces and self.has_control_records else None
        withholds = self.has_control_records and not settings.control_offsets_as_gaps
        control_offsets = self._control_offsets if withholds else None
        gaps = self._control_offsets if self.has_control_records and not withholds else None
        self.player = EventPlayer(settings.player, self._coordinator_of, control_offsets, gaps)
        self.end_offsets: dict[tuple[str, int], int] = {}
        self.events, self.now_ms = 0, 0

    def _open(self, name: str) -> TextIO:
        return self._files.enter_context((self.folder / name).open("w", encoding="utf-8"))

    def topic_id(self, topic: str) -> str:
        """A topic's id in Kafka's text form, derived from its name and the seed."""
        if self.settings.seed is None:
            return topic
        digest = hashlib.sha256(f"{self.settings.seed} {topic}".encode()).digest()
        return base64.urlsafe_b64encode(digest[:16]).decode().rstrip("=")

    def state_key(self, key: SharePartitionKey) -> StateKey:
        """The key of a share-partition's records."""
        return StateKey(key.group, self.topic_id(key.topic), key.partition)

    def _coordinator_of(self, key: SharePartitionKey) -> tuple[ShareCoordinator, StateKey]:
        assert self.state_topic
        state_key = self.state_key(key)
        return self.state_topic.coordinator_of(state_key), state_key

    def _control_offsets(self, key: SharePartitionKey, first: int, last: int) -> list[int]:
        return self.topic_log(key.topic, key.partition).control_offsets_between(first, last)

    def _with_gaps(self, event: Ack) -> Ack:
        """The acknowledgements with type GAP at offsets of control records."""
        batches = []
        for first, last, ack_types in event.batches:
            types = ack_types
            if len(ack_types) in {1, last - first + 1} and (
                gaps := self._control_offsets(event.key, first, last)
            ):
                types_by_offset = list(ack_types if len(ack_types) > 1 else ack_types * (last - first + 1))
                for offset in gaps:
                    types_by_offset[offset - first] = AckType.GAP
                types = tuple(types_by_offset[:1] if len(set(types_by_offset)) == 1 else types_by_offset)
            batches.append(AckBatch(first, last, types))
        return event.model_copy(update={"batches": tuple(batches)})

    def play(
        self, kind: Callable[..., Event], key: SharePartitionKey, ts_ms: int, **fields: Any
    ) -> EventResult:
        """Play an event of a share-partition; returns its own result."""
        event: Event = kind(seq=self.events, ts_ms=ts_ms, **key._asdict(), **fields)
        return next(result for result in self.apply(event) if result.cause == event.event)

    def play_group(self, kind: Callable[..., GroupEvent], ts_ms: int, **fields: Any) -> None:
        """Play an event of a group or a topic."""
        self.apply(kind(seq=self.events, ts_ms=ts_ms, **fields))

    def _apply_to_groups(self, event: GroupEvent) -> None:
        """Play an event of a group or a topic.

        Raises:
            EventError: if groups are not simulated, or the event is in the past.
        """
        if self.group_side is None:
            raise EventError(f"event {event.seq}: {event.event} needs --consumer-offsets")
        if event.ts_ms < self.now_ms:
            raise EventError(
                f"event {event.seq}: at {event.ts_ms} ms, but the time is already {self.now_ms} ms"
            )
        if isinstance(event, CreatePartitions):
            for partition in range(event.partitions):
                self.note_end_offset(event.topic, partition, 0)
        result = self.group_side.apply(event)
        if self._results:
            self._results.write(f"{to_json_line(result)}\n")

    def apply(self, event: Event) -> list[EventResult]:
        """Play the next event; returns its results.

        Raises:
            EventError: if it cannot be played.
        """
        if isinstance(event, GroupEvent):
            self._apply_to_groups(event)
            self._note(event)
            return []
        if isinstance(event, Ack) and self.has_control_records and self.settings.control_offsets_as_gaps:
            event = event if event.is_renew_ack else self._with_gaps(event)
        self._note(event)
        if self.group_side:
            self.group_side.before(event)
        if isinstance(event, Acquire | Poll) and event.log_batches:
            end = event.log_batches[-1].last_offset + 1
            self.note_end_offset(event.topic, event.partition, end)
            if self.has_control_records:
                # A fetch returns only existing records.
                self.topic_log(event.topic, event.partition).fill(end, event.ts_ms)
        results = []
        for result in self.player.apply(event):
            if self.group_side:
                self.group_side.after(event, result)
            if result.delta or result.checkpoint:
                self.topic_log(result.key.topic, result.key.partition).persist(result)
            if self._results:
                self._results.write(f"{result.to_json()}\n")
            results.append(result)
        if isinstance(event, Prune):
            self._prune()
        return results

    def _note(self, event: Event) -> None:
        self._events.write(f"{write_event(event)}\n")
        self.events += 1
        self.now_ms = event.ts_ms

    def _prune(self) -> None:
        """Delete redundant records: of the state topic, and control records of topics."""
        if self.state_topic:
            self.state_topic.prune()
        for writer in self.topic_logs.values():
            writer.prune()

    def note_end_offset(self, topic: str, partition: int, end_offset: int) -> None:
        """Note that a topic-partition has records up to an offset, exclusive."""
        place = topic, partition
        self.end_offsets[place] = max(self.end_offsets.get(place, 0), end_offset)

    def topic_log(self, topic: str, partition: int) -> DraftWriter:
        """The log of a topic-partition with control records, created on first use."""
        if (topic, partition) not in self.topic_logs:
            settings = self.settings.state_topic
            path = self.folder / f"{topic}-{partition}"
            log = LogWriter(path, codec=settings.codec, segment_bytes=settings.segment_bytes)
            observe = (
                partial(self._write_control_history, topic, partition) if self._control_history else None
            )
            prefix = self.settings.version_prefix
            self.topic_logs[topic, partition] = DraftWriter(log, version_prefix=prefix, observe=observe)
        return self.topic_logs[topic, partition]

    @property
    def logs(self) -> list[LogWriter]:
        """Every log in the folder."""
        of_topics = [writer.log for writer in self.topic_logs.values()]
        of_groups = self.group_side.logs if self.group_side else []
        return (self.state_topic.logs if self.state_topic else []) + of_groups + of_topics

    @property
    def counts(self) -> tuple[int, int]:
        """Number of records in the logs and of share-partitions with durable state."""
        records = self.record_counter.records + (self.group_side.records if self.group_side else 0)
        live = sum(len(one.entries) for one in self.state_topic.coordinators) if self.state_topic else 0
        for writer in self.topic_logs.values():
            records += len(writer.control_offsets) - writer.deleted
            live += len(writer.states)
        return records, live

    @property
    def acknowledgements(self) -> dict[str, int]:
        """Acknowledgement type -> records that requests acknowledged."""
        return {ack_type.name: count for ack_type, count in self.player.acknowledgements.items()}

    def finish(self) -> None:
        """Flush the logs and write the expected state and topics.json."""
        flush_logs(self.folder, self.logs)
        if self.state_topic:
            self._reload_pruned_partitions(self.state_topic)
            _write_state_truth(self.folder, self.state_topic, self.record_counter)
        if self.group_side:
            self.group_side.write_truth(self.folder)
        if self.has_control_records:
            _write_control_truth(self.folder, self.topic_logs)
        for (topic, partition), writer in self.topic_logs.items():
            self.note_end_offset(topic, partition, writer.log.next_offset)
        self._write_topics()

    def close(self) -> None:
        """Close the open files."""
        self._files.close()

    def _reload_pruned_partitions(self, topic: StateTopic) -> None:
        """After pruning, set the expected state to what a broker loads from the remaining records."""
        for partition, (coordinator, log) in enumerate(zip(topic.coordinators, topic.logs, strict=True)):
            if log.log_start_offset:
                self.record_counter.by_partition[partition] = {}
                for offset, record in coordinator.load(log.folder, log.log_start_offset):
                    self.record_counter.count(partition, offset, record)

    def _write_topics(self) -> None:
        """Write topics.json as `--topics` reads it."""
        topics: dict[str, list[dict[str, int]]] = {}
        for (topic, partition), end in sorted(self.end_offsets.items()):
            topics.setdefault(topic, []).append(
                {"partition": partition, "logStartOffset": 0, "highWatermark": end}
            )
        rows = [
            {"name": name, "topicId": self.topic_id(name), "partitions": parts}
            for name, parts in topics.items()
        ]
        (self.folder / TOPICS).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")

    def _write_control_history(self, topic: str, partition: int, group: str, state: ControlState) -> None:
        print(to_json_line(_control_state_row(topic, partition, group, state)), file=self._control_history)


@dataclass(slots=True)
class RecordCounts:
    """Number of records of a share-partition by kind, and the offset of the last."""

    counts: Counter[str] = field(default_factory=Counter)
    last_offset: int = -1


class RecordCounter:
    """Counts the records of every share-partition, deleted ones included.

    Args:
        release: release of the brokers; it determines the fields of a line.
        history: file that receives one line per record with the state after it, or None.
    """

    def __init__(self, release: Release, history: TextIO | None = None) -> None:
        self.release, self.history = release, history
        self.by_partition: dict[int, dict[StateKey, RecordCounts]] = {}

    @property
    def records(self) -> int:
        """Number of records of all state partitions."""
        return sum(
            counts_of_key.counts.total()
            for counts_by_key in self.by_partition.values()
            for counts_of_key in counts_by_key.values()
        )

    def count(self, partition: int, offset: int, record: StateRecord) -> None:
        """Count a record."""
        counts_of_key = self.by_partition.setdefault(partition, {}).setdefault(record.key, RecordCounts())
        counts_of_key.last_offset = offset
        counts_of_key.counts[record.kind] += 1

    def observe(
        self, partition: int, offset: int, now_ms: int, record: StateRecord, entry: CoordinatorEntry | None
    ) -> None:
        """Count a record as it is written; see `log_writer.Observer`."""
        self.count(partition, offset, record)
        if self.history:
            line = {"offset": offset, "timestamp": now_ms, "kind": record.kind} | _key_fields(
                record.key, partition
            )
            if entry:
                line |= _state_fields(entry, self.release)
            print(to_json_line(line), file=self.history)


def _write_state_truth(folder: Path, topic: StateTopic, record_counter: RecordCounter) -> None:
    """Write the state of every state partition at the end.

    Writes truth.jsonl (one line per live share-partition), redundant.json (one row per state partition:
    cutoff, offsets, record counts) and deleted-keys.jsonl (share-partitions without state).
    """
    live = []
    deleted = []
    rows = []
    for partition, (coordinator, log) in enumerate(zip(topic.coordinators, topic.logs, strict=True)):
        counts_by_key = record_counter.by_partition.get(partition, {})
        for key, counts_of_key in counts_by_key.items():
            counts = {
                "nSnapshots": counts_of_key.counts["snapshot"],
                "nUpdates": counts_of_key.counts["update"],
                "nTombstones": counts_of_key.counts["tombstone"],
                "lastRecordOffset": counts_of_key.last_offset,
            }
            entry = coordinator.entries.get(key)
            if entry is None:
                deleted.append(_key_fields(key, partition) | counts)
            else:
                live.append(
                    _key_fields(key, partition) | _state_fields(entry, topic.settings.release) | counts
                )
        kinds = sum((counts_of_key.counts for counts_of_key in counts_by_key.values()), Counter[str]())
        rows.append(
            {
                "statePartition": partition,
                "lastRedundantOffset": coordinator.last_redundant_offset(),
                "logStartOffset": log.log_start_offset,
                "nextOffset": log.next_offset,
                "records": kinds.total(),
                "snapshots": kinds["snapshot"],
                "updates": kinds["update"],
                "tombstones": kinds["tombstone"],
                "liveKeys": len(coordinator.entries),
            }
        )
    _write_lines(folder / TRUTH, live)
    _write_lines(folder / DELETED, deleted)
    (folder / REDUNDANT).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def _control_state_row(topic: str, partition: int, group_id: str, state: ControlState) -> dict[str, Any]:
    """A group's durable state in a topic-partition, as a line of control-truth.jsonl."""
    return {
        "group": group_id,
        "topic": topic,
        "partition": partition,
        "checkpointEpoch": state.checkpoint_epoch,
        "startOffset": state.start_offset,
        "endOffset": state.end_offset,
        "stateBatches": [list(batch) for batch in state.batches],
        "checkpointOffset": state.checkpoint_offset,
        "lastRecordOffset": state.last_offset,
        "nDeltas": state.deltas,
    }


def _write_control_truth(folder: Path, topics: Mapping[tuple[str, int], DraftWriter]) -> None:
    """Write the durable state of every group and topic-partition to control-truth.jsonl."""
    rows = [
        _control_state_row(topic, partition, group_id, state)
        for (topic, partition), writer in topics.items()
        for group_id, state in writer.states.items()
    ]
    _write_lines(folder / CONTROL_TRUTH, rows)


def _key_fields(key: StateKey, state_partition: int) -> dict[str, Any]:
    return {
        "group": key.group_id,
        "topicId": key.topic_id,
        "partition": key.partition,
        "statePartition": state_partition,
    }


def _state_fields(entry: CoordinatorEntry, release: Release) -> dict[str, Any]:
    state = entry.state
    line: dict[str, Any] = {
        "snapshotEpoch": state.snapshot_epoch,
        "stateEpoch": state.state_epoch,
        "leaderEpoch": state.leader_epoch,
        "startOffset": state.start_offset,
    }
    if release.counts_completed:
        line["deliveryCompleteCount"] = state.delivery_complete_count
    if release.has_times:
        line |= {"createTimestamp": state.create_timestamp, "writeTimestamp": state.write_timestamp}
    return line | {
        "stateBatches": [list(batch) for batch in state.batches],
        "maxLeaderEpoch": entry.max_leader_epoch,
        "maxStateEpoch": entry.max_state_epoch,
        "snapshotUpdateCount": entry.updates,
        "lastSnapshotOffset": entry.snapshot_offset,
    }


def _write_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{to_json_line(line)}\n" for line in lines)
