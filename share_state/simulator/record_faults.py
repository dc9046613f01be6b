"""Records that no sound coordinator writes, each crafted from the state of its victim so that one rule is broken.

Control records that no sound leader writes, each crafted from a group's chain so that one rule is broken.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

from share_state.kafka.codec import encode
from share_state.schema.declarations import layout
from share_state.simulator.coordinator import Held
from share_state.simulator.draft import EPOCHS, ControlState, ControlType, DraftWriter
from share_state.simulator.state_records import (
    RELEASES,
    DurableState,
    StateKey,
    StateRecord,
    UpdateValue,
    WriterRelease,
    bytes_of,
    state_partition_of,
)
from share_state.simulator.types import CheckpointWrite, DeliveryState, DeltaWrite, StateBatch

_HOUR_MS = 3_600_000
_FOREIGN_TYPE, _FOREIGN_VERSION, _FOREIGN_STATE, _FOREIGN_TAG = 9, 1, 7, (7, b"\xab\xcd")
_TERMINAL = (DeliveryState.ACKNOWLEDGED, DeliveryState.ARCHIVED)


class Crafted(NamedTuple):
    """A record to append: key, value, and how many ms behind the log's latest record it is stamped."""

    key: bytes
    value: bytes | None
    after_ms: int = 1


@dataclass(frozen=True, slots=True)
class Victim:
    """A share-partition that a fault may befall.

    Attributes:
        key: of the share-partition.
        held: what its coordinator holds of it.
        release: that wrote its log.
        state_partition, state_partitions: where its records lie, and of how many that is one.
        updates_per_snapshot, delivery_count_limit: limits that a fault may exceed.
        now_ms: time of the log's latest record.
    """

    key: StateKey
    held: Held
    release: WriterRelease
    state_partition: int
    state_partitions: int
    updates_per_snapshot: int
    delivery_count_limit: int
    now_ms: int

    @property
    def state(self) -> DurableState:
        """Its durable state."""
        return self.held.state

    @property
    def start(self) -> int:
        """Its start offset."""
        return self.state.start_offset

    @property
    def free(self) -> int:
        """An offset behind everything that is recorded."""
        return max([self.start, *(batch.last_offset + 1 for batch in self.state.batches)])

    @property
    def finished(self) -> StateBatch | None:
        """Recorded offsets at or after the start that are terminal."""
        ended = [batch for batch in self.state.batches if batch.delivery_state in _TERMINAL]
        return ended[-1] if ended else None

    def bytes(self, value: DurableState | UpdateValue | None, release: WriterRelease | None = None) -> Crafted:
        """A record of it."""
        return Crafted(*bytes_of(StateRecord(self.key, value), release or self.release))

    def update(self, *batches: tuple[int, int, int, int], after_ms: int = 1, **fields: Any) -> Crafted:
        """An update that changes nothing but what is given."""
        state = self.state
        value = UpdateValue(state.snapshot_epoch, state.leader_epoch, state.start_offset, state.delivery_complete_count)
        changed = replace(value, batches=_as_batches(batches), **fields)
        return self.bytes(changed)._replace(after_ms=after_ms)

    def snapshot(self, *batches: tuple[int, int, int, int], **fields: Any) -> Crafted:
        """The snapshot that would come next, with these batches on top and these fields changed."""
        own = (*self.state.batches, *_as_batches(batches))
        now = {"create_timestamp": self.now_ms + 1, "write_timestamp": self.now_ms + 1}
        due = {"snapshot_epoch": self.state.snapshot_epoch + 1, "batches": own} | now
        return self.bytes(replace(self.state, **(due | fields)))

    def stranger(self, name: str, *, is_at_home: bool = True) -> "Victim":
        """A share-partition of the same topic that was never written, of a group that hashes here, or elsewhere."""
        for number in range(64 * self.state_partitions):
            key = self.key._replace(group_id=f"{name}-{number}")
            if (state_partition_of(key, self.state_partitions) == self.state_partition) == is_at_home:
                return replace(self, key=key)
        return self


def _as_batches(told: Sequence[tuple[int, int, int, int]]) -> tuple[StateBatch, ...]:
    """Batches that may be in a state that is none."""
    return tuple(StateBatch(first, last, cast(DeliveryState, state), count) for first, last, state, count in told)


class StateFault(NamedTuple):
    """One way to break a log of the state topic.

    Attributes:
        finding: code of the rule that it breaks.
        what: in words.
        craft: the records to append; the last one is at fault.
        suits: whether a share-partition can be its victim.
        since: the first release it makes sense for.
        whose: the share-partition that the finding is about, None where it is about the log.
    """

    finding: str
    what: str
    craft: Callable[[Victim], list[Crafted]]
    suits: Callable[[Victim], bool] = lambda victim: True
    since: str = "4.0"
    whose: Callable[[Victim], StateKey | None] = lambda victim: victim.key


def _count(victim: Victim) -> int:
    return victim.state.delivery_complete_count


def _foreign(victim: Victim, **parts: Any) -> list[Crafted]:
    return [victim.update((victim.free, victim.free, DeliveryState.AVAILABLE, 1))._replace(**parts)]


def _tagged(victim: Victim) -> list[Crafted]:
    crafted, release = victim.update(), victim.release
    state = victim.state
    fields = {
        "snapshot_epoch": state.snapshot_epoch,
        "leader_epoch": state.leader_epoch,
        "start_offset": state.start_offset,
        "state_batches": [],
        "unknown_tags": [_FOREIGN_TAG],
    }
    if release.tells_complete_count:
        fields["delivery_complete_count"] = state.delivery_complete_count
    return [crafted._replace(value=encode(layout("share_update_value", release.layout), fields))]


def _other_layout(victim: Victim) -> list[Crafted]:
    other = RELEASES["4.4" if victim.release.layout == "4.0" else "4.0"]
    state, free = victim.state, victim.free
    batch = StateBatch(free, free, DeliveryState.AVAILABLE, 1)
    value = UpdateValue(state.snapshot_epoch % 100, state.leader_epoch, state.start_offset, batches=(batch,))
    return [victim.bytes(value, other)]


def _without_its_last_byte(victim: Victim) -> list[Crafted]:
    value = victim.update().value or b""
    return _foreign(victim, value=value[:-1])


def _of_another_version(victim: Victim) -> list[Crafted]:
    value = victim.update().value or b""
    return _foreign(victim, value=struct.pack(">h", _FOREIGN_VERSION) + value[2:])


def _lower(victim: Victim) -> tuple[StateBatch, ...]:
    """Its batches, the first with one delivery less."""
    first, *others = victim.state.batches
    return (first._replace(delivery_count=first.delivery_count - 1), *others)


def _returned(victim: Victim) -> tuple[int, int, int, int]:
    assert victim.finished
    _, last, _, count = victim.finished
    return (last, last, DeliveryState.AVAILABLE, count + 1)


def _nobody(victim: Victim) -> None:
    """The finding is about the log."""


def _astray(victim: Victim) -> Victim:
    return victim.stranger("astray", is_at_home=False)


def _orphan(victim: Victim) -> Victim:
    return victim.stranger("orphan")


def _unheard_of(victim: Victim) -> Victim:
    return victim.stranger("unheard-of")


def _initialized(victim: Victim) -> DurableState:
    """What a share-partition begins with."""
    now = victim.now_ms + 1
    return DurableState(0, 0, 0, 0, 0, (), now, now)


STATE_FAULTS = (
    StateFault("UNKNOWN_RECORD_TYPE", "a record of a type that is not known",
               lambda v: _foreign(v, key=struct.pack(">h", _FOREIGN_TYPE) + v.update().key[2:]), whose=_nobody),
    StateFault("UNKNOWN_TAG", "an update with a tag that is not known", _tagged, whose=_nobody),
    StateFault("LAYOUT_MIXED", "an update in the layout of an older or a newer release", _other_layout,
               whose=_nobody),
    StateFault("KEY_MALFORMED", "a key that ends early", lambda v: _foreign(v, key=v.update().key[:-3]),
               whose=_nobody),
    StateFault("VALUE_MALFORMED", "a value that ends early", _without_its_last_byte),
    StateFault("VALUE_VERSION_UNKNOWN", "a value of version 1", _of_another_version),
    StateFault("UPDATE_TOMBSTONE", "an update without a value", lambda v: _foreign(v, value=None)),
    StateFault("WRONG_PARTITION", "a share-partition whose key hashes to another state partition",
               lambda v: [_astray(v).bytes(_initialized(v))], lambda v: v.state_partitions > 1,
               whose=lambda v: _astray(v).key),
    StateFault("INVERTED_RANGE", "a batch that ends before it begins",
               lambda v: [v.update((v.free + 9, v.free + 3, DeliveryState.ACKNOWLEDGED, 1))]),
    StateFault("UNKNOWN_DELIVERY_STATE", "a batch in state 7",
               lambda v: [v.update((v.free, v.free, _FOREIGN_STATE, 1))]),
    StateFault("DELIVERY_COUNT_INVALID", "a record acknowledged that was never delivered",
               lambda v: [v.update((v.free, v.free, DeliveryState.ACKNOWLEDGED, 0))]),
    StateFault("DELIVERY_COUNT_OVER_LIMIT", "a record delivered more often than it may be",
               lambda v: [v.update((v.free, v.free, DeliveryState.AVAILABLE, v.delivery_count_limit + 1))]),
    StateFault("BATCHES_OVERLAP", "an update with two batches over each other",
               lambda v: [v.update((v.free, v.free + 5, DeliveryState.AVAILABLE, 1),
                                   (v.free + 3, v.free + 8, DeliveryState.AVAILABLE, 2))]),
    StateFault("BATCH_BELOW_START", "an update that tells of an offset below its own start",
               lambda v: [v.update((v.start - 1, v.start - 1, DeliveryState.ACKNOWLEDGED, 1))], lambda v: v.start > 0),
    StateFault("START_OFFSET_INVALID", "a start of -7", lambda v: [v.update(start_offset=-7)]),
    StateFault("START_OFFSET_REGRESSION", "a start that goes back",
               lambda v: [v.update(start_offset=v.start - 1)], lambda v: v.start > 0),
    StateFault("ORPHAN_UPDATE", "an update of a share-partition that has no snapshot",
               lambda v: [_orphan(v).bytes(UpdateValue(0, 0, 0, 0))], whose=lambda v: _orphan(v).key),
    StateFault("SNAPSHOT_EPOCH_GAP", "a snapshot epoch left out",
               lambda v: [v.snapshot(snapshot_epoch=v.state.snapshot_epoch + 2)]),
    StateFault("UPDATE_EPOCH_MISMATCH", "an update of a snapshot that was never written",
               lambda v: [v.update(snapshot_epoch=v.state.snapshot_epoch + 1)]),
    StateFault("STATE_EPOCH_REGRESSION", "a snapshot with a lower state epoch",
               lambda v: [v.snapshot(state_epoch=v.state.state_epoch - 1)], lambda v: v.state.state_epoch > 0),
    StateFault("LEADER_EPOCH_REGRESSION", "an update with a lower leader epoch",
               lambda v: [v.update(leader_epoch=v.state.leader_epoch - 1)], lambda v: v.state.leader_epoch > 0),
    StateFault("TIMESTAMP_REGRESSION", "a record stamped an hour before the one ahead of it",
               lambda v: [v.update(after_ms=-_HOUR_MS)]),
    StateFault("COLD_SNAPSHOT_MISMATCH", "a cold snapshot that does not repeat the state",
               lambda v: [v.snapshot((v.free, v.free, DeliveryState.AVAILABLE, 1),
                                     create_timestamp=v.state.create_timestamp)],
               since="4.1"),
    StateFault("SNAPSHOT_MISMATCH", "a snapshot with fewer deliveries than the updates before it",
               lambda v: [v.snapshot(batches=_lower(v))], lambda v: bool(v.state.batches)),
    StateFault("TERMINAL_STATE_LEFT", "a finished record that is delivered again",
               lambda v: [v.update(_returned(v))], lambda v: v.finished is not None),
    StateFault("DELIVERY_COMPLETE_COUNT_MISMATCH", "a delivery complete count that the states do not bear out",
               lambda v: [v.update(delivery_complete_count=_count(v) + 5)], lambda v: _count(v) >= 0, since="4.2"),
    StateFault("STATE_AFTER_DELETE", "an update behind a tombstone",
               lambda v: [v.bytes(None), v.update()], since="4.1"),
    StateFault("TOMBSTONE_WITHOUT_STATE", "a tombstone of a share-partition that never was",
               lambda v: [_unheard_of(v).bytes(None)], since="4.1", whose=lambda v: _unheard_of(v).key),
    StateFault("LONG_CHAIN", "more updates than a snapshot may be followed by",
               lambda v: [v.update() for _ in range(v.updates_per_snapshot + 2)]),
    StateFault("START_NOT_CARRIED", "an update that leaves the start out",
               lambda v: [v.update(start_offset=-1)], lambda v: v.start >= 0, since="4.4"),
    StateFault("COUNT_REGRESSION", "a delivery complete count that falls although the start stays",
               lambda v: [v.update(delivery_complete_count=_count(v) - 1)], lambda v: _count(v) > 0, since="4.4"),
    StateFault("ARCHIVING_STUCK", "a record that waits for a dead letter queue at the end of the log",
               lambda v: [v.update((v.free, v.free, DeliveryState.ARCHIVING, 1))], since="4.4"),
    StateFault("ARCHIVING_PASSED", "a start beyond a record that waits for a dead letter queue",
               lambda v: [v.update((v.free, v.free, DeliveryState.ARCHIVING, 1)),
                          v.update(start_offset=v.free + 1, delivery_complete_count=0)], since="4.4"),
)  # fmt: skip
"""Every victim has a start: share-partitions that were never read are left alone."""


STRANGER = "stranger"


@dataclass(frozen=True, slots=True)
class ControlVictim:
    """A group whose chain a fault may befall.

    Attributes:
        writer: of the topic-partition's control records.
        group_id: the group.
        now_ms: time of the log's latest record.
    """

    writer: DraftWriter
    group_id: str
    now_ms: int

    @property
    def state(self) -> ControlState:
        """Its durable state."""
        return self.writer.states[self.group_id]

    @property
    def others(self) -> list[ControlState]:
        """Of the other groups in this log."""
        return [state for group, state in self.writer.states.items() if group != self.group_id]

    @property
    def next_batch(self) -> StateBatch:
        """An offset behind the end, delivered once and released."""
        return StateBatch(self.state.end_offset, self.state.end_offset, DeliveryState.AVAILABLE, 1)

    def delta(self, *batches: StateBatch, back: int | None = None, step: int = 0, group_id: str | None = None) -> int:
        """A delta that names `back`, `step` epochs on; by default the one that would come next."""
        named = self.state.last_offset if back is None else back
        epoch = (self.state.checkpoint_epoch + step) % EPOCHS
        told = batches or (self.next_batch,)
        group = group_id or self.group_id
        return self.writer.append(ControlType.DELTA, group, epoch, {"back_offset": named}, told, self.now_ms)

    def checkpoint(self, *, step: int) -> int:
        """A checkpoint `step` epochs on."""
        state = self.state
        epoch = (state.checkpoint_epoch + step) % EPOCHS
        bounds = {"start_offset": state.start_offset, "end_offset": state.end_offset}
        return self.writer.append(ControlType.CHECKPOINT, self.group_id, epoch, bounds, state.batches, self.now_ms)


class ControlFault(NamedTuple):
    """One way to break a chain of control records.

    Attributes:
        finding: code of the rule that it breaks.
        what: in words.
        craft: writes the records; returns the offset of the one at fault.
        suits: whether a group can be its victim.
    """

    finding: str
    what: str
    craft: Callable[[ControlVictim], int]
    suits: Callable[[ControlVictim], bool] = lambda victim: True


def _names_no_record(victim: ControlVictim) -> int:
    return victim.delta(back=victim.writer.log.append(victim.now_ms, None, b"user data"))


def _names_an_older_epoch(victim: ControlVictim) -> int:
    state = victim.state
    whole = CheckpointWrite(state.start_offset, state.end_offset, state.batches)
    victim.writer.checkpoint(victim.group_id, whole, victim.now_ms)
    return victim.delta(back=state.last_offset)


def _names_one_that_is_taken(victim: ControlVictim) -> int:
    taken = victim.state.last_offset
    victim.writer.delta(victim.group_id, DeltaWrite((victim.next_batch,)), victim.now_ms)
    return victim.delta(back=taken)


def _batch(first: int, last: int, state: DeliveryState = DeliveryState.AVAILABLE, count: int = 1) -> StateBatch:
    return StateBatch(first, last, state, count)


CONTROL_FAULTS = (
    ControlFault("BROKEN_CHAIN", "a delta that names user data as its predecessor", _names_no_record),
    ControlFault("FORWARD_BACK_OFFSET", "a delta that names an offset yet to come",
                 lambda v: v.delta(back=v.writer.log.next_offset + 10)),
    ControlFault("CROSS_GROUP", "a delta that names another group's record",
                 lambda v: v.delta(back=v.others[0].last_offset), lambda v: bool(v.others)),
    ControlFault("CROSS_EPOCH", "a delta that names a record before its checkpoint", _names_an_older_epoch),
    ControlFault("FORK", "a second delta that names the same predecessor", _names_one_that_is_taken),
    ControlFault("STALE_EPOCH", "a delta of the checkpoint before", lambda v: v.delta(step=-1)),
    ControlFault("FUTURE_EPOCH", "a delta of a checkpoint that is missing", lambda v: v.delta(step=1)),
    ControlFault("EPOCH_GAP", "a checkpoint epoch left out", lambda v: v.checkpoint(step=2)),
    ControlFault("EPOCH_REPEAT", "a checkpoint epoch used twice", lambda v: v.checkpoint(step=0)),
    ControlFault("ORPHAN_DELTA", "a delta of a group without a checkpoint",
                 lambda v: v.delta(group_id=STRANGER), lambda v: STRANGER not in v.writer.states),
    ControlFault("BELOW_START", "a delta that tells of an offset below the start",
                 lambda v: v.delta(_batch(v.state.start_offset - 1, v.state.start_offset - 1)),
                 lambda v: v.state.start_offset > 0),
    ControlFault("UNCOVERED_GAP", "a delta that jumps beyond the end",
                 lambda v: v.delta(_batch(v.state.end_offset + 3, v.state.end_offset + 4))),
    ControlFault("OVERLAP_IN_DELTA", "a delta with two batches over each other",
                 lambda v: v.delta(_batch(v.state.end_offset, v.state.end_offset + 4),
                                   _batch(v.state.end_offset + 2, v.state.end_offset + 2, count=2))),
    ControlFault("PERSISTED_ACQUIRED", "a delta that tells of an acquired record",
                 lambda v: v.delta(_batch(v.state.end_offset, v.state.end_offset, DeliveryState.ACQUIRED))),
)  # fmt: skip
