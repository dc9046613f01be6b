"""Path, warehouse, DataFrame, grouped records and stream give the same tables, on classic sessions and on Connect."""

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from share_state.cli.main import run
from tests.pipeline.test_stream_tables import reconstructed, tables_in
from tests.profiles import nightly
from tests.sources.formats.tables import found, table_of, write
from tests.spark.shapes import GROUPED, WHOLE, check_shapes
from tests.streams import on_each_engine, places
from tests.truth import scenarios

HOME = Path(__file__).parents[2]


def named(scenario: Path) -> str:
    return f"{scenario.parent.name}/{scenario.name}"


@nightly("five shapes of each fixture; others of one fixture run in the suite")
@pytest.mark.parametrize("scenario", scenarios(), ids=named)
def test_every_shape_gives_the_tables_of_this_process(spark: SparkSession, scenario: Path, tmp_path: Path):
    assert [*check_shapes(spark, scenario, tmp_path)] == [*WHOLE, *GROUPED]


@nightly("five shapes of each fixture on a server of Spark Connect")
def test_every_shape_gives_them_on_spark_connect(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.shapes", tmp_path], cwd=HOME, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    expected = [f"{named(scenario)}: {shape}" for scenario in scenarios() for shape in (*WHOLE, *GROUPED)]
    assert done.stdout.splitlines() == expected


@nightly("a stream on each engine of each fixture")
@pytest.mark.parametrize("scenario", scenarios(), ids=named)
@on_each_engine
def test_a_stream_on_each_engine_gives_them(engine: str, scenario: Path, tmp_path: Path):
    records = table_of(found(scenario))
    for number in range(2):
        half = len(records) // 2
        write(records.slice(number * half, None if number else half), tmp_path / f"in/{number}.parquet")
        assert run(["stream", str(tmp_path / "in"), *places(engine, tmp_path), "--once", "--quiet"]) in (0, 1)
    assert tables_in(tmp_path / "lake") == reconstructed(records, tmp_path)
