"""A fold that stops anywhere, is written down and goes on equals one that never stopped."""

import random
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from share_state.rules import findings as findings_module
from share_state.sources.discovery import find_logs
from share_state.sources.log_partition import LogPartition
from share_state.sources.resume_point import ResumeStatus
from tests.fold.model import Written
from tests.fold.nights import Auditor, grown, only_log, same_tables
from tests.fold.random_logs import folder_of, logs
from tests.profiles import by_profile, nightly, some_of
from tests.truth import DATA


def _equals_one_audit(source: LogPartition, folder: Path, sizes: list[int], chunk: int = 1 << 16) -> Auditor:
    nightly, once = Auditor(), Auditor()
    # Of a rule with more findings than this, each night keeps the first of its own.
    with patch.object(findings_module, "FINDINGS_KEPT", sys.maxsize):
        for log in grown(source, folder, sizes):
            nightly.audit(log, chunk)
        once.audit(only_log(folder))
    same_tables(nightly.last, once.last)
    assert nightly.findings == once.findings
    return nightly


def _small_log(folder: Path) -> LogPartition:
    """Real records with a flawed batch and a hole among them."""
    place = folder / "__share_group_state-0"
    place.mkdir()
    data = next((DATA / "4.3.1/chaos/__share_group_state-0").glob("*.log")).read_bytes()
    (place / f"{0:020}.log").write_bytes(data[:2500] + bytes([data[2500] ^ 1]) + data[2501:4000])
    return only_log(folder)


@nightly("every byte; the cuts below are drawn")
def test_a_log_cut_at_any_byte_and_continued_is_one_log(tmp_path: Path):
    source = _small_log(tmp_path)
    for size in range(0, source.size, by_profile(97, 1)):
        _equals_one_audit(source, tmp_path / f"cut-{size}", [size])


@pytest.mark.parametrize(
    "scenario", some_of(["4.0.2/chaos", "4.3.1/fuzz", "4.3.1/codec-lz4", "4.4.0/dlq", "4.3.1/pruneraw"], 1)
)
def test_a_real_log_cut_at_random_is_one_log(tmp_path: Path, scenario: str):
    draw = random.Random(scenario)
    for log in find_logs([str(DATA / scenario)]):
        sizes = sorted(draw.sample(range(log.size), 5))
        nightly = _equals_one_audit(log, tmp_path / log.name, sizes)
        assert set(nightly.statuses[2:]) == {ResumeStatus.GROWN}


@given(logs(), st.lists(st.floats(0, 1), min_size=1, max_size=4), st.sampled_from([0, 1, 4]))
def test_a_drawn_log_cut_anywhere_is_one_log(
    tmp_path_factory: pytest.TempPathFactory, log: list[list[Written]], cuts: list[float], codec: int
):
    folder = tmp_path_factory.mktemp("log")
    source = folder_of(log, folder, codec=codec)
    sizes = sorted(int(cut * source.size) for cut in cuts)
    _equals_one_audit(source, folder / "nights", sizes, chunk=300)
