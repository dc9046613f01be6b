"""Logs drawn at random: any records of a few share-partitions, in batches of any size."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from hypothesis import strategies as st

from share_state.sources.log_partition import LogPartition
from tests.fold.model import SNAPSHOT_KIND, TOMBSTONE_KIND, UPDATE_KIND, Written
from tests.kafka.batches import NOW, Batch, Range, consecutive, in_bytes, log_of

FARTHEST = 30


@st.composite
def state_batches(draw: st.DrawFn) -> tuple[Range, ...]:
    """Ranges in any order, overlapping or not."""
    drawn = []
    for _ in range(draw(st.integers(0, 4))):
        first = draw(st.integers(0, FARTHEST))
        last = draw(st.integers(first, min(first + 12, FARTHEST)))
        drawn.append((first, last, draw(st.sampled_from([0, 2, 3, 4])), draw(st.integers(0, 4))))
    return tuple(drawn)


@st.composite
def written_records(draw: st.DrawFn, kinds: tuple[str, ...], early: bool) -> Written:
    """One record."""
    return Written(
        kind=draw(st.sampled_from(kinds)),
        partition=draw(st.integers(0, 2)),
        batches=draw(state_batches()),
        start=draw(st.sampled_from([-1, -1, 0, 5, 9, 10, 20, FARTHEST + 5, -5])),
        epoch=draw(st.integers(0, 3)),
        state_epoch=draw(st.integers(0, 5)),
        leader_epoch=draw(st.integers(-1, 5)),
        count=draw(st.sampled_from([None, 0, 7])),
        time=draw(st.sampled_from([0, NOW, NOW + 1])),
        early=early,
    )


@st.composite
def logs(draw: st.DrawFn, *, orphans: bool = True) -> list[list[Written]]:
    """A log: batches of records; without `orphans` each share-partition begins with a snapshot and is never deleted."""
    early = draw(st.booleans())
    kinds = (SNAPSHOT_KIND, UPDATE_KIND, UPDATE_KIND, UPDATE_KIND, TOMBSTONE_KIND)
    if not orphans:
        kinds = (SNAPSHOT_KIND, UPDATE_KIND)
    drawn = draw(st.lists(st.lists(written_records(kinds, early), min_size=1, max_size=4), max_size=10))
    if orphans:
        return drawn
    return [[Written(SNAPSHOT_KIND, partition, start=0, early=early) for partition in range(3)], *drawn]


def as_kafka_writes(log: list[list[Written]]) -> list[list[Written]]:
    """The log with the snapshot epochs of a coordinator."""
    epochs: dict[int, int | None] = {}
    written = list[list[Written]]()
    for batch in log:
        written.append([])
        for record in batch:
            known = epochs.get(record.partition, 0 if record.kind == UPDATE_KIND else None)
            epoch = 0 if known is None else known + (record.kind == SNAPSHOT_KIND)
            written[-1].append(replace(record, epoch=epoch))
            epochs[record.partition] = None if record.kind == TOMBSTONE_KIND else epoch
    return written


def numbered(log: list[list[Written]]) -> list[tuple[int, Written]]:
    """The records of a log with their offsets."""
    return list(enumerate(written for batch in log for written in batch))


def folder_of(log: list[list[Written]], folder: Path, *, codec: int = 0, base_offset: int = 0) -> LogPartition:
    """The log as a broker would have written it."""
    batches = [Batch([written.record for written in batch], attributes=codec) for batch in log]
    return log_of(folder, in_bytes(consecutive(batches, base_offset)), base_offset=base_offset)


def row_of(table: pa.Table, columns: list[str]) -> list[dict]:
    """Rows of a table with these columns only."""
    return table.select(columns).to_pylist()
