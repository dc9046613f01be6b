"""What became of an event: the answer, and everything that was persisted because of it."""

import json
from dataclasses import dataclass, field

from share_state.partition.acquisition import AcquiredRecords
from share_state.partition.error_codes import ErrorCode
from share_state.partition.recorded import SharePartitionKey
from share_state.partition.writes import CheckpointWrite, DeltaWrite, StateBatch, StateWrite


@dataclass(slots=True)
class Outcome:
    """One step of a history.

    Args:
        seq: of the event; what comes about by itself carries the seq of the event that lets time pass.
        ts_ms: when.
        key: the share-partition.
        cause: the event's kind, or lock_timeout, dead_letter, written, failed for what comes about by itself.
        error: what the request was answered with.
        message: why, one line.
        acquired: what a fetch handed out.
        lock_timeout_ms: the lock duration in force, told to whoever acquires or acknowledges.
        writes: became durable, in this order.
        refused: writes that did not, each with the share coordinator's answer.
        delta: became durable in the draft's dialect.
        checkpoint: became durable in the draft's dialect.
        start_offset: the start (SPSO) afterwards, None where there is no share-partition in memory.
        end_offset: the end (SPEO) afterwards, exclusive.
        memory: what is in flight afterwards, None unless traced.
    """

    seq: int
    ts_ms: int
    key: SharePartitionKey
    cause: str
    error: ErrorCode = ErrorCode.NONE
    message: str = ""
    acquired: tuple[AcquiredRecords, ...] = ()
    lock_timeout_ms: int | None = None
    writes: list[StateWrite] = field(default_factory=list)
    refused: list[tuple[StateWrite, ErrorCode]] = field(default_factory=list)
    delta: DeltaWrite | None = None
    checkpoint: CheckpointWrite | None = None
    start_offset: int | None = None
    end_offset: int | None = None
    memory: tuple[StateBatch, ...] | None = None

    def to_json(self) -> str:
        """One JSON line, without the newline; what is empty is left out."""
        row: dict[str, object] = {
            "seq": self.seq,
            "ts_ms": self.ts_ms,
            "group": self.key.group,
            "topic": self.key.topic,
            "partition": self.key.partition,
            "cause": self.cause,
            "error": self.error.name,
            "message": self.message or None,
            "acquired": self.acquired or None,
            "lock_timeout_ms": self.lock_timeout_ms,
            "writes": [_row(write) for write in self.writes] or None,
            "refused": [_row(write) | {"error": code.name} for write, code in self.refused] or None,
            "delta": self.delta.batches if self.delta else None,
            "checkpoint": _row(self.checkpoint) if self.checkpoint else None,
            "start_offset": self.start_offset,
            "end_offset": self.end_offset,
            "memory": self.memory,
        }
        return json.dumps({name: value for name, value in row.items() if value is not None}, separators=(",", ":"))


def _row(write: StateWrite | CheckpointWrite) -> dict[str, object]:
    return {name: getattr(write, name) for name in write.__slots__}
