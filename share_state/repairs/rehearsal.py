"""What an action would do to a share-partition: its state, loaded by a leader of the simulator, before and after."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from share_state.kafka.delivery_states import TERMINAL, DeliveryState
from share_state.kafka.releases import Release
from share_state.repairs.status import SharePartitionStatus
from share_state.report.diff import BELOW, FINISHED, InFlightWindow, RangeChange, compare_windows
from share_state.simulator.acquisition import Fetch, LogBatch
from share_state.simulator.coordinator import CoordinatorEntry, ShareCoordinator
from share_state.simulator.durability import DeadLetter, Operation, UnloadableStateError
from share_state.simulator.settings import AckBatch, AckType, PartitionSettings
from share_state.simulator.share_partition import SharePartition
from share_state.simulator.state_values import DurableState, StateKey
from share_state.simulator.types import NO_START_OFFSET

_MEMBER = "member"

Ranges = tuple[tuple[int, int], ...]
"""First and last offsets, ascending."""


def count_offsets(ranges: Iterable[tuple[int, int]]) -> int:
    """The number of offsets in ranges."""
    return sum(last - first + 1 for first, last in ranges)


@dataclass(frozen=True, slots=True)
class Effect:
    """The state that an action leaves, and how offsets get there.

    Attributes:
        start_offset, end_offset: SPSO and SPEO; None if the state is deleted, or has no start offset and none
            is known.
        in_flight: delivery state -> offsets between them.
        lag: in records; None if the end of the topic is unknown.
        cutoff: the cutoff of the state partition once its records are written.
        skipped: unfinished offsets that are not delivered any more.
        delivered_again: finished offsets that are delivered again with delivery count 1.
        seconds: how long it takes at most while consumers fetch; 0 if it is immediate.
    """

    start_offset: int | None
    end_offset: int | None
    in_flight: dict[str, int]
    lag: int | None
    cutoff: int | None
    skipped: Ranges = ()
    delivered_again: Ranges = ()
    seconds: int = 0


class Rehearsal:
    """A leader that has loaded the folded state, and its coordinator.

    Args:
        status: the share-partition.
        release: the release of the brokers.
        settings: the limits of the group.
        updates_per_snapshot: the coordinator's setting.
    Raises:
        UnloadableStateError: if no leader of this release can load the state.
    """

    def __init__(
        self,
        status: SharePartitionStatus,
        release: Release,
        settings: PartitionSettings,
        updates_per_snapshot: int,
    ) -> None:
        # Members fetch until nothing is left: how many records a fetch returns makes no difference.
        self.status = status
        self.release = replace(release, throttles=False)
        self.settings = settings
        row, cutoff = status.row, status.cutoff
        self.key = StateKey(row["group_id"], row["topic_id"], row["partition"])
        self.next_record = self._log_end = cutoff.get("log_end_offset") or 0
        self.coordinator = ShareCoordinator(
            self._append, self.release, updates_per_snapshot=updates_per_snapshot
        )
        covered = tuple(batch for batch in status.ranges if batch.first_offset not in status.gaps)
        for first, last, state, _ in covered:
            if state not in set(DeliveryState):
                raise UnloadableStateError(f"persisted batch {first}-{last}: unknown state {state}")
        state = DurableState(
            row["snapshot_epoch"] or 0, max(row["state_epoch"] or 0, 0), max(row["leader_epoch"] or 0, 0),
            row["start_offset"], row["delivery_complete_count"] or 0, covered,
        )  # fmt: skip
        self.coordinator.entries[self.key] = CoordinatorEntry(
            state, state.leader_epoch, self._log_end, state.state_epoch,
            row["updates_since_snapshot"], row["snapshot_offset"],
        )  # fmt: skip
        self.now_ms, self._loses_nothing = 0, False
        self.load()
        self.before = self._window()

    def load(self) -> tuple[DeadLetter, ...]:
        """A new leader loads the state; returns the dead letters that it sends again."""
        epoch = self.coordinator.entries[self.key].max_leader_epoch + 1
        read = self.coordinator.read(self.key, epoch, self.now_ms).state
        assert read is not None, "the coordinator knows the share-partition"
        self.partition = SharePartition(epoch, self.settings, self.release)
        return self.partition.load(read, self.status.row["topic_end_offset"] or 0)

    def first_waiting(self) -> tuple[int, int, DeliveryState, int] | None:
        """The range at which SPSO waits.

        A gap is AVAILABLE with delivery count 0. None if nothing is in flight.
        """
        at, batches = self.partition.start_offset, self.partition.in_flight_batches()
        if not batches:
            return None
        first, last, state, count = batches[0]
        return (at, first - 1, DeliveryState.AVAILABLE, 0) if first > at else (at, last, state, count)

    def deliver(self, first: int, last: int) -> int:
        """Members fetch what is available of [first, last]; returns how many offsets they acquire."""
        acquired, at = 0, first
        while at <= last:
            fetch = Fetch(_MEMBER, [LogBatch(at, last)], at)
            taken = self.partition.acquire(fetch, self.now_ms)
            if not taken:
                break
            acquired += count_offsets((one.first_offset, one.last_offset) for one in taken)
            at = taken[-1].last_offset + 1
        return acquired

    def fail_delivery(self, first: int, last: int) -> bool:
        """Deliver what is available of [first, last], until its locks expire.

        Returns whether anything was.
        """
        if not self.deliver(first, last):
            return False
        self.now_ms += self.settings.record_lock_duration_ms + 1
        while operation := self.partition.expire_locks(self.now_ms):
            self.persist(operation)
        return True

    def fail_deliveries(self, last: int) -> None:
        """Deliver [SPSO, last] until none of it is available."""
        while self.partition.start_offset <= last and self.fail_delivery(self.partition.start_offset, last):
            pass

    def accept_everything(self) -> None:
        """Members acquire everything in flight, and accept it."""
        self._accept(self.partition.end_offset - 1)

    def accept_first_fetches(self) -> None:
        """Members acquire everything in flight and what fits beside it, as far as the topic's end is known."""
        start, end = self.partition.start_offset, self.partition.end_offset
        topic_end = self.status.row["topic_end_offset"] or 0
        self._accept(max(end, min(topic_end, start + self.settings.max_record_locks)) - 1)

    def _accept(self, last: int) -> None:
        self._loses_nothing = True
        self.deliver(self.partition.start_offset, last)
        for first, end, state, _ in self.partition.in_flight_batches():
            if state is DeliveryState.ACQUIRED:
                batch = AckBatch(first, end, (AckType.ACCEPT,))
                self.persist(self.partition.acknowledge(_MEMBER, [batch], self.now_ms).operation)

    def leave(self) -> None:
        """Members that hold everything in flight leave."""
        self.deliver(self.partition.start_offset, self.partition.end_offset - 1)
        self.persist(self.partition.release_member(_MEMBER))
        self.load()

    def finish_dead_letters(self) -> None:
        """A new leader sends the records in ARCHIVING to the dead-letter queue again, and archives them."""
        self._loses_nothing = True
        for letter in self.load():
            self.persist(self.partition.dead_letter_answered(letter))

    def initialize(self, start_offset: int) -> None:
        """The group coordinator sets the start offset, as Admin.alterShareGroupOffsets does."""
        epoch = self.coordinator.entries[self.key].state.state_epoch + 1
        self.coordinator.initialize(self.key, epoch, start_offset, self.now_ms)
        self.load()

    def delete(self) -> None:
        """The group coordinator deletes the state."""
        self.coordinator.delete(self.key, self.now_ms)

    def write_cold_snapshot(self) -> None:
        """The coordinator repeats the state in a snapshot."""
        self.coordinator.write_cold_snapshot(self.key, self.now_ms)

    def persist(self, operation: Operation | None) -> None:
        """Write an operation to the coordinator."""
        for pending in operation.writes if operation else ():
            self.coordinator.write(self.key, pending.write, self.now_ms)
            for letter in self.partition.write_succeeded(pending):
                self.persist(self.partition.dead_letter_answered(letter))

    def effect(self) -> Effect:
        """The effect of what has been done since the state was loaded."""
        if self.key not in self.coordinator.entries:
            unfinished = tuple((first, last) for first, last, (_, ended) in self.before.ranges if not ended)
            finished = tuple((first, last) for first, last, (_, ended) in self.before.ranges if ended)
            return Effect(None, None, {}, None, self._cutoff(), unfinished, finished)
        partition, end = self.partition, self.status.row["topic_end_offset"]
        is_unknown = end is None and self.coordinator.entries[self.key].state.start_offset == NO_START_OFFSET
        in_flight = dict[str, int]()
        for first, last, state, _ in partition.in_flight_batches():
            in_flight[state.name] = in_flight.get(state.name, 0) + last - first + 1
        changes = compare_windows(self.before, self._window())
        return Effect(
            start_offset=None if is_unknown else partition.start_offset,
            end_offset=None if is_unknown else partition.end_offset,
            in_flight=in_flight,
            lag=None
            if end is None
            else max(0, end - partition.start_offset - partition.delivery_complete_count),
            cutoff=self._cutoff(),
            skipped=() if self._loses_nothing else skipped(changes),
            delivered_again=delivered_again(changes),
            seconds=-(-self.now_ms // 1000),
        )

    def has_changed(self) -> bool:
        """Whether what has been done since the state was loaded changed it, delivery counts included, or its cutoff."""
        if (
            self.key not in self.coordinator.entries
            or self.coordinator.entries[self.key].snapshot_offset != (self.status.row["snapshot_offset"])
        ):
            return True
        return self._window() != self.before

    def _append(self, _record: object, _time: int) -> int:
        self.next_record += 1
        return self.next_record - 1

    def _window(self) -> InFlightWindow:
        partition = self.partition
        ranges = [
            (*batch[:2], (f"{batch[2].name} ({batch[3]})", batch[2] in TERMINAL))
            for batch in partition.in_flight_batches()
        ]
        return InFlightWindow(partition.start_offset, partition.end_offset, ranges)

    def _cutoff(self) -> int | None:
        """The cutoff of the state partition: it moves if this share-partition held it back and has a new snapshot."""
        cutoff, row = self.status.cutoff, self.status.row
        known = ("limited_by_group", "limited_by_topic_id", "limited_by_partition")
        holds = tuple(cutoff.get(name) for name in known) == (
            row["group_id"],
            row["topic_id"],
            row["partition"],
        )
        entry = self.coordinator.entries.get(self.key)
        if not holds or (entry and (entry.snapshot_offset or 0) < self._log_end):
            return cutoff.get("cutoff_offset")
        following = [
            one
            for one in (cutoff.get("next_cutoff_offset"), entry and entry.snapshot_offset)
            if one is not None
        ]
        return min(following, default=self.next_record - 1)


def skipped(changes: Iterable[RangeChange]) -> Ranges:
    """The offsets of changes that were unfinished and that SPSO has passed."""
    return _ranges(changes, lambda one: one.change == FINISHED)


def delivered_again(changes: Iterable[RangeChange]) -> Ranges:
    """The offsets of changes that were finished and are not any more."""
    return _ranges(changes, lambda one: _is_finished(one.before) and not _is_finished(one.after))


def _is_finished(state: str) -> bool:
    return state.startswith((BELOW[0], "ACKNOWLEDGED", "ARCHIV"))


def _ranges(changes: Iterable[RangeChange], is_meant: Callable[[RangeChange], bool]) -> Ranges:
    found = list[tuple[int, int]]()
    for first, last in ((one.first_offset, one.last_offset) for one in changes if is_meant(one)):
        if found and found[-1][1] == first - 1:
            found[-1] = (found[-1][0], last)
        else:
            found.append((first, last))
    return tuple(found)
