"""What a simulated log must fold to, in files beside it: the durable state at the end and, if asked, at each record."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from share_state.simulator.coordinator import Held
from share_state.simulator.draft import ControlState, DraftWriter
from share_state.simulator.log_writer import StateTopic
from share_state.simulator.state_records import StateKey, StateRecord, WriterRelease

TRUTH, REDUNDANT, DELETED = "truth.jsonl", "redundant.json", "deleted-keys.jsonl"
CONTROL_TRUTH = "control-truth.jsonl"
HISTORY, CONTROL_HISTORY = "history.jsonl", "control-history.jsonl"


@dataclass(slots=True)
class Tally:
    """How many records of each kind a share-partition has had, and where the last one is."""

    counts: Counter[str] = field(default_factory=Counter)
    last_offset: int = -1


class Tallies:
    """Counts the records of every share-partition, those that are deleted again too.

    Args:
        history: gets a line a record, the state behind it; None for none.
        release: that writes, which decides the fields of a line.
    """

    def __init__(self, release: WriterRelease, history: TextIO | None = None) -> None:
        self.release, self.history = release, history
        self.by_partition: dict[int, dict[StateKey, Tally]] = {}

    @property
    def records(self) -> int:
        """Of all state partitions."""
        return sum(tally.counts.total() for own in self.by_partition.values() for tally in own.values())

    def count(self, partition: int, offset: int, record: StateRecord) -> None:
        """Count a record."""
        tally = self.by_partition.setdefault(partition, {}).setdefault(record.key, Tally())
        tally.last_offset = offset
        tally.counts[record.kind] += 1

    def observe(self, partition: int, offset: int, now_ms: int, record: StateRecord, held: Held | None) -> None:
        """Take note of a record as it is written; see `state_topic.Observer`."""
        self.count(partition, offset, record)
        if self.history:
            line = {"offset": offset, "timestamp": now_ms, "kind": record.kind} | _key(record.key, partition)
            if held:
                line |= _state(held, self.release)
            print(line_of(line), file=self.history)


def write_state_truth(folder: Path, topic: StateTopic, tallies: Tallies) -> None:
    """Write the state at the end of every state partition.

    Args:
        folder: gets truth.jsonl (a line a live share-partition), redundant.json (a row a state partition: its cutoff,
            its offsets, its records) and deleted-keys.jsonl (share-partitions without a state).
        topic: all records written.
        tallies: that observed it.
    """
    live, deleted, rows = [], [], []
    for partition, (coordinator, log) in enumerate(zip(topic.coordinators, topic.logs, strict=True)):
        own = tallies.by_partition.get(partition, {})
        for key, tally in own.items():
            counts = {
                "nSnapshots": tally.counts["snapshot"],
                "nUpdates": tally.counts["update"],
                "nTombstones": tally.counts["tombstone"],
                "lastRecordOffset": tally.last_offset,
            }
            held = coordinator.held.get(key)
            if held is None:
                deleted.append(_key(key, partition) | counts)
            else:
                live.append(_key(key, partition) | _state(held, topic.settings.release) | counts)
        kinds = sum((tally.counts for tally in own.values()), Counter[str]())
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
                "liveKeys": len(coordinator.held),
            }
        )
    _write_lines(folder / TRUTH, live)
    _write_lines(folder / DELETED, deleted)
    (folder / REDUNDANT).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def control_line(topic: str, partition: int, group_id: str, state: ControlState) -> dict[str, Any]:
    """A group's durable state in a topic-partition, as a line of control-truth.jsonl says it."""
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


def write_control_truth(folder: Path, writers: Iterable[tuple[str, int, DraftWriter]]) -> None:
    """Write the durable state of every group in every topic-partition to control-truth.jsonl.

    Args:
        folder: gets the file.
        writers: topic, partition and writer of each log.
    """
    _write_lines(folder / CONTROL_TRUTH, _control_lines(writers))


def _control_lines(writers: Iterable[tuple[str, int, DraftWriter]]) -> Iterator[dict[str, Any]]:
    for topic, partition, writer in writers:
        for group_id, state in writer.states.items():
            yield control_line(topic, partition, group_id, state)


def _key(key: StateKey, state_partition: int) -> dict[str, Any]:
    return {
        "group": key.group_id,
        "topicId": key.topic_id,
        "partition": key.partition,
        "statePartition": state_partition,
    }


def _state(held: Held, release: WriterRelease) -> dict[str, Any]:
    state = held.state
    line: dict[str, Any] = {
        "snapshotEpoch": state.snapshot_epoch,
        "stateEpoch": state.state_epoch,
        "leaderEpoch": state.leader_epoch,
        "startOffset": state.start_offset,
    }
    if release.tells_complete_count:
        line["deliveryCompleteCount"] = state.delivery_complete_count
    if release.has_initialize:
        line |= {"createTimestamp": state.create_timestamp, "writeTimestamp": state.write_timestamp}
    return line | {
        "stateBatches": [list(batch) for batch in state.batches],
        "maxLeaderEpoch": held.max_leader_epoch,
        "maxStateEpoch": held.max_state_epoch,
        "snapshotUpdateCount": held.updates,
        "lastSnapshotOffset": held.snapshot_offset,
    }


def _write_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(f"{line_of(line)}\n" for line in lines)


def line_of(line: dict[str, Any]) -> str:
    """A JSON line, without the newline."""
    return json.dumps(line, ensure_ascii=False, separators=(",", ":"))
