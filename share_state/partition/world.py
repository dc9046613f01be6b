"""A simulated cluster in motion: a clock, agents that act on it, and logs that producers fill."""

import random
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count
from typing import Any

from share_state.partition.acquisition import AcquiredRecords, LogBatch
from share_state.partition.events import Acquire, Event
from share_state.partition.outcomes import Outcome
from share_state.partition.recorded import SharePartitionKey
from share_state.partition.stage import Stage

Agent = Iterator[int]
"""Acts whenever it is resumed, and yields how many ms later it wants to be resumed."""

_PRODUCED_AT_ONCE = 10
_WINDOW = 1_800
"""Members stop asking for new records a little before the lock limit of 2000 does."""


class World:
    """Time, and what is in it.

    Args:
        stage: where events are played.
        seed: every random choice follows from it.
        start_ms: the time at the beginning.
    """

    def __init__(self, stage: Stage, seed: int, start_ms: int) -> None:
        self.stage, self.seed, self.start_ms = stage, seed, start_ms
        self.now_ms = start_ms
        self._agents: list[tuple[int, int, Agent]] = []
        self._turns = count()
        self._rates: dict[tuple[str, int], float] = {}

    def rng(self, *names: object) -> random.Random:
        """A source of chance for one purpose, the same for the same seed and names."""
        return random.Random(" ".join(map(str, (self.seed, *names))))

    def add(self, agent: Agent, after_ms: int = 0) -> None:
        """Let an agent act from now on."""
        heappush(self._agents, (self.now_ms + after_ms, next(self._turns), agent))

    def run(self, until_ms: int) -> None:
        """Let time pass until `until_ms`, every agent acting when its time has come."""
        while self._agents and self._agents[0][0] <= until_ms:
            self.now_ms, _, agent = heappop(self._agents)
            pause = next(agent, None)
            if pause is not None:
                self.add(agent, max(pause, 1))
        self.now_ms = until_ms

    def tell(self, kind: Callable[..., Event], key: SharePartitionKey, **fields: Any) -> list[Outcome]:
        """Let something happen to a share-partition now; returns what came of it."""
        event = kind(
            seq=self.stage.events,
            ts_ms=self.now_ms,
            group=key.group,
            topic=key.topic,
            partition=key.partition,
            **fields,
        )
        return self.stage.apply(event)

    def produce(self, topic: str, partition: int, records_a_second: float) -> None:
        """Let producers write to a topic-partition at an even pace."""
        self._rates[topic, partition] = records_a_second

    def produced(self, topic: str, partition: int) -> int:
        """How many records producers have written by now."""
        return int(self._rates[topic, partition] * (self.now_ms - self.start_ms) / 1000)

    def fetch(self, key: SharePartitionKey, member: str, wanted: int) -> tuple[AcquiredRecords, ...]:
        """Let a member fetch; returns what it acquired, nothing where there is nothing new or no leader."""
        leader = self.stage.leader(key)
        if leader is None or not leader.can_acquire() or leader.end_offset - leader.start_offset > _WINDOW:
            return ()
        first = leader.next_fetch_offset()
        last = self._last_to_fetch(key, first, wanted)
        if last < first:
            return ()
        batches = tuple(
            LogBatch(at, min(at + _PRODUCED_AT_ONCE - 1, last)) for at in range(first, last + 1, _PRODUCED_AT_ONCE)
        )
        outcomes = self.tell(Acquire, key, member=member, log_batches=batches, max_records=wanted)
        return next(outcome.acquired for outcome in outcomes if outcome.cause == "acquire")

    def control_among(self, key: SharePartitionKey, first: int, last: int) -> list[int]:
        """Offsets in a range that hold control records, which are no records to a consumer."""
        logs = self.stage.topic_logs
        return logs.of(key.topic, key.partition).control_among(first, last) if logs else []

    def _last_to_fetch(self, key: SharePartitionKey, first: int, wanted: int) -> int:
        produced = self.produced(key.topic, key.partition)
        if self.stage.topic_logs is None:
            self.stage.reach(key.topic, key.partition, produced)
            return min(first + wanted, produced) - 1
        log = self.stage.topic_logs.of(key.topic, key.partition)
        end = log.log.next_offset + max(0, produced - log.data_records)
        # Control records alone are not worth a fetch: acknowledging them would write another one.
        data = log.next_data_offset(first)
        return min(max(first + wanted, data + 1), end) - 1 if data < end else first - 1
