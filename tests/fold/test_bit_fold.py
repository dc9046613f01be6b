"""The fold on bits against the fold on ranges: the same contexts, states and outcomes, whatever a rule asks for."""

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.cli.main import run
from share_state.fold.context_fold import ContextFold
from share_state.fold.limits import Limits
from share_state.fold.record_context import BROKEN_RULES, ContextChunk
from share_state.fold.state_chains import CHAIN, Chains
from share_state.jit.compile import first_class, kernel
from share_state.kafka.delivery_states import ARCHIVED, ARCHIVING
from share_state.kafka.state_records import StateRecords
from share_state.rules.findings import judge_records
from tests.fold.decoded_logs import LOGS, damaged, decoded, drawn_records
from tests.fold.model import SNAPSHOT_KIND, TOMBSTONE_KIND, UPDATE_KIND, Written
from tests.fold.random_logs import logs
from tests.fold.record_context_model import EVERY_RECORD, chunks
from tests.kafka.batches import NOW, Range
from tests.present import present
from tests.profiles import nightly, some_of
from tests.truth import DATA, TERMINAL, runs


def _some(_record: Any, context: Any, _batches: Any, _limits: Any) -> int:
    """Chooses a few records, and others as soon as any part of a context differs."""
    total = 3 * context.start_before + 5 * context.start_after + 7 * context.end_after + 11 * context.terminal_after
    total += 13 * context.gaps_after + 17 * context.left_offset + 19 * context.contradicted_offset
    total += 23 * context.archiving_passed_offset + 29 * context.timestamp_before + 31 * context.left_from
    total += 37 * context.left_to + 41 * context.contradicted_from + 43 * context.contradicted_to
    total += 47 * context.is_folded + 53 * context.exists_before + 59 * context.rests_on_snapshot
    total += 61 * context.is_suspect + 67 * context.was_deleted + 71 * context.is_initial + 73 * context.is_cold
    total += 79 * context.snapshot_epoch_before + 83 * context.state_epoch_before + 89 * context.leader_epoch_before
    total += 97 * context.complete_count_before + 101 * context.create_time_before + 103 * context.write_time_before
    return int(total % 16 == 0)


def _count(_record: Any, _context: Any, _batches: Any, limits: Any) -> int:
    """Chooses none, and counts the records that it is asked about."""
    limits.log_start_offset += 1
    return 0


SOME_RECORDS, COUNTED = first_class(_some, BROKEN_RULES), first_class(_count, BROKEN_RULES)


@kernel
def _ask(rules, records, contexts, batches, limits, broken):
    """Evaluate compiled rules over records with known contexts."""
    for row in range(len(records)):
        broken[row] = rules(records[row], contexts[row], batches, limits[0])


def folded(
    rules: Any, records: StateRecords, keys: int, cuts: list[int], limit: int, count_from: int = 0
) -> tuple[list[ContextChunk], Chains, np.ndarray]:
    context_fold = ContextFold(rules, limits=Limits(delivery_count=limit), count_from=count_from)
    chains = Chains()
    found = [context_fold.apply(chunk, chains, keys) for chunk in chunks(records, cuts)]
    return found, chains, context_fold.outcomes


def agree(rules: Any, records: StateRecords, keys: int, cuts: list[int], limit: int = 5, count_from: int = 0) -> None:
    """Fold with some rules, and on ranges alone, as if each record broke one; compare everything."""
    found, chains, outcomes = folded(rules, records, keys, cuts, limit, count_from)
    every, same_chains, same_outcomes = folded(EVERY_RECORD, records, keys, cuts, limit, count_from)
    for chunk, all_of_chunk in zip(found, every, strict=True):
        broken = np.zeros(len(all_of_chunk.records), np.int64)
        _ask(rules, all_of_chunk.records, all_of_chunk.contexts, all_of_chunk.batches, all_of_chunk.rule_limits, broken)
        assert chunk.contexts.tolist() == all_of_chunk.contexts[broken != 0].tolist()
        assert chunk.records["offset"].tolist() == all_of_chunk.records["offset"][broken != 0].tolist()
    for name in present(CHAIN.names):
        assert chains.chains[name].tolist() == same_chains.chains[name].tolist(), name
    assert chains.ends.tolist() == same_chains.ends.tolist()
    assert chains.batches.tolist() == same_chains.batches.tolist()
    assert outcomes.tolist() == same_outcomes.tolist()


Values = dict[int, tuple[int, int]]
"""Offset -> (delivery count, delivery state)."""


@st.composite
def leader_logs(draw: st.DrawFn) -> list[list[Written]]:
    """What leaders of two share-partitions write: most changes are legal, and most snapshots repeat the state.

    Windows cross many words of 64 offsets, and now and then are too wide, or have counts too large, for the bits.
    """
    random: Random = draw(st.randoms(use_true_random=False))
    width = random.choice((10, 100, 100, 1000, 5000))
    mistakes = random.choice((0, 0, 0, 0.02, 0.2))
    values: list[Values] = [{}, {}]
    starts, epochs = [random.choice((0, 60, 4090)) for _ in range(2)], [0, 0]
    written = [Written(SNAPSHOT_KIND, number, start=random.choice((-1, starts[number]))) for number in range(2)]
    for _ in range(draw(st.integers(0, 40))):
        number = random.randrange(2)
        known, start = values[number], starts[number]
        changes = _changes(random, known, start, width, mistakes)
        if random.random() < 0.7:
            while start in known and known[start][1] in TERMINAL:
                start += 1
        start += random.randrange(-3, 4) if random.random() < mistakes else 0
        for first, last, state, count in changes:
            known |= {at: max(known.get(at, (0, 0)), (count, state)) for at in range(first, last + 1)}
        values[number] = known = {at: value for at, value in known.items() if at >= start}
        starts[number] = start
        finished = sum(state in TERMINAL for _, state in known.values())
        count = random.choice((finished, finished, finished, finished + 1, None))
        kind = random.choice((UPDATE_KIND,) * 12 + (SNAPSHOT_KIND,) * 4 + (TOMBSTONE_KIND,))
        if kind == SNAPSHOT_KIND:
            epochs[number] += 1
            changes = [(first, last, state, times) for first, last, (times, state) in runs(sorted(known.items()))]
            if changes and random.random() < mistakes:
                changes.pop(random.randrange(len(changes)))
        shown = -1 if kind == UPDATE_KIND and random.random() < 0.1 else start
        written.append(Written(kind, number, tuple(changes), start=shown, epoch=epochs[number], count=count, time=NOW))
        if kind == TOMBSTONE_KIND:
            values[number], epochs[number] = {}, 0
            written.append(Written(SNAPSHOT_KIND, number, start=start))
    return [written]


def _changes(random: Random, known: Values, start: int, width: int, mistakes: float) -> list[Range]:
    """Ranges that a leader may write, in order."""
    changes = list[Range]()
    at = start
    for _ in range(random.randrange(5)):
        first = at + random.choice((0, 0, 1, random.randrange(width)))
        last = first + random.choice((0, 3, random.randrange(width // 2)))
        at = last + 1
        before = [known.get(offset, (0, 0)) for offset in range(first, last + 1)]
        if random.random() >= mistakes and any(state in TERMINAL for _, state in before):
            continue
        times = max(count for count, _ in before) + random.choice((0, 1, 1, 1, 4 if random.random() < 0.1 else 1))
        is_archiving = any(state == ARCHIVING for _, state in before)
        state = random.choice((ARCHIVING, ARCHIVED)) if is_archiving else random.choice((0, 0, 2, 2, 2, 3, 4))
        changes.append((first, last, state, times))
    return changes


@given(leader_logs(), st.data())
def test_a_leader_s_log_has_the_same_contexts(
    tmp_path_factory: pytest.TempPathFactory, log: list[list[Written]], data: st.DataObject
):
    records, keys = drawn_records(log, tmp_path_factory.mktemp("log"))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(records.rows)), max_size=3)))
    count_from = data.draw(st.sampled_from([0, len(records.rows) // 2]))
    for rules in (COUNTED, SOME_RECORDS, judge_records.broken_rules):
        agree(rules, records, keys, cuts, data.draw(st.integers(1, 6)), count_from)


@given(logs(), st.data())
def test_any_log_has_the_same_contexts(
    tmp_path_factory: pytest.TempPathFactory, log: list[list[Written]], data: st.DataObject
):
    records, keys = drawn_records(log, tmp_path_factory.mktemp("log"))
    records = damaged(data, records)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(records.rows)), max_size=4)))
    agree(SOME_RECORDS, records, keys, cuts, data.draw(st.integers(1, 6)), data.draw(st.integers(0, len(records.rows))))


@pytest.mark.parametrize("name", some_of(LOGS, 8))
def test_a_broker_s_log_has_the_same_contexts(name: str):
    for folder in sorted((DATA / name).glob("__share_group_state-*")):
        records, keys = decoded(folder)
        for rules in (SOME_RECORDS, judge_records.broken_rules):
            agree(rules, records, keys, [len(records.rows) // 3], 3)


@nightly("a minute for each seed, most of it to simulate")
@pytest.mark.parametrize("seed", range(1, 6))
def test_a_log_with_every_planted_fault_breaks_the_same_rules(tmp_path: Path, seed: int):
    folder = tmp_path / "logs"
    assert run(["simulate", "--out", str(folder), "--seed", str(seed), "--groups", "60", "--fault", "all"]) == 0
    for log in sorted(folder.glob("__share_group_state-*")):
        records, keys = decoded(log)
        agree(judge_records.broken_rules, records, keys, [len(records.rows) // 2], 5)


@pytest.mark.parametrize("name", ["4.2.1/happy", "4.3.1/chaos", "4.4.0/dlq", "4.4.0/chaos"])
def test_a_broker_s_log_is_folded_on_bits_alone(name: str):
    """Each record is asked about once: none of its share-partitions is folded again."""
    records, keys = decoded(DATA / name / "__share_group_state-0")
    ((chunk,), _, _) = folded(COUNTED, records, keys, [], 5)
    asked, of_keys = int(chunk.rule_limits["log_start_offset"][0]), int((records.rows["key"] >= 0).sum())
    assert asked == of_keys > 40
