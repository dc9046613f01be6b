"""Rules over the state batches of a record, and rules that only records of 4.4 and later have to meet.

The latter apply if such a release is configured as the writer, or after a record that only 4.4 or later can
write.
"""

import numpy as np
import pyarrow as pa

from share_state.fold.record_context import ContextChunk
from share_state.kafka.delivery_states import ACKNOWLEDGED, ARCHIVED, ARCHIVING, AVAILABLE
from share_state.kafka.releases import ARCHIVING_SINCE
from share_state.kafka.state_records import Kind, Layout
from share_state.rules.breaches import INFO, OVER_LIMIT, PLACE, WARNING, Message, message, span, state_names
from share_state.rules.compiled import continues
from share_state.rules.registry import record_rule, state_batch_rule


@state_batch_rule("UNKNOWN_DELIVERY_STATE", WARNING, "Kafka RecordState; KIP-1191 for ARCHIVING")
def unknown_delivery_state(batch, limits):
    """A persisted state is AVAILABLE, ACKNOWLEDGED, ARCHIVED or, from 4.4 on, ARCHIVING.

    With any other state, a broker may refuse to load, or the start offset gets stuck.
    """
    state = batch.state
    # Without a branch: which of the known states a batch has is unpredictable.
    is_known = (state == AVAILABLE) | (state == ACKNOWLEDGED) | (state == ARCHIVED)
    return not (is_known | ((state == ARCHIVING) & limits.writes_archiving))


@unknown_delivery_state.message
def _(_: np.ndarray, batches: np.ndarray, chunk: ContextChunk) -> Message:
    writes_archiving = chunk.rule_limits["writes_archiving"][0]
    why = "" if writes_archiving else f", which {chunk.limits.writer_version} does not write"
    state = batches["state"]
    return message("the state batch ", *span(batches), " is in state ", state_names(state), why, state=state)


@state_batch_rule("DELIVERY_COUNT_INVALID", WARNING, "Kafka InFlightState.tryUpdateState")
def delivery_count_invalid(record, batch, limits):
    """Offsets that were delivered have a delivery count of 1 or more.

    Only 4.1 lowers the count of a released offset.
    """
    if batch.count != 0:
        return batch.count < 0
    if batch.state != AVAILABLE:
        return batch.state == ACKNOWLEDGED or batch.state == ARCHIVING
    if limits.writer_is_known:
        return not limits.lowers_counts
    # A snapshot may hold state that 4.1 wrote; an update with a delivery complete count is a request of 4.2
    # or later.
    return record.layout == Layout.EARLY or (
        record.kind == Kind.UPDATE and record.delivery_complete_count >= 0
    )


@delivery_count_invalid.message
def _(_: np.ndarray, batches: np.ndarray, _chunk: ContextChunk) -> Message:
    state, count = state_names(batches["state"]), batches["count"]
    return message(
        "the state batch ",
        *span(batches),
        " is ",
        state,
        " with delivery count ",
        count,
        delivery_count=count,
    )


@state_batch_rule(OVER_LIMIT, WARNING, "Kafka group.share.delivery.count.limit")
def delivery_count_over_limit(batch, limits):
    """No delivery count exceeds the limit of its group (limits.delivery_count, limits.groups).

    Otherwise the brokers have another limit than the audit, or a writer ignores it. Reported once per group;
    its other rules are judged by the greatest count.
    """
    return batch.count > limits.delivery_count


delivery_count_over_limit.greatest = "delivery_count"


@delivery_count_over_limit.message
def _(records: np.ndarray, _: np.ndarray, chunk: ContextChunk) -> Message:
    rows = np.repeat(np.arange(len(records)), records["batch_count"])
    begins = np.cumsum(records["batch_count"]) - records["batch_count"]
    at = records["batches"][rows] + np.arange(len(rows)) - begins[rows]
    most = np.zeros(len(records), np.int64)
    np.maximum.at(most, rows, chunk.batches["count"][at])
    limit = chunk.rule_limits["delivery_count"][chunk.limit_rows[records["key"]]]
    return message(
        "offsets were delivered up to ", most, " times, but the limit of the group is ", limit,
        ": limits.delivery_count or limits.groups differ from the brokers", delivery_count=most,
    )  # fmt: skip


@state_batch_rule("BATCHES_OVERLAP", WARNING, "Kafka PersisterStateBatchCombiner")
def batches_overlap(batch, previous):
    """The state batches of a record are in order and do not overlap.

    If they do, the greatest value of each offset is folded.

    Do: find the program that writes to the topic.
    """
    # INVERTED_RANGE reports ranges that end before they begin.
    return previous.first <= previous.last and batch.first <= batch.last and batch.first <= previous.last


@batches_overlap.message
def _(_: np.ndarray, batches: np.ndarray, _chunk: ContextChunk) -> Message:
    return message("the state batch ", *span(batches), " does not begin after the one before it")


@state_batch_rule("BATCH_BELOW_START", WARNING, "Kafka SharePartition.maybeInitialize")
def batch_below_start(record, batch):
    """No state batch of a record begins below the record's start offset.

    A leader refuses to load a snapshot with such a batch.

    Do: if the current state has such a batch, no leader can load it: `share-state repair` says what to do;
    else nothing.
    """
    return batch.first < record.start_offset and batch.first <= batch.last


@batch_below_start.message
def _(records: np.ndarray, batches: np.ndarray, _: ContextChunk) -> Message:
    return message(
        "the state batch ", *span(batches), " begins below the start offset ", records["start_offset"]
    )


def _why_4_4(chunk: ContextChunk, records: np.ndarray | None = None) -> str | pa.Array:
    """How the log shows that 4.4 or later wrote each record; "" for records before that."""
    if chunk.limits.writer_version is not None:
        return ""
    why = f" (the writer must be {ARCHIVING_SINCE} or later: ARCHIVING is in the log since {{}} {{}})"
    if records is None:
        return why.format(PLACE, chunk.archiving_since)
    is_later = records["offset"] > chunk.rule_limits["written_by_4_4_after"][0]
    return pa.array(np.where(is_later, why.format("offset", chunk.archiving_since), "").tolist(), pa.string())


@record_rule("START_NOT_CARRIED", WARNING, "Kafka 4.4 ShareCoordinatorShard.generateShareStateRecord")
def start_not_carried(record, context, limits):
    """From 4.4 on every update has the start offset once there is one.

    Otherwise an older broker, or another program, still writes.

    Do: finish the upgrade.
    """
    return (
        (record.offset > limits.written_by_4_4_after or not limits.writer_is_known)
        and record.kind == Kind.UPDATE
        and record.start_offset == -1
        and continues(record, context)
        and context.start_before >= 0
    )


@start_not_carried.message
def _(records: np.ndarray, contexts: np.ndarray, chunk: ContextChunk) -> Message:
    before, why = contexts["start_before"], _why_4_4(chunk, records)
    return Message(
        ("the update omits the start offset, which is ", before, why), {"before": before}, needs_4_4=True
    )


@record_rule(
    "COUNT_REGRESSION", WARNING, "Kafka 4.4 ShareCoordinatorShard.generateShareStateRecord; KIP-1226"
)
def count_regression(record, context, limits):
    """From 4.4 on the delivery complete count does not decrease while the start offset stays.

    Do: finish the upgrade.
    """
    return (
        (record.offset > limits.written_by_4_4_after or not limits.writer_is_known)
        and continues(record, context)
        and record.delivery_complete_count < context.complete_count_before
        and context.start_after == context.start_before
    )


@count_regression.message
def _(records: np.ndarray, contexts: np.ndarray, chunk: ContextChunk) -> Message:
    found, before = records["delivery_complete_count"], contexts["complete_count_before"]
    pieces = ("the delivery complete count decreases from ", before, " to ", found, " while the start offset stays at ",
              contexts["start_after"], _why_4_4(chunk, records))  # fmt: skip
    return Message(pieces, {"found": found, "before": before}, needs_4_4=True)


@record_rule("ARCHIVING_PASSED", WARNING, "KIP-1191; Kafka 4.4 SharePartition")
def archiving_passed(record, context, limits):
    """The start offset does not pass an offset in state ARCHIVING.

    Otherwise the log does not show the end of its dead-letter write.

    Do: check whether its dead letter arrived.
    """
    return (
        record.offset > limits.written_by_4_4_after
        and not context.is_suspect
        and context.archiving_passed_offset >= 0
    )


@archiving_passed.message
def _(_: np.ndarray, contexts: np.ndarray, chunk: ContextChunk) -> Message:
    passed = contexts["archiving_passed_offset"]
    return message(
        "the start offset moves to ", contexts["start_after"], " past offset ", passed,
        ", which was last in state ARCHIVING", _why_4_4(chunk), passed_offset=passed,
    )  # fmt: skip


@state_batch_rule("BATCHES_NOT_JOINED", INFO, "Kafka 4.4 PersisterStateBatchCombiner")
def batches_not_joined(record, context, batch, previous, limits):
    """From 4.4 on no two adjacent state batches of a record have the same state and delivery count.

    An older broker may write them; this is harmless.

    Do: nothing.
    """
    return (
        record.offset > limits.written_by_4_4_after
        and batch.first == previous.last + 1
        and batch.state == previous.state
        and batch.count == previous.count
        # A cold snapshot repeats batches of an older writer.
        and not context.is_cold
    )


@batches_not_joined.message
def _(_: np.ndarray, batches: np.ndarray, chunk: ContextChunk) -> Message:
    return message(
        "the state batch ", *span(batches), " and the one before it are both ", state_names(batches["state"]),
        " at delivery count ", batches["count"], _why_4_4(chunk),
    )  # fmt: skip
