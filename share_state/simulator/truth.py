"""Files with the expected fold of a simulated log: the durable state at the end and, if traced, after each record."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from share_state.simulator.coordinator import CoordinatorEntry
from share_state.simulator.draft import ControlState, DraftWriter
from share_state.simulator.log_writer import StateTopic
from share_state.simulator.state_records import StateKey, StateRecord
from share_state.simulator.types import Release

TRUTH, REDUNDANT, DELETED = "truth.jsonl", "redundant.json", "deleted-keys.jsonl"
CONTROL_TRUTH = "control-truth.jsonl"
HISTORY, CONTROL_HISTORY = "history.jsonl", "control-history.jsonl"


@dataclass(slots=True)
class RecordCounts:
    """Number of records of a share-partition by kind, and the offset of the last."""

    counts: Counter[str] = field(default_factory=Counter)
    last_offset: int = -1


class RecordCounter:
    """Counts the records of every share-partition, deleted ones included.

    Args:
        release: which decides the fields of a line.
        history: gets one line per record with the state after it; None for none.
    """

    def __init__(self, release: Release, history: TextIO | None = None) -> None:
        self.release, self.history = release, history
        self.by_partition: dict[int, dict[StateKey, RecordCounts]] = {}

    @property
    def records(self) -> int:
        """Number of records of all state partitions."""
        return sum(counts_of_key.counts.total() for own in self.by_partition.values() for counts_of_key in own.values())

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
            line = {"offset": offset, "timestamp": now_ms, "kind": record.kind} | _key_fields(record.key, partition)
            if entry:
                line |= _state_fields(entry, self.release)
            print(to_json_line(line), file=self.history)


def write_state_truth(folder: Path, topic: StateTopic, record_counter: RecordCounter) -> None:
    """Write the state of every state partition at the end.

    Writes truth.jsonl (one line per live share-partition), redundant.json (one row per state partition: cutoff,
    offsets, record counts) and deleted-keys.jsonl (share-partitions without state).
    """
    live, deleted, rows = [], [], []
    for partition, (coordinator, log) in enumerate(zip(topic.coordinators, topic.logs, strict=True)):
        own = record_counter.by_partition.get(partition, {})
        for key, counts_of_key in own.items():
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
                live.append(_key_fields(key, partition) | _state_fields(entry, topic.settings.release) | counts)
        kinds = sum((counts_of_key.counts for counts_of_key in own.values()), Counter[str]())
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


def control_state_row(topic: str, partition: int, group_id: str, state: ControlState) -> dict[str, Any]:
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


def write_control_truth(folder: Path, writers: Iterable[tuple[str, int, DraftWriter]]) -> None:
    """Write the durable state of every group and topic-partition to control-truth.jsonl."""
    rows = [
        control_state_row(topic, partition, group_id, state)
        for topic, partition, writer in writers
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
    if release.has_initialize:
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


def to_json_line(line: dict[str, Any]) -> str:
    """A JSON line without newline."""
    return json.dumps(line, ensure_ascii=False, separators=(",", ":"))
