"""Many segments and many log partitions take time in proportion to their number, counted in calls of functions."""

import pstats
from collections.abc import Callable
from cProfile import Profile
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from share_state.config.input_spec import OPTIONS, input_spec
from share_state.pipeline.planning import build_plan
from share_state.pipeline.result import summarize
from share_state.pipeline.task import OutputSpec, run_task
from share_state.sources.formats import ExportPaths
from share_state.sources.input_detection import read_export
from share_state.sources.log_partition import STATE_TOPIC
from tests.kafka.batches import Batch, in_bytes
from tests.log_writer import snapshot
from tests.profiles import nightly, some_of

FEW, MANY = 100, 400
TOPIC = "MmskRbHCTvP4WReRuBpdnw"


def _calls(action: Callable[[], object]) -> int:
    profile = Profile()
    profile.runcall(action)
    return sum(
        int(one.ncalls.split("/")[0]) for one in pstats.Stats(profile).get_stats_profile().func_profiles.values()
    )


def _write_segments(folder: Path, count: int, first: int = 0) -> None:
    folder.mkdir(parents=True)
    batch = Batch([snapshot(("g", TOPIC, 0))])
    for offset in range(first, first + count):
        (folder / f"{offset:020}.log").write_bytes(in_bytes([replace(batch, base_offset=offset)]))


def _export_of_segments(place: Path, count: int) -> str:
    _write_segments(place / "all" / f"{STATE_TOPIC}-0", count)
    return str(place / "all")


def _export_with_an_obsolete_copy(place: Path, count: int) -> str:
    _write_segments(place / "all" / "broker-1" / f"{STATE_TOPIC}-0", count)
    _write_segments(place / "all" / "broker-2" / f"{STATE_TOPIC}-0", count, first=10 * count)
    return str(place / "all" / "broker-*")


def _export_of_logs(place: Path, count: int) -> str:
    for number in range(count):
        _write_segments(place / "all" / f"{STATE_TOPIC}-{number}", 1)
    return str(place / "all")


def _export_of_a_broker(place: Path, count: int) -> str:
    export = Path(_export_of_logs(place, count))
    entries = [f"{topic} {number} 1" for topic in ("orders", "payments", STATE_TOPIC) for number in range(count)]
    lines = ["0", str(len(entries)), *entries, ""]
    (export / "replication-offset-checkpoint").write_text("\n".join(lines))
    return str(export)


@pytest.mark.parametrize(
    "write", some_of([_export_of_segments, _export_with_an_obsolete_copy, _export_of_logs, _export_of_a_broker], 2)
)
def test_listing_takes_calls_in_proportion_to_the_number_of_files(tmp_path: Path, write: Callable[[Path, int], str]):
    calls = []
    for count in (FEW, MANY):
        export = write(tmp_path / str(count), count)
        calls.append(_calls(lambda export=export: read_export(ExportPaths([export]))))
    assert calls[1] < (MANY / FEW + 1) * calls[0], calls


def _fold(export: str) -> None:
    plan = build_plan(input_spec(OPTIONS, sources=[{"path": export}], judge="all"), OPTIONS)
    output = OutputSpec(("findings",))
    rows = [batch for log in plan.logs for batch in run_task(plan, output, log)]
    assert summarize(pa.Table.from_batches(rows, output.schema), (export,), {}).records > 0


@nightly("a thousand logs")
@pytest.mark.parametrize("write", [_export_of_segments, _export_of_logs])
def test_folding_takes_calls_in_proportion_to_the_number_of_logs(tmp_path: Path, write: Callable[[Path, int], str]):
    few, many = FEW // 4, MANY // 4
    _fold(write(tmp_path / "warm", 2))
    calls = [_calls(lambda count=count: _fold(write(tmp_path / str(count), count))) for count in (few, many)]
    assert calls[1] < (many / few + 1) * calls[0], calls


def test_a_log_without_a_breach_costs_a_few_thousand_calls(tmp_path: Path):
    export = _export_of_logs(tmp_path / "logs", 1)
    _fold(export)
    plan = build_plan(input_spec(OPTIONS, sources=[{"path": export}], judge="all"), OPTIONS)
    assert _calls(lambda: list(run_task(plan, OutputSpec(()), plan.logs[0]))) < 4000
