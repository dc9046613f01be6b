"""Share-partition histories told in short: ranges as "100-109", batches as "100-109:2/1" (state/delivery count)."""

from collections.abc import Iterable
from typing import Any

from share_state.kafka.delivery_states import DeliveryState
from share_state.kafka.releases import RELEASES
from share_state.simulator import events as ev
from share_state.simulator.acquisition import LogBatch
from share_state.simulator.control_record_writer import ControlState, state_after_checkpoint, state_after_delta
from share_state.simulator.events import EventResult
from share_state.simulator.player import EventPlayer
from share_state.simulator.settings import AckBatch, AckType, Dialect, PartitionSettings, PlayerSettings
from share_state.simulator.share_partition import SharePartition
from share_state.simulator.state_values import StateKey
from share_state.simulator.types import ErrorCode, SharePartitionKey, StateBatch, StateRead, StateWrite
from tests.simulator.logs.kept_records import coordinator_of

ACCEPT, RELEASE, REJECT, RENEW, GAP = AckType.ACCEPT, AckType.RELEASE, AckType.REJECT, AckType.RENEW, AckType.GAP


def offsets(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def batches(text: str) -> tuple[StateBatch, ...]:
    """Batches from "110:0/1, 111-118:1/1"."""
    found = []
    for part in text.replace(" ", "").split(","):
        if part:
            where, what = part.split(":")
            state, count = what.split("/")
            found.append(StateBatch(*offsets(where), DeliveryState(int(state)), int(count)))
    return tuple(found)


def short(batch_list: Iterable[StateBatch]) -> str:
    return ", ".join(
        f"{first}{'' if first == last else f'-{last}'}:{state:d}/{count}" for first, last, state, count in batch_list
    )


def short_write(write: StateWrite) -> tuple[int, int, str]:
    """A write as (start, delivery complete count, batches)."""
    return write.start_offset, write.delivery_complete_count, short(write.batches)


class History:
    """One share-partition's history, played as it is told. Times are relative: `advance` passes them."""

    def __init__(
        self,
        start: int | None = 0,
        *,
        limit: int = 5,
        lock_ms: int = 30_000,
        release: str = "4.3",
        dialect: Dialect = "both",
        settings: PartitionSettings | None = None,
        leader_epoch: int = 0,
    ):
        self.coordinator, _ = coordinator_of("4.3")
        player_settings = PlayerSettings(
            release=RELEASES[release],
            settings=settings or PartitionSettings(delivery_count_limit=limit, record_lock_duration_ms=lock_ms),
            dialect=dialect,
            traces=True,
        )
        self.player = EventPlayer(player_settings, lambda key: (self.coordinator, StateKey(*key)))
        self.key = SharePartitionKey("G1", "T", 0)
        self.now_ms = 0
        self._seq = 0
        self.results: list[EventResult] = []
        if start is not None:
            self.apply(ev.Init, state_epoch=1, start_offset=start)
            self.apply(ev.Open, leader_epoch=leader_epoch)

    def apply(self, kind: type, **fields: Any) -> EventResult:
        """Apply an event; its own outcome, others are kept in `outcomes`."""
        self._seq += 1
        group, topic, partition = self.key
        event = kind(seq=self._seq, ts_ms=self.now_ms, group=group, topic=topic, partition=partition, **fields)
        found = list(self.player.apply(event))
        self.results += found
        return next(result for result in found if result.cause == event.event)

    def acquire(self, *log: str, member: str = "M1", **fields: Any) -> list[tuple[int, int, int]]:
        batch_list = self.apply(
            ev.Acquire, member=member, log_batches=tuple(LogBatch(*offsets(text)) for text in log), **fields
        )
        return [(one[0], one[1], one[2]) for one in batch_list.acquired]

    def ack(self, where: str, *types: int, member: str = "M1", **fields: Any) -> ErrorCode:
        return self.ack_result(where, *types, member=member, **fields).error

    def ack_result(self, where: str, *types: int, member: str = "M1", **fields: Any) -> EventResult:
        fields.setdefault("is_renew_ack", RENEW in types)
        return self.apply(ev.Ack, member=member, batches=(AckBatch(*offsets(where), types),), **fields)

    def advance(self, to_ms: int) -> None:
        """Let time pass until `to_ms`."""
        self.now_ms = to_ms
        self.apply(ev.Advance)

    def pass_ms(self, ms: int) -> None:
        self.advance(self.now_ms + ms)

    def leave(self, member: str = "M1") -> EventResult:
        return self.apply(ev.MemberLeave, member=member)

    # What there is now

    @property
    def partition(self) -> SharePartition:
        leader = self.player.leader(self.key)
        assert leader is not None
        return leader

    @property
    def memory(self) -> str:
        return short(self.partition.in_flight_batches())

    @property
    def start(self) -> int:
        return self.partition.start_offset

    @property
    def recorded(self) -> StateRead:
        read = self.coordinator.read(StateKey(*self.key), self.partition.leader_epoch, self.now_ms).state
        assert read is not None
        return read

    @property
    def draft(self) -> ControlState | None:
        """What a reader makes of the control records."""
        state = None
        for result in self.results:
            if result.delta is not None:
                assert state is not None
                state = state_after_delta(state, result.delta)
            if result.checkpoint is not None:
                state = state_after_checkpoint(result.checkpoint)
        return state

    @property
    def writes(self) -> list[tuple[int, int, str]]:
        return [short_write(write) for result in self.results for write in result.writes]

    @property
    def deltas(self) -> list[str]:
        return [short(result.delta.batches) for result in self.results if result.delta is not None]

    @property
    def checkpoints(self) -> list[tuple[int, int, str]]:
        return [
            (batch_list.start_offset, batch_list.end_offset, short(batch_list.batches))
            for batch_list in (result.checkpoint for result in self.results)
            if batch_list is not None
        ]
