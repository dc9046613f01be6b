"""Facts about each record, against a dictionary; the ranges they rest on, against the fold."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.fold.context_fold import ContextFold
from share_state.fold.limits import Limits
from share_state.fold.state_chains import CHAIN, Chains
from share_state.kafka.state_records import StateRecords
from tests.fold.decoded_logs import LOGS, damaged, decoded, drawn_records
from tests.fold.model import SNAPSHOT_KIND, UPDATE_KIND, Written
from tests.fold.random_logs import logs
from tests.fold.record_context_model import EVERY_RECORD, chunks, facts, seen
from tests.present import present
from tests.profiles import nightly, some_of
from tests.truth import DATA

SMALL = [
    "4.0.2/chaos",
    "4.1.2/chaos",
    "4.1.2/fuzz",
    "4.3.1/prune",
    "4.3.1/fuzz",
    "4.4.0/dlq",
    "4.4.0/fuzz",
    "4.2.1/happy",
]


def traced(records: StateRecords, keys: int, cuts: list[int] = []) -> np.ndarray:  # noqa: B006  never changed
    """The facts of all records, taken in chunks."""
    context_fold, chains, found = ContextFold(EVERY_RECORD), Chains(), []
    for chunk in chunks(records, cuts):
        found.append(context_fold.apply(chunk, chains, keys).contexts)
    return np.concatenate(found)


def fold(records: StateRecords, keys: int) -> Chains:
    chains = Chains()
    chains.apply(records, keys)
    return chains


def walked(records: StateRecords, keys: int, cuts: list[int] = [], slices: int = 1) -> Chains:  # noqa: B006
    """Every share-partition folded record by record."""
    chains = Chains()
    for chunk in chunks(records, cuts):
        ContextFold(EVERY_RECORD).apply(chunk, chains, keys, slices)
    return chains


def same_state(found: Chains, expected: Chains) -> None:
    # Only the fold record by record knows since when an offset is in ARCHIVING.
    for name in {*present(CHAIN.names)} - {"archiving_at"}:
        assert found.chains[name].tolist() == expected.chains[name].tolist(), name
    assert found.ends.tolist() == expected.ends.tolist()
    assert found.batches.tolist() == expected.batches.tolist()
    assert found.last_snapshot_record == expected.last_snapshot_record


@given(logs(), st.data())
def test_the_ranges_held_at_the_end_are_those_of_the_fold(
    tmp_path_factory: pytest.TempPathFactory, log: list[list[Written]], data: st.DataObject
):
    records, keys = drawn_records(log, tmp_path_factory.mktemp("log"))
    records = damaged(data, records)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(records.rows)), max_size=3)))
    same_state(walked(records, keys, cuts, data.draw(st.integers(1, 3))), fold(records, keys))


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("partition", [0, 1, 2])
def test_the_ranges_held_after_a_broker_s_log_are_those_of_the_fold(name: str, partition: int):
    records, keys = decoded(DATA / name / f"__share_group_state-{partition}")
    assert keys
    same_state(walked(records, keys), fold(records, keys))


@given(logs(), st.data())
def test_the_facts_are_those_of_a_dictionary_wherever_chunks_are_cut(
    tmp_path_factory: pytest.TempPathFactory, log: list[list[Written]], data: st.DataObject
):
    records, keys = drawn_records(log, tmp_path_factory.mktemp("log"))
    records = damaged(data, records)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(records.rows)), max_size=4)))
    found = traced(records, keys, cuts)
    assert [seen(row) for row in found] == facts(records)


@pytest.mark.parametrize("name", some_of(SMALL, 1))
@pytest.mark.parametrize("step", [10**6, 37])
def test_the_facts_of_a_broker_s_log_are_those_of_a_dictionary(name: str, step: int):
    records, keys = decoded(DATA / name / "__share_group_state-0")
    found = traced(records, keys, list(range(step, len(records.rows), step)))
    assert [seen(row) for row in found] == facts(records)


@nightly("a long log four times")
@pytest.mark.parametrize("name", some_of(["4.3.1/fuzz", "4.4.0/fuzz", "4.3.1/pruneraw", "4.3.1/codec-lz4"], 1))
def test_the_facts_of_random_requests_do_not_depend_on_the_chunks(name: str):
    records, keys = decoded(DATA / name / "__share_group_state-1")
    whole = traced(records, keys)
    for step in (1, 100, 999):
        assert traced(records, keys, list(range(step, len(records.rows), step))).tolist() == whole.tolist()


def test_a_share_partition_without_records_keeps_its_ranges():
    records, keys = decoded(DATA / "4.3.1/chaos/__share_group_state-1")
    chains, none = fold(records, keys), StateRecords(records.rows[:0], records.batches[:0])
    before = chains.batches.tolist()
    assert before
    ContextFold(EVERY_RECORD).apply(none, chains, keys + 3)
    assert (chains.batches.tolist(), len(chains.chains)) == (before, keys + 3)


def test_the_first_record_with_a_range_in_archiving_is_noted_once(tmp_path: Path):
    log = [
        [Written(UPDATE_KIND, 0, ((0, 1, 2, 1),))],
        [Written(UPDATE_KIND, 0)],
        [Written(UPDATE_KIND, 1, ((0, 1, 0, 1), (3, 4, 3, 1)))],
        [Written(UPDATE_KIND, 0, ((5, 5, 3, 1),))],
    ]
    records, keys = drawn_records(log, tmp_path)
    context_fold, since = ContextFold(EVERY_RECORD, log_start_offset=7, limits=Limits(delivery_count=9)), []
    for chunk in chunks(records, [2, 3]):
        found = context_fold.apply(chunk, Chains(), keys)
        since.append(found.archiving_since)
        assert (found.rule_limits["log_start_offset"].tolist(), found.limits.delivery_count) == ([7], 9)
    assert since == [-1, 2, 2]
    resumed = ContextFold(EVERY_RECORD, archiving=(1, 0))
    assert resumed.apply(records, Chains(), keys).archiving_since == 1


@pytest.mark.parametrize("count", some_of([1, 5, 100, 338, 2000], 3))
def test_a_range_that_fills_the_gaps_between_many_is_traced(tmp_path: Path, count: int):
    # They come one by one, so the room for them has grown to just what they need.
    apart = [Written(UPDATE_KIND, 0, ((2 * number, 2 * number, 2, 5),)) for number in range(count)]
    wide = [Written(UPDATE_KIND, 0, ((0, 2 * count, 0, deliveries),)) for deliveries in (1, 6)]
    records, keys = drawn_records([[Written(SNAPSHOT_KIND, 0, start=0)], apart, wide], tmp_path)
    for cuts in ([], [len(records.rows) - 2]):
        assert [seen(row) for row in traced(records, keys, cuts)][-5:] == facts(records)[-5:]
    but_the_last = StateRecords(records.rows[:-1], records.batches)
    assert len(fold(but_the_last, keys).batches) == 2 * count
    same_state(walked(but_the_last, keys), fold(but_the_last, keys))


def test_a_record_of_thousands_of_overlapping_ranges_is_traced(tmp_path: Path):
    many = tuple((number, number + 3, 2 * (number % 2), number % 5) for number in range(0, 3000, 2))
    log = [[Written(SNAPSHOT_KIND, 0, start=0)], [Written(UPDATE_KIND, 0, many[::-1])], [Written(UPDATE_KIND, 0, many)]]
    records, keys = drawn_records(log, tmp_path)
    same_state(walked(records, keys), fold(records, keys))
    assert [seen(row) for row in traced(records, keys, [1])] == facts(records)
