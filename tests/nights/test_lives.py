"""No OK where the truth is bad, no alarm where it is good: random group lives, audited night by night.

The truth is the memory of each life (`lives.py`). Nights whose truth is within two minutes of a limit prove nothing.
"""

import shutil
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import pyarrow.compute as pc
import pytest
from hypothesis import Phase as Stage
from hypothesis import given, settings
from hypothesis import strategies as st

from share_state.config.input_spec import OPTIONS, input_spec
from share_state.delta.committed import CommittedTables
from share_state.pipeline.audit import run_audit
from share_state.pipeline.local_executor import LocalExecutor
from share_state.pipeline.planning import build_plan
from tests.nights.lives import (
    DELETED,
    DIES,
    IDLE,
    LEAVES,
    MINUTE,
    OVERTAKEN,
    REJECTS,
    RELEASES,
    RESTARTS,
    STALLS,
    WAYS,
    WORKS,
    Cluster,
    Life,
    Phase,
    Truth,
)
from tests.profiles import by_profile, some_of

LIVES, NIGHTS, A_NIGHT = 6, 3, 110
_STALL, _GIVING_UP, _SLACK = 30 * MINUTE, 10 * MINUTE, 2 * MINUTE


_WAY = st.sampled_from([way for way in WAYS if way != DELETED] * 3 + [DELETED])
"""A deleted topic does not come back."""


@st.composite
def nights(draw: st.DrawFn) -> list[Phase]:
    """A life: each night is spent in one or two ways."""
    phases = list[Phase]()
    for _ in range(NIGHTS):
        first = draw(st.sampled_from([6, 22, 50, 95]))
        phases += [(draw(_WAY), first), (draw(_WAY), A_NIGHT - first)]
    return phases


def wrong(truth: Truth) -> set[str] | None:
    """The verdicts and rules of which an audit must have at least one; none if all is well, None if it is not sure."""
    if truth.is_deleted:
        return {"TOPIC_GONE"}
    if truth.lost:
        return {"RECORDS_LOST"}
    for name, measured, limit in (
        ("STOP", truth.idle, _STALL),
        ("STALL", truth.unmoved, _STALL),
        ("GIVING_UP", truth.only_failing, _GIVING_UP),
    ):
        if measured >= limit + _SLACK:
            # A worse verdict hides a milder one.
            return {"STOP": {"STOP"}, "STALL": {"STOP", "STALL"}, "GIVING_UP": {"STOP", "STALL", "GIVING_UP"}}[name]
    near = any(
        limit - _SLACK <= measured
        for measured, limit in ((truth.idle, _STALL), (truth.unmoved, _STALL), (truth.only_failing, _GIVING_UP))
    )
    return None if near or truth.may_be_poisoned else set()


def audit(cluster: Cluster, folder: Path, warehouse: Path) -> tuple[dict[str, str], dict[str | None, set[str]]]:
    """Export the logs, and audit them; returns the verdict of each group, and the rules that it breaks."""
    shutil.copytree(cluster.cluster.folder, folder, ignore=shutil.ignore_patterns("*.jsonl"))
    spec = input_spec(OPTIONS, sources=[{"path": str(folder)}], known_topics=cluster.topics, judge="all",
                      limits={"updates_per_snapshot": 50, "export_age": 0})  # fmt: skip
    run_audit(lambda _: nullcontext(LocalExecutor()), build_plan(spec, OPTIONS), str(warehouse))
    tables = CommittedTables(str(warehouse))
    history = tables.read("share_partition_history", pc.field("run_id") == tables.run["run_id"])
    verdicts = dict(zip(history["group_id"].to_pylist(), history["verdict"].to_pylist(), strict=True))
    broken: dict[str | None, set[str]] = {}
    for row in tables.read("findings", pc.field("severity") != "info").to_pylist():
        broken.setdefault(row["group_id"], set()).add(row["rule"])
    return verdicts, broken


def check(life: Life, verdicts: dict[str, str], broken: dict[str | None, set[str]]) -> str:
    """Compare an audit with the truth; returns what the truth was."""
    group, truth = life.key.group, life.truth()
    must, found = wrong(truth), {verdicts[group]} | broken.get(group, set())
    about = (group, life.phases, truth, found)
    if must is None:
        return "not sure"
    if not must:
        assert found == {"OK"}, about
        return "well"
    assert must & found, about
    return "/".join(sorted(must))


def live(folder: Path, lives: list[list[Phase]], count: int = NIGHTS) -> Counter[str]:
    """Let lives pass and audit them; returns how often which truth was met."""
    met, cluster = Counter[str](), Cluster(folder / "broker", lives)
    for night in range(count):
        cluster.run(A_NIGHT)
        verdicts, broken = audit(cluster, folder / f"night-{night}", folder / "lake")
        assert broken.get(None, set()) == set()
        for life in cluster.lives:
            met[check(life, verdicts, broken)] += 1
            life.memory.outcomes.clear()
        assert verdicts["life-0"] == "OK"
    return met


# A failing life is short enough; to shrink it takes minutes.
@settings(max_examples=by_profile(1, 50), phases=[Stage.explicit, Stage.reuse, Stage.generate])
@given(st.lists(nights(), min_size=LIVES, max_size=LIVES))
def test_no_night_is_ok_where_the_truth_is_bad_nor_bad_where_it_is_good(
    tmp_path_factory: pytest.TempPathFactory, lives: list[list[Phase]]
):
    live(tmp_path_factory.mktemp("lives"), lives)


def test_a_stall_is_over_once_its_first_record_is_finished(tmp_path: Path):
    """The recorded start offset is one write behind, so it lies where the stall was until the next record."""
    assert live(tmp_path, [[(STALLS, A_NIGHT - 6), (DIES, 6)]], 1) == {"well": 2}


@pytest.mark.parametrize(
    ("way", "expected"),
    some_of(
        [
            (WORKS, "well"),
            (IDLE, "well"),
            (RESTARTS, "well"),
            (DIES, "STOP"),
            (LEAVES, "STOP"),
            (STALLS, "STALL/STOP"),
            (REJECTS, "GIVING_UP/STALL/STOP"),
            (RELEASES, "GIVING_UP/STALL/STOP"),
            (OVERTAKEN, "RECORDS_LOST"),
            (DELETED, "TOPIC_GONE"),
        ],
        2,
    ),
)
def test_each_way_to_live_has_its_truth_and_its_verdict(tmp_path: Path, way: str, expected: str):
    met = live(tmp_path, [[(way, A_NIGHT)]], 1)
    assert met == Counter(["well", expected])
