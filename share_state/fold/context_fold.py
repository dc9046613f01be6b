"""Folds records one by one, chunk by chunk, and selects those that break a rule.

The fold in `state_chains` computes no state between two records, but rules over records need it. An audit
therefore folds the records of each share-partition one by one to the same state, with the same scalars
(`state_chains.fold_record`). `bit_fold` does so first; it is fast, but only proves that no record of a
share-partition breaks a rule. Otherwise the share-partition is folded again with ranges that are kept canonical
in place (`interval_map`), which gives each record its whole context. The kernel returns only the records that
break a rule.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from share_state.fold.bit_fold import fold_key_by_bits, fold_keys_by_bits
from share_state.fold.interval_map import (
    UNCOVERED,
    count_covered,
    count_terminal,
    drop_below,
    ensure_capacity,
    first_archiving,
    first_difference,
    first_illegal_transition,
    first_lowered,
    first_unfinished,
    has_capacity,
    load_incoming,
    merge_incoming,
    replace_with_incoming,
)
from share_state.fold.limits import Limits
from share_state.fold.offset_bits import empty_ring
from share_state.fold.outcomes import (
    OUTCOMES,
    GrowingOutcomes,
    count_replaced,
    note_deletion,
    note_reset,
    note_times,
)
from share_state.fold.record_context import (
    INITIAL_CONTEXT,
    RECORD_CONTEXT,
    ContextChunk,
    follows_loss,
    rule_limits,
    set_before,
)
from share_state.fold.state_chains import (
    CHAIN,
    NO_OFFSET,
    PREFETCH_DISTANCE,
    REPLACED,
    Chains,
    fold_record,
    is_cold,
    prefetch_batches,
)
from share_state.jit.compile import inlined, kernel
from share_state.jit.intrinsics import copy_rows, prefetch
from share_state.kafka.buffers import clone_rows, concat_rows, take_rows
from share_state.kafka.delivery_states import ARCHIVING
from share_state.kafka.state_records import (
    LARGEST_OFFSET,
    STATE_BATCH,
    UNREADABLE_FAULTS,
    Kind,
    StateRecords,
    initializes,
)

_BUFFERED = 1024
"""Number of records that break a rule that the kernel buffers before it returns."""


class ContextFold:
    """Folds the records of a log partition one by one, chunk by chunk, and selects those that break a rule."""

    def __init__(
        self,
        broken_rules: Any,
        *,
        log_start_offset: int = 0,
        limits: Limits = Limits(),  # noqa: B008  frozen
        archiving: tuple[int, int] = (NO_OFFSET, NO_OFFSET),
        count_from: int = 0,
    ) -> None:
        """Begin a log partition.

        Args:
            broken_rules: compiled rules of a RecordJudge.
            log_start_offset: log start offset when this log was first read; -1 if the format has no offsets.
            limits: limits of the cluster and of groups.
            archiving: offset and timestamp (ms) of the first record so far with a range in state ARCHIVING,
                -1 for none.
            count_from: offset from which outcomes are counted.
        """
        self.broken_rules, self.limits = broken_rules, limits
        self.log_start_offset, self.archiving = log_start_offset, archiving
        self._count_from, self._outcomes = count_from, GrowingOutcomes()

    @property
    def outcomes(self) -> np.ndarray:
        """OUTCOMES rows, one per share-partition so far."""
        return self._outcomes.rows

    def apply(
        self,
        records: StateRecords,
        chains: Chains,
        keys: int,
        slices: int = 1,
        limit_rows: np.ndarray | None = None,
        lost: Sequence[int] = (),
    ) -> ContextChunk:
        """Fold a chunk of records.

        Args:
            records: decoded records in log order.
            chains: the state before them, updated in place.
            keys: the number of share-partitions so far.
            slices: parts that are folded in parallel.
            limit_rows: int64, `Limits.group_rows` of the groups of these share-partitions; by default 0 for
                each.
            lost: offsets from which records are missing or unreadable, in any order: those that were noted
                since the chunk before, and the latest of all earlier ones.
        """
        if self.archiving[0] == NO_OFFSET:
            self.archiving = _first_archiving(records)
        limits = rule_limits(self.limits, self.log_start_offset, self.archiving[0])
        limit_rows = np.zeros(keys, np.int64) if limit_rows is None else limit_rows
        parts = [(np.zeros(0, np.int64), np.zeros(0, RECORD_CONTEXT), np.zeros(0, np.int64))]
        loss_offsets = np.unique(np.array(lost, np.int64))
        outcomes = self._outcomes.grow(limits["delivery_count"][limit_rows[len(self.outcomes) :]])
        fold = partial(
            _fold,
            self.broken_rules,
            limits,
            limit_rows,
            loss_offsets,
            outcomes,
            self._count_from,
            parts,
        )
        chains.apply(records, keys, slices, fold)
        rows, batches, contexts, broken = _selected(records, *map(concat_rows, zip(*parts, strict=True)))
        return ContextChunk(
            rows, batches, contexts, broken, self.archiving[0], self.limits, limits, limit_rows
        )


def _first_archiving(records: StateRecords) -> tuple[int, int]:
    batch = _first_archiving_batch(records.batches)
    if batch == NO_OFFSET:
        return NO_OFFSET, NO_OFFSET
    ends = np.cumsum(records.rows["batch_count"])
    first = records.rows[np.searchsorted(ends, batch, side="right")]
    return int(first["offset"]), int(first["timestamp"])


@kernel
def _first_archiving_batch(batches):
    """Row of the first batch in state ARCHIVING; -1 for none."""
    for row in range(len(batches)):
        if batches[row].state == ARCHIVING:
            return row
    return NO_OFFSET


def _fold(
    broken_rules: Any,
    limits: np.ndarray,
    limit_rows: np.ndarray,
    loss_offsets: np.ndarray,
    outcomes: np.ndarray,
    count_from: int,
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]],
    from_key: int,
    to_key: int,
    *folded: np.ndarray,
) -> None:
    """Fold a slice of share-partitions record by record: on bits, and again on ranges if a record may break a rule.

    The last arguments are those of `state_chains._fold`.

    Args:
        broken_rules: compiled rules of a RecordJudge.
        limits, limit_rows: rows of RULE_LIMITS, and which of them applies to each share-partition.
        loss_offsets: int64, sorted offsets from which records are missing or unreadable.
        outcomes: OUTCOMES rows, one per share-partition, and one for records that do not count; updated.
        count_from: offset from which outcomes are counted.
        parts: receives the row numbers of the records that break a rule, their RECORD_CONTEXT rows, and
            broken rules.
    """
    ring, bits = empty_ring()
    spare = np.empty(1, CHAIN), np.empty(1, OUTCOMES), np.empty(1, RECORD_CONTEXT)
    position, buffer = np.array([from_key, -1, 0, 0, 0, 0, 0]), np.empty(1024, STATE_BATCH)
    rules = broken_rules, limits, limit_rows, loss_offsets, outcomes, count_from, INITIAL_CONTEXT
    position[0], position[4] = fold_keys_by_bits(from_key, to_key, *folded, *rules, ring, bits, *spare)
    numbers, contexts = np.empty(_BUFFERED, np.int64), np.empty(_BUFFERED, RECORD_CONTEXT)
    broken = np.empty(_BUFFERED, np.int64)
    # numba compiles and loads a kernel when it is first called: a log without findings needs none for ranges.
    has_more = position[0] < to_key
    while has_more:
        # The kernel allocates no buffers: counting their references would take a quarter of the time.
        has_more = _fold_records(
            to_key, *folded, *rules, numbers, contexts, broken, position, buffer, ring, bits, *spare
        )
        filled, buffer = position[6], ensure_capacity(buffer, position[2], position[3])
        parts.append((numbers[:filled].copy(), clone_rows(contexts[:filled]), broken[:filled].copy()))


@kernel
def _fold_records(to_key, rows, batches, order, starts, chains, old_ends, old_batches, out, ends, broken_rules, limits,
                  limit_rows, loss_offsets, outcomes, count_from, initial_context, numbers, contexts, broken, position,
                  buffer, ring, bits, spare_chain, spare_outcome, spare_context):  # fmt: skip
    """Fold until all records are folded, until enough of them break a rule, or until a larger buffer is needed.

    Args:
        to_key, rows, batches, order, starts, chains, old_ends, old_batches, out, ends: as for
            `state_chains._fold`.
        broken_rules: compiled rules of a RecordJudge.
        limits, limit_rows, loss_offsets, outcomes, count_from: as for `_fold`.
        initial_context: RECORD_CONTEXT, one row with initial values.
        numbers, contexts, broken: receive row number, context and broken rules of each record that breaks a
            rule; same length.
        position: int64, where to continue, updated: share-partition, place in `order` (-1 at its beginning),
            number of its ranges, number of incoming ranges, rows of `out` in use, number of its terminal
            offsets, and number of records that break a rule.
        buffer: holds the ranges of the share-partition (`interval_map`).
        ring, bits: hold them as bits (`offset_bits`); empty.
        spare_chain, spare_outcome, spare_context: scratch space of one row each.
    Returns:
        Whether there is more to do.
    """
    key = position[0]
    number = position[1]
    size = position[2]
    range_end = position[4]
    finished = position[5]
    filled = np.int64(0)
    while key < to_key:
        begin, end = old_ends[key], old_ends[key + 1]
        if number < 0:
            filled_end = fold_key_by_bits(
                key, rows, batches, order, starts, chains, old_ends, old_batches, out, range_end, broken_rules, limits,
                limit_rows, loss_offsets, outcomes, count_from, initial_context, ring, bits, spare_chain, spare_outcome,
                spare_context,
            )  # fmt: skip
            if filled_end >= 0:
                range_end = filled_end
                key += 1
                ends[key] = range_end
                continue
            if not has_capacity(buffer, 0, end - begin):
                _save(position, key, number, np.int64(0), end - begin, range_end, finished, filled)
                return True
            copy_rows(old_batches, begin, buffer, 0, end - begin)
            number, size = starts[key], end - begin
            finished = count_terminal(buffer, 0, size, chains[key].start_offset)
        while number < starts[key + 1]:
            if number + PREFETCH_DISTANCE < len(order):
                prefetch(rows, order[number + PREFETCH_DISTANCE])
            if number + PREFETCH_DISTANCE // 2 < len(order):
                prefetch_batches(batches, rows[order[number + PREFETCH_DISTANCE // 2]])
            row = rows[order[number]]
            count = np.int64(row.batch_count)
            if filled == len(contexts) or not has_capacity(buffer, size, count):
                _save(position, key, number, size, count, range_end, finished, filled)
                return True
            copy_rows(initial_context, 0, contexts, filled, 1)
            context = contexts[filled]
            context.is_suspect = len(loss_offsets) > 0 and follows_loss(row.offset, chains[key], loss_offsets)
            outcome = outcomes[key if row.offset >= count_from else len(outcomes) - 1]
            size, finished = advance(row, batches, chains[key], buffer, size, finished, context, outcome)
            rules = broken_rules(row, context, batches, limits[limit_rows[key]])
            if rules != 0:
                numbers[filled] = order[number]
                broken[filled] = rules
                filled += 1
            number += 1
        copy_rows(buffer, 0, out, range_end, size)
        range_end += size
        key += 1
        ends[key] = range_end
        number = np.int64(-1)
    _save(position, key, number, np.int64(0), np.int64(0), range_end, finished, filled)
    return False


@inlined
def _save(position, key, number, size, incoming_count, at, finished, filled):
    position[0] = key
    position[1] = number
    position[2] = size
    position[3] = incoming_count
    position[4] = at
    position[5] = finished
    position[6] = filled


def _selected(
    records: StateRecords, numbers: np.ndarray, contexts: np.ndarray, broken: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Select records, and sort them in log order.

    Args:
        records: decoded records.
        numbers: int64, row numbers in any order.
        contexts, broken: context and broken rules of each number.
    Returns:
        (STATE_RECORD rows, STATE_BATCH rows that they point into, contexts, broken rules).
    """
    order = np.argsort(numbers)
    rows = take_rows(records.rows, numbers[order])
    begins = np.cumsum(rows["batch_count"], dtype=np.int64) - rows["batch_count"]
    shifts = np.repeat(rows["batches"] - begins, rows["batch_count"])
    rows["batches"] = begins
    batches = take_rows(records.batches, shifts + np.arange(len(shifts)))
    return rows, batches, take_rows(contexts, order), broken[order]


@kernel
def advance(row, batches, chain, buffer, size, finished, context, outcome):
    """Fold one record of a share-partition.

    Args:
        row: STATE_RECORD.
        batches: STATE_BATCH rows that it points into.
        chain: its CHAIN row, updated to the state after the record.
        buffer: holds its ranges, updated to the state after the record (fold/interval_map.py); large enough.
        size: number of its ranges.
        finished: number of its terminal offsets at or after the start.
        context: blank RECORD_CONTEXT row, filled in; `is_suspect` may be set already.
        outcome: OUTCOMES row, updated.
    Returns:
        (number of ranges, number of terminal offsets) after the record.
    """
    set_before(chain, context)
    existed = chain.exists
    if row.fault & UNREADABLE_FAULTS:
        fold_record(row, chain)
        return size, finished
    context.is_folded = True
    context.is_cold = existed and is_cold(row)
    context.is_initial = row.kind == Kind.SNAPSHOT and (not existed or initializes(row))
    before = chain.start_offset
    archiving = (
        first_archiving(buffer, size, before, LARGEST_OFFSET)
        if chain.archiving_at != NO_OFFSET
        else NO_OFFSET
    )
    replaces = fold_record(row, chain) == REPLACED
    if not chain.exists:
        note_deletion(outcome)
        return np.int64(0), np.int64(0)
    start = chain.start_offset
    cut = np.int64(-1) if replaces else max(np.int64(-1), start)
    end = load_incoming(batches, row.batches, row.batches + row.batch_count, cut, buffer)
    if existed and not context.is_initial and start > before:
        context.archiving_passed_offset = first_archiving(buffer, size, before, start)
    acknowledged, failed = outcome.acknowledged, outcome.given_up + outcome.rejected
    if replaces:
        if existed and not context.is_initial:
            _compare(row.start_offset, buffer, size, end, context)
            count_replaced(buffer, size, end, outcome)
        elif existed and before >= 0:
            note_reset(outcome, first_unfinished(buffer, size, before), start)
        size = replace_with_incoming(buffer, end)
        finished = count_terminal(buffer, 0, size, start)
    else:
        size, dropped_terminal = drop_below(buffer, size, cut, before)
        # If the start moves back, offsets before the old start are counted, too.
        finished = (
            finished - dropped_terminal if start >= max(before, 0) else count_terminal(buffer, 0, size, start)
        )
        size, added_terminal, context.left_offset, context.left_from, context.left_to = merge_incoming(
            buffer, size, end, start, outcome
        )
        finished += added_terminal
    note_times(outcome, acknowledged, failed, row.timestamp)
    context.start_after = start
    if start >= 0:
        context.end_after = max(start, buffer[size - 1].last + 1) if size > 0 else start
        if row.delivery_complete_count > finished:
            context.gaps_after = context.end_after - start - count_covered(buffer, size, start)
    context.terminal_after = finished
    if archiving != NO_OFFSET or _holds_archiving(row, batches):
        first = first_archiving(buffer, size, start, LARGEST_OFFSET)
        if first != archiving:
            chain.archiving_at = row.timestamp if first != NO_OFFSET else np.int64(NO_OFFSET)
    return size, finished


@inlined
def _holds_archiving(row, batches):
    for number in range(row.batches, row.batches + row.batch_count):
        if batches[number].state == ARCHIVING:
            return True
    return False


@kernel
def _compare(start, buffer, size, end, context):
    """Compare a snapshot's ranges, in the buffer up to row `end`, with the state before it."""
    if context.is_cold:
        at, old, new = first_difference(buffer, size, end)
    else:
        context.left_offset, context.left_from, context.left_to = first_illegal_transition(buffer, size, end)
        at, old, new = first_lowered(buffer, size, end, start)
        below = buffer[len(buffer) // 3].first
        if end > len(buffer) // 3 and below < start and (at == -1 or below < at):
            at = below
            old = np.int32(UNCOVERED)
            new = np.int32(UNCOVERED)
    context.contradicted_offset = at
    context.contradicted_from = old
    context.contradicted_to = new
