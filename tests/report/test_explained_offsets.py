"""The last sentence of `explain` never denies the table above it, over random logs."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import share_state
from share_state.kafka.delivery_states import DeliveryState
from tests.kafka.batches import NOW, Batch, Record
from tests.log_writer import Key, snapshot, tombstone, update, write_log_folder
from tests.profiles import by_profile

KEY: Key = ("app", "AAAAAAAAAAEAAAAAAAAAAg", 3)
_END = 12
_DENIALS = (
    "no delivery is recorded:",
    "no earlier record",
    "holds nothing older",
    "no record has this offset",
    "and no record shows how it ended",
)
_PLACES = {
    "below_start": "below SPSO since",
    "gap": " gap (",
    "beyond_end": "beyond SPEO",
    "deleted": "deleted at",
    "uninitialised": "no start offset yet",
}
_STATES = {
    DeliveryState.AVAILABLE: ("waiting for delivery ", "available since"),
    DeliveryState.ACKNOWLEDGED: ("acknowledged in delivery {}",),
    DeliveryState.ARCHIVING: ("being archived since",),
    DeliveryState.ARCHIVED: ("archived in delivery {}",),
}

_offsets = st.integers(0, _END)
_ranges = st.lists(st.tuples(_offsets, st.integers(0, 3), st.sampled_from([0, 2, 3, 4]), st.integers(1, 4)), max_size=2)
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("update"), _ranges, st.integers(-1, _END)),
        st.tuples(st.just("snapshot"), _ranges, _offsets),
        st.tuples(st.just("reset"), st.just([]), st.integers(-1, _END)),
        st.tuples(st.just("delete"), st.just([]), st.just(0)),
    ),
    min_size=1,
    max_size=9,
)


def _records(steps: list[tuple[str, list[tuple[int, int, int, int]], int]]) -> list[Record]:
    """A log in which snapshot epochs follow each other; what it does to offsets is anything."""
    records, snapshot_epoch, state_epoch = list[Record](), -1, 0
    for kind, ranges, start in steps:
        batches = sorted((first, first + length, state, count) for first, length, state, count in ranges)
        if len(batches) == 2 and batches[0][1] >= batches[1][0]:
            batches = batches[:1]
        if kind == "delete" and snapshot_epoch >= 0:
            records.append(tombstone(KEY))
            snapshot_epoch = -1
        elif kind == "update" and snapshot_epoch >= 0:
            records.append(update(KEY, batches, snapshot_epoch=snapshot_epoch, start_offset=start))
        else:
            snapshot_epoch += 1
            state_epoch += kind == "reset"
            kept = [one for one in batches if one[0] >= start]
            numbers: dict[str, Any] = {"snapshot_epoch": snapshot_epoch, "state_epoch": state_epoch}
            records.append(snapshot(KEY, kept, start_offset=start, **numbers))
    return records


@settings(max_examples=by_profile(12, 1000))
@given(_steps, _offsets)
def test_the_sentence_agrees_with_the_table(
    steps: list[tuple[str, list[tuple[int, int, int, int]], int]], offset: int
) -> None:
    with TemporaryDirectory() as folder:
        stamped = [Batch([one], base_timestamp=NOW + 1000 * at) for at, one in enumerate(_records(steps))]
        write_log_folder(Path(folder), 0, stamped)
        facts = share_state.explain(folder, *KEY, offset).facts
    sentence = facts["sentence"]
    _check_past(facts, sentence)
    if facts["place"] != "in_flight":
        assert _PLACES[facts["place"]] in sentence or "not delivered any more" in sentence
        return
    phrases = _STATES[DeliveryState(facts["delivery_state"])]
    assert any(phrase.format(facts["delivery_count"]) in sentence for phrase in phrases)


def _check_past(facts: Mapping[str, Any], sentence: str) -> None:
    """What the table shows before the end is not denied, and what ended it is told."""
    in_flight = [n for n, one in enumerate(facts["records"]) if one["place"] == "in_flight"]
    if not in_flight:
        assert "it was AVAILABLE" not in sentence
        return
    shown = [denial for denial in _DENIALS if denial in sentence]
    ended = [one for one in shown if one != _DENIALS[-1]]
    assert ended == []
    since = facts["records"][in_flight[-1] + 1 :]
    deletions = [one for one in since if one["kind"] == "tombstone"]
    if len(since) <= 3:
        assert sentence.count("the state was deleted at") >= len(deletions)
