"""What happens to share-partitions, as JSON lines.

What became of an event: the answer, and everything that was persisted because of it.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from share_state.errors import ShareStateError
from share_state.simulator.acquisition import NO_LIMIT, AcquiredRecords, AcquireMode, LogBatch
from share_state.simulator.recorded_state import SharePartitionKey
from share_state.simulator.settings import AckBatch
from share_state.simulator.types import CheckpointWrite, DeltaWrite, ErrorCode, StateBatch, StateWrite


class EventError(ShareStateError):
    """Raised when a line is no event."""


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    seq: int = Field(description="rises by one with every event")
    ts_ms: int = Field(description="when it happens; never falls")
    group: str = Field(min_length=1, description="the share group")
    topic: str = Field(min_length=1, description="the topic")
    partition: int = Field(default=0, ge=0, description="the topic's partition")

    @property
    def key(self) -> SharePartitionKey:
        """The share-partition it happens to."""
        return SharePartitionKey(self.group, self.topic, self.partition)


class Init(_Event):
    """The group coordinator begins the state, or begins it anew. Source: InitializeShareGroupState."""

    event: Literal["init"] = "init"
    state_epoch: int
    start_offset: int = Field(ge=-1, description="-1: not known, the leader finds out")


class Open(_Event):
    """A broker becomes leader and loads the share-partition. Source: ReadShareGroupState."""

    event: Literal["open"] = "open"
    leader_epoch: int
    reset_offset: int = Field(default=0, ge=0, description="where to start if no start was ever recorded")


class Acquire(_Event):
    """A member fetches, and the log gives these batches. Source: ShareFetch."""

    event: Literal["acquire"] = "acquire"
    member: str = Field(min_length=1)
    log_batches: tuple[LogBatch, ...] = Field(min_length=1, description="[first, last] each, ascending")
    fetch_offset: int | None = Field(
        default=None, description="where the log was read from; the first batch, if not said"
    )
    max_records: int = Field(default=NO_LIMIT, ge=1)
    batch_size: int = Field(default=NO_LIMIT, ge=1)
    mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED


class Ack(_Event):
    """A member acknowledges what it holds. Source: ShareAcknowledge, or ShareFetch that carries acknowledgements."""

    event: Literal["ack"] = "ack"
    member: str = Field(min_length=1)
    batches: tuple[AckBatch, ...] = Field(min_length=1, description="[first, last, types] each, ascending")
    route: Literal["acknowledge", "fetch"] = "acknowledge"
    is_renew_ack: bool = False
    version: int = Field(default=2, ge=1, le=2)
    leader_epoch: int | None = Field(
        default=None, description="of the leader it is sent to; the current one, if not said"
    )
    max_wait_ms: int = Field(default=0, ge=0, description="the four limits of a fetch, which renewals demand to be 0")
    min_bytes: int = Field(default=0, ge=0)
    max_bytes: int = Field(default=0, ge=0)
    max_records: int = Field(default=0, ge=0)


class Advance(_Event):
    """Time passes until `ts_ms`; locks run out."""

    event: Literal["advance"] = "advance"


class MemberLeave(_Event):
    """A member's session ends, in whatever way."""

    event: Literal["member_leave"] = "member_leave"
    member: str = Field(min_length=1)


class LsoMove(_Event):
    """The log start moves: retention, or DeleteRecords."""

    event: Literal["lso_move"] = "lso_move"
    offset: int = Field(ge=0)


class LogHole(_Event):
    """The log holds nothing there any more: compaction."""

    event: Literal["log_hole"] = "log_hole"
    first: int = Field(ge=0)
    last: int = Field(ge=0)


class Aborted(_Event):
    """What was acquired there belongs to an aborted transaction, and the group reads committed records only."""

    event: Literal["aborted"] = "aborted"
    first: int = Field(ge=0)
    last: int = Field(ge=0)


class Checkpoint(_Event):
    """The leader writes a checkpoint (draft only)."""

    event: Literal["checkpoint"] = "checkpoint"


class Crash(_Event):
    """The leader loses its memory and loads the share-partition again."""

    event: Literal["crash"] = "crash"


class Config(_Event):
    """A setting of the group changes; a Kafka group configuration key, for example share.record.lock.duration.ms."""

    event: Literal["config"] = "config"
    name: str
    value: str | int | bool


class FailWrites(_Event):
    """From now on writes of the share-partition fail, or no longer do."""

    event: Literal["fail_writes"] = "fail_writes"
    on: bool


class HoldWrites(_Event):
    """From now on writes of the share-partition stay unanswered; off answers them, in order."""

    event: Literal["hold_writes"] = "hold_writes"
    on: bool


class HoldDeadLetters(_Event):
    """From now on the dead letter queue stays silent; off has it answer, in order."""

    event: Literal["hold_dead_letters"] = "hold_dead_letters"
    on: bool


class ColdSnapshot(_Event):
    """The share coordinator records the state whole although nothing changed."""

    event: Literal["cold_snapshot"] = "cold_snapshot"


class Delete(_Event):
    """The share-partition's state is deleted. Source: DeleteShareGroupState."""

    event: Literal["delete"] = "delete"


class Prune(_Event):
    """The share coordinator deletes records that nothing needs any more."""

    event: Literal["prune"] = "prune"


Event = Annotated[
    Init
    | Open
    | Acquire
    | Ack
    | Advance
    | MemberLeave
    | LsoMove
    | LogHole
    | Aborted
    | Checkpoint
    | Crash
    | Config
    | FailWrites
    | HoldWrites
    | HoldDeadLetters
    | ColdSnapshot
    | Delete
    | Prune,
    Field(discriminator="event"),
]

_EVENT: TypeAdapter[Event] = TypeAdapter(Event)


def read_events(lines: Iterable[str | bytes]) -> Iterator[Event]:
    """Events of JSON lines.

    Args:
        lines: one event each; blank ones are passed over.
    Returns:
        Events, lazily.
    Raises:
        EventError: a line is no event, naming the line and the field.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield _EVENT.validate_json(line)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "the line"
            raise EventError(f"event line {number}: {where}: {first['msg']}") from None


def write_event(event: Event) -> str:
    """One event as a JSON line, without the newline; what is at its default is left out."""
    said = {"event": event.event} | event.model_dump(mode="json", exclude_defaults=True)
    return json.dumps(said, separators=(",", ":"), ensure_ascii=False)


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
