"""The package on its way to workers of a cluster: an archive with what a wheel of it holds, unpacked beside a task.

The JVM classes that a run needs as an archive, dumped once at set-up: later JVMs map it instead of loading jars.

The Spark session: quick to start, quiet, with Delta where it is asked for, and no network.
"""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from share_state.errors import SetupError, ShareStateError
from share_state.pipeline.progress import Phases
from share_state.schema import declarations
from share_state.spark import jars
from share_state.spark.choice import LOCAL, is_here, is_master, is_under_spark_submit

UNPACKED = "share_state_package"
"""The folder in an executor's working directory."""

_PACKAGE = Path(__file__).parents[1]
_ARCHIVES, _PATH = "spark.archives", "spark.executorEnv.PYTHONPATH"


def shipped(conf: Mapping[str, str]) -> dict[str, str]:
    """The settings that bring this package to the workers, which need but a Python with what it depends on.

    Args:
        conf: what the person set; archives and paths of theirs stay.
    """
    folder = Path(tempfile.mkdtemp(prefix="share-state-package-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    archive = _packed(folder / "share_state.zip")
    archives = [one for one in (conf.get(_ARCHIVES), f"{archive.as_uri()}#{UNPACKED}") if one]
    paths = [one for one in (UNPACKED, conf.get(_PATH)) if one]
    return {_ARCHIVES: ",".join(archives), _PATH: ":".join(paths)}


def _packed(archive: Path) -> Path:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for source in sorted(_PACKAGE.rglob("*")):
            if source.is_file() and source.suffix != ".pyc":
                packed.write(source, Path(_PACKAGE.name) / source.relative_to(_PACKAGE))
        for name in ("schemas", "conf"):
            folder = declarations.folder(name)
            if folder.parent != _PACKAGE:
                for source in sorted(folder.rglob("*.*")):
                    packed.write(source, Path(_PACKAGE.name, f"_{name}") / source.relative_to(folder))
    return archive


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
        [sys.executable, "-m", "share_state.spark.session"],
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
    with session("local[*]", {}) as spark:
        rows = spark.range(0, 2, 1, 2).mapInArrow(_as_they_are, "id long").persist()
        for _ in range(2):
            rows.filter("id IS NOT NULL").select("id").mapInArrow(_as_they_are, "id long").toArrow()
        rows.unpersist()


def _as_they_are(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


if __name__ == "__main__":
    _small_job()


# Start-up is most of a usual run: the first compiler tier alone and the serial collector start fastest.
_QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"

_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",
}

# Seconds; Spark on this machine has stopped long before.
_STOPPED_WITHIN = 0.25
_STOPPING: list[threading.Thread] = []


@contextmanager
def session(
    master: str, conf: Mapping[str, str], *, verbose: bool = False, phases: Phases | None = None, delta: bool = False
) -> Iterator[SparkSession]:
    """A session for one command, stopped with it; one that is active already is used and left alone.

    Args:
        master: Spark master URL.
        conf: settings that win over the ones here.
        verbose: let Spark log.
        phases: told what is going on.
        delta: let Spark read Delta tables; a run that only writes them needs no Spark for that, and starts faster.
    Raises:
        ShareStateError: if Spark knows no such master, or does not start with it and these settings.
        SetupError: if Java or the jars are missing.
    """
    if not is_master(master):
        raise ShareStateError(f"--master {master}: give local[*], local[4], spark://HOST:PORT, yarn or k8s://HOST:PORT")
    phases = phases or Phases()
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    with phases("start Spark"):
        spark = start(master, conf, verbose=verbose, delta=delta)
    try:
        yield spark
    finally:
        with phases("stop Spark"):
            _stop(spark)


def start(
    master: str = LOCAL,
    conf: Mapping[str, str] | None = None,
    *,
    verbose: bool = False,
    app: str = "share-state",
    delta: bool = True,
) -> SparkSession:
    """A session, with Delta from the jars that set-up fetched.

    Args:
        master: Spark master URL; spark-submit's own wins.
        conf: settings that win over the ones here.
        verbose: let Spark log at INFO.
        app: name of the application.
        delta: let Spark read and write Delta tables.
    Raises:
        SetupError: if Java or the jars are missing.
        ShareStateError: if Spark does not start so.
    """
    while _STOPPING:
        _STOPPING.pop().join()
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise SetupError("no `java` on the PATH: install a Java 17 runtime")
    # Unless it is told otherwise a worker runs the driver's interpreter, which has what the package depends on.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder, settings = SparkSession.builder.appName(app), {**_settings(master, verbose, delta), **(conf or {})}
    if not is_under_spark_submit():
        builder = builder.master(master)
        settings |= {} if is_here(master) else shipped(settings)
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except (PySparkException, Py4JError) as error:
        # What a setting is may be a secret; what it is called is none.
        given = " and ".join(["--master " + master, *(f"--spark-conf {name}" for name in conf or ())])
        raise ShareStateError(f"Spark does not start with {given}: {_reason(error)}") from error


def _reason(error: PySparkException | Py4JError) -> str:
    """The first line of what went wrong in the JVM, or of starting one."""
    thrown = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else None
    return str(thrown or error).strip().partition("\n")[0] or type(error).__name__


def _stop(spark: SparkSession) -> None:
    """Stop a session; nobody waits for the thread of pyspark's that looks once a second whether it is to end."""
    stopping = threading.Thread(target=spark.stop, daemon=True)
    try:
        stopping.start()
    except RuntimeError:
        # From Python 3.12 on no thread begins while the interpreter ends.
        spark.stop()
        return
    _STOPPING.append(stopping)
    stopping.join(_STOPPED_WITHIN if is_here(spark.sparkContext.master) else None)


def _settings(master: str, verbose: bool, delta: bool) -> dict[str, str]:
    log = f"-Dlog4j2.configurationFile={(declarations.folder('conf') / 'log4j2.properties').as_uri()}"
    level = f"-Dshare_state.log.level={'info' if verbose else 'error'}"
    settings = {
        "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Only our own small tables are shuffled, so one partition a core is plenty.
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
    }
    if delta:
        settings |= _DELTA
    if is_under_spark_submit():
        return settings
    if delta:
        settings["spark.jars"] = ",".join(str(jar) for jar in jars.jars(jars.DELTA))
    settings["spark.driver.extraJavaOptions"] = f"{log} {level}"
    if master.startswith("local"):
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": f"{_QUICK_START} {java_options()} {log} {level}",
        }
    return settings
