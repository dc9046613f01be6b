"""Record batches that cannot be trusted, and offsets that are missing or told twice.

What became of a log partition since the last audit.
"""

from dataclasses import replace

import numpy as np
import pyarrow as pa

from share_state.fold.log import FoldedLog
from share_state.kafka.record_batches import Trust
from share_state.rules.registry import ERROR, INFO, NOTHING, WARNING, Broken, rule
from share_state.sources.resume import Fate


@rule(
    "TORN_TAIL",
    severity=WARNING,
    source="Kafka LogSegment.recover",
    statement="Every segment ends where a batch ends (preallocated zero bytes aside).",
)
def torn_tail(folded: FoldedLog) -> Broken:
    """Files that end inside a batch: what a crash or a copy in mid-write leaves; the whole batches before it count."""
    return _of_trust(folded, Trust.TORN, "the file ends inside a batch; what is before it was read")


@rule(
    "CRC_MISMATCH",
    severity=ERROR,
    source="Kafka DefaultRecordBatch.ensureValid",
    statement="The CRC-32C of every batch matches its bytes.",
)
def crc_mismatch(folded: FoldedLog) -> Broken:
    """Batches whose bytes changed after they were written; none of their records is used."""
    return _of_trust(folded, Trust.CRC_MISMATCH, "the CRC does not match; the batch was left out, take another copy")


@rule(
    "MAGIC_UNSUPPORTED",
    severity=ERROR,
    source="Kafka RecordBatch.CURRENT_MAGIC_VALUE",
    statement="Every batch is of format version 2.",
)
def magic_unsupported(folded: FoldedLog) -> Broken:
    """Batches of another record format than 2, the only one that brokers with share groups write."""
    broken = _of_trust(folded, Trust.MAGIC_UNSUPPORTED, "not a batch of format version 2; it was left out")
    if broken is NOTHING:
        return broken
    magic = folded.observed.batches["magic"][folded.observed.batches["trust"] == Trust.MAGIC_UNSUPPORTED]
    return replace(broken, evidence={**broken.evidence, "magic": magic.copy()})


@rule(
    "BATCH_MALFORMED",
    severity=ERROR,
    source="Kafka DefaultRecordBatch, DefaultRecord.readFrom",
    statement="The lengths and counts in every batch agree with its bytes.",
)
def batch_malformed(folded: FoldedLog) -> Broken:
    """Batches that lie about their length, their records or their compression."""
    return _of_trust(folded, Trust.MALFORMED, "the batch's lengths and counts do not fit its bytes; it was left out")


@rule(
    "DUPLICATE_OFFSET_CONFLICT",
    severity=ERROR,
    source="spec I41",
    statement="Where an offset is found twice, both copies hold the same bytes.",
)
def duplicate_offset_conflict(folded: FoldedLog) -> Broken:
    """Batches left out because another, of a higher leader epoch, fills their offsets with other bytes."""
    return _of_trust(folded, Trust.CONFLICT, "another copy holds other bytes under these offsets; it was left out")


@rule(
    "OFFSET_GAP",
    severity=WARNING,
    source="spec I41",
    statement="Between the log start and its end no offset is missing.",
)
def offset_gap(folded: FoldedLog) -> Broken:
    """Holes that no untrustworthy batch explains: a segment that was not copied, or records that were cut out."""
    gaps = np.array([(start, end) for start, end, explained in folded.observed.gaps if not explained], np.int64)
    if not len(gaps):
        return NOTHING
    start, end = gaps.T
    return Broken(
        start.copy(),
        ("offsets ", start, " to ", end - 1, " are missing; copy all segments of the folder"),
        evidence={"first_missing": start, "last_missing": end - 1, "missing": end - start},
        settled=np.ones(len(gaps), bool),
    )


@rule(
    "TRANSACTIONAL_BATCH",
    severity=WARNING,
    source="spec I38",
    statement="The state topic holds no transactional and no control batches.",
)
def transactional_batch(folded: FoldedLog) -> Broken:
    """Batches of another writer than the share coordinator; their records are folded, as the broker folds them."""
    first, count = folded.observed.counts.transactional
    if not count:
        return NOTHING
    return Broken(np.array([first]), (f"{count} transactional or control batches, the first here",),
                  evidence={"batches": np.array([count])})  # fmt: skip


def _of_trust(folded: FoldedLog, trust: Trust, consequence: str) -> Broken:
    of_it = np.flatnonzero(folded.observed.batches["trust"] == trust)
    if not len(of_it):
        return NOTHING
    rows = folded.observed.batches[of_it]
    files = pa.array([folded.log.segments[segment].path for segment in rows["segment"]])
    why = pa.array([folded.observed.why[row] and f" ({folded.observed.why[row]})" for row in of_it])
    position = rows["file_position"].copy()
    return Broken(
        rows["base_offset"].copy(),
        (files, ", position ", position, f": {consequence}", why),
        evidence={"file": files, "position": position, "bytes": rows["size"].copy()},
        settled=_torn_for_good(folded, rows) if trust == Trust.TORN else of_it < folded.observed.followed,
    )


def _torn_for_good(folded: FoldedLog, rows: np.ndarray) -> np.ndarray:
    """A copy's last segment may be completed yet."""
    last = {segment.copy: number for number, segment in enumerate(folded.log.segments)}
    return np.array([number != last[folded.log.segments[number].copy] for number in rows["segment"]])


def _met(folded: FoldedLog, fate: Fate, text: str, *, settled: bool) -> Broken:
    if folded.observed.fate != fate:
        return NOTHING
    before = folded.observed.read_before
    return Broken(np.array([folded.first_offset if settled else before]), (text,), settled=np.array([settled]))


@rule(
    "LOG_MISSING",
    severity=WARNING,
    source="the last audit",
    statement="Every log partition that an audit has read is there for the next one.",
)
def log_missing(folded: FoldedLog) -> Broken:
    """Log partitions that are not in the input any more; what the last audit knew of them is kept."""
    return _met(
        folded, Fate.MISSING, "not in the input; its share-partitions stand as the last audit left them", settled=False
    )


@rule(
    "LOG_BEHIND",
    severity=INFO,
    source="the last audit",
    statement="A log partition reaches at least as far as the last audit read.",
)
def log_behind(folded: FoldedLog) -> Broken:
    """Copies of a replica that lags; nothing is taken back."""
    return _met(
        folded,
        Fate.BEHIND,
        "ends before what the last audit read: a replica that lags; nothing was taken back",
        settled=False,
    )


@rule(
    "LOG_BEGUN_AGAIN",
    severity=INFO,
    source="the last audit",
    statement="A log partition goes on where it ended.",
)
def log_begun_again(folded: FoldedLog) -> Broken:
    """Logs of a topic that was made anew: read from their start, what was known before is gone."""
    return _met(folded, Fate.BEGUN_AGAIN, "the topic was made anew; its log was read from its start", settled=True)


@rule(
    "LOG_DIVERGED",
    severity=ERROR,
    source="spec I41",
    statement="An offset that was read once holds the same bytes for good.",
)
def log_diverged(folded: FoldedLog) -> Broken:
    """Logs that hold other bytes where the last audit stopped, as an unclean leader election leaves them."""
    text = "holds other bytes where the last audit stopped; it was read anew from its start"
    return _met(folded, Fate.DIVERGED, text, settled=True)
