"""The JVM classes that a run needs as an archive, dumped once at set-up: later JVMs map it instead of loading jars."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from share_state.errors import SetupError

_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_DUMP_TO = "SHARE_STATE_DUMP_CLASSES"


def archive() -> Path:
    """Where the archive lies: inside the environment that runs, so that it goes when that goes."""
    return Path(sys.prefix) / "share" / "share-state" / "classes.jsa"


def java_options() -> str:
    """What a JVM is told: to use the archive where there is one; a JVM of another build passes it over by itself."""
    if target := os.environ.get(_DUMP_TO):
        return f"-XX:ArchiveClassesAtExit={target} {_QUIET}"
    return f"-XX:SharedArchiveFile={archive()} {_QUIET}" if archive().exists() else ""


def dump() -> None:
    """Run a small job in a JVM that writes down the classes it used, unless that was done.

    Raises:
        SetupError: if the job fails.
    """
    if archive().exists():
        return
    partial = archive().with_suffix(".partial")
    partial.unlink(missing_ok=True)
    # The JVM ends after its Python process, and writes only then: its pipes tell when that is done.
    done = subprocess.run(
        [sys.executable, "-m", "share_state.spark.class_archive"],
        env=os.environ | {_DUMP_TO: str(partial)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:]
        raise SetupError(f"Spark does not start: {' '.join(last)}")
    if partial.exists():
        partial.rename(archive())


def _small_job() -> None:
    """What every run does with Spark: Python functions over Arrow batches, kept, filtered and collected."""
    from share_state.spark.session import session  # noqa: PLC0415  which asks this file for options

    with session("local[*]", {}) as spark:
        rows = spark.range(0, 2, 1, 2).mapInArrow(_as_they_are, "id long").persist()
        for _ in range(2):
            rows.filter("id IS NOT NULL").select("id").mapInArrow(_as_they_are, "id long").toArrow()
        rows.unpersist()


def _as_they_are(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


if __name__ == "__main__":
    _small_job()
