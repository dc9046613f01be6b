"""The answers that docs/tables shows are those of the queries above them."""

import importlib.util
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.profiles import nightly

FOLDER = Path(__file__).parents[2] / "docs" / "tables"


@nightly("every query of the pages in Spark")
@pytest.mark.usefixtures("no_session")
def test_every_answer_on_the_pages_is_what_its_query_gives(spark: SparkSession, tmp_path: Path):
    found = importlib.util.spec_from_file_location("table_queries", FOLDER / "queries.py")
    assert found is not None
    assert found.loader is not None
    queries = importlib.util.module_from_spec(found)
    found.loader.exec_module(queries)
    queries.make_tables(spark, tmp_path)
    asked = 0
    for path in sorted(FOLDER.glob("*.md")):
        page = path.read_text(encoding="utf-8")
        asked += page.count("```sql\n")
        assert queries.answered(page, spark) == page, f"{path.name}: run python docs/tables/queries.py"
    assert asked > 15
