"""Events of a share-partition's history as JSON lines, and their results."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator

from share_state.errors import ShareStateError
from share_state.simulator.acquisition import NO_LIMIT, AcquiredRecords, AcquireMode, LogBatch
from share_state.simulator.client import IMPLICIT, MAX_POLL_INTERVAL_MS, Committed
from share_state.simulator.settings import AckBatch, AckType
from share_state.simulator.types import (
    CheckpointWrite,
    DeltaWrite,
    ErrorCode,
    SharePartitionKey,
    StateBatch,
    StateWrite,
)

MOST_OFFSETS = 100_000
"""Offsets that a fetch may return: each is tracked alone once its lock expires. A share-partition has a few thousand in
flight (group.share.partition.max.record.locks), and the batch that begins before that limit is acquired whole."""


MOST_PARTITIONS = 100_000
"""Partitions of a topic."""

MEMBER_LEAVE: Final = "member_leave"

Route = Literal["acknowledge", "fetch"]
"""The request that carries acknowledgements."""


class EventError(ShareStateError):
    """Raised when a line is not a valid event, or an event is in the past."""


def check_few_offsets(batches: tuple[LogBatch, ...]) -> tuple[LogBatch, ...]:
    """Refuse more offsets than a fetch returns."""
    count = sum(batch.last_offset - batch.first_offset + 1 for batch in batches)
    if count > MOST_OFFSETS:
        raise ValueError(f"{count:,} offsets; one fetch returns at most {MOST_OFFSETS:,}")
    return batches


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    seq: int = Field(description="increases by one with each event")
    ts_ms: int = Field(description="time in ms; never decreases")


class _SharePartitionEvent(_Event):
    group: str = Field(min_length=1, description="the share group")
    topic: str = Field(min_length=1, description="the topic")
    partition: int = Field(default=0, ge=0, description="the topic's partition")

    @property
    def key(self) -> SharePartitionKey:
        """The share-partition."""
        return SharePartitionKey(self.group, self.topic, self.partition)


class Init(_SharePartitionEvent):
    """The group coordinator initializes the state. Source: InitializeShareGroupState."""

    event: Literal["init"] = "init"
    state_epoch: int
    start_offset: int = Field(ge=-1, description="-1: unknown, the leader decides")


class Open(_SharePartitionEvent):
    """A broker becomes leader and loads the share-partition. Source: ReadShareGroupState."""

    event: Literal["open"] = "open"
    leader_epoch: int
    reset_offset: int = Field(default=0, ge=0, description="start offset if none is persisted")


class Acquire(_SharePartitionEvent):
    """A member fetches, and these batches are read from the log. Source: ShareFetch."""

    event: Literal["acquire"] = "acquire"
    member: str = Field(min_length=1)
    log_batches: tuple[LogBatch, ...] = Field(min_length=1, description="[first, last] each, ascending")
    fetch_offset: int | None = Field(default=None, description="offset of the read; default: the first batch")
    max_records: int = Field(default=NO_LIMIT, ge=1)
    batch_size: int = Field(default=NO_LIMIT, ge=1)
    mode: AcquireMode = AcquireMode.BATCH_OPTIMIZED

    _are_few_offsets = field_validator("log_batches")(check_few_offsets)


class Ack(_SharePartitionEvent):
    """A member acknowledges records. Source: ShareAcknowledge, or ShareFetch with acknowledgements."""

    event: Literal["ack"] = "ack"
    member: str = Field(min_length=1)
    batches: tuple[AckBatch, ...] = Field(min_length=1, description="[first, last, types] each, ascending")
    route: Route = "acknowledge"
    is_renew_ack: bool = False
    version: int = Field(default=2, ge=1, le=2)
    leader_epoch: int | None = Field(
        default=None, description="epoch of the receiving leader; default: the current one"
    )
    max_wait_ms: int = Field(default=0, ge=0, description="fetch limits, which must be 0 with renewals")
    min_bytes: int = Field(default=0, ge=0)
    max_bytes: int = Field(default=0, ge=0)
    max_records: int = Field(default=0, ge=0)


class Join(_SharePartitionEvent):
    """A consumer of this client's model joins; its events are poll, acknowledge, commit and heartbeat."""

    event: Literal["join"] = "join"
    member: str = Field(min_length=1)
    mode: Literal["implicit", "explicit"] = Field(default=IMPLICIT, description="share.acknowledgement.mode")
    max_poll_interval_ms: int = Field(default=MAX_POLL_INTERVAL_MS, ge=1, description="max.poll.interval.ms")
    has_background_heartbeats: bool = Field(
        default=True, description="false: the session expires unless heartbeat events come"
    )
    renew_every_ms: int = Field(default=0, ge=0, description="how often the application renews; 0: never")
    version: int = Field(default=2, ge=1, le=2, description="of requests that both client and broker have")


class Poll(_SharePartitionEvent):
    """The application polls. What it acknowledged is sent, and records are returned: renewed ones, or new ones."""

    event: Literal["poll"] = "poll"
    member: str = Field(min_length=1)
    log_batches: tuple[LogBatch, ...] = Field(
        default=(), description="[first, last] of batches in the log that a fetch may return, ascending"
    )
    max_records: int = Field(default=NO_LIMIT, ge=1)

    _are_few_offsets = field_validator("log_batches")(check_few_offsets)


class Acknowledge(_SharePartitionEvent):
    """The application acknowledges a record that a poll returned; sent with the next poll or commit."""

    event: Literal["acknowledge"] = "acknowledge"
    member: str = Field(min_length=1)
    offset: int = Field(ge=0)
    type: AckType


class Commit(_SharePartitionEvent):
    """The application commits: its acknowledgements are sent (commitSync). Source: ShareAcknowledge."""

    event: Literal["commit"] = "commit"
    member: str = Field(min_length=1)


class Heartbeat(_SharePartitionEvent):
    """A heartbeat of a consumer without background heartbeats arrives. Source: ShareGroupHeartbeat."""

    event: Literal["heartbeat"] = "heartbeat"
    member: str = Field(min_length=1)


class Advance(_SharePartitionEvent):
    """Time passes until `ts_ms`; locks expire."""

    event: Literal["advance"] = "advance"


class MemberLeave(_SharePartitionEvent):
    """A member's share session ends."""

    event: Literal["member_leave"] = MEMBER_LEAVE
    member: str = Field(min_length=1)


class LsoMove(_SharePartitionEvent):
    """The log start offset moves: retention, or DeleteRecords."""

    event: Literal["lso_move"] = "lso_move"
    offset: int = Field(ge=0)


class LogHole(_SharePartitionEvent):
    """Compaction removed these offsets from the log."""

    event: Literal["log_hole"] = "log_hole"
    first: int = Field(ge=0)
    last: int = Field(ge=0)


class Aborted(_SharePartitionEvent):
    """Acquired records belong to an aborted transaction, and the group reads committed records only."""

    event: Literal["aborted"] = "aborted"
    first: int = Field(ge=0)
    last: int = Field(ge=0)


class Checkpoint(_SharePartitionEvent):
    """The leader writes a checkpoint (draft only)."""

    event: Literal["checkpoint"] = "checkpoint"


class Crash(_SharePartitionEvent):
    """The leader loses its memory and loads the share-partition again."""

    event: Literal["crash"] = "crash"


class Config(_SharePartitionEvent):
    """A group config changes, for example share.record.lock.duration.ms."""

    event: Literal["config"] = "config"
    name: str
    value: str | int | bool


class FailWrites(_SharePartitionEvent):
    """Writes of the share-partition fail while on."""

    event: Literal["fail_writes"] = "fail_writes"
    on: bool


class HoldWrites(_SharePartitionEvent):
    """Writes of the share-partition get no response while on; off sends the responses in order."""

    event: Literal["hold_writes"] = "hold_writes"
    on: bool


class HoldDeadLetters(_SharePartitionEvent):
    """The dead letter queue does not respond while on; off sends the responses in order."""

    event: Literal["hold_dead_letters"] = "hold_dead_letters"
    on: bool


class ColdSnapshot(_SharePartitionEvent):
    """The share coordinator writes a snapshot of the unchanged state."""

    event: Literal["cold_snapshot"] = "cold_snapshot"


class Delete(_SharePartitionEvent):
    """The share-partition's state is deleted. Source: DeleteShareGroupState."""

    event: Literal["delete"] = "delete"


class Prune(_SharePartitionEvent):
    """The share coordinator deletes redundant records."""

    event: Literal["prune"] = "prune"


class _GroupEvent(_Event):
    group: str = Field(min_length=1, description="the share group")
    member: str = Field(min_length=1)


class Subscribe(_GroupEvent):
    """A member heartbeats with these topics: it joins, or changes its subscription. Source: ShareGroupHeartbeat."""

    event: Literal["subscribe"] = "subscribe"
    topics: tuple[str, ...] = Field(min_length=1, description="names of the topics")


class LeaveGroup(_GroupEvent):
    """A member leaves the group, or its session has expired. Source: ShareGroupHeartbeat with epoch -1."""

    event: Literal["leave_group"] = "leave_group"


class CreatePartitions(_Event):
    """A topic is created, or gets more partitions."""

    event: Literal["create_partitions"] = "create_partitions"
    topic: str = Field(min_length=1)
    partitions: int = Field(ge=1, le=MOST_PARTITIONS, description="number of partitions from now on")


GroupEvent = Subscribe | LeaveGroup | CreatePartitions
"""Events of share groups and their topics, which need `__consumer_offsets` (`simulator.group_side`)."""

SharePartitionEvent = (
    Init
    | Open
    | Acquire
    | Ack
    | Join
    | Poll
    | Acknowledge
    | Commit
    | Heartbeat
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
    | Prune
)
"""Events of a share-partition."""

Event = Annotated[SharePartitionEvent | GroupEvent, Field(discriminator="event")]

ClientEvent = Join | Poll | Acknowledge | Commit | Heartbeat
"""Events of the client's model (`simulator.client`)."""

_EVENT: TypeAdapter[Event] = TypeAdapter(Event)


def invalid_field(error: ValidationError) -> str:
    """The first invalid field and why it is invalid."""
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the line'}: {first['msg']}"


def read_events(lines: Iterable[str | bytes]) -> Iterator[Event]:
    """Yield the events of JSON lines; blank lines are skipped.

    Raises:
        EventError: names the line and the invalid field.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield _EVENT.validate_json(line)
        except ValidationError as error:
            raise EventError(f"event line {number}: {invalid_field(error)}") from None


def write_event(event: Event) -> str:
    """One event as a JSON line without newline; default values are omitted."""
    return to_json_line({"event": event.event} | event.model_dump(mode="json", exclude_defaults=True))


def to_json_line(row: dict[str, Any]) -> str:
    """A row as a JSON line without newline."""
    return json.dumps(row, separators=(",", ":"), ensure_ascii=False)


@dataclass(slots=True)
class EventResult:
    """The result of an event, or of an operation that it triggered (a lock timeout, a held write).

    Args:
        seq: number of the event, or of the event that advanced the time.
        cause: the event's kind, or the trigger of the operation.
        error: the request's error code.
        message: the reason, one line.
        acquired: records that a fetch acquired.
        returned: records that a poll of the client's model returned: new ones, or renewed ones again.
        committed: outcomes that the acknowledgement commit callback got before that.
        exception: the exception that the client throws.
        lock_timeout_ms: current lock duration, which clients use to schedule renewals (KIP-1222); returned
            for fetches and acknowledgements.
        writes: durable writes, in order.
        refused: failed writes, each with the share coordinator's error code.
        delta: durable delta of the draft dialect.
        checkpoint: durable checkpoint of the draft dialect.
        start_offset: SPSO afterwards; None if no leader has loaded the share-partition.
        end_offset: SPEO afterwards, exclusive.
        memory: in-flight batches afterwards; None unless traced.
        member: the consumer whose membership ended by itself.
    """

    seq: int
    ts_ms: int
    key: SharePartitionKey
    cause: str
    error: ErrorCode = ErrorCode.NONE
    message: str = ""
    acquired: tuple[AcquiredRecords, ...] = ()
    returned: tuple[AcquiredRecords, ...] = ()
    committed: tuple[Committed, ...] = ()
    exception: str = ""
    lock_timeout_ms: int | None = None
    writes: list[StateWrite] = field(default_factory=list)
    refused: list[tuple[StateWrite, ErrorCode]] = field(default_factory=list)
    delta: DeltaWrite | None = None
    checkpoint: CheckpointWrite | None = None
    start_offset: int | None = None
    end_offset: int | None = None
    memory: tuple[StateBatch, ...] | None = None
    member: str = ""

    def to_json(self) -> str:
        """One JSON line without newline; empty fields are omitted."""
        row: dict[str, object] = {
            "seq": self.seq,
            "ts_ms": self.ts_ms,
            **self.key._asdict(),
            "cause": self.cause,
        }
        row |= {
            "error": self.error.name,
            "message": self.message or None,
            "exception": self.exception or None,
            "member": self.member or None,
            "committed": [one._replace(error=one.error.name) for one in self.committed] or None,
            "acquired": self.acquired or None,
            "returned": self.returned or None,
            "lock_timeout_ms": self.lock_timeout_ms,
            "writes": [_row(write) for write in self.writes] or None,
            "refused": [_row(write) | {"error": code.name} for write, code in self.refused] or None,
            "delta": self.delta.batches if self.delta else None,
            "checkpoint": _row(self.checkpoint) if self.checkpoint else None,
            "start_offset": self.start_offset,
            "end_offset": self.end_offset,
            "memory": self.memory,
        }
        return json.dumps(
            {name: value for name, value in row.items() if value is not None}, separators=(",", ":")
        )


def _row(write: StateWrite | CheckpointWrite) -> dict[str, object]:
    return {name: getattr(write, name) for name in write.__slots__}
