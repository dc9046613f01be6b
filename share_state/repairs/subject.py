"""What can be done about a share-partition: an option, and the share-partition on which options are rehearsed."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from share_state.kafka.delivery_states import DeliveryState
from share_state.kafka.releases import Release
from share_state.repairs.commands import KafkaTools
from share_state.repairs.rehearsal import Effect, Rehearsal
from share_state.repairs.status import SharePartitionStatus, Survey
from share_state.simulator.durability import UnloadableStateError
from share_state.simulator.settings import PartitionSettings
from share_state.simulator.types import find_release

HARM = (
    "no harm",
    "settings change",
    "records may be delivered again",
    "records are skipped",
    "state is deleted",
)
"""The worst that an option can do; `Option.harm` is an index into this."""

NOTHING, SETTINGS, AGAIN, SKIPS, DELETES = range(len(HARM))


@dataclass(frozen=True, slots=True)
class Option:
    """One thing that can be done.

    Attributes:
        action: a code for it.
        harm: index of HARM.
        what: what to do, in a sentence or two.
        command: lines of bash; empty if no command does it.
        until: how long to wait.
        effect: the simulated effect; None if it leaves the state as it is, no leader can load the state, or it is
            suspect.
        then: code of the action that has to follow, which the effect includes; empty if none has to.
    """

    action: str
    harm: int
    what: str
    command: str = ""
    until: datetime | None = None
    effect: Effect | None = None
    then: str = ""

    @property
    def title(self) -> str:
        """The action, and the one that has to follow it."""
        return f"{self.action}, then {self.then}" if self.then else self.action


@dataclass(frozen=True, slots=True)
class Repair:
    """A share-partition in trouble.

    Attributes:
        status: what the tables hold about it.
        trouble: code of status.TROUBLES.
        sentence: what is wrong.
        now: its state as a leader loads it; None if none can, or if it is suspect.
        options: in order of harm.
        check: the command that shows what changed; empty if the input has no offsets.
    """

    status: SharePartitionStatus
    trouble: str
    sentence: str
    now: Effect | None
    options: tuple[Option, ...]
    check: str

    @property
    def also(self) -> dict[str, str]:
        """The less severe troubles: code -> message."""
        return {code: text for code, text in self.status.troubles.items() if code != self.trouble}


class Subject:
    """A share-partition in trouble, on which options are rehearsed.

    Attributes:
        status: what the tables hold about it.
        found: the share-partitions in trouble.
        tools: the commands of the cluster.
        is_empty: whether the group has no member; None if that is not known.
        release: the newest one that may have written the log.
        settings: the limits that hold for it.
        loaded: its state as a leader loads it, and `now` the effect of that; once it was loaded.
        waiting: what SPSO waits for: first and last offset, state and delivery count; None if it does not wait.
    """

    def __init__(
        self, status: SharePartitionStatus, found: Survey, tools: KafkaTools, *, is_empty: bool | None
    ) -> None:
        self.is_empty = is_empty
        self._without_change = list[Effect]()
        self.status = status
        self.found = found
        self.tools = tools
        row = status.row
        self.group = row["group_id"]
        self.topic = row["topic"] or ""
        self.partition = row["partition"]
        # Groups have limits from 4.3 on; only 4.4 writes state 3.
        self.release = find_release(found.releases[-1])
        limits, group = found.limits, row["group_id"]
        self.settings = PartitionSettings(
            delivery_count_limit=limits.of_group("delivery_count", group),
            max_record_locks=limits.of_group("record_locks", group),
            has_dead_letter_queue=any(one.delivery_state is DeliveryState.ARCHIVING for one in status.ranges),
        )

    def load(self) -> None:
        """Load the state as a leader does.

        Raises:
            UnloadableStateError: if no leader can.
        """
        self.loaded = self.rehearse()
        # The rehearsal does not see batches before the start offset.
        if "UNLOADABLE" in self.status.troubles:
            raise UnloadableStateError(self.status.troubles["UNLOADABLE"])
        self.now, self.waiting = self.loaded.effect(), self.loaded.first_waiting()

    def rehearse(self, release: Release | None = None, **settings: int) -> Rehearsal:
        """The rehearsal of an action, on the state machine of a release with the group's limits or others."""
        own, limits = replace(self.settings, **settings), self.found.limits
        return Rehearsal(self.status, release or self.release, own, limits.updates_per_snapshot)

    def effect(
        self, act: Callable[[Rehearsal], object], release: Release | None = None, **settings: int
    ) -> Effect:
        """The effect of an action."""
        rehearsal = self.rehearse(release, **settings)
        act(rehearsal)
        effect = rehearsal.effect()
        if not rehearsal.has_changed():
            self._without_change.append(effect)
        return effect

    def does_something(self, option: Option) -> bool:
        """Whether an option that was rehearsed changes anything."""
        return not any(option.effect is one for one in self._without_change)

    def moves_start(self, option: Option) -> bool:
        """Whether an option moves SPSO forward."""
        moved_to = None if option.effect is None else option.effect.start_offset
        return moved_to is not None and moved_to > (self.now.start_offset or 0)

    def consumed(self) -> Effect | None:
        """The effect of the first fetches, all accepted; None if it is unknown what they return."""
        effect = self.effect(Rehearsal.accept_first_fetches)
        return None if effect in self._without_change else effect

    def has_nothing_to_fetch(self) -> bool:
        """Whether consumers would receive no record, as far as the topic's end is known."""
        partition, end = self.loaded.partition, self.status.row["topic_end_offset"]
        batches = partition.in_flight_batches()
        covered = sum(batch[1] - batch[0] + 1 for batch in batches)
        is_open = any(batch[2] in (DeliveryState.AVAILABLE, DeliveryState.ACQUIRED) for batch in batches)
        has_gap = covered < partition.end_offset - partition.start_offset
        return end is not None and end <= partition.end_offset and not is_open and not has_gap

    def has_archiving(self) -> bool:
        """Whether a dead-letter write is not finished."""
        return DeliveryState.ARCHIVING.name in self.now.in_flight

    def after(self, span: timedelta) -> datetime | None:
        """The time so long after the end of the input."""
        return None if self.found.time is None else self.found.time + span
