"""The Spark session: quick to start, quiet, with Delta, and no network."""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession

from share_state import resources
from share_state.errors import SetupError
from share_state.spark import jars

# Start-up is most of a usual run: the first compiler tier alone and the serial collector start fastest.
_QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"

# spark-submit has started the JVM already, with the master, jars and memory that it was given.
_UNDER_SPARK_SUBMIT = "PYSPARK_GATEWAY_PORT"


@contextmanager
def session(master: str, conf: Mapping[str, str], *, verbose: bool) -> Iterator[SparkSession]:
    """A session for one command, stopped with it."""
    spark = start(master, conf, verbose=verbose)
    try:
        yield spark
    finally:
        spark.stop()


def start(
    master: str = "local[*]", conf: Mapping[str, str] | None = None, *, verbose: bool = False, app: str = "share-state"
) -> SparkSession:
    """A session with Delta, from the jars that set-up fetched.

    Args:
        master: Spark master URL.
        conf: settings that win over the ones here.
        verbose: let Spark log at INFO.
        app: name of the application.
    Raises:
        SetupError: if Java or the jars are missing.
    """
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise SetupError("no `java` on the PATH: install a Java 17 runtime")
    # Driver and workers must run the same interpreter, or the workers lack our packages.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName(app)
    if _UNDER_SPARK_SUBMIT not in os.environ:
        builder = builder.master(master)
    for name, value in {**_settings(master, verbose), **(conf or {})}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    if not verbose:
        spark.sparkContext.setLogLevel("ERROR")
    return spark


def _settings(master: str, verbose: bool) -> dict[str, str]:
    log = f"-Dlog4j2.configurationFile={(resources.folder('conf') / 'log4j2.properties').as_uri()}"
    level = f"-Dshare_state.log.level={'info' if verbose else 'error'}"
    settings = {
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"{log} {level}",
        "spark.databricks.delta.snapshotPartitions": "1",
        # Only our own small tables are shuffled, so one partition a core is plenty.
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
    }
    if _UNDER_SPARK_SUBMIT in os.environ:
        return settings
    settings["spark.jars"] = ",".join(str(jar) for jar in jars.jars(jars.DELTA))
    if master.startswith("local"):
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": f"{_QUICK_START} {log} {level}",
        }
    return settings
