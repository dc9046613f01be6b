"""Plants faults in valid logs: damaged record batches and segments, invalid records, deleted base snapshots."""

import json
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import google_crc32c

from share_state.simulator.draft import DraftWriter
from share_state.simulator.log_writer import LogWriter, StateTopic, flush_logs
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
from share_state.sources.discovery import STATE_TOPIC

_LENGTH_AT, _MAGIC_AT, _CRC_AT, _CHECKED_AT, _LAST_DELTA_AT, _TIMESTAMP_AT = 8, 16, 17, 21, 23, 27
_LENGTH_OVERHEAD = 12
_TRANSACTIONAL = 0x10
_OLD_MAGIC = 1


class BatchSpan(NamedTuple):
    """Byte range of a record batch in its segment, and its first and last offset."""

    begin: int
    end: int
    base_offset: int
    last_offset: int


class LogOnDisk:
    """The valid segments of one log partition."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.segments = sorted(path for path in folder.glob("*.log") if path.stat().st_size)
        self.folder, self.rng = folder, rng

    def inner_batch(self) -> tuple[Path, BatchSpan]:
        """A random batch that is neither the log's first nor its last."""
        places = [(path, span) for path in self.segments for span in spans(path.read_bytes())][1:-1]
        if not places:
            raise SimulationError(f"{self.folder}: has no batch between two others to damage; simulate more")
        return self.rng.choice(places)

    def last_batch(self) -> tuple[Path, BatchSpan]:
        """The log's last batch."""
        if not self.segments:
            raise SimulationError(f"{self.folder}: has no batch to damage; simulate more")
        return self.segments[-1], spans(self.segments[-1].read_bytes())[-1]


def spans(data: bytes) -> list[BatchSpan]:
    """The batches of a valid segment."""
    batches, at = [], 0
    while at < len(data):
        base, length = struct.unpack_from(">qi", data, at)
        end = at + _LENGTH_OVERHEAD + length
        batches.append(BatchSpan(at, end, base, base + struct.unpack_from(">i", data, at + _LAST_DELTA_AT)[0]))
        at = end
    return batches


@dataclass(frozen=True, slots=True)
class BatchFault(Fault):
    """Damage to a log.

    Attributes:
        damage: damages a log; returns the offset of the damaged batch.
    """

    damage: Callable[[LogOnDisk], int]


@dataclass(frozen=True, slots=True)
class StateBatchFault(BatchFault):
    """Damage to logs of the state topic; other logs may have gaps and transactions."""

    dialects = StateFault.dialects


def _write_at(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def _flip_byte(log: LogOnDisk) -> int:
    path, span = log.inner_batch()
    _write_at(path, span.end - 1, bytes([path.read_bytes()[span.end - 1] ^ 0x40]))
    return span.base_offset


def _truncate_tail(log: LogOnDisk) -> int:
    path, span = log.last_batch()
    with path.open("r+b") as file:
        file.truncate(span.end - log.rng.randint(1, span.end - span.begin - 1))
    return span.base_offset


def _set_old_magic(log: LogOnDisk) -> int:
    path, span = log.inner_batch()
    _write_at(path, span.begin + _MAGIC_AT, bytes([_OLD_MAGIC]))
    return span.base_offset


def _corrupt_length(log: LogOnDisk) -> int:
    path, span = log.inner_batch()
    _write_at(path, span.begin + _LENGTH_AT, struct.pack(">i", 1))
    return span.base_offset


def _remove_batch(log: LogOnDisk) -> int:
    path, span = log.inner_batch()
    data = path.read_bytes()
    path.write_bytes(data[: span.begin] + data[span.end :])
    return span.base_offset


def _remove_segment(log: LogOnDisk) -> int:
    inner = log.segments[1:-1]
    if not inner:
        raise SimulationError(f"{log.folder}: has no segment between two others to remove; use smaller segments")
    path = log.rng.choice(inner)
    path.unlink()
    return int(path.stem)


def _patch_batch(batch: bytes, at: int, data: bytes) -> bytes:
    """Replace bytes of a batch after its CRC field and update the CRC."""
    patched = bytearray(batch)
    patched[at : at + len(data)] = data
    struct.pack_into(">I", patched, _CRC_AT, google_crc32c.value(bytes(patched[_CHECKED_AT:])))
    return bytes(patched)


def _duplicate_batch(log: LogOnDisk) -> int:
    path, span = log.last_batch()
    batch = path.read_bytes()[span.begin : span.end]
    (timestamp,) = struct.unpack_from(">q", batch, _TIMESTAMP_AT)
    with path.open("ab") as file:
        file.write(_patch_batch(batch, _TIMESTAMP_AT, struct.pack(">q", timestamp + 1)))
    return span.base_offset


def _make_transactional(log: LogOnDisk) -> int:
    path, span = log.inner_batch()
    batch = path.read_bytes()[span.begin : span.end]
    (attributes,) = struct.unpack_from(">h", batch, _CHECKED_AT)
    _write_at(path, span.begin, _patch_batch(batch, _CHECKED_AT, struct.pack(">h", attributes | _TRANSACTIONAL)))
    return span.base_offset


ALL, BASE_LOST, MISSING_SEGMENT = "all", "base-lost", "missing-segment"

_BATCH_FAULTS = (
    BatchFault("CRC_MISMATCH", "a flipped bit in a batch", _flip_byte),
    BatchFault("TORN_TAIL", "a truncated last batch", _truncate_tail),
    BatchFault("MAGIC_UNSUPPORTED", "a batch of an older format", _set_old_magic),
    BatchFault("BATCH_MALFORMED", "a batch whose length is wrong", _corrupt_length),
    StateBatchFault("OFFSET_GAP", "a missing batch", _remove_batch),
    StateBatchFault("OFFSET_GAP", "a missing segment", _remove_segment),
    BatchFault("DUPLICATE_OFFSET_CONFLICT", "two different batches with the same offset", _duplicate_batch),
    StateBatchFault("TRANSACTIONAL_BATCH", "a batch of a transaction", _make_transactional),
)
_BASE_LOST = Fault("BASE_LOST", "a log start past the snapshot of a live share-partition")

FAULTS: dict[str, Fault] = {
    MISSING_SEGMENT if fault.description == "a missing segment" else fault.name: fault
    for fault in (*_BATCH_FAULTS, *STATE_FAULTS, *CONTROL_FAULTS, _BASE_LOST)
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
        row |= {"offset": self.offset, "group": self.group, "topicId": self.topic_id, "partition": self.partition}
        return json.dumps({name: value for name, value in row.items() if value is not None}, ensure_ascii=False)


TopicPartition = tuple[str, int]
"""Topic and partition of a log."""


@dataclass(slots=True)
class SimulatedLogs:
    """The logs in which faults can be planted.

    Attributes:
        state: the state topic, or None.
        control: topic, partition and writer of each log with control records.
        all: every log in the folder.
        folder: that contains the log folders.
        now_ms: time at the end of the simulation.
    """

    state: StateTopic | None
    control: list[tuple[str, int, DraftWriter]]
    all: list[LogWriter]
    folder: Path
    now_ms: int
    delivery_count_limit: int


def check_names(names: Sequence[str]) -> None:
    """Check that faults are known.

    Raises:
        SimulationError: if one is not.
    """
    unknown = [name for name in names if name not in FAULTS and name != ALL]
    if unknown:
        raise SimulationError(f"fault {unknown[0]!r} is not known; use one of {', '.join(sorted(FAULTS))}, or {ALL}")


def plant_faults(names: Sequence[str], logs: SimulatedLogs, seed: int) -> list[PlantedFault]:
    """Plant faults: first faulty records, then, after the logs are on disk, damage.

    Args:
        names: names in FAULTS, checked; ALL means every fault that has a target in these logs.
        logs: complete and valid logs.
        seed: determines the targets. No target is used twice; damage goes to logs without other faults if possible.
    Raises:
        SimulationError: if a fault has no target.
    """
    ordered_names = list(FAULTS) if ALL in names else list(dict.fromkeys(names))
    ordered_names.sort(key=lambda name: (isinstance(FAULTS[name], BatchFault), name != BASE_LOST))
    damages = sum(isinstance(FAULTS[name], BatchFault) for name in ordered_names)
    planter = _FaultPlanter(logs, random.Random(f"faults {seed}"), damages)
    planted = []
    for name in ordered_names:
        if isinstance(FAULTS[name], BatchFault):
            planter.flush()
        planted_fault = planter.plant(name)
        if planted_fault is None and ALL not in names:
            raise SimulationError(f"fault {name}: no suitable log or share-partition; simulate more groups or minutes")
        planted += [planted_fault] if planted_fault else []
    planter.flush()
    return planted


class _FaultPlanter:
    """Plants faults, and uses no target twice."""

    def __init__(self, logs: SimulatedLogs, rng: random.Random, damages: int) -> None:
        self.logs, self.rng = logs, rng
        self.state_targets = list(self._state_targets())
        self.control_targets = [
            ((topic, partition), ControlFaultTarget(writer, group, logs.now_ms))
            for topic, partition, writer in logs.control
            for group in writer.states
        ]
        rng.shuffle(self.state_targets)
        rng.shuffle(self.control_targets)
        # The longest logs have enough batches and segments to remove some.
        self.to_damage = self._longest_first()
        self.reserved = set(self.to_damage[:damages])

    def flush(self) -> None:
        flush_logs(self.logs.folder, self.logs.all)

    def plant(self, name: str) -> PlantedFault | None:
        match FAULTS[name]:
            case BatchFault() as fault:
                return self._plant_in_batch(name, fault)
            case StateFault() as fault:
                return self._plant_in_state(name, fault)
            case ControlFault() as fault:
                return self._plant_in_control(name, fault)
        return self._plant_base_lost() if self.logs.state else self._plant_control_base_lost()

    def _state_targets(self) -> Iterator[FaultTarget]:
        topic = self.logs.state
        for number, coordinator in enumerate(topic.coordinators if topic else ()):
            assert topic
            for key, entry in coordinator.entries.items():
                if entry.state.start_offset != NO_START_OFFSET:
                    yield FaultTarget(
                        key=key,
                        entry=entry,
                        release=topic.settings.release,
                        state_partition=number,
                        state_partitions=topic.settings.state_partitions,
                        updates_per_snapshot=topic.settings.updates_per_snapshot,
                        delivery_count_limit=self.logs.delivery_count_limit,
                        now_ms=self.logs.now_ms,
                    )

    def _plant_in_state(self, name: str, fault: StateFault) -> PlantedFault | None:
        topic = self.logs.state
        if topic is None or topic.settings.release.name < fault.since:
            return None
        candidates = [target for target in self.state_targets if fault.applies_to(target)]
        free = [target for target in candidates if (STATE_TOPIC, target.state_partition) not in self.reserved]
        target = next(iter(free or candidates), None)
        if target is None:
            return None
        self.state_targets.remove(target)
        log, offset = topic.logs[target.state_partition], -1
        log.end_batch()
        for index, (key, value, after_ms) in enumerate(fault.build(target)):
            offset = log.append(target.now_ms + index + after_ms, key, value)
        log.end_batch()
        log_partition = STATE_TOPIC, target.state_partition
        if fault.finding == "KEY_MALFORMED":
            # The record may belong to any share-partition, so no chain of the log is judged across it.
            self.reserved.add(log_partition)
        group, topic_id, partition = fault.subject(target) or (None, None, None)
        return PlantedFault(name, fault.finding, log_partition, offset, group, topic_id, partition)

    def _plant_in_control(self, name: str, fault: ControlFault) -> PlantedFault | None:
        candidates = [(where, target) for where, target in self.control_targets if fault.applies_to(target)]
        free = [(where, target) for where, target in candidates if where not in self.reserved]
        for where, target in (free or candidates)[:1]:
            self.control_targets.remove((where, target))
            group = STRANGER if name == "orphan-delta" else target.group_id
            return PlantedFault(name, fault.finding, where, fault.build(target), group, None, where[1])
        return None

    def _plant_base_lost(self) -> PlantedFault | None:
        """Delete the base snapshot of a share-partition in a log with few others, which lose theirs too."""
        free = [target for target in self.state_targets if (STATE_TOPIC, target.state_partition) not in self.reserved]
        topic, targets = self.logs.state, free or self.state_targets
        if topic is None or not targets:
            return None
        target_counts = Counter(target.state_partition for target in targets)
        victim = min(targets, key=lambda target: target_counts[target.state_partition])
        self.state_targets = [one for one in self.state_targets if one.state_partition != victim.state_partition]
        self.to_damage.remove((STATE_TOPIC, victim.state_partition))
        log = topic.logs[victim.state_partition]
        while True:
            log.end_batch()
            record = victim.update()
            offset = log.append(victim.now_ms + 1, record.key, record.value)
            log.end_batch()
            log.delete_before(offset)
            # Brokers checkpoint only log starts inside a segment; at other log starts, no record seems to be missing.
            if log.starts_inside_segment:
                return PlantedFault(BASE_LOST, "BASE_LOST", (STATE_TOPIC, victim.state_partition), offset, *victim.key)

    def _plant_control_base_lost(self) -> PlantedFault | None:
        """Delete the checkpoint of a delta in a log of the draft."""
        free = [one for one in self.control_targets if one[0] not in self.reserved] or self.control_targets
        if not free:
            return None
        target_counts = Counter(where for where, _ in free)
        log_partition, target = min(free, key=lambda one: target_counts[one[0]])
        self.control_targets = [one for one in self.control_targets if one[0] != log_partition]
        self.to_damage.remove(log_partition)
        offset = target.delta()
        target.writer.log.delete_before(offset)
        return PlantedFault(BASE_LOST, "BASE_LOST", log_partition, offset, target.group_id, None, log_partition[1])

    def _plant_in_batch(self, name: str, fault: BatchFault) -> PlantedFault | None:
        if self.logs.state is None and isinstance(fault, StateBatchFault):
            return None
        for where in self.to_damage:
            try:
                offset = fault.damage(LogOnDisk(self.logs.folder / f"{where[0]}-{where[1]}", self.rng))
            except SimulationError:
                continue
            self.to_damage.remove(where)
            return PlantedFault(name, fault.finding, where, offset)
        return None

    def _longest_first(self) -> list[TopicPartition]:
        topic = self.logs.state
        if topic is None:
            sizes = {(name, partition): writer.log.next_offset for name, partition, writer in self.logs.control}
        else:
            sizes = {(STATE_TOPIC, number): log.next_offset for number, log in enumerate(topic.logs)}
        return sorted((where for where in sizes if sizes[where]), key=lambda where: -sizes[where])
