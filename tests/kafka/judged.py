"""A log folded and judged in one go, and its findings in a form that tests can name."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from share_state.fold.fold_options import FoldOptions
from share_state.fold.state_log import FoldedLog, fold_log
from share_state.kafka.record_batches import CHUNK_SIZE
from share_state.rules.findings import count_findings, judge
from share_state.sources.as_of import Window
from share_state.sources.log_partition import LogPartition
from tests.kafka.batches import log_of

WHAT_FOLLOWS = {"STATE_SUSPECT", "ORPHAN_UPDATE", "OFFSET_GAP", "POISON_RECORDS"}
"""Findings that other findings bring about (what was lost leaves gaps, and states that rest on it), or that tell of
consumers rather than of the log.
"""


@dataclass(frozen=True)
class Judged:
    """A folded log and what the rules say of it."""

    folded: FoldedLog
    table: pa.Table

    @cached_property
    def findings(self) -> list[dict[str, Any]]:
        """The findings as rows."""
        return self.table.to_pylist()

    @property
    def codes(self) -> Counter[str]:
        """How often each rule is broken."""
        counts = Counter[str]()
        for rule, count in zip(self.table["rule"].to_pylist(), count_findings(self.table).to_pylist(), strict=True):
            counts[rule] += count
        return counts

    @property
    def causes(self) -> Counter[str]:
        """As `codes`, without the findings that only follow from others."""
        return Counter({code: count for code, count in self.codes.items() if code not in WHAT_FOLLOWS})

    def of(self, code: str) -> list[dict[str, Any]]:
        """The findings of one rule; evidence as a dictionary."""
        return [row | {"evidence": dict(row["evidence"])} for row in self.findings if row["rule"] == code]

    @property
    def positions(self) -> dict[str, list[int]]:
        """Rule -> positions in the file of the batches that break it."""
        found: dict[str, list[int]] = {}
        for row in self.findings:
            evidence = dict(row["evidence"])
            if "position" in evidence:
                found.setdefault(row["rule"], []).append(int(evidence["position"]))
        return found

    @property
    def states(self) -> dict[tuple[str, int], dict[str, Any]]:
        """Rows of share_partition_state by group and partition."""
        return {(row["group_id"], row["partition"]): row for row in self.folded.states.to_pylist()}

    @property
    def suspects(self) -> set[int]:
        """Partitions whose state is suspect."""
        return {row["partition"] for row in self.states.values() if row["suspect"]}

    @property
    def cutoff(self) -> dict[str, Any]:
        """The row of the table cutoff."""
        (row,) = self.folded.cutoff.to_pylist()
        return row


def judged(log: LogPartition, *, window: Window | None = None, chunk: int = CHUNK_SIZE, **options: Any) -> Judged:
    """Fold a log and run every rule; `options` are fields of FoldOptions."""
    folded = fold_log(log, window, FoldOptions(**options), chunk=chunk)
    return Judged(folded, judge(folded))


def judged_bytes(folder: Path, data: bytes, **options: Any) -> Judged:
    """As `judged`, of one segment with these bytes."""
    return judged(log_of(folder, data), **options)
