"""Folds the records of one share-partition on bits per offset, and proves that none of them breaks a rule.

The contexts of the records are exact as long as no offset leaves a state that it cannot leave, no snapshot
contradicts the state before it, and the start passes no offset in ARCHIVING. Then the compiled rules decide. In
any other case, and if bits cannot express the state (`offset_bits`), the fold gives up, and `context_fold` folds
the share-partition on ranges.
"""

import numpy as np

from share_state.fold.offset_bits import (
    admits,
    clear,
    clear_below,
    covered_offsets,
    first_archiving_bit,
    first_unfinished_bit,
    holds,
    load,
    merge,
    store,
)
from share_state.fold.outcomes import count_changes, note_deletion, note_reset, note_times
from share_state.fold.record_context import follows_loss, set_before
from share_state.fold.state_chains import (
    NO_OFFSET,
    PREFETCH_DISTANCE,
    REPLACED,
    fold_record,
    is_cold,
    prefetch_batches,
)
from share_state.jit.compile import inlined, kernel
from share_state.jit.intrinsics import copy_rows, prefetch
from share_state.kafka.delivery_states import ARCHIVING
from share_state.kafka.state_records import UNREADABLE_FAULTS, Fault, Kind, initializes


@kernel
def fold_keys_by_bits(from_key, to_key, rows, batches, order, starts, chains, old_ends, old_batches, out, ends,
                      broken_rules, limits, limit_rows, loss_offsets, outcomes, count_from, initial_context, ring, bits,
                      spare_chain, spare_outcome, spare_context):  # fmt: skip
    """Fold share-partitions in order, up to the first of which a record may break a rule.

    Args:
        from_key, to_key: their numbers.
        rows, batches, order, starts, chains, old_ends, old_batches, out, ends: as for `state_chains._fold`.
        broken_rules, limits, limit_rows, loss_offsets, outcomes, count_from, initial_context, ring, bits,
            spare_chain, spare_outcome, spare_context: as for `context_fold._fold_records`.
    Returns:
        (number of the first share-partition that is not folded, rows of `out` in use).
    """
    key, range_end = from_key, np.int64(0)
    while key < to_key:
        filled_end = fold_key_by_bits(
            key, rows, batches, order, starts, chains, old_ends, old_batches, out, range_end, broken_rules, limits,
            limit_rows, loss_offsets, outcomes, count_from, initial_context, ring, bits, spare_chain, spare_outcome,
            spare_context,
        )  # fmt: skip
        if filled_end < 0:
            break
        range_end = filled_end
        key += 1
        ends[key] = range_end
    return key, range_end


@inlined
def fold_key_by_bits(key, rows, batches, order, starts, chains, old_ends, old_batches, out, range_end, broken_rules,
                     limits, limit_rows, loss_offsets, outcomes, count_from, initial_context, ring, bits, spare_chain,
                     spare_outcome, spare_context):  # fmt: skip
    """Fold one share-partition as `fold_keys_by_bits` does; without records it only copies its ranges.

    Returns:
        Row of `out` after its last range; -1 if a record may break a rule. Then nothing is changed.
    """
    begin, end = old_ends[key], old_ends[key + 1]
    if starts[key] == starts[key + 1]:
        copy_rows(old_batches, begin, out, range_end, end - begin)
        return range_end + end - begin
    return _fold_by_bits(
        key, starts[key], starts[key + 1], rows, batches, order, chains, old_batches, begin, end, out,
        range_end, broken_rules, limits[limit_rows[key]], loss_offsets, outcomes, count_from, initial_context,
        ring, bits, spare_chain, spare_outcome, spare_context,
    )  # fmt: skip


@kernel
def _fold_by_bits(key, begin, end, rows, batches, order, chains, old_batches, old_begin, old_end, out, range_end,
                  broken_rules, limits, loss_offsets, outcomes, count_from, initial_context, ring, bits, spare_chain,
                  spare_outcome, spare_context):  # fmt: skip
    """Fold the records of one share-partition, unless one of them may break a rule.

    Args:
        key: its number.
        begin, end: its records are rows[order[n]] for n from `begin` to `end`; they point into `batches`.
        chains, outcomes: CHAIN and OUTCOMES rows; its own are updated.
        old_batches, old_begin, old_end: its ranges before are rows `old_begin` to `old_end` of `old_batches`.
        out, range_end: its ranges after are written to `out` from row `range_end` on.
        broken_rules, limits: compiled rules of a RecordJudge, and its RULE_LIMITS row.
        loss_offsets, count_from, initial_context: as for `context_fold._fold_records`.
        ring, bits: an empty ring (`offset_bits`); empty again after the call.
        spare_chain, spare_outcome, spare_context: scratch space of one row each.
    Returns:
        Row of `out` after its last range; -1 if a record may break a rule. Then nothing is changed.
    """
    chain, window = chains[key], ring[0]
    context = spare_context[0]
    copy_rows(chains, key, spare_chain, 0, 1)
    copy_rows(outcomes, key, spare_outcome, 0, 1)
    is_sound = old_begin == old_end or old_batches[old_begin].first >= chain.start_offset
    number = old_begin
    while is_sound and number < old_end:
        is_sound = admits(window, old_batches[number], old_batches[number].first)
        if is_sound:
            load(window, bits, old_batches[number])
        number += 1
    number = begin
    while is_sound and number < end:
        if number + PREFETCH_DISTANCE < len(order):
            prefetch(rows, order[number + PREFETCH_DISTANCE])
        if number + PREFETCH_DISTANCE // 2 < len(order):
            prefetch_batches(batches, rows[order[number + PREFETCH_DISTANCE // 2]])
        row = rows[order[number]]
        copy_rows(initial_context, 0, spare_context, 0, 1)
        context.is_suspect = len(loss_offsets) > 0 and follows_loss(row.offset, chain, loss_offsets)
        outcome = outcomes[key if row.offset >= count_from else len(outcomes) - 1]
        is_sound = _advance(row, batches, chain, window, bits, context, outcome)
        is_sound = is_sound and broken_rules(row, context, batches, limits) == 0
        number += 1
    filled = np.int64(-1)
    if is_sound:
        filled = store(window, bits, out, range_end)
    else:
        copy_rows(spare_chain, 0, chains, key, 1)
        copy_rows(spare_outcome, 0, outcomes, key, 1)
    clear(window, bits)
    return filled


@inlined
def _advance(row, batches, chain, ring, bits, context, outcome):
    """Fold one record, like `context_fold.advance`.

    Args:
        row: STATE_RECORD.
        batches: STATE_BATCH rows that it points into.
        chain: CHAIN row, updated.
        ring, bits: hold the ranges, updated.
        context: blank RECORD_CONTEXT row, filled in.
        outcome: OUTCOMES row, updated.
    Returns:
        Whether the context and the state after the record are exact.
    """
    set_before(chain, context)
    if row.fault & (UNREADABLE_FAULTS | Fault.INVERTED_RANGE):
        return False
    existed, before = chain.exists, chain.start_offset
    context.is_folded = True
    context.is_cold = existed and is_cold(row)
    context.is_initial = row.kind == Kind.SNAPSHOT and (not existed or initializes(row))
    had_archiving = chain.archiving_at != NO_OFFSET
    archiving = first_archiving_bit(ring, bits) if had_archiving else np.int64(NO_OFFSET)
    replaces = fold_record(row, chain) == REPLACED
    if not chain.exists:
        note_deletion(outcome)
        clear(ring, bits)
        return True
    start = chain.start_offset
    is_compared = replaces and existed and not context.is_initial
    if start < NO_OFFSET or (existed and before < NO_OFFSET):
        return False
    if replaces and not is_compared:
        if existed and before >= 0:
            note_reset(outcome, first_unfinished_bit(ring, bits, before), start)
        clear(ring, bits)
    elif start < before:
        return False
    elif start > before:
        passes_archiving, passes_range = clear_below(ring, bits, start)
        if passes_archiving or (passes_range and context.is_cold):
            return False
    acknowledged, failed = outcome.acknowledged, outcome.given_up + outcome.rejected
    covered, after_previous = np.int64(0), np.int64(NO_OFFSET)
    holds_archiving = False
    for number in range(row.batches, row.batches + row.batch_count):
        batch = batches[number]
        first = batch.first
        if first < start and start >= 0 and row.start_offset == NO_OFFSET and not replaces:
            # An update without a start may know less than the state.
            first = start
            if batch.last < start:
                continue
        if first < start or batch.first < after_previous or not admits(ring, batch, first):
            return False
        after_previous = batch.last + 1
        if is_compared and context.is_cold and not holds(bits, batch):
            return False
        from_available, from_archiving, is_illegal = merge(ring, bits, batch, first)
        if is_illegal or (is_compared and not holds(bits, batch)):
            return False
        if is_compared or not replaces:
            count_changes(outcome, from_available, from_archiving, batch.count, batch.state)
        covered += batch.last - batch.first + 1
        holds_archiving |= batch.state == ARCHIVING
    if is_compared and covered_offsets(ring, bits) != covered:
        return False
    note_times(outcome, acknowledged, failed, row.timestamp)
    context.start_after = start
    context.terminal_after = ring.terminal
    if start >= 0:
        context.end_after = max(start, ring.end)
        if row.delivery_complete_count > ring.terminal:
            context.gaps_after = context.end_after - start - covered_offsets(ring, bits)
    if had_archiving or holds_archiving:
        first = first_archiving_bit(ring, bits)
        if first != archiving:
            chain.archiving_at = row.timestamp if first != NO_OFFSET else np.int64(NO_OFFSET)
    return True
