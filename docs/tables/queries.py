"""`python docs/tables/queries.py`: run every query on these pages and write its result below it.

The tables are made from logs of real brokers that ship with the project: Kafka 4.4.0 with several kinds of dead-letter
topics, and Kafka 4.0.2 for groups that had members at the time of the export.
"""

import re
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from share_state.cli.main import run
from share_state.delta.committed import CommittedTables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGES = Path(__file__).parent
DATA = PAGES.parents[1] / "tests" / "data"
EXPORT, OF_MEMBERS = DATA / "4.4.0" / "dlq", DATA / "4.0.2" / "chaos"

_QUERY = re.compile(r"```sql\n(?P<query>.*?)```\n\n(?:\|[^\n]*\n)*\n*", re.DOTALL)


def make_tables(spark: "SparkSession", folder: Path) -> None:
    """Write every table of the exports to a folder and register each as a temporary view.

    Args:
        spark: a session with Delta.
        folder: an empty folder.
    Raises:
        RuntimeError: if a command fails.
    """
    lake, film, groups, records = (str(folder / name) for name in ("lake", "film", "groups", "records"))
    # The shipped export grows older; the pages stay as they are.
    _run("audit", *_named(EXPORT), "--out", lake, "--limit", "export_age=0")
    _run("reconstruct", *_named(EXPORT), "--out", film, "--timeline")
    _run("reconstruct", *_named(OF_MEMBERS), "--out", groups)
    _run("decode", *_named(EXPORT), "--out", records)
    homes = {path.name: lake for path in Path(lake).iterdir() if path.is_dir()}
    homes |= {"share_groups": groups, "share_group_members": groups, "timeline": film}
    for name, home in homes.items():
        spark.createDataFrame(CommittedTables(home).read(name).combine_chunks()).createOrReplaceTempView(name)
    spark.read.format("delta").load(records).createOrReplaceTempView("decoded_records")


def _named(export: Path) -> list[str]:
    return [str(export), "--topics", str(export / "topics.json"), "--quiet"]


def _run(*command: str) -> None:
    # Exit code 1: there are findings.
    if run(command) not in (0, 1):
        raise RuntimeError(f"share-state {' '.join(command)}: failed")


def answered(page: str, spark: "SparkSession") -> str:
    """Return a page with the current result below each of its queries."""
    return _QUERY.sub(lambda found: _with_answer(found["query"], spark), page)


def _with_answer(query: str, spark: "SparkSession") -> str:
    found = spark.sql(query)
    rows = [found.columns, ["---"] * len(found.columns), *(map(_cell, row) for row in found.collect())]
    return f"```sql\n{query}```\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows) + "\n"


def _cell(value: object) -> str:
    if isinstance(value, datetime):
        # Spark returns times in the local time zone.
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3]
    return "-" if value is None else str(value).replace("|", "\\|")


def main() -> None:
    """Update the results on every page."""
    from share_state.spark.session import start  # noqa: PLC0415  Spark is imported only where it is used

    with tempfile.TemporaryDirectory() as folder:
        spark = start("local[2]", {"spark.sql.shuffle.partitions": "2", "spark.sql.session.timeZone": "UTC"})
        make_tables(spark, Path(folder))
        for path in sorted(PAGES.glob("*.md")):
            path.write_text(answered(path.read_text(encoding="utf-8"), spark), encoding="utf-8")
        spark.stop()


if __name__ == "__main__":
    sys.exit(main())
