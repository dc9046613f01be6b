"""Faults in records: state records and control records that a healthy broker would not write."""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, cast

from share_state.kafka.codec import encode
from share_state.kafka.control_records import CHECKPOINT_TYPE, DELTA_TYPE, EPOCH_MODULUS
from share_state.kafka.delivery_states import TERMINAL, DeliveryState
from share_state.kafka.releases import RELEASES, Release
from share_state.schema.declarations import layout
from share_state.simulator.control_record_writer import ControlState, DraftWriter
from share_state.simulator.coordinator import CoordinatorEntry
from share_state.simulator.log_writer import StateTopicSettings
from share_state.simulator.state_values import (
    DurableState,
    StateKey,
    StateRecord,
    UpdateValue,
    encode_record,
    state_partition_for,
    value_fields,
)
from share_state.simulator.types import CheckpointWrite, DeltaWrite, StateBatch

_MINUTE_MS, _HOUR_MS = 60_000, 3_600_000
_FOREIGN_TYPE = 9
_FOREIGN_VERSION = 1
_FOREIGN_STATE = 7
_FOREIGN_TAG = (7, b"\xab\xcd")


class FaultRecord(NamedTuple):
    """A record to append: key, value, and its timestamp in ms after the log's latest record."""

    key: bytes
    value: bytes | None
    after_ms: int = 1


@dataclass(frozen=True, slots=True)
class FaultTarget:
    """A share-partition in which a fault can be planted.

    Attributes:
        entry: its entry in its coordinator.
        settings: settings of the state topic.
        now_ms: timestamp of the log's latest record.
    """

    key: StateKey
    entry: CoordinatorEntry
    settings: StateTopicSettings
    state_partition: int
    delivery_count_limit: int
    now_ms: int

    @property
    def state(self) -> DurableState:
        """The durable state."""
        return self.entry.state

    @property
    def start(self) -> int:
        """The start offset."""
        return self.state.start_offset

    @property
    def next_offset(self) -> int:
        """The first offset after every persisted batch."""
        return max([self.start, *(batch.last_offset + 1 for batch in self.state.batches)])

    def next_batch(self, state: int, count: int = 1) -> tuple[int, int, int, int]:
        """A batch of `next_offset` alone, whose state may be invalid."""
        return self.next_offset, self.next_offset, state, count

    @property
    def terminal_batch(self) -> StateBatch | None:
        """The last terminal batch, or None."""
        ended = [batch for batch in self.state.batches if batch.delivery_state in TERMINAL]
        return ended[-1] if ended else None

    def bytes(self, value: DurableState | UpdateValue | None, release: Release | None = None) -> FaultRecord:
        """Encode a record of the share-partition."""
        return FaultRecord(*encode_record(StateRecord(self.key, value), release or self.settings.release))

    def update_value(self, *batches: tuple[int, int, int, int]) -> UpdateValue:
        """The value of an update that changes only the given batches."""
        state, changed = self.state, _as_batches(batches)
        epochs = state.snapshot_epoch, state.leader_epoch
        return UpdateValue(*epochs, state.start_offset, state.delivery_complete_count, changed)

    def update(self, *batches: tuple[int, int, int, int], after_ms: int = 1, **fields: Any) -> FaultRecord:
        """An update that changes only the given fields and batches."""
        return self.bytes(replace(self.update_value(*batches), **fields))._replace(after_ms=after_ms)

    def snapshot(self, *batches: tuple[int, int, int, int], **fields: Any) -> FaultRecord:
        """The next snapshot, with batches added and fields changed."""
        batches_after = (*self.state.batches, *_as_batches(batches))
        times = {"create_timestamp": self.now_ms + 1, "write_timestamp": self.now_ms + 1}
        defaults = {"snapshot_epoch": self.state.snapshot_epoch + 1, "batches": batches_after} | times
        return self.bytes(replace(self.state, **(defaults | fields)))

    def stranger(self, name: str, *, is_at_home: bool = True) -> "FaultTarget":
        """A share-partition without records whose key hashes to this state partition (`is_at_home`) or to another."""
        partitions = self.settings.state_partitions
        for number in range(64 * partitions):
            key = self.key._replace(group_id=f"{name}-{number}")
            if (state_partition_for(key, partitions) == self.state_partition) == is_at_home:
                return replace(self, key=key)
        return self


def _as_batches(values: Sequence[tuple[int, int, int, int]]) -> tuple[StateBatch, ...]:
    """State batches whose state may be invalid."""
    return tuple(
        StateBatch(first, last, cast(DeliveryState, state), count) for first, last, state, count in values
    )


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that can be planted.

    Attributes:
        finding: rule that reports it.
        dialects: whose logs it applies to.
    """

    dialects: ClassVar[tuple[str, ...]] = ("share_group_state", "control_records")

    finding: str
    description: str

    @property
    def name(self) -> str:
        """The option value."""
        return self.finding.lower().replace("_", "-")


@dataclass(frozen=True, slots=True)
class StateFault(Fault):
    """A fault in a log of the state topic.

    Attributes:
        build: returns the records to append; the last one is faulty.
        applies_to: whether a share-partition can be its target.
        is_possible: whether it is a fault in logs of a release.
        subject: the share-partition that the finding names; None if it names the log.
    """

    dialects = ("share_group_state",)

    build: Callable[[FaultTarget], list[FaultRecord]]
    applies_to: Callable[[FaultTarget], bool] = lambda target: True
    is_possible: Callable[[Release], bool] = lambda release: True
    subject: Callable[[FaultTarget], StateKey | None] = lambda target: target.key


def _count(target: FaultTarget) -> int:
    return target.state.delivery_complete_count


def _foreign(target: FaultTarget, **parts: Any) -> list[FaultRecord]:
    return [target.update(target.next_batch(DeliveryState.AVAILABLE))._replace(**parts)]


def _tagged(target: FaultTarget) -> list[FaultRecord]:
    fields = value_fields(target.update_value(), target.settings.release) | {"unknown_tags": [_FOREIGN_TAG]}
    value = encode(layout("share_update_value", target.settings.release.layout), fields)
    return [target.update()._replace(value=value)]


def _other_layout(target: FaultTarget) -> list[FaultRecord]:
    own = target.settings.release.layout
    other = next(one for one in RELEASES.values() if one.layout != own)
    value = target.update_value(target.next_batch(DeliveryState.AVAILABLE))
    # 4.0 has 16 bits for the epoch.
    return [target.bytes(replace(value, snapshot_epoch=value.snapshot_epoch % 100), other)]


def _lower(target: FaultTarget) -> tuple[StateBatch, ...]:
    """The batches of the target, the first with one delivery less."""
    first, *other_states = target.state.batches
    return (first._replace(delivery_count=first.delivery_count - 1), *other_states)


def _redelivered(target: FaultTarget) -> tuple[int, int, int, int]:
    assert target.terminal_batch
    _, last, _, count = target.terminal_batch
    return (last, last, DeliveryState.AVAILABLE, count + 1)


def _dead_letter(target: FaultTarget) -> list[FaultRecord]:
    """A finished dead-letter write at `next_offset`, which shows that 4.4 or later writes the log."""
    return [
        target.update(target.next_batch(DeliveryState.ARCHIVING)),
        target.update(target.next_batch(DeliveryState.ARCHIVED), delivery_complete_count=_count(target) + 1),
    ]


def _writes_archiving(release: Release) -> bool:
    return release.dead_letters


def _no_subject(target: FaultTarget) -> None:
    """The finding names the log."""


def _misrouted(target: FaultTarget) -> FaultTarget:
    return target.stranger("astray", is_at_home=False)


STATE_FAULTS = (
    StateFault("UNKNOWN_RECORD_TYPE", "a record of an unknown type",
               lambda v: _foreign(v, key=struct.pack(">h", _FOREIGN_TYPE) + v.update().key[2:]), subject=_no_subject),
    StateFault("UNKNOWN_TAG", "an update with an unknown tag", _tagged, subject=_no_subject),
    StateFault("LAYOUT_MIXED", "an update in the layout of an older or a newer release", _other_layout,
               subject=_no_subject),
    StateFault("KEY_MALFORMED", "a key that ends early", lambda v: _foreign(v, key=v.update().key[:-3]),
               subject=_no_subject),
    StateFault("VALUE_MALFORMED", "a value that ends early",
               lambda v: _foreign(v, value=(v.update().value or b"")[:-1])),
    StateFault("VALUE_VERSION_UNKNOWN", "a value of version 1",
               lambda v: _foreign(v, value=struct.pack(">h", _FOREIGN_VERSION) + (v.update().value or b"")[2:])),
    StateFault("UPDATE_TOMBSTONE", "an update without a value", lambda v: _foreign(v, value=None)),
    StateFault("WRONG_PARTITION", "a share-partition whose key hashes to another state partition",
               lambda v: [_misrouted(v).bytes(DurableState(0, 0, 0, 0, 0, (), v.now_ms + 1, v.now_ms + 1))],
               lambda v: v.settings.state_partitions > 1,
               subject=lambda v: _misrouted(v).key),
    StateFault("INVERTED_RANGE", "a batch that ends before it starts",
               lambda v: [v.update((v.next_offset + 9, v.next_offset + 3, DeliveryState.ACKNOWLEDGED, 1))]),
    StateFault("UNKNOWN_DELIVERY_STATE", "a batch in state 7",
               lambda v: [v.update(v.next_batch(_FOREIGN_STATE))]),
    StateFault("DELIVERY_COUNT_INVALID", "an acknowledged record with delivery count 0",
               lambda v: [v.update(v.next_batch(DeliveryState.ACKNOWLEDGED, 0))]),
    StateFault("DELIVERY_COUNT_OVER_LIMIT", "a delivery count above the limit",
               lambda v: [v.update(v.next_batch(DeliveryState.AVAILABLE, v.delivery_count_limit + 1))]),
    StateFault("BATCHES_OVERLAP", "an update with overlapping batches",
               lambda v: [v.update((v.next_offset, v.next_offset + 5, DeliveryState.AVAILABLE, 1),
                                   (v.next_offset + 3, v.next_offset + 8, DeliveryState.AVAILABLE, 2))]),
    StateFault("BATCH_BELOW_START", "an update with a batch before its own start",
               lambda v: [v.update((v.start - 1, v.start - 1, DeliveryState.ACKNOWLEDGED, 1))], lambda v: v.start > 0),
    StateFault("START_OFFSET_INVALID", "a start of -7", lambda v: [v.update(start_offset=-7)]),
    StateFault("START_OFFSET_REGRESSION", "a start offset that decreases",
               lambda v: [v.update(start_offset=v.start - 1)], lambda v: v.start > 0),
    StateFault("ORPHAN_UPDATE", "an update of a share-partition that has no snapshot",
               lambda v: [v.stranger("orphan").bytes(UpdateValue(0, 0, 0, 0))],
               subject=lambda v: v.stranger("orphan").key),
    StateFault("SNAPSHOT_EPOCH_GAP", "a skipped snapshot epoch",
               lambda v: [v.snapshot(snapshot_epoch=v.state.snapshot_epoch + 2)]),
    StateFault("UPDATE_EPOCH_MISMATCH", "an update of a snapshot that was never written",
               lambda v: [v.update(snapshot_epoch=v.state.snapshot_epoch + 1)]),
    StateFault("STATE_EPOCH_REGRESSION", "a snapshot with a lower state epoch",
               lambda v: [v.snapshot(state_epoch=v.state.state_epoch - 1)], lambda v: v.state.state_epoch > 0),
    StateFault("LEADER_EPOCH_REGRESSION", "an update with a lower leader epoch",
               lambda v: [v.update(leader_epoch=v.state.leader_epoch - 1)], lambda v: v.state.leader_epoch > 0),
    StateFault("TIMESTAMP_REGRESSION", "a timestamp an hour before the previous record's",
               lambda v: [v.update(after_ms=-_HOUR_MS)]),
    StateFault("COLD_SNAPSHOT_MISMATCH", "a cold snapshot that does not repeat the state",
               lambda v: [v.snapshot(v.next_batch(DeliveryState.AVAILABLE),
                                     create_timestamp=v.state.create_timestamp)],
               is_possible=lambda release: release.has_times),
    StateFault("SNAPSHOT_MISMATCH", "a snapshot with fewer deliveries than the updates before it",
               lambda v: [v.snapshot(batches=_lower(v))], lambda v: bool(v.state.batches)),
    StateFault("TERMINAL_STATE_LEFT", "a redelivery of a terminal record",
               lambda v: [v.update(_redelivered(v))], lambda v: v.terminal_batch is not None),
    StateFault("DELIVERY_COMPLETE_COUNT_MISMATCH", "a delivery complete count above the number of offsets in flight",
               lambda v: [v.update(delivery_complete_count=v.next_offset - v.start + 5)], lambda v: _count(v) >= 0,
               is_possible=lambda release: release.counts_completed),
    StateFault("STATE_AFTER_DELETE", "an update after a tombstone",
               lambda v: [v.bytes(None), v.update()], is_possible=lambda release: release.has_initialize),
    StateFault("TOMBSTONE_WITHOUT_STATE", "a tombstone of a share-partition without records",
               lambda v: [v.stranger("unheard-of").bytes(None)],
               subject=lambda v: v.stranger("unheard-of").key,
               is_possible=lambda release: release.has_initialize),
    StateFault("LONG_CHAIN", "more updates than the updates-per-snapshot limit",
               lambda v: [v.update() for _ in range(v.settings.updates_per_snapshot + 2)]),
    StateFault("START_NOT_CARRIED", "an update without a start offset",
               lambda v: [*_dead_letter(v), v.update(start_offset=-1, delivery_complete_count=_count(v) + 1)],
               is_possible=_writes_archiving),
    StateFault("COUNT_REGRESSION", "a delivery complete count that decreases although the start stays",
               lambda v: [*_dead_letter(v), v.update(delivery_complete_count=_count(v))], lambda v: _count(v) >= 0,
               is_possible=_writes_archiving),
    StateFault("ARCHIVING_STUCK", "a record in ARCHIVING for two minutes, to the end of the log",
               lambda v: [v.update(v.next_batch(DeliveryState.ARCHIVING)),
                          v.update(after_ms=2 * _MINUTE_MS)],
               is_possible=_writes_archiving),
    StateFault("ARCHIVING_PASSED", "a start past a record in ARCHIVING",
               lambda v: [v.update(v.next_batch(DeliveryState.ARCHIVING)),
                          v.update(start_offset=v.next_offset + 1, delivery_complete_count=0)],
               is_possible=_writes_archiving),
)  # fmt: skip
"""Targets have a start offset: share-partitions that were never read are not used."""


STRANGER = "stranger"


@dataclass(frozen=True, slots=True)
class ControlFaultTarget:
    """A group with control records in which a fault can be planted.

    Attributes:
        writer: writer of the topic-partition's control records.
        now_ms: timestamp of the log's latest record.
    """

    writer: DraftWriter
    group_id: str
    now_ms: int

    @property
    def state(self) -> ControlState:
        """The durable state."""
        return self.writer.states[self.group_id]

    @property
    def other_states(self) -> list[ControlState]:
        """States of the other groups in this log."""
        return [state for group, state in self.writer.states.items() if group != self.group_id]

    @property
    def next_batch(self) -> StateBatch:
        """The first offset after the end, delivered once and released."""
        return StateBatch(self.state.end_offset, self.state.end_offset, DeliveryState.AVAILABLE, 1)

    def delta(
        self, *batches: StateBatch, back: int | None = None, step: int = 0, group_id: str | None = None
    ) -> int:
        """Write a delta, by default the next valid one; `step` is added to its epoch."""
        back_offset = self.state.last_offset if back is None else back
        epoch = (self.state.checkpoint_epoch + step) % EPOCH_MODULUS
        values = batches or (self.next_batch,)
        group = group_id or self.group_id
        return self.writer.append(DELTA_TYPE, group, epoch, {"back_offset": back_offset}, values, self.now_ms)

    def checkpoint(self, *, step: int) -> int:
        """Write a checkpoint whose epoch is `step` higher."""
        state = self.state
        epoch = (state.checkpoint_epoch + step) % EPOCH_MODULUS
        bounds = {"start_offset": state.start_offset, "end_offset": state.end_offset}
        return self.writer.append(CHECKPOINT_TYPE, self.group_id, epoch, bounds, state.batches, self.now_ms)


@dataclass(frozen=True, slots=True)
class ControlFault(Fault):
    """A fault in control records.

    Attributes:
        build: writes the records; returns the offset of the faulty one.
        applies_to: whether a group can be its target.
    """

    dialects = ("control_records",)

    build: Callable[[ControlFaultTarget], int]
    applies_to: Callable[[ControlFaultTarget], bool] = lambda target: True


def _names_user_record(target: ControlFaultTarget) -> int:
    return target.delta(back=target.writer.log.append(target.now_ms, None, b"user data"))


def _names_an_older_epoch(target: ControlFaultTarget) -> int:
    state = target.state
    checkpoint = CheckpointWrite(state.start_offset, state.end_offset, state.batches)
    target.writer.checkpoint(target.group_id, checkpoint, target.now_ms)
    return target.delta(back=state.last_offset)


def _repeats_back_offset(target: ControlFaultTarget) -> int:
    back_offset = target.state.last_offset
    target.writer.delta(target.group_id, DeltaWrite((target.next_batch,)), target.now_ms)
    return target.delta(back=back_offset)


def _batch(
    first: int, last: int, state: DeliveryState = DeliveryState.AVAILABLE, count: int = 1
) -> StateBatch:
    return StateBatch(first, last, state, count)


CONTROL_FAULTS = (
    ControlFault("BROKEN_CHAIN", "a delta whose back offset is a user record", _names_user_record),
    ControlFault("FORWARD_BACK_OFFSET", "a delta whose back offset is in the future",
                 lambda v: v.delta(back=v.writer.log.next_offset + 10)),
    ControlFault("CROSS_GROUP", "a delta whose back offset is another group's record",
                 lambda v: v.delta(back=v.other_states[0].last_offset), lambda v: bool(v.other_states)),
    ControlFault("CROSS_EPOCH", "a delta whose back offset is before its checkpoint", _names_an_older_epoch),
    ControlFault("FORK", "two deltas with the same back offset", _repeats_back_offset),
    ControlFault("STALE_EPOCH", "a delta of the checkpoint before", lambda v: v.delta(step=-1)),
    ControlFault("FUTURE_EPOCH", "a delta of a checkpoint that is missing", lambda v: v.delta(step=1)),
    ControlFault("EPOCH_GAP", "a skipped checkpoint epoch", lambda v: v.checkpoint(step=2)),
    ControlFault("EPOCH_REPEAT", "a checkpoint epoch used twice", lambda v: v.checkpoint(step=0)),
    ControlFault("ORPHAN_DELTA", "a delta of a group without a checkpoint",
                 lambda v: v.delta(group_id=STRANGER), lambda v: STRANGER not in v.writer.states),
    ControlFault("BELOW_START", "a delta with an offset before the start",
                 lambda v: v.delta(_batch(v.state.start_offset - 1, v.state.start_offset - 1)),
                 lambda v: v.state.start_offset > 0),
    ControlFault("UNCOVERED_GAP", "a delta that leaves a gap after the end",
                 lambda v: v.delta(_batch(v.state.end_offset + 3, v.state.end_offset + 4))),
    ControlFault("OVERLAP_IN_DELTA", "a delta with overlapping batches",
                 lambda v: v.delta(_batch(v.state.end_offset, v.state.end_offset + 4),
                                   _batch(v.state.end_offset + 2, v.state.end_offset + 2, count=2))),
    ControlFault("PERSISTED_ACQUIRED", "a delta with an acquired record",
                 lambda v: v.delta(_batch(v.state.end_offset, v.state.end_offset, DeliveryState.ACQUIRED))),
)  # fmt: skip
