"""The rules over records find among the remarkable ones what they find among all of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.fold.chains import Chains
from share_state.fold.options import RELEASES, Limits
from share_state.fold.record_context import Tracer
from share_state.kafka.state_records import StateRecords
from share_state.rules.registry import Broken, Column, judge_records
from tests.fold.decoded_logs import LOGS, damaged, decoded, drawn_records
from tests.fold.drawn import logs
from tests.fold.fact_model import chunks
from tests.fold.model import Written
from tests.truth import DATA

LIMITS = [Limits(writer_version=version, delivery_count=count) for version in (None, *RELEASES) for count in (1, 5)]


def _plain(piece: Column) -> object:
    return piece if isinstance(piece, str) else piece.tolist()


def _told(found: list[tuple[str, Broken]]) -> list[object]:
    return [
        (
            code,
            broken.offset.tolist(),
            [_plain(piece) for piece in broken.message],
            None if broken.key is None else broken.key.tolist(),
            {name: _plain(column) for name, column in broken.evidence.items()},
        )
        for code, broken in found
    ]


def _same_findings(records: StateRecords, keys: int, cuts: list[int], limits: Limits, folded_from: int) -> int:
    """Judge both ways; returns how many records were remarkable."""
    every, some = (Tracer(limits=limits, folded_from=folded_from, every=every) for every in (True, False))
    chains, same, shown = Chains(), Chains(), 0
    for chunk in chunks(records, cuts):
        all_of_them, remarkable = every.take(chunk, chains, keys), some.take(chunk, same, keys)
        assert _told(judge_records(remarkable)) == _told(judge_records(all_of_them))
        shown += len(remarkable.rows)
    return shown


@pytest.mark.parametrize("limits", LIMITS, ids=lambda limits: f"{limits.writer_version}-{limits.delivery_count}")
@pytest.mark.parametrize("name", LOGS)
def test_a_broker_s_log_breaks_the_same_rules(name: str, limits: Limits):
    records, keys = decoded(DATA / name / "__share_group_state-0")
    _same_findings(records, keys, [len(records.rows) // 2], limits, 0)


@given(logs(), st.data())
def test_a_damaged_log_breaks_the_same_rules(
    tmp_path_factory: pytest.TempPathFactory, log: list[list[Written]], data: st.DataObject
):
    records, keys = drawn_records(log, tmp_path_factory.mktemp("log"))
    records = damaged(data, records)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(records.rows)), max_size=3)))
    _same_findings(records, keys, cuts, data.draw(st.sampled_from(LIMITS)), data.draw(st.sampled_from([0, 5])))


@pytest.mark.parametrize("release", ["4.0.2", "4.1.2", "4.2.1", "4.3.1", "4.4.0"])
def test_little_of_what_a_coordinator_writes_by_itself_is_remarkable(release: str):
    records, keys = decoded(DATA / release / "chaos" / "__share_group_state-0")
    assert _same_findings(records, keys, [], Limits(), 0) < 0.1 * len(records.rows)
