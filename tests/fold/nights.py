"""A log that grows: audited after each growth, the way a warehouse carries it from one audit to the next."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from share_state.fold.checkpoint import checkpoint_row, checkpoint_share_partitions, restore_checkpoint, resume_point_of
from share_state.fold.fold_options import FoldOptions
from share_state.fold.state_log import FoldedLog, fold_log
from share_state.kafka.record_batches import CHUNK_SIZE
from share_state.rules.findings import judge, judge_records
from share_state.sources.discovery import find_logs
from share_state.sources.log_partition import LogPartition
from share_state.sources.resume_point import READ_FROM_START, ResumeStatus, resume


@dataclass
class Auditor:
    """What is left from one audit to the next: the log's row, its share-partitions, the settled findings."""

    log: str | None = None
    share_partitions: pa.Table | None = None
    settled: list[dict] = field(default_factory=list)
    statuses: list[ResumeStatus] = field(default_factory=list)
    folded: FoldedLog | None = None
    unsettled: list[dict] = field(default_factory=list)

    @property
    def last(self) -> FoldedLog:
        """What the last audit folded."""
        assert self.folded is not None
        return self.folded

    def audit(self, log: LogPartition, chunk: int = CHUNK_SIZE) -> None:
        """Take in what is new."""
        restore, status = None, ResumeStatus.NEW
        mark = resume_point_of(self.log) if self.log else None
        if mark is not None:
            log, status = resume(log, mark)
        if status in READ_FROM_START:
            self.settled = []
        else:
            assert self.log is not None
            restore = partial(restore_checkpoint, self.log, self.share_partitions)
        self.statuses.append(status)
        self.folded = fold_log(
            log, options=FoldOptions(restore=restore, resume_status=status, judge=judge_records), chunk=chunk
        )
        found = judge(self.folded, records=self.folded.record_breaches).to_pylist()
        self.settled += [row for row in found if row["settled"]]
        self.unsettled = [row for row in found if not row["settled"]]
        if self.folded.checkpoint is None:
            self.log = None
        else:
            self.log = checkpoint_row(log.name, self.folded.checkpoint)["carried"]
            self.share_partitions = pa.concat_tables(checkpoint_share_partitions(log.name, self.folded.checkpoint))

    @property
    def findings(self) -> list[str]:
        """All findings by now, as text that sorts, without what they say of the time since the last audit."""
        rows = map(_without_counts, (*self.settled, *self.unsettled))
        return sorted(json.dumps(row, default=str) for row in rows)


def _without_counts(row: dict[str, Any]) -> dict[str, Any]:
    if row["rule"] != "POISON_RECORDS":
        return row
    return row | {"message": row["message"].partition(";")[0], "severity": None, "evidence": None}


def only_log(folder: Path) -> LogPartition:
    """The one log partition under a folder."""
    (log,) = find_logs([str(folder)])
    return log


def grown(source: LogPartition, folder: Path, sizes: Iterable[int]) -> Iterable[LogPartition]:
    """Copy a log's segments byte by byte up to each of `sizes` (bytes of all segments), then all of it."""
    place = folder / f"{source.topic}-{source.partition}"
    place.mkdir(parents=True)
    for size in (*sizes, source.size):
        left = size
        for segment in source.segments:
            data = Path(segment.path).read_bytes()[: max(left, 0)]
            left -= len(data)
            if data or segment is source.segments[0]:
                (place / Path(segment.path).name).write_bytes(data)
        yield only_log(folder)


def same_tables(found: FoldedLog, expected: FoldedLog) -> None:
    """Two folds hold the same, whatever numbers their share-partitions have."""
    for name in ("states", "in_flight", "cutoff"):
        left, right = getattr(found, name), getattr(expected, name)
        by_key = [
            (column, "ascending") for column in ("group_id", "topic_id", "partition") if column in left.schema.names
        ]
        by_key += [("first_offset", "ascending")] if name == "in_flight" else []
        if name != "cutoff":
            left, right = left.sort_by(by_key), right.sort_by(by_key)
        assert left.combine_chunks().to_pylist() == right.combine_chunks().to_pylist()
