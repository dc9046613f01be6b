"""Ranges kept in place, compared and merged: offset by offset against a dictionary."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from share_state.fold.interval_map import (
    UNCOVERED,
    count_terminal,
    drop_below,
    ensure_capacity,
    first_difference,
    first_illegal_transition,
    first_lowered,
    load_incoming,
    merge_incoming,
)
from share_state.fold.outcomes import OUTCOMES
from share_state.kafka.delivery_states import ACKNOWLEDGED, ARCHIVING, AVAILABLE
from share_state.kafka.state_records import STATE_BATCH
from tests.truth import TERMINAL, runs

Values = dict[int, tuple[int, int]]
"""Offset -> (delivery count, delivery state)."""

offsets = st.integers(0, 25)
values = st.dictionaries(offsets, st.tuples(st.integers(0, 2), st.sampled_from([0, 2, 3, 4])))


@st.composite
def alike(draw: st.DrawFn) -> tuple[Values, Values]:
    """Two lists that differ in a few offsets, or in none."""
    first = draw(values)
    changed = draw(
        st.dictionaries(offsets, st.none() | st.tuples(st.integers(0, 2), st.sampled_from([0, 2])), max_size=2)
    )
    return first, {at: value for at, value in (first | changed).items() if value is not None}


def _rows(held: Values) -> np.ndarray:
    found = [(first, last, count, state) for first, last, (count, state) in runs(sorted(held.items()))]
    return np.array(found, STATE_BATCH)


def _room(held: Values, incoming: Values = {}, cut: int = -1) -> tuple[np.ndarray, int, int]:  # noqa: B006  never changed
    """(the room with both lists in it, how many ranges are held, row behind the incoming ones)."""
    rows, others = _rows(held), _rows(incoming)
    room = ensure_capacity(np.empty(0, STATE_BATCH), 0, len(rows) + len(others))
    room[: len(rows)] = rows
    return room, len(rows), load_incoming(others, 0, len(others), cut, room)


def _held(room: np.ndarray, size: int) -> list[tuple[int, ...]]:
    return room[:size].tolist()


def _finished(held: Values, start: int) -> int:
    return sum(at >= start and state in TERMINAL for at, (_, state) in held.items())


def _packed(value: tuple[int, int] | None) -> int:
    return UNCOVERED if value is None else value[0] * 256 + value[1]


@given(values, values, st.integers(0, 30))
@example(dict.fromkeys(range(0, 24, 2), (1, 2)), dict.fromkeys(range(25), (0, 0)), 0)
@example(dict.fromkeys((0, 2, 3, 4), (1, 2)), {1: (1, 2), 3: (2, 2)}, 0)
@example(dict.fromkeys((0, 2, 3, 4), (1, 2)) | {1: (0, 0)}, {1: (1, 2), 3: (2, 2)}, 0)
def test_the_greater_value_of_each_offset_is_held(held: Values, incoming: Values, start: int):
    room, size, end = _room(held, incoming)
    left = first_illegal_transition(room, size, end)
    merged = {at: max(held.get(at, (-1, 0)), incoming.get(at, (-1, 0))) for at in held.keys() | incoming.keys()}
    size, more, *raised_left = merge_incoming(room, size, end, start, np.zeros(1, OUTCOMES)[0])
    assert _held(room, size) == _rows(merged).tolist()
    assert more == _finished(merged, start) - _finished(held, start)
    assert tuple(raised_left) == left


@given(values, st.integers(-3, 30), st.integers(0, 30))
def test_what_lies_below_the_start_is_cut(held: Values, start: int, counted: int):
    room, size, _ = _room(held)
    expected = {at: value for at, value in held.items() if at >= start}
    size, gone = drop_below(room, size, start, counted)
    assert _held(room, size) == _rows(expected).tolist()
    assert gone == _finished(held, counted) - _finished(expected, counted)


@given(values, values)
def test_the_first_offset_to_leave_a_final_state_is_found(held: Values, incoming: Values):
    def leaves(old: tuple[int, int], new: tuple[int, int]) -> bool:
        (old_count, old_state), (new_count, new_state) = old, new
        if new_state == old_state or new_count < old_count:
            return False
        if old_state == ARCHIVING:
            return new_state in (AVAILABLE, ACKNOWLEDGED)
        back = new_count > old_count or (new_state == ARCHIVING and old_state == ACKNOWLEDGED)
        return old_state in TERMINAL and (new_state in TERMINAL or back)

    at = min((at for at in held.keys() & incoming.keys() if leaves(held[at], incoming[at])), default=-1)
    expected = (at, _packed(held.get(at)), _packed(incoming.get(at) if at >= 0 else None))
    assert first_illegal_transition(*_room(held, incoming)) == expected


@given(alike())
def test_the_first_difference_is_found(pair: tuple[Values, Values]):
    held, incoming = pair
    different = [at for at in held.keys() | incoming.keys() if held.get(at) != incoming.get(at)]
    at = min(different, default=-1)
    expected = (at, _packed(held.get(at)), _packed(incoming.get(at)))
    room, size, end = _room(held, incoming)
    assert first_difference(room, size, end) == expected


@given(alike(), st.integers(-1, 26))
def test_the_first_offset_that_is_lowered_is_found(pair: tuple[Values, Values], start: int):
    held, incoming = pair
    lowered = [at for at, value in held.items() if at >= start and incoming.get(at, (-1, 0)) < value]
    at = min(lowered, default=-1)
    room, size, end = _room(held, incoming)
    assert first_lowered(room, size, end, start) == (
        at,
        _packed(held.get(at)),
        _packed(incoming.get(at)) if lowered else UNCOVERED,
    )


@given(values, st.integers(0, 30))
def test_finished_offsets_are_counted_from_the_start_on(held: Values, start: int):
    room, size, _ = _room(held)
    assert count_terminal(room, 0, size, start) == _finished(held, start)


def test_ranges_at_the_ends_of_the_number_line_are_merged():
    low, high = -(2**63), 2**63 - 2
    room = ensure_capacity(np.empty(0, STATE_BATCH), 0, 4)
    room[:2] = np.array([(low, low + 5, 1, 0), (high - 3, high, 1, 0)], STATE_BATCH)
    wide = np.array([(low, high, 2, 2)], STATE_BATCH)
    size, *_ = merge_incoming(room, 2, load_incoming(wide, 0, 1, -1, room), 0, np.zeros(1, OUTCOMES)[0])
    assert _held(room, size) == [(low, high, 2, 2)]
