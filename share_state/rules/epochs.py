"""Rules over the scalars of a record: epochs, the start offset, timestamps, and the delivery complete count."""

import numpy as np
import pyarrow as pa

from share_state.fold.record_context import ContextChunk
from share_state.kafka.state_records import Kind
from share_state.rules.breaches import ERROR, INFO, WARNING, Message, message
from share_state.rules.compiled import continues
from share_state.rules.registry import record_rule


@record_rule(
    "SNAPSHOT_EPOCH_GAP", ERROR, "Kafka ShareCoordinatorShard.generateShareStateRecord, initializeState"
)
def snapshot_epoch_gap(record, context, limits):
    """Each snapshot of a share-partition increments the snapshot epoch by one, from 0 for the first.

    Otherwise a record is missing, or there were two writers.

    Do: look for OFFSET_GAP and unreadable records nearby; compare the replicas.
    """
    if record.kind != Kind.SNAPSHOT or context.is_suspect:
        return False
    if context.exists_before:
        return record.snapshot_epoch != np.int64(context.snapshot_epoch_before) + 1
    # If earlier records are deleted, the first snapshot in the log may have any epoch.
    return record.snapshot_epoch != 0 and (context.was_deleted or limits.log_start_offset == 0)


@snapshot_epoch_gap.message
def _(records: np.ndarray, contexts: np.ndarray, _: ContextChunk) -> Message:
    found = records["snapshot_epoch"]
    expected = np.where(contexts["exists_before"], contexts["snapshot_epoch_before"].astype(np.int64) + 1, 0)
    return message("the snapshot has epoch ", found, ", expected ", expected, found=found, expected=expected)


@record_rule("UPDATE_EPOCH_MISMATCH", ERROR, "Kafka ShareCoordinatorShard.generateShareStateRecord")
def update_epoch_mismatch(record, context):
    """An update has the epoch of the snapshot before it.

    Do: look for OFFSET_GAP and unreadable records nearby; compare the replicas.
    """
    return (
        record.kind == Kind.UPDATE
        and context.exists_before
        and not context.is_suspect
        and record.snapshot_epoch != context.snapshot_epoch_before
    )


@update_epoch_mismatch.message
def _(records: np.ndarray, contexts: np.ndarray, _: ContextChunk) -> Message:
    found, expected = records["snapshot_epoch"], contexts["snapshot_epoch_before"]
    return message(
        "the update has snapshot epoch ",
        found,
        ", the snapshot before it ",
        expected,
        found=found,
        expected=expected,
    )


@record_rule(
    "STATE_EPOCH_REGRESSION", ERROR, "Kafka ShareCoordinatorShard.generateShareStateRecord, initializeState"
)
def state_epoch_regression(record, context, limits):
    """The state epoch of a share-partition's snapshots never decreases.

    A fenced group coordinator writes a lower one. Before 4.4, a request without a state epoch (-1) is not
    fenced.

    Do: compare it with the group epoch.
    """
    is_fenced = record.state_epoch != -1 or record.offset > limits.written_by_4_4_after
    return (
        record.kind == Kind.SNAPSHOT
        and context.exists_before
        and not context.is_suspect
        and is_fenced
        and record.state_epoch < context.state_epoch_before
    )


@state_epoch_regression.message
def _(records: np.ndarray, contexts: np.ndarray, _: ContextChunk) -> Message:
    found, before = records["state_epoch"], contexts["state_epoch_before"]
    return message(
        "the snapshot has state epoch ", found, ", the state before it ", before, found=found, before=before
    )


@record_rule("LEADER_EPOCH_REGRESSION", WARNING, "Kafka ShareCoordinatorShard.maybeGetWriteStateError")
def leader_epoch_regression(record, context):
    """The leader epoch of a share-partition decreases only when it is initialized.

    A fenced partition leader writes a lower one.

    Do: check the leader changes of the partition at that time.
    """
    # An update with leader epoch -1 does not change it.
    unchanged = record.kind == Kind.UPDATE and record.leader_epoch == -1
    return continues(record, context) and not unchanged and record.leader_epoch < context.leader_epoch_before


@leader_epoch_regression.message
def _(records: np.ndarray, contexts: np.ndarray, _: ContextChunk) -> Message:
    found, before = records["leader_epoch"], contexts["leader_epoch_before"]
    return message(
        "the record has leader epoch ", found, ", the state before it ", before, found=found, before=before
    )


@record_rule(
    "START_OFFSET_INVALID",
    WARNING,
    "Kafka ShareCoordinatorShard, PartitionFactory.UNINITIALIZED_START_OFFSET",
)
def start_offset_invalid(record):
    """A start offset is 0 or more, or -1 for none."""
    return record.kind != Kind.TOMBSTONE and record.start_offset < -1


@start_offset_invalid.message
def _(records: np.ndarray, _contexts: np.ndarray, _: ContextChunk) -> Message:
    return message("the start offset is ", records["start_offset"], found=records["start_offset"])


@record_rule(
    "START_OFFSET_REGRESSION",
    ERROR,
    "KIP-932, share-partition start offset; Kafka SharePartition.maybeUpdateCachedStateAndOffsets",
)
def start_offset_regression(record, context):
    """The start offset of a share-partition decreases only when it is initialized.

    Otherwise finished records may be delivered again.

    Do: before 4.4 check whether records were processed twice, and upgrade; from 4.4 on requests out of order
    cannot cause this.
    """
    if not continues(record, context) or record.start_offset >= context.start_before:
        return False
    if record.kind == Kind.UPDATE:
        return record.start_offset >= 0
    # After offsets are altered, 4.1 writes a snapshot of a later state epoch that includes a request.
    return record.start_offset >= -1 and record.state_epoch == context.state_epoch_before


@start_offset_regression.message
def _(records: np.ndarray, contexts: np.ndarray, _: ContextChunk) -> Message:
    found, before = records["start_offset"], contexts["start_before"]
    return message("the start offset decreases from ", before, " to ", found, found=found, before=before)


@record_rule(
    "TIMESTAMP_REGRESSION",
    INFO,
    "Kafka ShareCoordinatorShard.generateShareStateRecord, snapshotColdPartitions",
)
def timestamp_regression(record, context):
    """The timestamps of a share-partition's records and snapshots never decrease.

    Do: fix time synchronization.
    """
    if record.timestamp < context.timestamp_before:
        return True
    return record.kind == Kind.SNAPSHOT and (
        record.create_time > record.write_time
        or (context.exists_before and record.write_time < context.write_time_before)
    )


@timestamp_regression.message
def _(records: np.ndarray, contexts: np.ndarray, _: ContextChunk) -> Message:
    # If a record has several regressions, the message names the first of these.
    cases = [
        records["timestamp"] < contexts["timestamp_before"],
        records["create_time"] > records["write_time"],
    ]
    later = np.select(
        cases, [contexts["timestamp_before"], records["create_time"]], contexts["write_time_before"]
    )
    difference = later - np.where(cases[0], records["timestamp"], records["write_time"])
    what = np.where(cases[0], "the record's timestamp is ", "the snapshot was written ")
    than = np.select(
        cases,
        [" ms before the share-partition's last record", " ms before it was created"],
        " ms before the one it replaces",
    )
    return message(
        pa.array(what, pa.string()), difference, pa.array(than, pa.string()), milliseconds=difference
    )


@record_rule("DELIVERY_COMPLETE_COUNT_MISMATCH", INFO, "KIP-1226, delivery complete count")
def delivery_complete_count_mismatch(record, context):
    """The delivery complete count is the number of offsets from the start offset on that are acknowledged or archived.

    If it is wrong, the reported lag is wrong. A leader counts before it writes, so a count may include writes
    in flight. It also counts offsets that it finishes without a state batch: offsets of aborted transactions
    for a read_committed group.

    Do: nothing, unless it persists: the displayed lag is wrong by the difference.
    """
    found = record.delivery_complete_count
    if record.kind == Kind.TOMBSTONE:
        return False
    if context.terminal_after <= found <= context.terminal_after + context.gaps_after:
        return False
    if found < -1 or context.start_after < 0:
        return found < -1
    if found == -1:
        return continues(record, context) and context.complete_count_before >= 0
    # Without a snapshot before it, the state may lack offsets that the leader knew.
    return record.kind == Kind.SNAPSHOT or (context.rests_on_snapshot and not context.is_suspect)


@delivery_complete_count_mismatch.message
def _(records: np.ndarray, contexts: np.ndarray, _: ContextChunk) -> Message:
    counts, terminal = records["delivery_complete_count"], contexts["terminal_after"]
    window = contexts["end_after"] - contexts["start_after"]
    reason = np.select(
        [counts < -1, counts == -1, counts > window],
        [
            "it is below -1",
            "it was known before",
            "more than there are offsets in flight; a read_committed group may have finished offsets of aborted"
            " transactions after them",
        ],
        np.char.add(terminal.astype(str), " offsets from the start on are finished"),
    )
    # In tests with dead letters on a 4.4.0 broker, the next record of the share-partition always corrected
    # the count.
    ahead = "; a leader counts before it writes, so a later record may correct it"
    unbatched = [
        f", and {gaps} more are in no state batch" if gaps else "" for gaps in contexts["gaps_after"].tolist()
    ]
    return message(
        "the delivery complete count is ",
        counts,
        ": ",
        pa.array(reason.tolist(), pa.string()),
        pa.array(np.where((counts >= 0) & (counts <= window), unbatched, "").tolist(), pa.string()),
        pa.array(np.where((counts > terminal) & (counts <= window), ahead, "").tolist(), pa.string()),
        found=counts,
        finished=terminal,
        in_flight=window,
    )
