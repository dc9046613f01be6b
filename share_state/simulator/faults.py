"""Plants faults in valid logs: damaged record batches and segments, invalid records, deleted base snapshots."""

import json
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import google_crc32c

from share_state.kafka.record_batches import TRANSACTIONAL
from share_state.simulator.cluster import SimulatedCluster
from share_state.simulator.group_faults import (
    GROUP_FAULTS,
    GroupFault,
    GroupFaultTarget,
    initialized_of,
)
from share_state.simulator.log_writer import batch_bounds, flush_logs
from share_state.simulator.record_faults import (
    CONTROL_FAULTS,
    STATE_FAULTS,
    STRANGER,
    ControlFault,
    ControlFaultTarget,
    Fault,
    FaultTarget,
    StateFault,
)
from share_state.simulator.types import NO_START_OFFSET, SimulationError
from share_state.sources.log_partition import GROUP_TOPIC, STATE_TOPIC

_LENGTH_AT = 8
_MAGIC_AT = 16
_CRC_AT = 17
_CHECKED_AT = 21
_TIMESTAMP_AT = 27
_OLD_MAGIC = 1


@dataclass(frozen=True, slots=True)
class BatchFault(Fault):
    """Damage to a log.

    Attributes:
        damage: returns what takes the place of a batch; None if a whole segment is removed instead.
        is_at_end: whether it damages the last batch of a log, otherwise a random one between two others.
    """

    damage: Callable[[bytes, random.Random], bytes] | None
    is_at_end: bool = False

    def apply(self, folder: Path, rng: random.Random) -> int | None:
        """Damage the valid log in a folder.

        Returns the offset of the damage, None if the log is too short.
        """
        segments = sorted(path for path in folder.glob("*.log") if path.stat().st_size)
        if self.damage is None:
            if not segments[2:]:
                return None
            path = rng.choice(segments[1:-1])
            path.unlink()
            return int(path.stem)
        batches = [(path, begin, end) for path in segments for begin, end in batch_bounds(path.read_bytes())]
        batches = batches[-1:] if self.is_at_end else batches[1:-1]
        if not batches:
            return None
        path, begin, end = batches[0] if self.is_at_end else rng.choice(batches)
        data = path.read_bytes()
        path.write_bytes(data[:begin] + self.damage(data[begin:end], rng) + data[end:])
        return struct.unpack_from(">q", data, begin)[0]


@dataclass(frozen=True, slots=True)
class StateBatchFault(BatchFault):
    """Damage to logs of the state topic; other logs may have gaps and transactions."""

    dialects = StateFault.dialects


def _patched(batch: bytes, at: int, data: bytes) -> bytes:
    """Replace bytes of a batch; after the CRC field, update the CRC."""
    patched = bytearray(batch)
    patched[at : at + len(data)] = data
    if at >= _CHECKED_AT:
        struct.pack_into(">I", patched, _CRC_AT, google_crc32c.value(bytes(patched[_CHECKED_AT:])))
    return bytes(patched)


def _duplicated(batch: bytes, _: random.Random) -> bytes:
    (timestamp,) = struct.unpack_from(">q", batch, _TIMESTAMP_AT)
    return batch + _patched(batch, _TIMESTAMP_AT, struct.pack(">q", timestamp + 1))


def _transactional(batch: bytes, _: random.Random) -> bytes:
    (attributes,) = struct.unpack_from(">h", batch, _CHECKED_AT)
    return _patched(batch, _CHECKED_AT, struct.pack(">h", attributes | TRANSACTIONAL))


ALL = "all"
BASE_LOST = "base-lost"
MISSING_SEGMENT = "missing-segment"

_BATCH_FAULTS = (
    BatchFault("CRC_MISMATCH", "a flipped bit in a batch", lambda batch, _: batch[:-1] + bytes([batch[-1] ^ 0x40])),
    BatchFault("TORN_TAIL", "a truncated last batch", lambda batch, rng: batch[: -rng.randint(1, len(batch) - 1)],
               is_at_end=True),
    BatchFault("MAGIC_UNSUPPORTED", "a batch of an older format",
               lambda batch, _: _patched(batch, _MAGIC_AT, bytes([_OLD_MAGIC]))),
    BatchFault("BATCH_MALFORMED", "a batch whose length is wrong",
               lambda batch, _: _patched(batch, _LENGTH_AT, struct.pack(">i", 1))),
    StateBatchFault("OFFSET_GAP", "a missing batch", lambda *_: b""),
    StateBatchFault("OFFSET_GAP", "a missing segment", None),
    BatchFault("DUPLICATE_OFFSET_CONFLICT", "two different batches with the same offset", _duplicated, is_at_end=True),
    StateBatchFault("TRANSACTIONAL_BATCH", "a batch of a transaction", _transactional),
)  # fmt: skip
_BASE_LOST = Fault("BASE_LOST", "a log start past the snapshot of a live share-partition")

FAULTS: dict[str, Fault] = {
    MISSING_SEGMENT if fault.description == "a missing segment" else fault.name: fault
    for fault in (*_BATCH_FAULTS, *STATE_FAULTS, *CONTROL_FAULTS, *GROUP_FAULTS, _BASE_LOST)
}
"""Every fault by name."""


@dataclass(frozen=True, slots=True)
class PlantedFault:
    """A planted fault.

    Attributes:
        fault: name of the fault.
        finding: rule that must report it.
        log: topic and partition of the log.
        offset: offset of the faulty record or batch.
        group: group of the share-partition that the finding names; None if it names the log.
        topic_id: topic id of the share-partition; None in the draft dialect.
        partition: partition of the share-partition.
    """

    fault: str
    finding: str
    log: tuple[str, int]
    offset: int
    group: str | None = None
    topic_id: str | None = None
    partition: int | None = None

    def to_json(self) -> str:
        """One JSON line without newline."""
        row = {"fault": self.fault, "finding": self.finding, "log": f"{self.log[0]}-{self.log[1]}"}
        row |= {
            "offset": self.offset,
            "group": self.group,
            "topicId": self.topic_id,
            "partition": self.partition,
        }
        return json.dumps(
            {name: value for name, value in row.items() if value is not None}, ensure_ascii=False
        )


def check_names(names: Sequence[str]) -> None:
    """Check that faults are known.

    Raises:
        SimulationError: if one is not.
    """
    unknown = [name for name in names if name not in FAULTS and name != ALL]
    if unknown:
        raise SimulationError(f"--fault {unknown[0]}: give one of {', '.join(sorted(FAULTS))}, or {ALL}")


def plant_faults(names: Sequence[str], cluster: SimulatedCluster, seed: int) -> list[PlantedFault]:
    """Plant faults: first faulty records, then, after the logs are on disk, damage.

    Args:
        names: names in FAULTS, checked; ALL means every fault that has a target in these logs.
        cluster: has complete and valid logs.
        seed: determines the targets. No target is used twice; damage goes to logs without other faults if
            possible.
    Raises:
        SimulationError: if a fault has no target.
    """
    ordered_names = list(FAULTS) if ALL in names else list(dict.fromkeys(names))
    ordered_names.sort(key=lambda name: (isinstance(FAULTS[name], BatchFault), name != BASE_LOST))
    damages = sum(isinstance(FAULTS[name], BatchFault) for name in ordered_names)
    planter = _FaultPlanter(cluster, random.Random(f"faults {seed}"), damages)
    planted = []
    for name in ordered_names:
        if isinstance(FAULTS[name], BatchFault):
            planter.flush()
        planted_fault = planter.plant(name)
        if planted_fault is None and ALL not in names:
            is_of_groups = isinstance(FAULTS[name], GroupFault)
            missing = "group" if is_of_groups else "log or share-partition"
            needs = "--consumer-offsets, and " if is_of_groups and cluster.group_side is None else ""
            raise SimulationError(
                f"fault {name}: no suitable {missing}; simulate {needs}more groups or minutes"
            )
        planted += [planted_fault] if planted_fault else []
    planter.flush()
    return planted


TopicPartition = tuple[str, int]
"""Topic and partition of a log."""

_Target = TypeVar("_Target", FaultTarget, ControlFaultTarget)


class _FaultPlanter:
    """Plants faults, and uses no target twice."""

    def __init__(self, cluster: SimulatedCluster, rng: random.Random, damages: int) -> None:
        self.cluster = cluster
        self.rng = rng
        self.topic = cluster.state_topic
        self.state_targets = list(self._state_targets())
        self.control_targets = [
            (where, ControlFaultTarget(writer, group, cluster.now_ms))
            for where, writer in cluster.topic_logs.items()
            for group in writer.states
        ]
        rng.shuffle(self.state_targets)
        self.group_targets = list(self._group_targets())
        rng.shuffle(self.control_targets)
        rng.shuffle(self.group_targets)
        if self.topic is None:
            sizes = {where: writer.log.next_offset for where, writer in cluster.topic_logs.items()}
        else:
            sizes = {(STATE_TOPIC, number): log.next_offset for number, log in enumerate(self.topic.logs)}
        # The longest logs have enough batches and segments to remove some.
        self.to_damage = sorted((where for where in sizes if sizes[where]), key=lambda where: -sizes[where])
        self.reserved = set(self.to_damage[:damages])

    def _state_targets(self) -> Iterator[tuple[TopicPartition, FaultTarget]]:
        if self.topic is None:
            return
        settings = self.topic.settings
        limit = self.cluster.settings.player.initial_settings.delivery_count_limit
        for number, coordinator in enumerate(self.topic.coordinators):
            for key, entry in coordinator.entries.items():
                if entry.state.start_offset != NO_START_OFFSET:
                    yield (
                        (STATE_TOPIC, number),
                        FaultTarget(key, entry, settings, number, limit, self.cluster.now_ms),
                    )

    def _group_targets(self) -> Iterator[GroupFaultTarget]:
        """Groups, each with one of its share-partitions."""
        side = self.cluster.group_side
        if side is None or self.topic is None:
            return
        epochs = {
            key: entry.state.state_epoch
            for coordinator in self.topic.coordinators
            for key, entry in coordinator.entries.items()
        }
        for _, group in sorted(side.coordinator.groups.items()):
            places = initialized_of(side, group)
            place = self.rng.choice(places) if places else None
            target = GroupFaultTarget(side, group, -1, place, self.cluster.now_ms)
            yield replace(target, state_epoch=epochs.get(target.key, -1) if target.key else -1)

    def flush(self) -> None:
        flush_logs(self.cluster.folder, self.cluster.logs)

    def plant(self, name: str) -> PlantedFault | None:
        match FAULTS[name]:
            case BatchFault() as fault:
                return self._plant_in_batch(name, fault)
            case StateFault() as fault:
                return self._plant_in_state(name, fault)
            case ControlFault() as fault:
                return self._plant_in_control(name, fault)
            case GroupFault() as fault:
                return self._plant_in_group(name, fault)
        return self._plant_base_lost() if self.topic else self._plant_control_base_lost()

    def _preferred(
        self, targets: list[tuple[TopicPartition, _Target]]
    ) -> list[tuple[TopicPartition, _Target]]:
        """The targets in logs that are not to be damaged; all targets if there are none."""
        return [one for one in targets if one[0] not in self.reserved] or targets

    def _plant_in_state(self, name: str, fault: StateFault) -> PlantedFault | None:
        if self.topic is None or not fault.is_possible(self.topic.settings.release):
            return None
        candidates = self._preferred([one for one in self.state_targets if fault.applies_to(one[1])])
        if not candidates:
            return None
        where, target = candidates[0]
        self.state_targets.remove((where, target))
        log, offset = self.topic.logs[target.state_partition], -1
        log.end_batch()
        for index, (key, value, after_ms) in enumerate(fault.build(target)):
            offset = log.append(target.now_ms + index + after_ms, key, value)
        log.end_batch()
        if fault.finding == "KEY_MALFORMED":
            # The record may belong to any share-partition, so no chain of the log is judged across it.
            self.reserved.add(where)
        return PlantedFault(
            name, fault.finding, where, offset, *(fault.subject(target) or (None, None, None))
        )

    def _plant_in_control(self, name: str, fault: ControlFault) -> PlantedFault | None:
        candidates = self._preferred([one for one in self.control_targets if fault.applies_to(one[1])])
        if not candidates:
            return None
        where, target = candidates[0]
        self.control_targets.remove((where, target))
        group = STRANGER if name == "orphan-delta" else target.group_id
        return PlantedFault(name, fault.finding, where, fault.build(target), group, None, where[1])

    def _plant_in_group(self, name: str, fault: GroupFault) -> PlantedFault | None:
        suitable = [one for one in self.group_targets if fault.applies_to(one)]
        if not suitable:
            return None
        unharmed = {state.key for where, state in self.state_targets if where not in self.reserved}
        target = next((one for one in suitable if one.key in unharmed), suitable[0])
        self.group_targets.remove(target)
        log = target.side.logs[target.number]
        log.end_batch()
        offset = log.next_offset
        for record, after_ms in fault.build(target):
            log.append(target.now_ms + after_ms, *record)
        log.end_batch()
        where = GROUP_TOPIC, target.number
        return PlantedFault(
            name, fault.finding, where, offset, *(fault.subject(target) or (None, None, None))
        )

    def _take_log(self, targets: list[tuple[TopicPartition, _Target]]) -> tuple[TopicPartition, _Target]:
        """A target in a log with few others, which also lose their base.

        No other fault is planted in that log.
        """
        preferred = self._preferred(targets)
        counts = Counter(where for where, _ in preferred)
        log_partition, target = min(preferred, key=lambda one: counts[one[0]])
        targets[:] = [one for one in targets if one[0] != log_partition]
        self.to_damage.remove(log_partition)
        return log_partition, target

    def _plant_base_lost(self) -> PlantedFault | None:
        """Delete the base snapshot of a share-partition."""
        if self.topic is None or not self.state_targets:
            return None
        where, victim = self._take_log(self.state_targets)
        log = self.topic.logs[victim.state_partition]
        while True:
            log.end_batch()
            record = victim.update()
            offset = log.append(victim.now_ms + 1, record.key, record.value)
            log.end_batch()
            log.delete_before(offset)
            # Brokers checkpoint only log starts inside a segment; at other log starts, no record seems to be
            # missing.
            if log.starts_inside_segment:
                return PlantedFault(BASE_LOST, "BASE_LOST", where, offset, *victim.key)

    def _plant_control_base_lost(self) -> PlantedFault | None:
        """Delete the checkpoint of a delta in a log of the draft."""
        if not self.control_targets:
            return None
        where, target = self._take_log(self.control_targets)
        offset = target.delta()
        target.writer.log.delete_before(offset)
        return PlantedFault(BASE_LOST, "BASE_LOST", where, offset, target.group_id, None, where[1])

    def _plant_in_batch(self, name: str, fault: BatchFault) -> PlantedFault | None:
        if self.topic is None and isinstance(fault, StateBatchFault):
            return None
        for where in self.to_damage:
            offset = fault.apply(self.cluster.folder / f"{where[0]}-{where[1]}", self.rng)
            if offset is not None:
                self.to_damage.remove(where)
                return PlantedFault(name, fault.finding, where, offset)
        return None
