"""Ten incidents of a night, each of a group of its own in one simulated cluster, three of brokers, and what mends them.

`python -m tests.incidents.stories` prints what `why` says of each, at 80 columns.
"""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from share_state.cli.main import run
from share_state.kafka.releases import LATEST
from share_state.simulator.acquisition import LogBatch
from share_state.simulator.cluster import ClusterSettings, SimulatedCluster
from share_state.simulator.events import Ack, Acquire, Advance, Config, HoldDeadLetters, Init, Open
from share_state.simulator.log_writer import StateTopicSettings
from share_state.simulator.settings import AckBatch, AckType, PlayerSettings
from share_state.simulator.types import SharePartitionKey
from share_state.simulator.workload import Agent, Workload
from tests.cli.commands import flipped
from tests.truth import DATA

SECOND, MINUTE = 1_000, 60_000
START_MS = 1_795_650_000_000
MINUTES = 150
"""How long the night lasts."""
BATCH = 5
MEMBER = "consumer-1"


LIMITS = ("--limit", "full-window:record_locks=100", "--limit", "full-window:delivery_count=10")
"""Of the groups, which the state log does not have."""


class Consumer:
    """The consumers of a group, and its only share-partition."""

    def __init__(self, workload: Workload, group: str) -> None:
        self.workload, self.key = workload, SharePartitionKey(group, f"{group}-topic", 0)
        self.fetched = 0

    def start(self, offset: int = 0, epoch: int = 1) -> Iterator[int]:
        self.workload.apply(Init, self.key, state_epoch=epoch, start_offset=offset)
        yield SECOND
        self.workload.apply(Open, self.key, leader_epoch=epoch)
        yield SECOND

    def configure(self, name: str, value: str) -> None:
        self.workload.apply(Config, self.key, name=name, value=value)

    def fetch(self, first: int, last: int) -> None:
        self.fetched = max(self.fetched, last + 1)
        self.workload.apply(Acquire, self.key, member=MEMBER, log_batches=(LogBatch(first, last),))

    def acknowledge(self, first: int, last: int, how: AckType) -> None:
        batches, renews = (AckBatch(first, last, (how,)),), how is AckType.RENEW
        self.workload.apply(Ack, self.key, member=MEMBER, batches=batches, is_renew_ack=renews)

    def produced(self, records: int) -> None:
        """The topic has so many records."""
        self.workload.cluster.note_end_offset(self.key.topic, 0, records)

    def work(self, batches: int, how: AckType = AckType.ACCEPT, held: tuple[int, int] | None = None) -> Iterator[int]:
        """A batch every 20 seconds, and the locks of some records are renewed meanwhile."""
        for _ in range(batches):
            first = self.fetched
            self.fetch(first, first + BATCH - 1)
            yield 5 * SECOND
            self.acknowledge(first, first + BATCH - 1, how)
            yield from self.hold(15, held)

    def hold(self, seconds: int, held: tuple[int, int] | None) -> Iterator[int]:
        """Time passes, and the locks of some records are renewed at its end."""
        yield seconds * SECOND
        if held is None:
            self.workload.apply(Advance, self.key)
        else:
            self.acknowledge(*held, AckType.RENEW)

    def time_out(self, first: int, last: int) -> Iterator[int]:
        """A delivery whose locks expire."""
        self.fetch(first, last)
        yield 31 * SECOND
        self.workload.apply(Advance, self.key)


def steady(group: Consumer) -> Agent:
    yield from group.start()
    yield from group.work(3 * MINUTES)


def dead_consumers(group: Consumer) -> Agent:
    yield from group.start()
    yield from group.work(300)
    yield from group.time_out(group.fetched, group.fetched + 2 * BATCH - 1)
    group.produced(3_500)


def poison(group: Consumer) -> Agent:
    yield from group.start()
    yield from group.work(3 * MINUTES - 60)
    bad = group.fetched
    for _ in range(4):
        yield from group.time_out(bad, bad)
        yield from group.work(2)
    group.produced(group.fetched + 400)


def reject_all(group: Consumer) -> Agent:
    yield from group.start()
    yield from group.work(200)
    yield from group.work(250, AckType.REJECT)


def stuck_dead_letters(group: Consumer) -> Agent:
    group.configure("errors.deadletterqueue.topic.name", "dlq.orders")
    yield from group.start()
    yield from group.work(100)
    group.workload.apply(HoldDeadLetters, group.key, on=True)
    yield from group.work(1, AckType.REJECT)
    yield from group.work(100)


def full_window(group: Consumer) -> Agent:
    group.configure("share.partition.max.record.locks", "100")
    group.configure("share.delivery.count.limit", "10")
    yield from group.start()
    yield from group.work(400)
    slow = group.fetched
    yield from group.time_out(slow, slow)
    group.fetch(slow, slow)
    yield SECOND
    yield from group.work(20, held=(slow, slow))
    group.produced(4_000)
    while True:
        yield from group.hold(20, (slow, slow))


def gap(group: Consumer) -> Agent:
    yield from group.start()
    yield from group.work(200)
    kept = group.fetched
    group.fetch(kept, kept + BATCH - 1)
    yield from group.work(3 * MINUTES, held=(kept, kept + BATCH - 1))


def reset(group: Consumer) -> Agent:
    yield from group.start()
    yield from group.work(3 * MINUTES - 60)
    yield from group.start(group.fetched - 241, epoch=2)
    group.fetched -= 241
    yield from group.work(5)


def deleted_topic(group: Consumer) -> Agent:
    yield from group.start()
    yield from group.work(100)


def renewed_forever(group: Consumer) -> Agent:
    yield from group.start()
    yield from group.work(90)
    kept = group.fetched
    yield from group.time_out(kept, kept)
    group.fetch(kept, kept)
    yield SECOND
    yield from group.work(3 * MINUTES, held=(kept, kept))


@dataclass(frozen=True)
class Incident:
    """One incident.

    Attributes:
        agent: what happens.
        trouble: the first word of `why`.
        cause: words in its first two lines.
        action: the option that mends it.
    """

    agent: Callable[[Consumer], Agent]
    trouble: str = "OK"
    cause: tuple[str, ...] = ()
    action: str = ""


INCIDENTS = {
    "steady": Incident(steady),
    "dead-consumers": Incident(
        dead_consumers, "STOP", ("no consumer has changed the state for 49 min",), "START_CONSUMERS",
    ),
    "poison": Incident(
        poison, "POISON_RECORDS", ("record 1,950 failed 4 of 5 deliveries",), "RAISE_DELIVERY_COUNT_LIMIT",
    ),
    "reject-all": Incident(reject_all, "GIVING_UP", ("1,250 records were given up or rejected",), "STOP_CONSUMERS"),
    "stuck-dead-letters": Incident(
        stuck_dead_letters,
        "ARCHIVING_STUCK",
        ("dead-letter write of records 500 to 504 does not finish",),
        "FIX_DLQ, then RESTART_LEADER",
    ),
    "full-window": Incident(
        full_window,
        "IN_FLIGHT_LIMIT",
        ("the in-flight window is full", "record 2,000"),
        "RAISE_PARTITION_MAX_RECORD_LOCKS",
    ),
    "gap": Incident(gap, "STALL", ("waits at a gap, records 1,000 to 1,004",), "FORBID_RENEWALS"),
    "reset": Incident(reset, "REWIND", ("SPSO went from 1,950 to 1,709; its offsets were reset",), "WAIT"),
    "deleted-topic": Incident(deleted_topic, "TOPIC_GONE", ("no topic has this id: it was deleted",), "DELETE_OFFSETS"),
    "renewed-forever": Incident(
        renewed_forever,
        "STALL",
        ("record 450 after 1 failed delivery; a consumer holds it, and renews its lock",),
        "FORBID_RENEWALS",
    ),
}  # fmt: skip


class Night:
    """The logs of all incidents, and the topics that exist, in a folder that grows."""

    def __init__(self, folder: Path) -> None:
        topic = StateTopicSettings(release=LATEST, state_partitions=3, updates_per_snapshot=50)
        folder.mkdir(parents=True)
        settings = ClusterSettings(PlayerSettings(release=LATEST), topic, seed=1)
        self.folder, self._cluster = folder, SimulatedCluster(folder, settings)
        self._workload = Workload(self._cluster, 1, START_MS)
        for name, incident in INCIDENTS.items():
            self._workload.add(incident.agent(Consumer(self._workload, name)), SECOND)

    def run(self, minutes: int) -> None:
        """Let the night go on until so many minutes after its begin."""
        self._workload.run(START_MS + minutes * MINUTE)
        self._cluster.finish()
        topics = json.loads((self.folder / "topics.json").read_text())
        there = [one for one in topics if one["name"] != "deleted-topic-topic"]
        (self.folder / "topics.json").write_text(json.dumps(there))

    def close(self) -> None:
        """Close the logs."""
        self._cluster.close()


def simulate_night(folder: Path) -> None:
    """Write the logs of all incidents, and the topics that exist afterwards."""
    night = Night(folder)
    night.run(MINUTES)
    night.close()


def damage(logs: Path, copy: Path) -> Path:
    """A copy of the logs with a flipped byte in one of their last batches."""
    shutil.copytree(logs, copy)
    segment = copy / "__share_group_state-2" / f"{0:020}.log"
    segment.write_bytes(flipped(segment.read_bytes(), batch=-3))
    return copy


@dataclass(frozen=True)
class BrokerLog:
    """An incident in the log of a broker.

    Attributes:
        logs, limits: the input.
        group, topic, partition: the share-partition.
        trouble, cause: as of Incident.
    """

    logs: Path
    group: str
    topic: str
    partition: int
    trouble: str
    cause: tuple[str, ...]
    limits: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Of its screen."""
        return f"{self.logs.parent.name}-{self.logs.name}"

    @property
    def why(self) -> tuple[str, ...]:
        """The arguments of `why`."""
        return (self.group, str(self.logs), "--topic", self.topic, "--partition", str(self.partition), *self.limits)


BROKER_LOGS = [
    BrokerLog(
        DATA / "4.4.0/dlq", "dq-auto", "t0", 0, "ARCHIVING_STUCK", ("dead-letter write of record 195 does not finish",),
        ("--limit", "archiving_seconds=0"),
    ),
    BrokerLog(
        DATA / "cases/gap-stall", "gs1", "YDceSjdmT8S9BTxbi7vQIA", 0, "STALL", ("waits at a gap, records 21 to 30",),
    ),
    BrokerLog(
        DATA / "4.3.1/chaos", "g0", "t1", 2, "POISON_RECORDS", ("record 232 failed 2 of 3 deliveries: poison",),
        ("--limit", "delivery_count=3"),
    ),
]  # fmt: skip


def print_screens() -> None:
    """Print what `why` says of each incident."""
    with tempfile.TemporaryDirectory() as folder:
        logs = Path(folder, "night")
        simulate_night(logs)
        calls = [(name, str(logs), *LIMITS) for name in INCIDENTS]
        calls += [("dead-consumers", str(damage(logs, Path(folder, "damaged-log"))), *LIMITS)]
        for words in (*calls, *(one.why for one in BROKER_LOGS)):
            print(f"$ share-state why {words[0]} {Path(words[1]).name}")  # noqa: T201
            run(["why", *words, "--quiet", "--picture"])


if __name__ == "__main__":
    print_screens()
