"""The persister of simulated leaders: share coordinators that write real logs.

Where events are played: the leaders, their persister, the logs, and what is told of it all.
"""

import base64
import hashlib
import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from share_state.simulator.coordinator import ShareCoordinator, loaded
from share_state.simulator.draft import ControlState, TopicLogs
from share_state.simulator.events import Acquire, Event, Outcome, write_event
from share_state.simulator.log_writer import LogWriter, StateTopic, TopicSettings, flush_logs
from share_state.simulator.player import Player
from share_state.simulator.recorded_state import SharePartitionKey
from share_state.simulator.settings import Dialect, Rules
from share_state.simulator.share_partition import SharePartition
from share_state.simulator.state_records import StateKey
from share_state.simulator.truth import (
    CONTROL_HISTORY,
    HISTORY,
    Tallies,
    control_line,
    line_of,
    write_control_truth,
    write_state_truth,
)
from share_state.simulator.types import ErrorCode, StateRead, StateWrite


class LogPersister:
    """Sends each request to the coordinator of its share-partition; `share_state.partition.recorded.Persister`.

    Args:
        topic: the state topic.
        topic_id: the id, in Kafka's text, of a topic.
    Source: Kafka DefaultStatePersister.
    """

    def __init__(self, topic: StateTopic, topic_id: Callable[[str], str]) -> None:
        self.topic, self.topic_id = topic, topic_id

    def _at(self, key: SharePartitionKey) -> tuple[ShareCoordinator, StateKey]:
        known = StateKey(key.group, self.topic_id(key.topic), key.partition)
        return self.topic.coordinator_of(known), known

    def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int, now_ms: int) -> ErrorCode:
        """Begin a state, or begin it anew."""
        coordinator, known = self._at(key)
        return coordinator.initialize(known, state_epoch, start_offset, now_ms).error

    def read(self, key: SharePartitionKey, leader_epoch: int, now_ms: int) -> StateRead | ErrorCode:
        """The state, for a leader that loads it."""
        coordinator, known = self._at(key)
        answer = coordinator.read(known, leader_epoch, now_ms)
        return answer.error if answer.state is None else answer.state

    def write(self, key: SharePartitionKey, write: StateWrite, now_ms: int) -> ErrorCode:
        """Record what one operation changed."""
        coordinator, known = self._at(key)
        return coordinator.write(known, write, now_ms).error

    def delete(self, key: SharePartitionKey, now_ms: int) -> ErrorCode:
        """Forget the state."""
        coordinator, known = self._at(key)
        return coordinator.delete(known, now_ms).error

    def cold_snapshot(self, key: SharePartitionKey, now_ms: int) -> None:
        """Have the state recorded whole, unchanged."""
        coordinator, known = self._at(key)
        if known in coordinator.held:
            coordinator.repeat(known, now_ms)

    def prune(self, now_ms: int) -> None:
        """Delete what is redundant in every state partition."""
        self.topic.prune()


EVENTS, RESULTS, TOPICS = "events.jsonl", "results.jsonl", "topics.json"


@dataclass(frozen=True, slots=True)
class StageSettings:
    """How the logs of a simulation are written.

    Attributes:
        rules: under what conditions events are played, the dialect among them.
        state_topic: how the state topic is kept.
        version_prefix: see DraftWriter.
        traces: whether results and the state behind every record are written, too.
        seed: that topic ids come from.
    """

    rules: Rules
    state_topic: TopicSettings = field(default_factory=TopicSettings)
    version_prefix: bool = False
    traces: bool = False
    seed: int = 0

    @property
    def dialect(self) -> Dialect:
        """What is written."""
        return self.rules.dialect


class Stage:
    """Plays events one at a time and writes what comes of them.

    Args:
        folder: gets everything: log folders, events.jsonl, and at the end the truth.
        settings: how.
    """

    def __init__(self, folder: Path, settings: StageSettings) -> None:
        self.folder, self.settings = folder, settings
        self._files = ExitStack()
        self._events = self._open(EVENTS)
        traces, dialect = settings.traces, settings.dialect
        self._results = self._open(RESULTS) if traces else None
        release = settings.state_topic.release
        history = self._open(HISTORY) if traces and dialect != "control_records" else None
        self.tallies = Tallies(release, history)
        self.state_topic: StateTopic | None = None
        persister = None
        if dialect != "control_records":
            self.state_topic = StateTopic(folder, settings.state_topic, observe=self.tallies.observe)
            persister = LogPersister(self.state_topic, self.topic_id)
        self.topic_logs: TopicLogs | None = None
        if dialect != "share_group_state":
            self._control_history = self._open(CONTROL_HISTORY) if traces else None
            self.topic_logs = TopicLogs(
                folder,
                codec=settings.state_topic.codec,
                segment_bytes=settings.state_topic.segment_bytes,
                version_prefix=settings.version_prefix,
                observe=self._tell_control_record if traces else None,
            )
        self.player = Player(persister, settings.rules)
        self.end_offsets: dict[tuple[str, int], int] = {}
        self.events, self.now_ms = 0, 0

    def _open(self, name: str) -> TextIO:
        return self._files.enter_context((self.folder / name).open("w", encoding="utf-8"))

    def topic_id(self, topic: str) -> str:
        """Kafka's text of a topic's id, which follows from its name and the seed."""
        digest = hashlib.sha256(f"{self.settings.seed} {topic}".encode()).digest()
        return base64.urlsafe_b64encode(digest[:16]).decode().rstrip("=")

    def state_key(self, key: SharePartitionKey) -> StateKey:
        """The key of a share-partition's records."""
        return StateKey(key.group, self.topic_id(key.topic), key.partition)

    def leader(self, key: SharePartitionKey) -> SharePartition | None:
        """The leader of a share-partition, None where none has loaded it."""
        return self.player.leader(key)

    def apply(self, event: Event) -> list[Outcome]:
        """Play an event, not before the ones played already; returns what came of it."""
        self._events.write(f"{write_event(event)}\n")
        self.events += 1
        self.now_ms = event.ts_ms
        if isinstance(event, Acquire):
            end = event.log_batches[-1].last_offset + 1
            self.reach(event.topic, event.partition, end)
            if self.topic_logs:
                # Nobody fetches what is not there.
                self.topic_logs.of(event.topic, event.partition).fill(end, event.ts_ms)
        outcomes = []
        for outcome in self.player.apply(event):
            if self.topic_logs and (outcome.delta or outcome.checkpoint):
                self.topic_logs.of(outcome.key.topic, outcome.key.partition).persist(outcome)
            if self._results:
                self._results.write(f"{outcome.to_json()}\n")
            outcomes.append(outcome)
        return outcomes

    def reach(self, topic: str, partition: int, end_offset: int) -> None:
        """Note that a topic-partition has records up to an offset, exclusive."""
        place = topic, partition
        self.end_offsets[place] = max(self.end_offsets.get(place, 0), end_offset)

    @property
    def logs(self) -> list[LogWriter]:
        """Every log in the folder."""
        of_topics = [log.log for log in self.topic_logs.logs.values()] if self.topic_logs else []
        return (self.state_topic.logs if self.state_topic else []) + of_topics

    @property
    def size(self) -> tuple[int, int]:
        """How many records stand in the logs, and how many share-partitions have a durable state."""
        records = self.tallies.records
        live = sum(len(one.held) for one in self.state_topic.coordinators) if self.state_topic else 0
        for log in self.topic_logs.logs.values() if self.topic_logs else ():
            records += len(log.control_offsets)
            live += len(log.writer.states)
        return records, live

    def finish(self) -> None:
        """Bring the logs to disk and write the truth and the topics beside them."""
        flush_logs(self.folder, self.logs)
        if self.state_topic:
            self._load_what_is_left(self.state_topic)
            write_state_truth(self.folder, self.state_topic, self.tallies)
        if self.topic_logs:
            write_control_truth(self.folder, self.topic_logs.writers())
            for (topic, partition), log in self.topic_logs.logs.items():
                self.reach(topic, partition, log.log.next_offset)
        self._write_topics()

    def close(self) -> None:
        """Close events.jsonl and its like."""
        self._files.close()

    def _load_what_is_left(self, topic: StateTopic) -> None:
        """Where records were deleted, the truth is what a broker loads of the others: epochs may be forgotten."""
        for partition, (coordinator, log) in enumerate(zip(topic.coordinators, topic.logs, strict=True)):
            if log.log_start_offset:
                self.tallies.by_partition[partition] = {}
                for offset, record in loaded(coordinator, log.folder, log.log_start_offset):
                    self.tallies.count(partition, offset, record)

    def _write_topics(self) -> None:
        """As `--topics` reads them."""
        topics: dict[str, list[dict[str, int]]] = {}
        for (topic, partition), end in sorted(self.end_offsets.items()):
            topics.setdefault(topic, []).append({"partition": partition, "logStartOffset": 0, "highWatermark": end})
        rows = [{"name": name, "topicId": self.topic_id(name), "partitions": parts} for name, parts in topics.items()]
        (self.folder / TOPICS).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")

    def _tell_control_record(self, topic: str, partition: int, group: str, state: ControlState) -> None:
        print(line_of(control_line(topic, partition, group, state)), file=self._control_history)
