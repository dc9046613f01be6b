"""Rules over record batches and offsets: damaged batches, gaps, conflicts, and changes since the previous audit."""

from dataclasses import replace

import numpy as np
import pyarrow as pa

from share_state.errors import pluralize
from share_state.fold.draft.control_log import FoldedControlLog
from share_state.fold.log_stats import BATCH_FAULTS
from share_state.fold.state_log import FoldedLog
from share_state.kafka.record_batches import BatchStatus
from share_state.rules.breaches import ERROR, INFO, NOTHING, WARNING, Breaches
from share_state.rules.registry import Scope, rule
from share_state.sources.log_partition import LogPartition
from share_state.sources.resume_point import ResumeStatus


@rule("TORN_TAIL", Scope.RECORD_BATCHES, WARNING, "Kafka LogSegment.recover")
def torn_tail(folded: FoldedLog | FoldedControlLog) -> Breaches:
    """Every segment ends where a batch ends (preallocated zero bytes aside).

    A crash, or a copy during a write, truncates a batch; the batches before it are folded.

    Do: nothing if the broker still runs, because its recovery removes the incomplete batch; otherwise copy
    the log again.
    """
    torn = _with_status(folded, BatchStatus.TRUNCATED)
    if not len(torn.offset) or torn.settled is None:
        return torn
    # If the bytes end before the offset of the batch, use the next offset at the end of the log.
    return replace(torn, offset=np.where((torn.offset < 0) & ~torn.settled, folded.next_offset, torn.offset))


@rule(
    "LOG_UNREADABLE",
    Scope.RECORD_BATCHES,
    ERROR,
    "Kafka LogSegment.recover, LogSegment.open (preallocated segments)",
)
def log_unreadable(folded: FoldedLog | FoldedControlLog) -> Breaches:
    """A segment begins with a batch, as do the bytes after the last batch that the previous audit read.

    A file that does not was overwritten, perhaps with zeros; a broker may preallocate the newest segment.

    Do: take another copy; the state of the last audit stays until then.
    """
    if folded.observations.resume_status == ResumeStatus.UNREADABLE:
        text = "no batch where the previous audit stopped; the earlier state was kept, take another copy"
        return Breaches(np.array([folded.observations.read_before]), (text,), settled=np.array([False]))
    return _with_status(folded, BatchStatus.UNREADABLE)


@rule("CRC_MISMATCH", Scope.RECORD_BATCHES, ERROR, "Kafka DefaultRecordBatch.ensureValid")
def crc_mismatch(folded: FoldedLog | FoldedControlLog) -> Breaches:
    """The CRC-32C of every batch matches its bytes.

    The records of a batch with another checksum are not used.

    Do: read another replica's copy together with this one.
    """
    return _with_status(folded, BatchStatus.CRC_MISMATCH)


@rule("MAGIC_UNSUPPORTED", Scope.RECORD_BATCHES, ERROR, "Kafka RecordBatch.CURRENT_MAGIC_VALUE")
def magic_unsupported(folded: FoldedLog | FoldedControlLog) -> Breaches:
    """Every batch is of format version 2.

    Brokers with share groups write no other format.

    Do: read another replica's copy together with this one.
    """
    broken = _with_status(folded, BatchStatus.MAGIC_UNSUPPORTED)
    magic = folded.observations.batches["magic"][
        folded.observations.batches["status"] == BatchStatus.MAGIC_UNSUPPORTED
    ]
    return replace(broken, evidence={**broken.evidence, "magic": magic.copy()})


@rule("BATCH_MALFORMED", Scope.RECORD_BATCHES, ERROR, "Kafka DefaultRecordBatch, DefaultRecord.readFrom")
def batch_malformed(folded: FoldedLog | FoldedControlLog) -> Breaches:
    """The lengths and counts in every batch agree with its bytes.

    Do: read another replica's copy together with this one.
    """
    return _with_status(folded, BatchStatus.MALFORMED)


@rule("DUPLICATE_OFFSET_CONFLICT", Scope.RECORD_BATCHES, ERROR, "Kafka UnifiedLog.append, monotonic offsets")
def duplicate_offset_conflict(folded: FoldedLog | FoldedControlLog) -> Breaches:
    """If a committed offset occurs twice, both copies have the same bytes.

    If not, the batch of the higher leader epoch is used, and no batch of an earlier epoch after it.

    Do: separate the inputs, or compare the replicas.
    """
    return _with_status(folded, BatchStatus.CONFLICT)


@rule("UNREPLICATED_TAIL", Scope.RECORD_BATCHES, INFO, "KIP-101, leader epochs; Kafka UnifiedLog.truncateTo")
def unreplicated_tail(folded: FoldedLog | FoldedControlLog) -> Breaches:
    """No copy holds batches above its high watermark that a later leader epoch replaced.

    Only one broker had them when it failed; it truncates them when it starts again.

    Do: nothing; they were never committed, and the broker truncates them when it starts again.
    """
    return _with_status(folded, BatchStatus.UNREPLICATED)


_GAP_SOURCE = "Kafka UnifiedLog.append, monotonic offsets; cleanup.policy=delete of __share_group_state"


@rule("OFFSET_GAP", Scope.STATE_LOG, WARNING, _GAP_SOURCE)
def offset_gap(folded: FoldedLog) -> Breaches:
    """No offset is missing between the log start and the log end.

    A gap without a damaged batch is a segment that was not copied, or removed records. Inside a batch, log
    compaction removed them.

    Do: copy the whole folder; set `cleanup.policy=delete`, as brokers do for this topic.
    """
    seen = folded.observations
    if not seen.gaps and not seen.compacted:
        return NOTHING
    between = np.array(
        [(start, end) for start, end, explained in seen.gaps if not explained], np.int64
    ).reshape(-1, 2)
    start, end = np.concatenate((between, *seen.compacted)).T
    fixes = ["; copy all segments of the folder", " in a batch that was compacted; set cleanup.policy=delete"]
    fix = pa.array(fixes).take(pa.array(np.arange(len(start)) >= len(between)).cast(pa.int8()))
    return Breaches(
        start.copy(),
        ("offsets ", start, " to ", end - 1, " are missing", fix),
        evidence={"first_missing": start, "last_missing": end - 1, "missing": end - start},
        settled=np.ones(len(start), bool),
    )


@rule("OFFSET_GAP", Scope.CONTROL_LOG, WARNING, _GAP_SOURCE)
def offset_gap_between_segments(folded: FoldedControlLog) -> Breaches:
    """No offset is missing between the log start and the log end.

    An info for control records: the cleaner of a compacted topic leaves such gaps, and so does a segment that
    was not copied.
    """
    gaps = folded.observations.gaps
    if not gaps:
        return NOTHING
    start, end, _ = np.array(gaps, np.int64).T
    text = (
        "offsets ",
        start,
        " to ",
        end - 1,
        " are missing between two segments; copy all segments of the folder",
    )
    evidence = {"first_missing": start, "last_missing": end - 1, "missing": end - start}
    return Breaches(start, text, evidence=evidence, severity=np.full(len(start), INFO, object))


@rule("FOREIGN_BATCH", Scope.LOG, ERROR, "KIP-101, leader epochs; Kafka LeaderEpochFileCache")
def foreign_batch(folded: FoldedLog | FoldedControlLog) -> Breaches:
    """Each batch has a leader epoch and a file name that its log can have at this offset.

    Leader epochs never decrease, and are those of the leader-epoch-checkpoint beside the segments. No batch
    precedes the base offset in the name of its file. Otherwise batches of another replica or of another log
    are among them.

    Do: copy the folder of the log again, from one broker.
    """
    first, count = folded.observations.counts.foreign
    if not count:
        return NOTHING
    text = f"{count} batches have a leader epoch or a file name that the log cannot have there; this is the first"
    return Breaches(np.array([first]), (text,), evidence={"batches": np.array([count])})


@rule(
    "TRANSACTIONAL_BATCH",
    Scope.STATE_LOG,
    WARNING,
    "Kafka CoordinatorPartitionWriter; KIP-98, read_committed",
)
def transactional_batch(folded: FoldedLog) -> Breaches:
    """The state topic has no transactional or control batches.

    Share coordinators up to 4.4 write none. Records of a transaction count once a marker commits it: those of
    open transactions do not count yet, those of aborted ones never do. A broker up to 4.4 loads all of them.

    Do: find the producer and revoke its rights.
    """
    first, count = folded.observations.counts.transactional
    unread = _unread_by_client(folded)
    if not count and not unread:
        return NOTHING
    texts = [f"{count} transactional or control batches; this is the first"] if count else []
    stable_end, open_records = folded.observations.open_records
    aborted = folded.observations.counts.aborted[1]
    if aborted:
        texts.append(f"{pluralize(aborted, 'record')} of aborted transactions are left out")
    if open_records:
        texts.append(
            f"{pluralize(open_records, 'record')} of open transactions, from offset {stable_end} on, are left out"
        )
    if unread:
        stable_end, first = folded.next_offset, first if count else folded.next_offset
        texts.append(f"a transaction is open at offset {stable_end}; {unread} later offsets are not read")
    evidence = {"batches": count, "aborted_records": aborted, "open_records": open_records}
    columns = {name: np.array([number]) for name, number in evidence.items() if number}
    return Breaches(np.array([first]), ("; ".join(texts),), evidence=columns)


@rule(
    "CONTROL_RECORD_UNKNOWN", Scope.STATE_LOG, ERROR, "Kafka ControlRecordType.parse, CoordinatorLoaderImpl"
)
def control_record_unknown(folded: FoldedLog) -> Breaches:
    """Each control record of the state topic has a known layout and type.

    The transaction of its producer stays open, as nothing shows whether its records count.

    Do: say which release wrote it; do not clean the log.
    """
    unknown = folded.observations.unknown_markers
    if not unknown:
        return NOTHING
    offsets, producers, texts = zip(*unknown, strict=True)
    return Breaches(
        np.array(offsets),
        ("control record of producer ", np.array(producers).astype(str), ": ", pa.array(texts)),
        evidence={"producer_id": np.array(producers)},
    )


def _unread_by_client(folded: FoldedLog) -> int:
    """Number of offsets that a running cluster does not yet give to a client with read_committed."""
    return max(0, (getattr(folded.log.source, "high_watermark", None) or 0) - folded.next_offset)


def _with_status(folded: FoldedLog | FoldedControlLog, status: BatchStatus) -> Breaches:
    if not len(folded.observations.batches):
        return NOTHING
    numbers = np.flatnonzero(folded.observations.batches["status"] == status)
    if not len(numbers):
        return NOTHING
    rows = folded.observations.batches[numbers]
    files = pa.array([_file_of(folded.log, segment) for segment in rows["segment"]])
    why = pa.array(
        [folded.observations.reasons[row] and f" ({folded.observations.reasons[row]})" for row in numbers]
    )
    position = rows["file_position"].copy()
    return Breaches(
        rows["base_offset"].copy(),
        (files, ", position ", position, f": {BATCH_FAULTS[status][1]}", why),
        evidence={"file": files, "position": position, "bytes": rows["size"].copy()},
        settled=_is_final(folded, rows)
        if status == BatchStatus.TRUNCATED
        else numbers < folded.observations.followed,
    )


def _file_of(log: LogPartition, segment: int) -> str:
    """The file of a batch; the name of the log if its records are those of a stream."""
    return log.segments[segment].path if log.segments else log.name


def _is_final(folded: FoldedLog | FoldedControlLog, rows: np.ndarray) -> np.ndarray:
    """Whether each truncated batch stays truncated: only the last segment of a replica may still grow."""
    last = {segment.replica: number for number, segment in enumerate(folded.log.segments)}
    return np.array([number != last[folded.log.segments[number].replica] for number in rows["segment"]])


def _since_last_audit(folded: FoldedLog, status: ResumeStatus, text: str, *, settled: bool) -> Breaches:
    if folded.observations.resume_status != status:
        return NOTHING
    before = folded.observations.read_before
    return Breaches(
        np.array([folded.first_offset if settled else before]), (text,), settled=np.array([settled])
    )


@rule("LOG_BEHIND", Scope.STATE_LOG, INFO, "Kafka replication, high watermark")
def log_behind(folded: FoldedLog) -> Breaches:
    """A log partition ends at or after the offset where the previous audit stopped.

    The copy of a replica that lags ends before it, as does an older export; the state from the previous audit
    is kept.

    Do: nothing.
    """
    text = (
        "ends before the offset where the previous audit stopped: a replica that lags, or an older export;"
        " the earlier state was kept"
    )
    return _since_last_audit(folded, ResumeStatus.BEHIND, text, settled=False)


@rule("LOG_BEGUN_AGAIN", Scope.STATE_LOG, INFO, "KIP-516, topic ids")
def log_begun_again(folded: FoldedLog) -> Breaches:
    """A log partition continues where the previous audit stopped.

    The log of a recreated topic is read from its start; the earlier state is dropped.

    Do: nothing, if that was intended.
    """
    text = "the topic was recreated; its log was read from its start"
    return _since_last_audit(folded, ResumeStatus.RECREATED, text, settled=True)


@rule("LOG_DIVERGED", Scope.STATE_LOG, ERROR, "KIP-101, leader epochs")
def log_diverged(folded: FoldedLog) -> Breaches:
    """An offset keeps the bytes that an earlier audit read.

    An unclean leader election, for example, changes them.

    Do: compare the replicas; consumers may receive records again.
    """
    text = "has other bytes where the previous audit stopped; it was read from its start again"
    return _since_last_audit(folded, ResumeStatus.DIVERGED, text, settled=True)


@rule("RESUME_STATE_CHANGED", Scope.STATE_LOG, ERROR, "docs/tables/carried_logs.md: digest")
def resume_state_changed(folded: FoldedLog) -> Breaches:
    """What an audit leaves to resume from stays as it was written.

    The state of a log partition that another program changed is not believed; the log is read from its start.

    Do: find out who writes to the warehouse; the log was read from its start, so states that were pruned from
    it since are gone.
    """
    text = (
        "another program changed what the previous audit left to resume from; the log was read from its start"
    )
    return _since_last_audit(folded, ResumeStatus.CHANGED, text, settled=True)
