"""Short histories of share-partitions in plain words, audited: each rule is broken by one of them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import share_state
from share_state.fold.fold_options import FoldOptions
from share_state.fold.limits import Limits
from share_state.fold.state_log import fold_log
from share_state.rules.breaches import ERROR, INFO, WARNING
from share_state.rules.findings import judge, judge_records
from share_state.rules.registry import Scope
from share_state.sources.log_partition import LogPartition
from tests.kafka.batches import NOW, SNAPSHOT, UPDATE, Batch, Range, Record, consecutive, in_bytes, key, log_of
from tests.kafka.batches import snapshot as snapshot_value
from tests.kafka.batches import update as update_value
from tests.kafka.judged import Judged
from tests.log_writer import write_segment

MINUTE = 60_000
STATE_SCOPES = {Scope.RECORD, Scope.STATE_BATCH, Scope.STATE_LOG, Scope.RECORD_BATCHES, Scope.LOG}
CONTROL_SCOPES = {Scope.CONTROL_LOG, Scope.RECORD_BATCHES, Scope.LOG}
"""Scopes of the rules over logs of each dialect."""
OF_4_4 = {"writer_version": "4.4"}
AVAILABLE, ACQUIRED, ACKNOWLEDGED, ARCHIVING, ARCHIVED = range(5)


def snapshot(ranges: Sequence[Range] = (), *, partition: int = 0, after: int = 0, **fields: Any) -> Record:
    """A snapshot, `after` ms behind the first record; start 0, epoch 0, state epoch 1, leader epoch 2, count 0."""
    return Record(key(SNAPSHOT, partition=partition), snapshot_value(ranges, **fields), time_delta=after)


def update(ranges: Sequence[Range] = (), *, partition: int = 0, after: int = 0, **fields: Any) -> Record:
    """An update, `after` ms behind the first record; start 0, epoch 0, leader epoch 2, count 0."""
    return Record(
        key(UPDATE, partition=partition), update_value(ranges, start=fields.pop("start", 0), **fields), time_delta=after
    )


def tombstone(*, partition: int = 0) -> Record:
    """The end of a share-partition."""
    return Record(key(SNAPSHOT, partition=partition), None)


def log_with(folder: Path, *records: Record, base_offset: int = 0) -> LogPartition:
    """A log of these records, each in a batch of its own."""
    batches = [Batch([record], max_timestamp=NOW + max(0, record.time_delta)) for record in records]
    batches = consecutive(batches, base_offset)
    return log_of(folder, in_bytes(batches), base_offset=base_offset)


def audited(log: LogPartition, limits: Mapping[str, Any] = MappingProxyType({}), chunk: int = 1 << 20) -> Judged:
    """Fold a log and run every rule, those over single records too."""
    folded = fold_log(log, options=FoldOptions(limits=Limits(**limits), judge=judge_records), chunk=chunk)
    return Judged(folded, judge(folded, records=folded.record_breaches))


@dataclass(frozen=True)
class Findings:
    """What `share_state.reconstruct` finds.

    Attributes:
        rows: the findings; evidence as a dictionary.
    """

    rows: list[dict[str, Any]]

    @property
    def codes(self) -> Counter[str]:
        """How often each rule is broken."""
        counts = Counter[str]()
        for row in self.rows:
            counts[row["rule"]] += int(row["evidence"].get("findings", 1))
        return counts

    def of(self, code: str) -> list[dict[str, Any]]:
        """The findings of one rule."""
        return [row for row in self.rows if row["rule"] == code]


def found(
    folder: Path, *records: Record, limits: Mapping[str, Any] = MappingProxyType({}), base_offset: int = 0
) -> Findings:
    """The findings on the only state partition, whose log has these records, each in a batch of its own."""
    log = folder / "__share_group_state-0"
    log.mkdir(parents=True, exist_ok=True)
    batches = [Batch([record], max_timestamp=NOW + record.time_delta) for record in records]
    write_segment(log, consecutive(batches, base_offset))
    findings = share_state.reconstruct(folder, limits=limits, groups=()).findings
    return Findings([row | {"evidence": dict(row["evidence"])} for row in findings.to_pylist()])


@dataclass(frozen=True)
class Breach:
    """A history that breaks one rule.

    Attributes:
        severity: of the findings.
        offset: of the first of them.
        message: of the first of them.
        records: the history.
        limits: that it is held against.
        follows: codes of other rules that it must break as well.
    """

    severity: str
    offset: int
    message: str
    records: tuple[Record, ...]
    limits: Mapping[str, Any] = field(default_factory=dict)
    follows: frozenset[str] = frozenset()


FINISHED = [(0, 4, ACKNOWLEDGED, 1)]

BREACHES = {
    "UNKNOWN_DELIVERY_STATE": Breach(
        WARNING, 1, "the state batch 0-0 is in state ACQUIRED", (snapshot(), update([(0, 0, ACQUIRED, 1)]))
    ),
    "DELIVERY_COUNT_INVALID": Breach(
        WARNING,
        1,
        "the state batch 0-2 is ACKNOWLEDGED with delivery count 0",
        (snapshot(), update([(0, 2, ACKNOWLEDGED, 0)], count=3)),
    ),
    "DELIVERY_COUNT_OVER_LIMIT": Breach(
        WARNING,
        1,
        "offsets were delivered up to 6 times, but the limit of the group is 5: limits.delivery_count or limits.groups"
        " differ from the brokers",
        # The start passes it, so that nothing is at the limit in the end.
        (snapshot(), update([(0, 0, ARCHIVED, 6)], count=1), update(start=1)),
    ),
    "BATCHES_OVERLAP": Breach(
        WARNING,
        1,
        "the state batch 4-5 does not begin after the one before it",
        (snapshot(), update([(0, 4, AVAILABLE, 1), (4, 5, AVAILABLE, 2)])),
    ),
    "BATCH_BELOW_START": Breach(
        WARNING,
        1,
        "the state batch 0-4 begins below the start offset 2",
        (snapshot(), update(FINISHED, start=2, count=3)),
    ),
    "START_OFFSET_INVALID": Breach(WARNING, 1, "the start offset is -2", (snapshot(), update(start=-2))),
    "START_OFFSET_REGRESSION": Breach(
        ERROR, 1, "the start offset decreases from 5 to 4", (snapshot(start=5), update(start=4))
    ),
    "SNAPSHOT_EPOCH_GAP": Breach(ERROR, 1, "the snapshot has epoch 2, expected 1", (snapshot(), snapshot(epoch=2))),
    "UPDATE_EPOCH_MISMATCH": Breach(
        ERROR, 1, "the update has snapshot epoch 1, the snapshot before it 0", (snapshot(), update(epoch=1))
    ),
    "STATE_EPOCH_REGRESSION": Breach(
        ERROR,
        1,
        "the snapshot has state epoch 1, the state before it 2",
        (snapshot(state_epoch=2), snapshot(epoch=1, state_epoch=1)),
    ),
    "LEADER_EPOCH_REGRESSION": Breach(
        WARNING, 1, "the record has leader epoch 1, the state before it 2", (snapshot(), update(leader_epoch=1))
    ),
    "TIMESTAMP_REGRESSION": Breach(
        INFO,
        1,
        "the record's timestamp is 3 ms before the share-partition's last record",
        (snapshot(), update(after=-3)),
    ),
    "COLD_SNAPSHOT_MISMATCH": Breach(
        ERROR,
        1,
        "the cold snapshot differs from the state before it in the start offset",
        (snapshot(), snapshot(epoch=1, start=1, written=NOW + 1)),
    ),
    "SNAPSHOT_MISMATCH": Breach(
        ERROR,
        1,
        "the snapshot cannot follow from the records before it: "
        "offset 0 was folded to ACKNOWLEDGED at delivery count 1,"
        " the snapshot has no state",
        (snapshot(FINISHED, count=5), snapshot(epoch=1)),
    ),
    "TERMINAL_STATE_LEFT": Breach(
        ERROR,
        1,
        "offset 2 was ACKNOWLEDGED at delivery count 1 and becomes AVAILABLE at delivery count 2",
        (snapshot(FINISHED, count=5), update([(2, 3, AVAILABLE, 2)], count=3)),
    ),
    "DELIVERY_COMPLETE_COUNT_MISMATCH": Breach(
        INFO,
        1,
        "the delivery complete count is 4: 5 offsets from the start on are finished",
        (snapshot(), update(FINISHED, count=4)),
    ),
    "STATE_AFTER_DELETE": Breach(
        WARNING,
        2,
        "the share-partition was deleted, and a snapshot with state follows that does not initialize it",
        (snapshot(), tombstone(), snapshot(FINISHED, count=5)),
    ),
    "TOMBSTONE_WITHOUT_STATE": Breach(
        INFO, 0, "a tombstone of a share-partition that has no record before it", (tombstone(),)
    ),
    "START_NOT_CARRIED": Breach(
        WARNING,
        1,
        "the update omits the start offset, which is 7",
        (snapshot(start=7), update(start=-1)),
        OF_4_4,
    ),
    "COUNT_REGRESSION": Breach(
        WARNING,
        1,
        "the delivery complete count decreases from 5 to 4 while the start offset stays at 0",
        (snapshot(FINISHED, count=5), update(count=4)),
        OF_4_4,
        # What was finished stays so, so a count that falls is wrong before or after.
        frozenset({"DELIVERY_COMPLETE_COUNT_MISMATCH"}),
    ),
    "ARCHIVING_PASSED": Breach(
        WARNING,
        1,
        "the start offset moves to 2 past offset 1, which was last in state ARCHIVING",
        (snapshot([(1, 1, ARCHIVING, 1)]), update(start=2)),
        OF_4_4,
    ),
    "BATCHES_NOT_JOINED": Breach(
        INFO,
        1,
        "the state batch 1-1 and the one before it are both ACKNOWLEDGED at delivery count 1",
        (snapshot(), update([(0, 0, ACKNOWLEDGED, 1), (1, 1, ACKNOWLEDGED, 1)], count=2)),
        OF_4_4,
    ),
    "ARCHIVING_STUCK": Breach(
        WARNING,
        1,
        "3 offsets (1, 3-4) in ARCHIVING, the first for 1 min 1 s: the start offset cannot pass them until their"
        " dead-letter write is done",
        (snapshot([(1, 1, ARCHIVING, 1)]), update([(3, 4, ARCHIVING, 2)], after=61_000)),
    ),
    "POISON_RECORDS": Breach(
        WARNING,
        1,
        "3 offsets (0-1, 3) at the delivery limit of 5 or one delivery below it; 100 % of 3 deliveries failed",
        (snapshot(), update([(0, 1, AVAILABLE, 4), (3, 3, ARCHIVED, 5)], count=1)),
    ),
    "SPSO_STALL": Breach(
        WARNING,
        2,
        "the start offset 0 has not moved for 31 min, and later offsets finished since",
        (
            snapshot(),
            update([(2, 2, ACKNOWLEDGED, 1)], count=1),
            update([(1, 1, ACKNOWLEDGED, 1)], count=2, after=31 * MINUTE),
        ),
    ),
    "IN_FLIGHT_LIMIT": Breach(
        WARNING,
        0,
        "2000 offsets are in flight from 10 on; at 2000 no record beyond them is delivered until the first of them"
        " finishes",
        (snapshot([(10, 2009, AVAILABLE, 1)], start=10),),
    ),
    "LONG_CHAIN": Breach(
        WARNING,
        3,
        "3 updates follow offset 0 without a snapshot; the limit is 1",
        (snapshot(), update(), update(), update()),
        {"updates_per_snapshot": 1},
    ),
    "CUTOFF_PINNED": Breach(
        INFO,
        0,
        "its snapshot at offset 0 alone keeps 4 records",
        (snapshot(), *(snapshot(partition=1, epoch=epoch) for epoch in range(4))),
        {"pinned_records": 4},
    ),
}
"""Rule -> a history that breaks it, and no other but what follows."""
