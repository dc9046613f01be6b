"""The Spark session: quick to start, quiet, with Delta where it is asked for, and no network."""

import os
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from share_state import resources
from share_state.errors import SetupError, ShareStateError
from share_state.phases import Phases
from share_state.spark import class_archive, jars
from share_state.spark.masters import LOCAL, is_here, is_master, is_under_spark_submit
from share_state.spark.shipping import shipped

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

# The JVM says this at every start, and no setting stops it.
_NOISE = b"WARNING: Using incubator modules"


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
    with phases("start Spark"), _without_noise(quiet=not verbose):
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
    log = f"-Dlog4j2.configurationFile={(resources.folder('conf') / 'log4j2.properties').as_uri()}"
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
            "spark.driver.extraJavaOptions": f"{_QUICK_START} {class_archive.java_options()} {log} {level}",
        }
    return settings


@contextmanager
def _without_noise(*, quiet: bool) -> Iterator[None]:
    """Let a JVM that is started inside inherit a stderr from which one line of noise is taken out."""
    if not quiet:
        yield
        return
    kept, (reading, writing) = os.dup(2), os.pipe()
    threading.Thread(target=_forward, args=(reading, os.dup(kept)), daemon=True).start()
    os.dup2(writing, 2)
    os.close(writing)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _forward(reading: int, to: int) -> None:
    with os.fdopen(reading, "rb") as lines, os.fdopen(to, "wb", buffering=0) as stderr:
        for line in lines:
            if not line.startswith(_NOISE):
                stderr.write(line)
