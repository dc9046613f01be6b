"""The fold as the coordinator does it, record by record and offset by offset: slow, short and independent."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.kafka.batches import SNAPSHOT, UPDATE, Range, Record, key, snapshot, update
from tests.truth import TERMINAL, end_offset, expected_in_flight, runs, value_by_offset

SNAPSHOT_KIND, UPDATE_KIND, TOMBSTONE_KIND = "snapshot", "update", "tombstone"


@dataclass(frozen=True)
class Written:
    """One record of a share-partition of group "g", in plain words."""

    kind: str
    partition: int
    batches: tuple[Range, ...] = ()
    start: int = -1
    epoch: int = 0
    state_epoch: int = 0
    leader_epoch: int = 0
    count: int | None = None
    time: int = 0
    early: bool = False

    @property
    def record(self) -> Record:
        """Its key and value."""
        if self.kind == TOMBSTONE_KIND:
            return Record(key(SNAPSHOT, partition=self.partition), None)
        own = {"start": self.start, "epoch": self.epoch, "leader_epoch": self.leader_epoch, "early": self.early}
        if self.kind == UPDATE_KIND:
            return Record(key(UPDATE, partition=self.partition), update(self.batches, count=self.count, **own))
        own |= {"state_epoch": self.state_epoch, "created": self.time, "written": self.time}
        return Record(key(SNAPSHOT, partition=self.partition), snapshot(self.batches, count=self.count, **own))


@dataclass
class State:
    """What the coordinator holds of a share-partition; `values` is offset -> (delivery count, delivery state)."""

    written: Written
    start: int
    values: dict[int, tuple[int, int]]
    snapshot_offset: int | None
    last_offset: int
    max_leader_epoch: int
    max_state_epoch: int | None = None
    updates: int = 0
    orphan: bool = field(default=False)

    def row(self) -> dict[str, Any]:
        """Its row of share_partition_state, key columns left out."""
        written = self.written
        moment = None
        if written.kind == SNAPSHOT_KIND and written.time and not written.early:
            moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=written.time)
        return {
            "partition": written.partition,
            "start_offset": self.start,
            "effective_start_offset": self._effective_start(),
            "end_offset": end_offset(self.start, self.values),
            "snapshot_epoch": written.epoch,
            "state_epoch": (-1 if written.early else 0) if self.orphan else written.state_epoch,
            "leader_epoch": written.leader_epoch,
            "delivery_complete_count": -1 if written.count is None or written.early else written.count,
            "state_batches": [
                {"first_offset": first, "last_offset": last, "delivery_state": state, "delivery_count": count}
                for first, last, (count, state) in runs(sorted(self.values.items()))
            ],
            "create_time": moment,
            "write_time": moment,
            "max_leader_epoch": self.max_leader_epoch,
            "max_state_epoch": self.max_state_epoch,
            "updates_since_snapshot": self.updates,
            "snapshot_offset": self.snapshot_offset,
            "last_offset": self.last_offset,
            "suspect": False,
        }

    def in_flight(self) -> list[dict[str, Any]]:
        """Its rows of in_flight, key columns left out."""
        return expected_in_flight(self.row())

    def _effective_start(self) -> int:
        start = self.start
        # The broker refuses to load a state with a range below its start.
        if start < 0 or (self.values and min(self.values) < start):
            return start
        while start in self.values and self.values[start][1] in TERMINAL:
            start += 1
        return start


def replay(log: Iterable[tuple[int, Written]]) -> dict[int, State]:
    """Partition -> state after the records at these offsets."""
    states: dict[int, State] = {}
    for offset, written in log:
        before = states.get(written.partition)
        if written.kind == TOMBSTONE_KIND:
            states.pop(written.partition, None)
        elif written.kind == SNAPSHOT_KIND or before is None:
            states[written.partition] = _begun(before, offset, written)
        else:
            _update(before, offset, written)
    return states


def _begun(before: State | None, offset: int, written: Written) -> State:
    is_snapshot = written.kind == SNAPSHOT_KIND
    state = State(
        written, written.start, value_by_offset(written.batches), offset if is_snapshot else None, offset,
        written.leader_epoch, written.state_epoch if is_snapshot else None,
        updates=0 if is_snapshot else 1, orphan=not is_snapshot,
    )  # fmt: skip
    if before is not None:
        state.max_leader_epoch = max(before.max_leader_epoch, written.leader_epoch)
        state.max_state_epoch = max(
            written.state_epoch, written.state_epoch if before.max_state_epoch is None else before.max_state_epoch
        )
    return state


def _update(state: State, offset: int, written: Written) -> None:
    if written.start != -1:
        state.start = written.start
    for at, value in value_by_offset(written.batches).items():
        state.values[at] = max(state.values.get(at, value), value)
    if state.start != -1:
        state.values = {at: value for at, value in state.values.items() if at >= state.start}
    if written.leader_epoch != -1:
        state.written = replace(state.written, leader_epoch=written.leader_epoch)
    state.written = replace(state.written, count=written.count)
    state.max_leader_epoch = max(state.max_leader_epoch, written.leader_epoch)
    state.updates += 1
    state.last_offset = offset
