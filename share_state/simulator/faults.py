"""Damage to segments: what disks, copies and people do to a log that was sound.

The table of faults: each breaks a finished log in one place, and says which finding that must cause, and where.

Plants faults in finished logs: chooses who is hit, so that no fault hides another.
"""

import json
import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
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
    ControlVictim,
    StateFault,
    Victim,
)
from share_state.simulator.types import NO_START_OFFSET, SimulationError
from share_state.sources.discovery import STATE_TOPIC

_LENGTH_AT, _MAGIC_AT, _CRC_AT, _CHECKED_AT, _LAST_DELTA_AT, _TIMESTAMP_AT = 8, 16, 17, 21, 23, 27
_BEFORE_LENGTH_COUNTS = 12
_TRANSACTIONAL = 0x10
_OLD_MAGIC = 1


class Span(NamedTuple):
    """Where a record batch lies in its segment, in bytes, and its first and last offset."""

    begin: int
    end: int
    base_offset: int
    last_offset: int


class LogOnDisk:
    """The segments of one log partition, none of them damaged so far.

    Args:
        folder: of the log partition.
        rng: chooses where the damage is done.
    """

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.segments = sorted(path for path in folder.glob("*.log") if path.stat().st_size)
        self.folder, self.rng = folder, rng

    def inner_batch(self) -> tuple[Path, Span]:
        """A batch that is neither the log's first nor its last."""
        places = [(path, span) for path in self.segments for span in spans(path.read_bytes())][1:-1]
        if not places:
            raise SimulationError(f"{self.folder}: has no batch between others to damage; simulate more")
        return self.rng.choice(places)

    def last_batch(self) -> tuple[Path, Span]:
        """The log's last batch."""
        if not self.segments:
            raise SimulationError(f"{self.folder}: has no batch to damage; simulate more")
        return self.segments[-1], spans(self.segments[-1].read_bytes())[-1]


def spans(data: bytes) -> list[Span]:
    """The batches of a sound segment."""
    found, at = [], 0
    while at < len(data):
        base, length = struct.unpack_from(">qi", data, at)
        end = at + _BEFORE_LENGTH_COUNTS + length
        found.append(Span(at, end, base, base + struct.unpack_from(">i", data, at + _LAST_DELTA_AT)[0]))
        at = end
    return found


class BatchFault(NamedTuple):
    """One way to damage a log.

    Attributes:
        name: of the fault.
        finding: code of the rule that it breaks.
        what: in words.
        damage: does it; returns the offset that is hit.
        is_for_any_topic: whether it means anything in logs that may have holes and transactions.
    """

    name: str
    finding: str
    what: str
    damage: Callable[[LogOnDisk], int]
    is_for_any_topic: bool = True


def _write_at(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def _flip_a_byte(log: LogOnDisk) -> int:
    path, span = log.inner_batch()
    _write_at(path, span.end - 1, bytes([path.read_bytes()[span.end - 1] ^ 0x40]))
    return span.base_offset


def _tear(log: LogOnDisk) -> int:
    path, span = log.last_batch()
    with path.open("r+b") as file:
        file.truncate(span.end - log.rng.randint(1, span.end - span.begin - 1))
    return span.base_offset


def _age(log: LogOnDisk) -> int:
    path, span = log.inner_batch()
    _write_at(path, span.begin + _MAGIC_AT, bytes([_OLD_MAGIC]))
    return span.base_offset


def _lie_about_the_length(log: LogOnDisk) -> int:
    path, span = log.inner_batch()
    _write_at(path, span.begin + _LENGTH_AT, struct.pack(">i", 1))
    return span.base_offset


def _cut_out(log: LogOnDisk) -> int:
    path, span = log.inner_batch()
    data = path.read_bytes()
    path.write_bytes(data[: span.begin] + data[span.end :])
    return span.base_offset


def _drop_a_segment(log: LogOnDisk) -> int:
    inner = log.segments[1:-1]
    if not inner:
        raise SimulationError(f"{log.folder}: has no segment between others to drop; let segments be smaller")
    path = log.rng.choice(inner)
    path.unlink()
    return int(path.stem)


def _rewritten(batch: bytes, at: int, data: bytes) -> bytes:
    """A batch with other bytes in its checked part, and the checksum that belongs to them."""
    whole = bytearray(batch)
    whole[at : at + len(data)] = data
    struct.pack_into(">I", whole, _CRC_AT, google_crc32c.value(bytes(whole[_CHECKED_AT:])))
    return bytes(whole)


def _tell_it_twice(log: LogOnDisk) -> int:
    path, span = log.last_batch()
    batch = path.read_bytes()[span.begin : span.end]
    (timestamp,) = struct.unpack_from(">q", batch, _TIMESTAMP_AT)
    with path.open("ab") as file:
        file.write(_rewritten(batch, _TIMESTAMP_AT, struct.pack(">q", timestamp + 1)))
    return span.base_offset


def _make_it_transactional(log: LogOnDisk) -> int:
    path, span = log.inner_batch()
    batch = path.read_bytes()[span.begin : span.end]
    (attributes,) = struct.unpack_from(">h", batch, _CHECKED_AT)
    _write_at(path, span.begin, _rewritten(batch, _CHECKED_AT, struct.pack(">h", attributes | _TRANSACTIONAL)))
    return span.base_offset


BATCH_FAULTS = (
    BatchFault("crc-mismatch", "CRC_MISMATCH", "a flipped bit in a batch", _flip_a_byte),
    BatchFault("torn-tail", "TORN_TAIL", "a log that ends inside a batch", _tear),
    BatchFault("magic-unsupported", "MAGIC_UNSUPPORTED", "a batch of an older format", _age),
    BatchFault("batch-malformed", "BATCH_MALFORMED", "a batch whose length is wrong", _lie_about_the_length),
    BatchFault("offset-gap", "OFFSET_GAP", "a batch that is not there", _cut_out, False),
    BatchFault("missing-segment", "OFFSET_GAP", "a segment that is not there", _drop_a_segment, False),
    BatchFault("duplicate-offset-conflict", "DUPLICATE_OFFSET_CONFLICT", "an offset told twice, differently",
               _tell_it_twice),
    BatchFault("transactional-batch", "TRANSACTIONAL_BATCH", "a batch of a transaction", _make_it_transactional, False),
)  # fmt: skip


ALL = "all"
BASE_LOST = "base-lost"


def name_of(fault: StateFault | ControlFault | BatchFault) -> str:
    """What a fault is asked for by: the finding's code in small letters, or the name it has of its own."""
    return fault.name if isinstance(fault, BatchFault) else fault.finding.lower().replace("_", "-")


STATE = {name_of(fault): fault for fault in STATE_FAULTS}
CONTROL = {name_of(fault): fault for fault in CONTROL_FAULTS}
BATCH = {name_of(fault): fault for fault in BATCH_FAULTS}


class Kind(NamedTuple):
    """A fault that can be asked for.

    Attributes:
        finding: code of the finding that it causes.
        what: in words.
        dialects: whose logs it can befall.
    """

    finding: str
    what: str
    dialects: tuple[str, ...]


_OF_STATE, _OF_CONTROL = ("share_group_state",), ("control_records",)
_OF_BOTH = _OF_STATE + _OF_CONTROL

FAULTS = {
    **{name: Kind(one.finding, one.what, _OF_BOTH if one.is_for_any_topic else _OF_STATE)
       for name, one in BATCH.items()},
    **{name: Kind(one.finding, one.what, _OF_STATE) for name, one in STATE.items()},
    **{name: Kind(one.finding, one.what, _OF_CONTROL) for name, one in CONTROL.items()},
    BASE_LOST: Kind("BASE_LOST", "a log start beyond what the state of a share-partition rests on", _OF_BOTH),
}  # fmt: skip
"""Every fault by name."""


@dataclass(frozen=True, slots=True)
class Planted:
    """A fault that was planted.

    Attributes:
        fault: its name.
        finding: code of the finding it must cause.
        log: topic and partition of the log it is in.
        offset: of the record or batch at fault.
        group: of the share-partition that the finding is about, None where it is about the log.
        topic_id: of the share-partition's topic, None in topics that are their own log.
        partition: of the share-partition.
    """

    fault: str
    finding: str
    log: tuple[str, int]
    offset: int
    group: str | None = None
    topic_id: str | None = None
    partition: int | None = None

    def to_json(self) -> str:
        """One JSON line, without the newline."""
        row = {"fault": self.fault, "finding": self.finding, "log": f"{self.log[0]}-{self.log[1]}"}
        row |= {"offset": self.offset, "group": self.group, "topicId": self.topic_id, "partition": self.partition}
        return json.dumps({name: value for name, value in row.items() if value is not None}, ensure_ascii=False)


Place = tuple[str, int]
"""Topic and partition of a log."""


@dataclass(slots=True)
class Logs:
    """Everything that faults can befall.

    Attributes:
        state: the state topic, None where the draft's dialect alone is written.
        control: topic, partition and writer of each log with control records.
        all: every log in the folder.
        folder: that holds the log folders.
        now_ms: the time at the end of the simulation.
        delivery_count_limit: in force.
    """

    state: StateTopic | None
    control: list[tuple[str, int, DraftWriter]]
    all: list[LogWriter]
    folder: Path
    now_ms: int
    delivery_count_limit: int


def check_names(names: Sequence[str]) -> None:
    """See that faults are known.

    Raises:
        SimulationError: if one is not.
    """
    unknown = [name for name in names if name not in FAULTS and name != ALL]
    if unknown:
        raise SimulationError(f"fault {unknown[0]!r} is not known; use one of {', '.join(sorted(FAULTS))}, or {ALL}")


def plant(names: Sequence[str], logs: Logs, seed: int) -> list[Planted]:
    """Plant faults: records first, then, once everything is on disk, damage.

    Args:
        names: of FAULTS; ALL stands for each that the logs have a victim for.
        logs: finished, without a fault.
        seed: decides on the victims. None is hit twice, and as long as there are logs enough, damage is done where no
            record is at fault.
    Returns:
        What was planted, in the order it was.
    Raises:
        SimulationError: if a fault is not known, or has no victim here.
    """
    check_names(names)
    wanted = list(FAULTS) if ALL in names else list(dict.fromkeys(names))
    wanted.sort(key=lambda name: (name in BATCH, name != BASE_LOST))
    planting = _Planting(logs, random.Random(f"faults {seed}"), damages=sum(name in BATCH for name in wanted))
    planted = []
    for name in wanted:
        if name in BATCH:
            planting.flush()
        found = planting.plant(name)
        if found is None and ALL not in names:
            raise SimulationError(f"fault {name}: nothing here can be its victim; simulate more groups or minutes")
        planted += [found] if found else []
    planting.flush()
    return planted


class _Planting:
    """Hands out victims, none of them twice."""

    def __init__(self, logs: Logs, rng: random.Random, damages: int) -> None:
        self.logs, self.rng = logs, rng
        self.state_victims = list(self._state_victims())
        self.control_victims = [
            ((topic, partition), ControlVictim(writer, group, logs.now_ms))
            for topic, partition, writer in logs.control
            for group in writer.states
        ]
        rng.shuffle(self.state_victims)
        rng.shuffle(self.control_victims)
        # The longest logs have batches and segments enough to lose some.
        self.to_damage = self._longest_first()
        self.reserved = set(self.to_damage[:damages])

    def flush(self) -> None:
        flush_logs(self.logs.folder, self.logs.all)

    def plant(self, name: str) -> Planted | None:
        if name in BATCH:
            return self._in_a_batch(BATCH[name])
        if name == BASE_LOST:
            return self._before_the_log_start() if self.logs.state else self._before_the_control_log_start()
        if name in STATE:
            return self._in_state(name, STATE[name])
        return self._in_control(name, CONTROL[name])

    def _state_victims(self) -> Iterator[Victim]:
        topic = self.logs.state
        for number, coordinator in enumerate(topic.coordinators if topic else ()):
            assert topic
            for key, held in coordinator.held.items():
                if held.state.start_offset != NO_START_OFFSET:
                    yield Victim(
                        key=key,
                        held=held,
                        release=topic.settings.release,
                        state_partition=number,
                        state_partitions=topic.settings.state_partitions,
                        updates_per_snapshot=topic.settings.updates_per_snapshot,
                        delivery_count_limit=self.logs.delivery_count_limit,
                        now_ms=self.logs.now_ms,
                    )

    def _in_state(self, name: str, fault: StateFault) -> Planted | None:
        topic = self.logs.state
        if topic is None or topic.settings.release.name < fault.since:
            return None
        suited = [victim for victim in self.state_victims if fault.suits(victim)]
        free = [victim for victim in suited if (STATE_TOPIC, victim.state_partition) not in self.reserved]
        victim = next(iter(free or suited), None)
        if victim is None:
            return None
        self.state_victims.remove(victim)
        log, offset = topic.logs[victim.state_partition], -1
        log.end_batch()
        for place, (key, value, after_ms) in enumerate(fault.craft(victim)):
            offset = log.append(victim.now_ms + place + after_ms, key, value)
        log.end_batch()
        planted, who = Planted(name, fault.finding, (STATE_TOPIC, victim.state_partition), offset), fault.whose(victim)
        if who is None:
            return planted
        return replace(planted, group=who.group_id, topic_id=who.topic_id, partition=who.partition)

    def _in_control(self, name: str, fault: ControlFault) -> Planted | None:
        suited = [(where, victim) for where, victim in self.control_victims if fault.suits(victim)]
        free = [(where, victim) for where, victim in suited if where not in self.reserved]
        for where, victim in (free or suited)[:1]:
            self.control_victims.remove((where, victim))
            group = STRANGER if name == "orphan-delta" else victim.group_id
            return Planted(name, fault.finding, where, fault.craft(victim), group, None, where[1])
        return None

    def _before_the_log_start(self) -> Planted | None:
        """Everything else in the log is lost with it, so that is one with few share-partitions."""
        free = [victim for victim in self.state_victims if (STATE_TOPIC, victim.state_partition) not in self.reserved]
        topic, victims = self.logs.state, free or self.state_victims
        if topic is None or not victims:
            return None
        crowd = Counter(victim.state_partition for victim in victims)
        chosen = min(victims, key=lambda victim: crowd[victim.state_partition])
        self.state_victims = [one for one in self.state_victims if one.state_partition != chosen.state_partition]
        self.to_damage.remove((STATE_TOPIC, chosen.state_partition))
        log = topic.logs[chosen.state_partition]
        while True:
            log.end_batch()
            crafted = chosen.update()
            offset = log.append(chosen.now_ms + 1, crafted.key, crafted.value)
            log.end_batch()
            log.delete_before(offset)
            # A log start at a segment's beginning is not noted, and then nobody can tell what was before it.
            if log.is_cut_inside:
                return Planted(BASE_LOST, "BASE_LOST", (STATE_TOPIC, chosen.state_partition), offset, *chosen.key)

    def _before_the_control_log_start(self) -> Planted | None:
        """As above, in a log of the draft: a delta is left whose checkpoint is gone."""
        free = [one for one in self.control_victims if one[0] not in self.reserved] or self.control_victims
        if not free:
            return None
        crowd = Counter(where for where, _ in free)
        chosen, victim = min(free, key=lambda one: crowd[one[0]])
        self.control_victims = [one for one in self.control_victims if one[0] != chosen]
        self.to_damage.remove(chosen)
        offset = victim.delta()
        victim.writer.log.delete_before(offset)
        return Planted(BASE_LOST, "BASE_LOST", chosen, offset, victim.group_id, None, chosen[1])

    def _in_a_batch(self, fault: BatchFault) -> Planted | None:
        if self.logs.state is None and not fault.is_for_any_topic:
            return None
        for where in self.to_damage:
            try:
                offset = fault.damage(LogOnDisk(self.logs.folder / f"{where[0]}-{where[1]}", self.rng))
            except SimulationError:
                continue
            self.to_damage.remove(where)
            return Planted(fault.name, fault.finding, where, offset)
        return None

    def _longest_first(self) -> list[Place]:
        topic = self.logs.state
        if topic is None:
            sizes = {(name, partition): writer.log.next_offset for name, partition, writer in self.logs.control}
        else:
            sizes = {(STATE_TOPIC, number): log.next_offset for number, log in enumerate(topic.logs)}
        return sorted((where for where in sizes if sizes[where]), key=lambda where: -sizes[where])
