"""What is noticed while a log partition is read, for the rules to judge."""

from dataclasses import dataclass, field

import numpy as np

from share_state.fold.chains import NOWHERE
from share_state.wire.batch_facts import BatchFacts
from share_state.wire.chunk import Chunk
from share_state.wire.framing import BATCH, CONTROL, TRANSACTIONAL, Trust
from share_state.wire.resume import Fate
from share_state.wire.share_group_state import STATE_RECORD, Fault, Layout, StateRecords

_COUNTED = Fault.UNKNOWN_TYPE | Fault.UNKNOWN_TAG


@dataclass(slots=True)
class Counts:
    """What is told once a log partition, however often it is met; an audit carries it to the next.

    Attributes:
        layouts: Layout -> offset of the first value in it.
        transactional: offset of the first batch with the transactional or control flag, and their number.
        unknown_types: record type that no release knows -> offset of the first such record, and their number.
        unknown_tags: the same for records with a tagged field that is not known.
    """

    layouts: dict[int, int] = field(default_factory=dict)
    transactional: tuple[int, int] = (NOWHERE, 0)
    unknown_types: dict[int, tuple[int, int]] = field(default_factory=dict)
    unknown_tags: tuple[int, int] = (NOWHERE, 0)

    def take(self, batches: np.ndarray, facts: BatchFacts, records: StateRecords) -> None:
        """Count a chunk: its BATCH rows, what is true of them all, and its records."""
        if facts.attributes & (TRANSACTIONAL | CONTROL):
            flagged = (batches["trust"] == Trust.WHOLE) & (batches["attributes"] & (TRANSACTIONAL | CONTROL) != 0)
            self.transactional = _more(self.transactional, batches["base_offset"][flagged])
        rows = records.rows
        for layout in (Layout.EARLY, Layout.CURRENT):
            if layout not in self.layouts and records.layouts & 1 << layout:
                of_layout = rows["offset"][rows["layout"] == layout]
                if len(of_layout):
                    self.layouts[int(layout)] = int(of_layout[0])
        if not records.faults & _COUNTED:
            return
        strange = rows[rows["fault"] & _COUNTED != 0]
        if len(strange):
            self.unknown_tags = _more(self.unknown_tags, strange["offset"][strange["fault"] & Fault.UNKNOWN_TAG != 0])
            untyped = strange[strange["fault"] & Fault.UNKNOWN_TYPE != 0]
            for kind in np.unique(untyped["type"]).tolist():
                seen = self.unknown_types.get(kind, (NOWHERE, 0))
                self.unknown_types[kind] = _more(seen, untyped["offset"][untyped["type"] == kind])


@dataclass(slots=True)
class Observed:
    """What was noticed on the way.

    Attributes:
        batches: BATCH rows that are not WHOLE, in the order in which they were met.
        why: beside each of `batches`, what the row alone does not say ("" for nothing).
        followed: how many of `batches` come before the last whole batch; an audit does not read those again.
        gaps: (first missing offset, first offset behind the gap, whether a bad batch lies in it).
        records: STATE_RECORD rows with a fault other than those that are only counted.
        counts: what is told once.
        repeated_batches: batches that several copies hold with the same bytes, each beyond the first.
        misplaced: numbers of share-partitions that belong to another state partition, and which.
        fate: what became of the log since the last audit; None where there was none.
        read_before: the offset up to which the last audit had read.
    """

    batches: np.ndarray = field(default_factory=lambda: np.zeros(0, BATCH))
    why: list[str] = field(default_factory=list)
    followed: int = 0
    gaps: list[tuple[int, int, bool]] = field(default_factory=list)
    records: np.ndarray = field(default_factory=lambda: np.zeros(0, STATE_RECORD))
    counts: Counts = field(default_factory=Counts)
    repeated_batches: int = 0
    misplaced: tuple[np.ndarray, np.ndarray] = (np.zeros(0, np.int64), np.zeros(0, np.int64))
    fate: Fate | None = None
    read_before: int = NOWHERE

    def note_batches(self, part: Chunk, facts: BatchFacts) -> None:
        """Keep the batches of a chunk that cannot be trusted."""
        if facts.all_whole:
            self.followed = len(self.batches) if facts.rows else self.followed
            return
        bad = part.batches["trust"] != Trust.WHOLE
        good = np.flatnonzero(~bad)
        if len(good):
            self.followed = len(self.batches) + int(bad[: good[-1]].sum())
        self.why += [part.why.get(int(row), "") for row in np.flatnonzero(bad)]
        self.batches = np.concatenate((self.batches, part.batches[bad]))

    def note_records(self, records: StateRecords) -> None:
        """Keep the records of a chunk that are flawed."""
        if records.faults & ~_COUNTED:
            flawed = records.rows["fault"] & ~np.int16(_COUNTED) != 0
            self.records = np.concatenate((self.records, records.rows[flawed]))


def _more(seen: tuple[int, int], offsets: np.ndarray) -> tuple[int, int]:
    if not len(offsets):
        return seen
    first, count = seen
    return (first if count else int(offsets[0]), count + len(offsets))
