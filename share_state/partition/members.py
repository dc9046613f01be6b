"""Members of simulated share groups: they fetch, work, acknowledge, and sometimes fail to."""

import random
from collections.abc import Iterator

from share_state.partition.acknowledgements import AckBatch, AckType
from share_state.partition.acquisition import AcquiredRecords
from share_state.partition.behaviours import Behaviour
from share_state.partition.error_codes import ErrorCode
from share_state.partition.events import Ack, MemberLeave
from share_state.partition.recorded import SharePartitionKey
from share_state.partition.world import Agent, World

_RENEW_EVERY_MS = 20_000


class Member:
    """One member of a group, at work on one share-partition.

    Args:
        world: it lives in.
        key: the share-partition.
        number: among the members.
        behaviour: of its group.
    """

    def __init__(self, world: World, key: SharePartitionKey, number: int, behaviour: Behaviour) -> None:
        self.world, self.key, self.behaviour = world, key, behaviour
        self.name = f"member-{number}"
        self.rng = world.rng("member", *key, number)
        # One member of a group that stalls holds on to a record, the others work.
        self.holds_on = behaviour.renews_for_ms > 0 and number == 0
        self.next_drop = self._next_drop()

    def agent(self) -> Agent:
        """Its life."""
        yield self.rng.randint(*self.behaviour.poll_ms)
        while True:
            acquired = self.world.fetch(self.key, self.name, self.rng.randint(*self.behaviour.fetch_records))
            if acquired and self.next_drop and self.world.now_ms >= self.next_drop:
                yield self.rng.randint(*self.behaviour.work_ms)
                self.world.tell(MemberLeave, self.key, member=self.name)
                self.next_drop = self._next_drop()
            elif acquired and self.holds_on:
                yield from self._hold_on_to(acquired)
            elif acquired:
                yield self.rng.randint(*self.behaviour.work_ms)
                self._acknowledge([self._judged(*records[:2]) for records in acquired])
            yield self.rng.randint(*self.behaviour.poll_ms)

    def _next_drop(self) -> int:
        every = self.behaviour.drops_every_ms
        return self.world.now_ms + self.rng.randint(every // 2, every + every // 2) if every else 0

    def _hold_on_to(self, acquired: tuple[AcquiredRecords, ...]) -> Iterator[int]:
        """Accept all but the first record, renew that one's lock for a while, then accept it too."""
        first = acquired[0].first_offset
        rest = [(max(records.first_offset, first + 1), records.last_offset) for records in acquired]
        self._acknowledge([self._judged(low, high) for low, high in rest if low <= high])
        until = self.world.now_ms + self.behaviour.renews_for_ms
        while self.world.now_ms < until:
            yield min(_RENEW_EVERY_MS, until - self.world.now_ms)
            if self._acknowledge([AckBatch(first, first, (AckType.RENEW,))], renews=True) is not ErrorCode.NONE:
                return
        self._acknowledge([AckBatch(first, first, (AckType.ACCEPT,))])

    def _acknowledge(self, batches: list[AckBatch], *, renews: bool = False) -> ErrorCode:
        if not batches:
            return ErrorCode.NONE
        outcomes = self.world.tell(Ack, self.key, member=self.name, batches=tuple(batches), is_renew_ack=renews)
        return next(outcome.error for outcome in outcomes if outcome.cause == "ack")

    def _judged(self, first: int, last: int) -> AckBatch:
        """What becomes of each record: one type where all end alike."""
        types = [self._type(offset, self.rng) for offset in range(first, last + 1)]
        for offset in self.world.control_among(self.key, first, last):
            types[offset - first] = AckType.GAP
        return AckBatch(first, last, (types[0],) if len(set(types)) == 1 else tuple(types))

    def _type(self, offset: int, rng: random.Random) -> AckType:
        behaviour = self.behaviour
        if behaviour.poison_every and offset % behaviour.poison_every == behaviour.poison_every - 1:
            return AckType.RELEASE
        chance = rng.random()
        if chance < behaviour.released:
            return AckType.RELEASE
        return AckType.REJECT if chance < behaviour.released + behaviour.rejected else AckType.ACCEPT
