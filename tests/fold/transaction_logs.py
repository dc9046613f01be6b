"""Logs of share-group state with transactions, and which of their records count: a plain model."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from tests.kafka.batches import NOW, Batch, Record
from tests.log_writer import Key, batch, snapshot, update

KEYS: list[Key] = [("g", "AAAAAAAAAAEAAAAAAAAAAg", number) for number in range(3)]
ABORT, COMMIT = 0, 1


def marker(producer: int, kind: int, *, key: bytes | None = None, timestamp: int = NOW) -> Batch:
    """The control batch that ends a transaction."""
    record = Record(struct.pack(">hh", 0, kind) if key is None else key, struct.pack(">hi", 0, 5))
    return batch([record], transactional=True, control=True, producer=(producer, 0, -1), timestamp=timestamp)


def written(producer: int, *records: Record, sequence: int = 0, timestamp: int = NOW, codec: str = "none") -> Batch:
    """A batch of a transaction of a producer; -1 for one outside of transactions."""
    if producer < 0:
        return batch(records, timestamp=timestamp, codec=codec)
    writer = (producer, 0, sequence)
    return batch(records, transactional=True, producer=writer, timestamp=timestamp, codec=codec)


@dataclass(frozen=True)
class Step:
    """Records of a producer, or the end of its transaction.

    Attributes:
        producer: its id; -1 outside of transactions.
        records: number of records; 0 for a marker.
        kind: ABORT or COMMIT.
    """

    producer: int
    records: int
    kind: int = COMMIT


steps = st.lists(
    st.builds(Step, st.sampled_from([-1, 3, 4, 2**40]), st.integers(1, 3))
    | st.builds(Step, st.sampled_from([3, 4, 2**40]), st.just(0), st.sampled_from([ABORT, COMMIT])),
    min_size=1,
    max_size=14,
)


def batches_of(told: Sequence[Step]) -> list[Batch]:
    """A log of steps: each record acknowledges the offset that it has itself."""
    made, offset, sequences = list[Batch](), 0, dict[int, int]()
    for step in told:
        if not step.records:
            made.append(marker(step.producer, step.kind))
            offset += 1
            continue
        records = []
        for at in range(offset, offset + step.records):
            write = snapshot if at % 5 == 0 else update
            records.append(write(KEYS[at % 3], [(at, at, 2, 1)]))
        codec = "zstd" if offset % 2 else "none"
        made.append(written(step.producer, *records, sequence=sequences.get(step.producer, 0), codec=codec))
        sequences[step.producer] = sequences.get(step.producer, 0) + step.records
        offset += step.records
    return made


@dataclass
class Counted:
    """Which offsets of a log count.

    Attributes:
        offsets: those that do.
        aborted, opened: those of aborted transactions, and of open ones.
    """

    offsets: list[int]
    aborted: list[int]
    opened: list[int]

    @property
    def stable_end(self) -> int | None:
        return min(self.opened, default=None)


def counted(told: Sequence[Step]) -> Counted:
    """Step by step, as a coordinator keeps what is pending until a marker."""
    found, pending, offset = Counted([], [], []), dict[int, list[int]](), 0
    for step in told:
        offsets = list(range(offset, offset + max(step.records, 1)))
        offset += len(offsets)
        if step.records and step.producer < 0:
            found.offsets += offsets
        elif step.records:
            pending.setdefault(step.producer, []).extend(offsets)
        else:
            ended = pending.pop(step.producer, [])
            (found.offsets if step.kind == COMMIT else found.aborted).extend(ended)
    found.opened = [one for offsets in pending.values() for one in offsets]
    for offsets in (found.offsets, found.aborted, found.opened):
        offsets.sort()
    return found
