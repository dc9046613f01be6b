"""The ranges of one share-partition as bits: merging a range takes as long however many ranges there are.

A ring of 64 words of 64 offsets each. A word has one plane per bit of the value of an offset: whether a range
covers it, its delivery state, and its delivery count. `bit_fold` folds records with it; what the planes cannot
express (wide windows, large counts, unknown states) is left to `interval_map`.
"""

import numpy as np

from share_state.jit.compile import inlined, kernel
from share_state.jit.intrinsics import count_ones, first_one
from share_state.kafka.delivery_states import ACQUIRED, ARCHIVED, AVAILABLE

_WORDS = 64
_COVERED = 0
_STATE = 1
_COUNT = 3
"""First planes: one for covered offsets; two for the code of the state and four for the count, lowest bit first."""

_USED_PLANES, _PLANES = 7, 8
"""The eighth plane is not used, so that the planes of a word are one line of the CPU's cache."""

_LARGEST_COUNT, _SMALL_COUNT = 15, 3

RING = np.dtype(
    [
        ("low", "i8"),  # number of the first word that may have bits; the first offset of word n is 64 n
        ("top", "i8"),  # number of the last one; less than `low` if there is none
        ("end", "i8"),  # offset after the last range so far; -1 for none
        ("terminal", "i8"),  # number of terminal offsets
        ("has_large_counts", "?"),  # whether a count so far uses the two upper planes
    ]
)
"""One row: which words of a ring have bits. All other words are 0."""


def empty_ring() -> tuple[np.ndarray, np.ndarray]:
    """(one RING row, int64 planes of its words), without ranges."""
    ring = np.zeros(1, RING)
    ring["top"] = ring["end"] = -1
    return ring, np.zeros(_WORDS * _PLANES, np.int64)


@inlined
def _row_of(word):
    return (word & (_WORDS - 1)) * _PLANES


@inlined
def _mask(word, first, last):
    """The bits of a word for the offsets from `first` to `last`; at least one is in it."""
    low = max(first - (word << 6), 0)
    high = min(last - (word << 6), 63)
    return (np.int64(-1) << low) & ~(np.int64(-2) << high)


@inlined
def _code(state):
    """Two bits for a state, in the order of the states; the lower one is set for terminal states."""
    return np.int64(state) - (state > 0)


@inlined
def admits(ring, batch, first):
    """Whether the planes can express a state batch, and the ring the offsets from `first` on beside those in it.

    The ring is widened for it.
    """
    is_known = (batch.state >= AVAILABLE) & (batch.state <= ARCHIVED) & (batch.state != ACQUIRED)
    low, top = first >> 6, batch.last >> 6
    if ring.low <= ring.top:
        low, top = min(low, ring.low), max(top, ring.top)
    if not is_known or batch.count < 0 or batch.count > _LARGEST_COUNT or top - low >= _WORDS - 1:
        return False
    ring.low = low
    ring.top = top
    ring.end = max(ring.end, batch.last + 1)
    ring.has_large_counts |= batch.count > _SMALL_COUNT
    return True


@inlined
def load(ring, bits, batch):
    """Set the bits of a range that the ring admits and that overlaps no other."""
    code = _code(batch.state)
    value = np.int64(batch.count) << 2 | code
    for word in range(batch.first >> 6, (batch.last >> 6) + 1):
        mask = _mask(word, batch.first, batch.last)
        row = _row_of(word)
        bits[row + _COVERED] |= mask
        for plane in range(_USED_PLANES - 1):
            bits[row + _STATE + plane] |= mask & -(value >> plane & 1)
    ring.terminal += (batch.last - batch.first + 1) * (code & 1)


@inlined
def merge(ring, bits, batch, first):
    """Set each offset from `first` to the end of a state batch to the greater of its value and that of the batch.

    Args:
        batch: the ring admits it.
    Returns:
        (number of offsets that change from AVAILABLE, or from no range, to the state of the batch or to a greater
        count; number that change from ARCHIVING to its state; whether an offset may leave a state that it cannot
        leave).
    """
    last = batch.last
    code, count = _code(batch.state), np.int64(batch.count)
    state0, state1 = -(code & 1), -(code >> 1)
    count0, count1 = -(count & 1), -(count >> 1 & 1)
    count2, count3 = -(count >> 2 & 1), -(count >> 3 & 1)
    has_large_counts = ring.has_large_counts
    from_available, from_archiving = np.int64(0), np.int64(0)
    illegal = np.int64(0)
    for word in range(first >> 6, (last >> 6) + 1):
        mask = _mask(word, first, last)
        row = _row_of(word)
        old_state0, old_state1 = bits[row + _STATE], bits[row + _STATE + 1]
        old0, old1 = bits[row + _COUNT], bits[row + _COUNT + 1]
        # From the highest bit to the lowest: where the old value is less, and where it is equal so far.
        less, equal = np.int64(0), np.int64(-1)
        if has_large_counts:
            old2, old3 = bits[row + _COUNT + 2], bits[row + _COUNT + 3]
            less = ~old3 & count3
            equal = ~(old3 ^ count3)
            less |= equal & ~old2 & count2
            equal &= ~(old2 ^ count2)
        less |= equal & ~old1 & count1
        equal &= ~(old1 ^ count1)
        less |= equal & ~old0 & count0
        if (less & ~(old_state0 | old_state1) & mask) == mask:
            # Most often all offsets are AVAILABLE and get a greater count.
            less = mask
            from_available += min(last, (word << 6) + 63) - max(first, word << 6) + 1
        else:
            equal &= ~(old0 ^ count0)
            changes = (old_state1 ^ state1) | (old_state0 ^ state0)
            # Of the changes from other states than AVAILABLE, only that from ARCHIVING to ARCHIVED is legal for sure.
            is_settled = old_state0 | (old_state1 & ~(state1 & state0))
            illegal |= (less | equal) & changes & is_settled & mask
            less |= equal & ~old_state1 & state1
            equal &= ~(old_state1 ^ state1)
            less |= equal & ~old_state0 & state0
            less &= mask
            from_available += count_ones(less & ~(old_state0 | old_state1))
            from_archiving += count_ones(less & old_state1 & changes)
        bits[row + _COVERED] |= mask
        bits[row + _STATE] = old_state0 ^ (less & (old_state0 ^ state0))
        bits[row + _STATE + 1] = old_state1 ^ (less & (old_state1 ^ state1))
        bits[row + _COUNT] = old0 ^ (less & (old0 ^ count0))
        bits[row + _COUNT + 1] = old1 ^ (less & (old1 ^ count1))
        if has_large_counts:
            bits[row + _COUNT + 2] ^= less & (bits[row + _COUNT + 2] ^ count2)
            bits[row + _COUNT + 3] ^= less & (bits[row + _COUNT + 3] ^ count3)
    ring.terminal += (from_available + from_archiving) * (code & 1)
    return from_available, from_archiving, illegal != 0


@kernel
def holds(bits, batch):
    """Whether all offsets of a state batch that the ring admits have its value."""
    value = np.int64(batch.count) << 3 | _code(batch.state) << 1 | 1
    different = np.int64(0)
    for word in range(batch.first >> 6, (batch.last >> 6) + 1):
        row = _row_of(word)
        for plane in range(_USED_PLANES):
            different |= (bits[row + plane] ^ -(value >> plane & 1)) & _mask(word, batch.first, batch.last)
    return different == 0


@inlined
def clear_below(ring, bits, start):
    """Drop the offsets before `start`.

    Returns:
        (whether one was in state ARCHIVING, whether a range covered one).
    """
    archiving, covered = np.int64(0), np.int64(0)
    for word in range(ring.low, min(ring.top, start - 1 >> 6) + 1):
        mask = _mask(word, word << 6, start - 1)
        row = _row_of(word)
        ring.terminal -= count_ones(bits[row + _STATE] & mask)
        archiving |= bits[row + _STATE + 1] & ~bits[row + _STATE] & mask
        covered |= bits[row + _COVERED] & mask
        for plane in range(_USED_PLANES):
            bits[row + plane] &= ~mask
    ring.low = max(ring.low, start >> 6)
    return archiving != 0, covered != 0


@inlined
def clear(ring, bits):
    """Drop all offsets."""
    for word in range(ring.low, ring.top + 1):
        row = _row_of(word)
        for plane in range(_USED_PLANES):
            bits[row + plane] = 0
    ring.low = 0
    ring.top = -1
    ring.end = -1
    ring.terminal = 0
    ring.has_large_counts = False


@kernel
def covered_offsets(ring, bits):
    """Number of offsets in ranges."""
    total = np.int64(0)
    for word in range(ring.low, ring.top + 1):
        total += count_ones(bits[_row_of(word) + _COVERED])
    return total


@kernel
def first_archiving_bit(ring, bits):
    """The first offset in state ARCHIVING; -1 for none."""
    for word in range(ring.low, ring.top + 1):
        row = _row_of(word)
        archiving = bits[row + _STATE + 1] & ~bits[row + _STATE]
        if archiving != 0:
            return (word << 6) + first_one(archiving)
    return np.int64(-1)


@kernel
def first_unfinished_bit(ring, bits, start):
    """The first offset from `start` on, which is not before any range, that is not terminal."""
    if start >> 6 < ring.low:
        return start
    for word in range(start >> 6, ring.top + 1):
        unfinished = ~bits[_row_of(word) + _STATE] & _mask(word, start, (word << 6) + 63)
        if unfinished != 0:
            return (word << 6) + first_one(unfinished)
    return max(start, (ring.top + 1) << 6)


@kernel
def store(ring, bits, out, filled):
    """Write the canonical ranges to `out` from row `filled` on; returns the row after the last one."""
    is_open = False
    # The word after the last one has no bits, which ends the last range.
    for word in range(ring.low, ring.top + 2):
        row, previous = _row_of(word), _row_of(word - 1)
        edges = np.int64(0)
        for plane in range(_USED_PLANES):
            before = (bits[previous + plane] >> 63) & 1
            edges |= bits[row + plane] ^ (bits[row + plane] << 1 | before)
        while edges != 0:
            place = first_one(edges)
            edges &= edges - 1
            if is_open:
                out[filled].last = (word << 6) + place - 1
                filled += 1
            value = np.int64(0)
            for plane in range(_USED_PLANES):
                value |= (bits[row + plane] >> place & 1) << plane
            is_open = value & 1 != 0
            if is_open:
                code = value >> 1 & 3
                out[filled].first = (word << 6) + place
                out[filled].state = code + (code > 0)
                out[filled].count = value >> 3
    return filled
