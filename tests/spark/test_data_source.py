"""The data source `share_group_state`: its tables are those of `reconstruct`, in Python and in SQL."""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import share_state
from share_state.schema.declarations import table_schema
from share_state.spark.data_source import TABLES
from tests.profiles import by_profile, some_of
from tests.truth import DATA
from tests.warehouses import arrow

HAPPY, CHAOS = DATA / "4.3.1/happy", DATA / "4.4.0/chaos"


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    share_state.register(spark)
    return spark


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """State logs of which one is damaged, beside the groups of another cluster: both sides have findings."""
    folder = tmp_path_factory.mktemp("export") / "broker"
    for log in (*CHAOS.glob("__share_group_state-*"), *HAPPY.glob("__consumer_offsets-*")):
        shutil.copytree(log, folder / log.name)
    (segment,) = (folder / "__share_group_state-2").glob("*.log")
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    return folder


def ordered(table: pa.Table) -> list[str]:
    """Rows as text; maps are sorted, as Spark does not keep their order."""
    rows = [{k: sorted(v) if k == "evidence" and v else v for k, v in row.items()} for row in table.to_pylist()]
    return sorted(map(repr, rows))


@pytest.mark.parametrize("table", by_profile(["findings"], TABLES))
def test_a_table_has_the_rows_of_the_main_job(session: SparkSession, export: Path, table: str):
    frame = session.read.format("share_group_state").option("table", table).load(str(export), group_partitions="3")
    if table == "decoded_records":
        expected = arrow(share_state.read(export))
    else:
        expected = getattr(share_state.reconstruct(export, group_partitions=3), table)
    found = frame.toArrow()
    assert found.cast(table_schema(table)).schema == table_schema(table)
    assert ordered(found) == ordered(expected) != []
    # The findings of groups need the state of every log, and have a partition of their own.
    assert frame.rdd.getNumPartitions() == 3 + (table == "findings")
    if table == "findings":
        assert {"CRC_MISMATCH", "ORPHAN_SHARE_STATE"} <= {*found["rule"].to_pylist()}


def test_sql_reads_it_and_options_are_those_of_the_python_calls(session: SparkSession):
    topics, until = HAPPY / "topics.json", "2026-11-21T03:04:13.5Z"
    session.sql(f"""CREATE OR REPLACE TEMPORARY VIEW states USING share_group_state
                    OPTIONS (path '{HAPPY}', table 'share_partition_state', topics '{topics}', as_of '{until}',
                             state_partitions '3', judge 'none', dialect 'share_group_state', format 'segments')""")
    expected = share_state.reconstruct(HAPPY, topics=topics, as_of=until).share_partition_state
    assert ordered(session.sql("SELECT * FROM states").toArrow()) == ordered(expected)
    assert ordered(expected) != ordered(share_state.reconstruct(HAPPY, topics=topics).share_partition_state)


def test_several_paths_are_one_export(session: SparkSession):
    logs = [str(log) for log in sorted(HAPPY.glob("__share_group_state-*"))]
    found = session.read.format("share_group_state").load(logs).select("state_partition").distinct().toArrow()
    assert sorted(found["state_partition"].to_pylist()) == [0, 1, 2]


@pytest.mark.parametrize(
    ("options", "pattern"),
    some_of(
        [
            ({"table": "states"}, "option table 'states': give one of decoded_records, share_partition_state"),
            ({"tabel": "findings"}, "option tabel: no such option; give one of"),
            ({"as_of": "noon"}, "as_of='noon': give a datetime"),
            ({"format": "avro"}, "format='avro': give one of"),
            ({"path": "/nowhere"}, "/nowhere: no such file or folder"),
            ({"path": ""}, "option path: none is given"),
        ],
        2,
    ),
)
def test_what_cannot_be_read_is_refused_by_name(session: SparkSession, options: dict[str, str], pattern: str):
    with pytest.raises(PySparkException, match=pattern):
        session.read.format("share_group_state").options(**{"path": str(HAPPY)} | options).load().collect()
