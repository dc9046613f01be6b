"""Kafka's own SharePartition (4.3.1) in a small JVM, and the same share-partition of ours, told the same things."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from share_state.kafka.delivery_states import DeliveryState
from share_state.simulator.acquisition import Fetch
from share_state.simulator.durability import Operation, PendingWrite, merge_adjacent
from share_state.simulator.settings import AckBatch, PartitionSettings
from share_state.simulator.share_partition import SharePartition
from share_state.simulator.types import ErrorCode, StateBatch, StateRead
from share_state.sources import jars

LEADER_EPOCH = 3
SOURCES = sorted((Path(__file__).parent / "java").glob("*.java"))
_QUICK_START = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xmx256m"]

Seen = dict[str, Any]
"""What a share-partition shows after a step, and what it answered."""


@contextmanager
def kafka(folder: Path) -> Iterator[Any]:
    """A JVM with the broker's jars and the classes of java/, compiled into a folder; closed at the end."""
    class_path = str(jars.folder(jars.BROKER_BEFORE_DEAD_LETTERS) / "*")
    javac, java = shutil.which("javac"), shutil.which("java")
    assert javac is not None
    assert java is not None
    # The compiler warns of sun.misc.Unsafe unless it is told not to look.
    command = [javac, "-XDignore.symbol.file", "-cp", class_path, "-d", str(folder), *map(str, SOURCES)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    py4j = next((Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar"))
    launched: Any = launch_gateway(
        jarpath=str(py4j), classpath=os.pathsep.join([class_path, str(folder)]), javaopts=_QUICK_START, java_path=java,
        die_on_exit=True, enable_auth=True, return_proc=True,
    )  # fmt: skip
    port, token, process = launched
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
    try:
        yield gateway.jvm
    finally:
        gateway.shutdown()
        process.stdin.close()
        process.wait()


class Kafkas:
    """Kafka's share-partition; every method answers with what is seen afterwards.

    Args:
        jvm: of `kafka`.
        read: what it loads.
        settings: limits, as the broker's defaults.
    """

    def __init__(self, jvm: Any, read: StateRead, settings: PartitionSettings) -> None:
        options = {
            "leader_epoch": LEADER_EPOCH,
            "state_epoch": read.state_epoch,
            "start_offset": read.start_offset,
            "batches": read.batches,
            "max_record_locks": settings.max_record_locks,
            "delivery_count_limit": settings.delivery_count_limit,
            "record_lock_duration_ms": settings.record_lock_duration_ms,
        }
        self._driven = jvm.kafka.server.share.DrivenSharePartition(json.dumps(options))

    def look(self) -> Seen:
        return _seen(self._driven.look())

    def acquire(self, fetch: Fetch) -> Seen:
        options = {name: getattr(fetch, name) for name in Fetch.__slots__}
        return _seen(self._driven.acquire(json.dumps(options)))

    def acknowledge(self, member: str, batches: Sequence[AckBatch]) -> Seen:
        return _seen(self._driven.acknowledge(member, json.dumps(batches)))

    def release(self, member: str) -> Seen:
        return _seen(self._driven.release(member))

    def move_log_start(self, offset: int) -> Seen:
        return _seen(self._driven.moveLogStart(offset))

    def expire_next(self, until_ms: int) -> Seen | None:
        while (answer := self._driven.expireNext(until_ms)) is not None:
            seen = _seen(answer)
            # A lock may run out while a change to what it held is under way: nothing to see until that is answered.
            if seen["writes"]:
                return seen
        return None

    def answer(self, error: ErrorCode) -> Seen:
        return _seen(self._driven.answer(error.value))


class Ours:
    """Our share-partition behind the same methods."""

    def __init__(self, read: StateRead, settings: PartitionSettings) -> None:
        self.partition = SharePartition(LEADER_EPOCH, settings)
        self.partition.load(read)
        self.now_ms = 0
        self.pending: list[PendingWrite] = []

    def look(self) -> Seen:
        return self._seen()

    def acquire(self, fetch: Fetch) -> Seen:
        acquired = self.partition.acquire(fetch, self.now_ms)
        return self._seen(acquired=[tuple(one) for one in acquired])

    def acknowledge(self, member: str, batches: Sequence[AckBatch]) -> Seen:
        answer = self.partition.acknowledge(member, batches, self.now_ms, is_renew_ack=True)
        return self._seen(answer.operation, error=answer.error)

    def release(self, member: str) -> Seen:
        return self._seen(self.partition.release_member(member), error=ErrorCode.NONE)

    def move_log_start(self, offset: int) -> Seen:
        self.partition.move_log_start(offset)
        return self._seen()

    def expire_next(self, until_ms: int) -> Seen | None:
        while (deadline := self.partition.next_deadline) is not None and deadline < until_ms:
            self.now_ms = deadline + 1
            if operation := self.partition.expire_locks(self.now_ms):
                return self._seen(operation, now_ms=self.now_ms)
        self.now_ms = max(self.now_ms, until_ms)
        return None

    def answer(self, error: ErrorCode) -> Seen:
        pending = self.pending.pop(0)
        if error is ErrorCode.NONE:
            self.partition.write_succeeded(pending)
        else:
            self.partition.write_failed(pending, self.now_ms, error)
        return self._seen()

    def _seen(self, operation: Operation | None = None, **answer: Any) -> Seen:
        partition, window = self.partition, self.partition._window
        made = operation.writes if operation is not None else ()
        self.pending += made
        batches = [
            (batch.first, batch.last, batch.per_offset, _joined(
                (run.first, run.last, run.state, run.count, run.owner or "",
                 run.rollback_state is not None, run.deadline)
                for run in batch.runs))
            for batch in window.batches
        ]  # fmt: skip
        return answer | {
            "status": partition.status,
            "start_offset": window.start_offset,
            "end_offset": window.end_offset,
            "delivery_complete_count": partition.delivery_complete_count,
            "writes": [tuple(getattr(one.write, name) for name in one.write.__slots__) for one in made],
            "batches": batches,
            "can_acquire": partition.can_acquire(),
            "next_fetch_offset": partition.next_fetch_offset(),
        }


def _seen(line: str) -> Seen:
    """Kafka's answer in our words; neighbours that are alike are one run, for ours are."""
    seen = json.loads(line)
    seen["batches"] = [
        (first, last, split, _joined(map(tuple, states))) for first, last, split, states in seen["batches"]
    ]
    seen["writes"] = [(*head, merge_adjacent([_batch(*one) for one in batches])) for *head, batches in seen["writes"]]
    if "acquired" in seen:
        seen["acquired"] = [tuple(one) for one in seen["acquired"]]
    return seen


def _batch(first: int, last: int, state: int, count: int) -> StateBatch:
    return StateBatch(first, last, DeliveryState(state), count)


def _joined(states: Any) -> list[tuple[Any, ...]]:
    out: list[tuple[Any, ...]] = []
    for first, last, *like in states:
        if out and out[-1][1] + 1 == first and list(out[-1][2:]) == like:
            out[-1] = (out[-1][0], last, *like)
        else:
            out.append((first, last, *like))
    return out
