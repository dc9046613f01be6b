"""What became of deliveries, against a dictionary of offsets: drawn logs, and the logs of brokers."""

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.fold.context_fold import ContextFold
from share_state.fold.fold_options import FoldOptions
from share_state.fold.limits import Limits
from share_state.fold.state_chains import Chains
from share_state.fold.state_log import fold_log
from share_state.kafka.state_records import StateRecords
from share_state.rules.findings import judge_records
from share_state.sources.discovery import find_logs
from tests.fold.decoded_logs import LOGS, damaged, decoded, drawn_records
from tests.fold.model import SNAPSHOT_KIND, UPDATE_KIND, Written
from tests.fold.random_logs import logs
from tests.fold.record_context_model import EVERY_RECORD, chunks, outcomes
from tests.profiles import some_of
from tests.truth import DATA

COUNTS = ("acknowledged", "given_up", "rejected", "released", "dead_lettered", "failing_since", "failing_until",
          "rewound_from", "rewound_to")  # fmt: skip


def counted(records: StateRecords, keys: int, cuts: list[int], limit: int, count_from: int) -> list[dict[str, int]]:
    context_fold, chains = (
        ContextFold(EVERY_RECORD, limits=Limits(delivery_count=limit), count_from=count_from),
        Chains(),
    )
    for chunk in chunks(records, cuts):
        context_fold.apply(chunk, chains, keys)
    return [{name: int(row[name]) for name in COUNTS} for row in context_fold.outcomes]


@given(logs(), st.data())
def test_the_outcomes_are_those_of_a_dictionary_wherever_chunks_are_cut(
    tmp_path_factory: pytest.TempPathFactory, log: list[list[Written]], data: st.DataObject
):
    records, keys = drawn_records(log, tmp_path_factory.mktemp("log"))
    records = damaged(data, records)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(records.rows)), max_size=4)))
    limit, count_from = data.draw(st.integers(1, 6)), data.draw(st.integers(0, len(records.rows)))
    assert counted(records, keys, cuts, limit, count_from) == outcomes(records, keys, limit, count_from)


@pytest.mark.parametrize("name", some_of(LOGS, 4))
@pytest.mark.parametrize("partition", some_of([0, 1, 2], 1))
def test_the_outcomes_of_a_broker_s_log_are_those_of_a_dictionary(name: str, partition: int):
    records, keys = decoded(DATA / name / f"__share_group_state-{partition}")
    middle = int(records.rows["offset"][len(records.rows) // 2])
    for count_from in (0, middle):
        found = counted(records, keys, [len(records.rows) // 3], 3, count_from)
        assert found == outcomes(records, keys, 3, count_from)


def _totals(name: str) -> dict[str, Counter[str]]:
    """Group -> its outcomes over all state partitions."""
    totals: dict[str, Counter[str]] = {}
    for log in find_logs([str(DATA / name)]):
        folded = fold_log(log, options=FoldOptions(judge=judge_records, limits=Limits(delivery_count=3)))
        assert folded.outcomes is not None
        groups = folded.states["group_id"].to_pylist()
        for group, row in zip(groups, folded.outcomes, strict=True):
            totals.setdefault(group, Counter()).update({one: int(row[one]) for one in COUNTS[:5]})
    return totals


@pytest.mark.parametrize("release", ["4.0.2", "4.1.2", "4.2.1", "4.3.1", "4.4.0"])
def test_each_record_that_a_workload_accepted_is_acknowledged_once(release: str):
    """The workload of app-a accepts each record that it polls, and ends with nothing left."""
    totals, states = _totals(f"{release}/happy")["app-a"], 0
    for log in find_logs([str(DATA / release / "happy")]):
        rows = fold_log(log).states.filter(pc.field("group_id") == "app-a")
        states += sum(rows["effective_start_offset"].to_pylist())
    assert totals["acknowledged"] == states > 0
    assert totals["given_up"] == totals["rejected"] == totals["released"] == totals["dead_lettered"] == 0


def test_an_offset_counts_once_however_often_a_snapshot_repeats_it(tmp_path: Path):
    batches = ((0, 4, 2, 1), (5, 6, 4, 3), (7, 8, 4, 1), (9, 9, 0, 1))
    log = [
        [Written(SNAPSHOT_KIND, 0, start=0)],
        [Written(UPDATE_KIND, 0, batches, start=0)],
        [Written(SNAPSHOT_KIND, 0, batches, start=0, epoch=1)],
        [Written(SNAPSHOT_KIND, 0, (*batches, (10, 11, 2, 1)), start=0, epoch=2)],
        [Written(UPDATE_KIND, 0, ((9, 9, 0, 2),), start=5, epoch=2)],
    ]
    records, keys = drawn_records(log, tmp_path)
    (found,) = counted(records, keys, [], 3, 0)
    assert {name: found[name] for name in COUNTS[:5]} == {
        "acknowledged": 7, "given_up": 2, "rejected": 2, "released": 2, "dead_lettered": 0,
    }  # fmt: skip


def test_what_waits_in_archiving_is_given_up_once_and_then_a_dead_letter(tmp_path: Path):
    log = [
        [Written(SNAPSHOT_KIND, 0, start=0)],
        [Written(UPDATE_KIND, 0, ((0, 1, 3, 5), (2, 3, 3, 1)), start=0)],
        [Written(UPDATE_KIND, 0, ((0, 1, 4, 5), (2, 2, 4, 1)), start=0)],
    ]
    records, keys = drawn_records(log, tmp_path)
    (found,) = counted(records, keys, [], 5, 0)
    assert (found["given_up"], found["rejected"], found["dead_lettered"]) == (2, 2, 3)


def test_a_log_without_a_state_before_it_shows_what_changes_from_then_on(tmp_path: Path):
    log = [[Written(SNAPSHOT_KIND, 0, ((5, 9, 2, 1),), start=5, epoch=7)]]
    records, keys = drawn_records(log, tmp_path)
    assert counted(records, keys, [], 5, 0)[0]["acknowledged"] == 0


def test_rows_of_more_share_partitions_keep_what_was_counted():
    context_fold = ContextFold(EVERY_RECORD)
    assert len(context_fold.outcomes) == 0
    records, keys = decoded(DATA / "4.3.1/chaos/__share_group_state-1")
    chains = Chains()
    context_fold.apply(records, chains, keys)
    before = context_fold.outcomes.copy()
    context_fold.apply(StateRecords(records.rows[:0], records.batches[:0]), chains, keys + 3)
    assert context_fold.outcomes[:keys].tolist() == before.tolist()
    assert np.asarray(context_fold.outcomes[keys:]["acknowledged"]).tolist() == [0, 0, 0]
