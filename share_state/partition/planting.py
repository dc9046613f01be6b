"""Plants faults in finished logs: chooses who is hit, so that no fault hides another."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from share_state.partition.batch_faults import BatchFault, LogOnDisk
from share_state.partition.control_faults import STRANGER, ControlFault, ControlVictim
from share_state.partition.draft_writer import DraftWriter
from share_state.partition.faults import ALL, BASE_LOST, BATCH, CONTROL, FAULTS, STATE, Planted
from share_state.partition.segments import LogWriter, flush_logs
from share_state.partition.simulation_error import SimulationError
from share_state.partition.state_faults import StateFault, Victim
from share_state.partition.state_topic import StateTopic
from share_state.partition.writes import NO_START_OFFSET
from share_state.wire.log_folder import STATE_TOPIC

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
