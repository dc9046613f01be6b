"""A history of one share-partition, told to Kafka's machine and to ours at once.

Not told, because Kafka's machine breaks on it where ours does not: a log start that moves while a load gap is open
(Kafka keeps the gap and reads at offsets that are gone, for good), and a log start or a hole that meets records whose
change is not durable yet (Kafka loses track of the change, or of its lock).
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from hypothesis import note

from share_state.kafka.delivery_states import DeliveryState
from share_state.simulator.acquisition import AcquireMode, Fetch, LogBatch
from share_state.simulator.settings import AckBatch, PartitionSettings
from share_state.simulator.types import ErrorCode, StateRead
from tests.differential.kafka_share_partition import Kafkas, Ours, Seen

# What may happen


class Read(NamedTuple):
    """A member fetches: how many log batches are read, from the next fetch offset as it is, or as it was a step ago."""

    member: str
    log_batches: int
    max_records: int
    batch_size: int
    mode: AcquireMode
    is_late: bool


class Say(NamedTuple):
    """A member acknowledges what it holds from the n-th such offset on, or whatever lies there.

    Several types are one an offset: of one batch, or each of a batch of its own, which may go on past what is held.
    """

    member: str
    at: int
    size: int
    types: tuple[int, ...]
    is_wild: bool
    is_apart: bool


class Leave(NamedTuple):
    """A member's session ends."""

    member: str


class LogStart(NamedTuple):
    """The log start moves so far past the start."""

    ahead: int


class Wait(NamedTuple):
    """Time passes."""

    ms: int


Step = Read | Say | Leave | LogStart | Wait

# Both at once


class Twins:
    """Kafka's share-partition and ours over one log, told the same; what they show is compared after every step."""

    def __init__(self, jvm: Any, read: StateRead, limits: PartitionSettings, log: list[tuple[int, int]]) -> None:
        self.kafkas, self.ours = Kafkas(jvm, read, limits), Ours(read, limits)
        self._log = log
        self._log_start = 0
        self._now_ms = 0
        self._unanswered = 0
        self._seen: Any = self._agree(self.kafkas.look(), self.ours.look())
        self._fetch_offset_before = self._seen["next_fetch_offset"]

    def apply(self, step: Step) -> None:
        """Let it happen to both."""
        before = self._seen["next_fetch_offset"]
        match step:
            case Read():
                self._read(step)
            case Say():
                if batches := self._said(step):
                    self._acknowledge(step.member, batches)
            case Leave(who):
                self._agree(*(one.release(who) for one in (self.kafkas, self.ours)))
            case LogStart(ahead) if self.ours.partition._window.gap_start is None:
                self.answer("written")
                self._log_start = max(self._log_start, self._seen["start_offset"] + ahead)
                self._agree(*(one.move_log_start(self._log_start) for one in (self.kafkas, self.ours)))
            case Wait(ms):
                self._now_ms += ms
                while self._agree(*(one.expire_next(self._now_ms) for one in (self.kafkas, self.ours))):
                    pass
                self._agree(self.kafkas.look(), self.ours.look())
        self._fetch_offset_before = before
        self._meet_log_start()

    def answer(self, how: str) -> None:
        """The share coordinator answers everything that waits, or stays silent."""
        if how == "silent":
            return
        code = ErrorCode.NONE if how == "written" else ErrorCode.KAFKA_STORAGE_ERROR
        while self._unanswered:
            self._unanswered -= 1
            theirs, ours = self.kafkas.answer(code), self.ours.answer(code)
            if not theirs["batches"] and theirs["start_offset"] < self._log_start:
                # Kafka's start falls back behind the last batch, with nothing in flight that could be written before
                # the next fetch brings it to the log start again; ours stays there.
                theirs = self.kafkas.move_log_start(self._log_start)
            self._agree(theirs, ours)
        if how == "written":
            self._meet_log_start()

    def _meet_log_start(self) -> None:
        """A fetch that lies before the log start tells the share-partition where the log starts."""
        if self._seen["next_fetch_offset"] < self._log_start:
            self._agree(*(one.move_log_start(self._log_start) for one in (self.kafkas, self.ours)))

    def _read(self, step: Read) -> None:
        if not self._seen["can_acquire"]:
            return
        offset = self._fetch_offset_before if step.is_late else self._seen["next_fetch_offset"]
        found = list(islice((batch for batch in self._batches() if batch.last_offset >= offset), step.log_batches))
        if offset < found[0].first_offset:
            self.answer("written")
        fetch = Fetch(step.member, found, offset, step.max_records, step.batch_size, step.mode)
        self._agree(*(one.acquire(fetch) for one in (self.kafkas, self.ours)))

    def _batches(self) -> Iterator[LogBatch]:
        """The log: batches of drawn sizes, some with a hole before them, from the log start on without end."""
        at, place = 0, 0
        while True:
            hole, size = self._log[place % len(self._log)]
            batch = LogBatch(at + hole, at + hole + size - 1)
            if batch.last_offset >= self._log_start:
                yield batch
            at, place = batch.last_offset + 1, place + 1

    def _acknowledge(self, who: str, batches: list[AckBatch]) -> None:
        theirs, ours = self.kafkas.acknowledge(who, batches), self.ours.acknowledge(who, batches)
        if theirs["error"] == ErrorCode.UNKNOWN_SERVER_ERROR and len(batches) == 1:
            # Kafka fails where nothing at all lies at or before the start; ours says what that means.
            assert ours["error"] is ErrorCode.INVALID_RECORD_STATE
            theirs["error"] = ours["error"]
        self._agree(theirs, ours)

    def _said(self, step: Say) -> list[AckBatch]:
        if step.is_wild:
            first = max(self._seen["start_offset"] - 3 + step.at, 0)
            size = step.size
        else:
            held = [
                offset
                for *_, runs in self._seen["batches"]
                for first, last, state, _, owner, *_ in runs
                for offset in range(first, last + 1)
                if state == DeliveryState.ACQUIRED and owner == step.member
            ]
            if not held:
                return []
            first = held[step.at % len(held)]
            size = 1
            while size < step.size and first + size in held:
                size += 1
        if len(step.types) == 1:
            return [AckBatch(first, first + size - 1, step.types)]
        if step.is_apart:
            return [AckBatch(offset, offset, (kind,)) for offset, kind in enumerate(step.types, first)]
        size = min(size, len(step.types))
        return [AckBatch(first, first + size - 1, step.types[:size])]

    def _agree(self, theirs: Seen | None, ours: Seen | None) -> Seen | None:
        note(f"   kafka {theirs}")
        if ours is None or theirs is None:
            assert ours == theirs
        else:
            assert ours.keys() == theirs.keys()
            assert {name: told for name, told in ours.items() if told != theirs[name]} == {}
        if theirs is not None:
            self._seen = theirs
            self._unanswered += len(theirs["writes"])
        return theirs
