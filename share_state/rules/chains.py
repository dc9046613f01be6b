"""Rules over the chain of records of a share-partition: missing records, contradictions between records, deletions."""

import numpy as np
import pyarrow as pa

from share_state.fold.record_context import ContextChunk
from share_state.fold.state_chains import NO_OFFSET
from share_state.fold.state_log import FoldedLog
from share_state.kafka.state_records import Kind
from share_state.rules.breaches import (
    ERROR,
    INFO,
    NOTHING,
    PLACE,
    WARNING,
    Breaches,
    Message,
    at_share_partitions,
    in_words,
    message,
)
from share_state.rules.compiled import continues
from share_state.rules.registry import Scope, record_rule, rule


@rule(
    "ORPHAN_UPDATE",
    Scope.STATE_LOG,
    ERROR,
    "Kafka ShareCoordinatorShard.initializeState, generateShareStateRecord",
)
def orphan_update(folded: FoldedLog) -> Breaches:
    """The first record of a share-partition is a snapshot.

    A warning if records before the input may be missing: it begins after offset 0, and no broker recorded
    that this is the log start.

    Do: export from the log start; see BASE_LOST.
    """
    rows = np.flatnonzero(_is_orphan(folded))
    chains = folded.chains.chains[rows]
    partial = (folded.folded_from != 0 or not folded.log.has_offsets) and not folded.log.start_is_recorded
    first = chains["orphan_offset"].copy()
    severity = np.full(len(rows), WARNING if partial else ERROR, object)
    since = f" (the log begins at {PLACE} {folded.folded_from})" if folded.folded_from > 0 else ""
    text = (f"the state begins with an update at {PLACE} ", first, " that no snapshot precedes", since)
    return at_share_partitions(
        folded, rows, *text, offset=first, severity=severity, updates=chains["updates"].copy()
    )


def _is_orphan(folded: FoldedLog) -> np.ndarray:
    """bool, one per live share-partition: whether it begins with an update and no record is missing before it."""
    orphans = folded.chains.chains["orphan_offset"]
    return (orphans != NO_OFFSET) & (
        (folded.first_lost_offset == NO_OFFSET) | (orphans < folded.first_lost_offset)
    )


@rule("BASE_LOST", Scope.STATE_LOG, ERROR, "Kafka ShareCoordinatorService.performRecordPruning")
def base_lost(folded: FoldedLog) -> Breaches:
    """The log still holds the latest snapshot of every live share-partition.

    Only the log start offset that a broker recorded proves that it is lost.

    Do: reset the group's offsets to where it should resume; never delete beyond `share-state cutoff`.
    """
    rows = np.flatnonzero(_is_orphan(folded) & ~folded.chains.chains["was_deleted"])
    if not len(rows) or not folded.log.start_is_recorded:
        return NOTHING
    text = f"its latest snapshot is before the log start {folded.log.log_start_offset}: its state is lost"
    return at_share_partitions(folded, rows, text, offset=folded.chains.chains["orphan_offset"][rows])


@rule("STATE_SUSPECT", Scope.STATE_LOG, WARNING, "Kafka ShareCoordinatorShard.replay")
def state_suspect(folded: FoldedLog) -> Breaches:
    """Every record since a share-partition's latest snapshot can be read.

    A state whose snapshot is not in the input is suspect, too: ORPHAN_UPDATE names it.

    Do: do not act on this state; export the log again, from every replica, and read all copies together.
    """
    since = np.maximum(folded.chains.chains["suspect_offset"], folded.last_lost_offset)
    rows = np.flatnonzero(folded.suspect & (since != NO_OFFSET))
    chains = folded.chains.chains[rows]
    since = since[rows]
    why = " on are missing or unreadable since its latest snapshot"
    text = (f"the state may be wrong: records from {PLACE} ", since, why)
    return at_share_partitions(
        folded, rows, *text, offset=since, snapshot_offset=chains["snapshot_offset"].copy()
    )


# Rules that compare a record with the state before it.


@record_rule("COLD_SNAPSHOT_MISMATCH", ERROR, "Kafka ShareCoordinatorShard.snapshotColdPartitions")
def cold_snapshot_mismatch(record, context):
    """The snapshot of an idle share-partition repeats its state exactly.

    Judged if the state before it begins with a snapshot and can be read.

    Do: compare the replicas; the broker holds what the snapshot contains.
    """
    if not context.is_cold or not context.rests_on_snapshot or context.is_suspect:
        return False
    return (
        record.start_offset != context.start_before
        or record.state_epoch != context.state_epoch_before
        or record.leader_epoch != context.leader_epoch_before
        or record.delivery_complete_count != context.complete_count_before
        or record.create_time != context.create_time_before
        or context.contradicted_offset >= 0
    )


@cold_snapshot_mismatch.message
def _(records: np.ndarray, contexts: np.ndarray, _: ContextChunk) -> Message:
    compared = {
        "the start offset": ("start_offset", "start_before"),
        "the state epoch": ("state_epoch", "state_epoch_before"),
        "the leader epoch": ("leader_epoch", "leader_epoch_before"),
        "the delivery complete count": ("delivery_complete_count", "complete_count_before"),
        "the create time": ("create_time", "create_time_before"),
    }
    differs = {name: records[now] != contexts[before] for name, (now, before) in compared.items()}
    differs["its ranges"] = contexts["contradicted_offset"] >= 0
    what = [", ".join(name for name, column in differs.items() if column[row]) for row in range(len(records))]
    text, first = "the cold snapshot differs from the state before it in ", _first_contradiction(contexts)
    return message(
        text, pa.array(what, pa.string()), first, contradicted_offset=contexts["contradicted_offset"]
    )


@record_rule("SNAPSHOT_MISMATCH", ERROR, "Kafka ShareCoordinatorShard.generateShareStateRecord")
def snapshot_mismatch(record, context):
    """A snapshot holds the state before it, merged with one request.

    If it lowers or omits an offset, or holds one below its start, a record before it is missing.

    Do: compare the replicas; the broker holds what the snapshot contains.
    """
    return (
        record.kind == Kind.SNAPSHOT
        and continues(record, context)
        and not context.is_cold
        and context.contradicted_offset >= 0
    )


@snapshot_mismatch.message
def _(_records: np.ndarray, contexts: np.ndarray, _: ContextChunk) -> Message:
    text, first = "the snapshot cannot follow from the records before it", _first_contradiction(contexts)
    return message(text, first, contradicted_offset=contexts["contradicted_offset"])


def _first_contradiction(contexts: np.ndarray) -> pa.Array:
    """The first offset where a snapshot contradicts the state before it, in words; "" if there is none."""
    folded, snapshot = in_words(contexts["contradicted_from"]), in_words(contexts["contradicted_to"])
    texts = []
    for at, before, in_snapshot in zip(
        contexts["contradicted_offset"].tolist(), folded, snapshot, strict=True
    ):
        if at < 0:
            texts.append("")
        elif before.as_py() == in_snapshot.as_py():
            texts.append(f": it holds offset {at}, below its start offset")
        else:
            texts.append(f": offset {at} was folded to {before}, the snapshot has {in_snapshot}")
    return pa.array(texts, pa.string())


@record_rule("TERMINAL_STATE_LEFT", ERROR, "Kafka RecordState.validateTransition")
def terminal_state_left(context):
    """An acknowledged or archived offset keeps its state, and an archiving one can only become archived.

    Otherwise an offset may be delivered or counted twice.

    Do: the record may have been processed twice; check the consumers at that time.
    """
    return context.left_offset >= 0 and not context.is_suspect


@terminal_state_left.message
def _(_records: np.ndarray, contexts: np.ndarray, _: ContextChunk) -> Message:
    offsets = contexts["left_offset"]
    old = in_words(contexts["left_from"])
    new = in_words(contexts["left_to"])
    return message(
        "offset ", offsets, " was ", old, " and becomes ", new, left_offset=offsets, before=old, found=new
    )


@record_rule("STATE_AFTER_DELETE", WARNING, "Kafka ShareCoordinatorShard.deleteState, initializeState")
def state_after_delete(record, context):
    """The first record after a tombstone is a snapshot that initializes the share-partition again.

    A broker loads any other record as the state.

    Do: delete the group's offsets again.
    """
    initializes = record.kind == Kind.SNAPSHOT and record.batch_count == 0 and record.leader_epoch == 0
    return (
        context.was_deleted and not context.is_suspect and record.kind != Kind.TOMBSTONE and not initializes
    )


@state_after_delete.message
def _(records: np.ndarray, _contexts: np.ndarray, _: ContextChunk) -> Message:
    what = np.where(records["kind"] == Kind.UPDATE, "an update", "a snapshot with state")
    return message(
        "the share-partition was deleted, and ",
        pa.array(what, pa.string()),
        " follows that does not initialize it",
    )


@record_rule("TOMBSTONE_WITHOUT_STATE", INFO, "Kafka ShareCoordinatorShard.deleteState")
def tombstone_without_state(record, context, limits):
    """A tombstone deletes a share-partition that has state.

    If the log does not begin at offset 0, the state may have been in deleted records.

    Do: nothing.
    """
    return (
        record.kind == Kind.TOMBSTONE
        and not context.exists_before
        and not context.is_suspect
        and (context.was_deleted or limits.log_start_offset == 0)
    )


@tombstone_without_state.message
def _(_records: np.ndarray, contexts: np.ndarray, _: ContextChunk) -> Message:
    why = np.where(contexts["was_deleted"], "is already deleted", "has no record before it")
    return message("a tombstone of a share-partition that ", pa.array(why, pa.string()))
