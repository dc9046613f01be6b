"""What a classic session of Spark has and one of Spark Connect lacks: the context and the JVM of the driver.

Everything else of this package goes by DataFrames and SQL, which both have.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

from pyspark.sql import SparkSession

from share_state.spark.jvm_errors import JvmError, reason
from share_state.spark.session import package_archive
from share_state.stores.paths import absolute_address

_DESCRIPTION = "spark.job.description"

_REMOTE_PARALLELISM = 16
"""Cores to plan for if the settings of a remote session do not tell; tasks are balanced for a few per core."""

_SENT = set[str]()
"""Ids of remote sessions that have the package."""


def is_remote(session: SparkSession) -> bool:
    """Whether it is a session of Spark Connect."""
    return not hasattr(session, "sparkContext")


def is_stopped(session: SparkSession) -> bool:
    """Whether a session is known to be stopped."""
    remote: Any = session
    return bool(remote.is_stopped) if is_remote(session) else session.sparkContext._jsc is None


def send_package(session: SparkSession) -> None:
    """Send this package to the workers of a remote session, once; to a classic one its settings or options do."""
    remote: Any = session
    if not is_remote(session) or remote.session_id in _SENT:
        return
    remote.addArtifacts(str(package_archive()), pyfile=True)
    _SENT.add(remote.session_id)


def parallelism(session: SparkSession) -> int:
    """How many tasks run side by side."""
    if not is_remote(session):
        return session.sparkContext.defaultParallelism
    for name in ("spark.sql.leafNodeDefaultParallelism", "spark.default.parallelism"):
        if (told := session.conf.get(name, None)) is not None:
            return int(told)
    return _REMOTE_PARALLELISM


def cores_of_executor(session: SparkSession) -> int:
    """Cores that the tasks of one executor share."""
    if is_remote(session):
        return int(session.conf.get("spark.executor.cores", None) or 1)
    # A task stays on one executor; if spark.executor.cores is not set, it sees the cores of its machine.
    context = session.sparkContext
    return int(context.getConf().get("spark.executor.cores") or context.defaultParallelism)


def local_address(path: str) -> str:
    """A path as Spark finds it whatever the default file system is; an address stays as it is."""
    return path if "://" in path else f"file://{absolute_address(path)}"


def missing_client(session: SparkSession, root: str) -> str | None:
    """Why Spark cannot reach a folder or address; None if it can, or if only its answer will tell."""
    if is_remote(session):
        return None
    jvm: Any = session.sparkContext._jvm
    hadoop: Any = session.sparkContext._jsc
    try:
        jvm.org.apache.hadoop.fs.Path(local_address(root)).getFileSystem(hadoop.hadoopConfiguration())
    except JvmError as error:
        return f"Spark has no client for {root.partition(':')[0]}:// ({reason(error)})"
    return None


_LOUD = (
    "org.apache.spark.sql.hive.HiveExternalCatalog",
    "org.apache.hadoop.hive.conf.HiveConf",
    "org.apache.hadoop.hive.ql.session.SessionState",
)
"""Loggers of Hive that warn of every Delta table in its metastore, and of settings that Spark makes."""


def quiet_hive(session: SparkSession) -> None:
    """Let Hive log errors only, except where the operator's configuration of log4j names its loggers."""
    if is_remote(session):
        return
    jvm: Any = session.sparkContext._jvm
    log4j = jvm.org.apache.logging.log4j
    configuration = log4j.LogManager.getContext(False).getConfiguration()
    for name in _LOUD:
        if configuration.getLoggerConfig(name).getName() != name:
            log4j.core.config.Configurator.setLevel(name, log4j.Level.ERROR)


def quiet_java(session: SparkSession) -> None:
    """Drop what Java code of the driver prints to stderr; Spark's log keeps the stderr that it opened."""
    jvm: Any = session.sparkContext._jvm
    jvm.java.lang.System.setErr(jvm.java.io.PrintStream(jvm.java.io.OutputStream.nullOutputStream()))


def s3_client(session: SparkSession) -> str:
    """The Maven coordinates of the client for S3 that fits Spark's Hadoop."""
    jvm: Any = session.sparkContext._jvm
    return f"org.apache.hadoop:hadoop-aws:{jvm.org.apache.hadoop.util.VersionInfo.getVersion()}"


@contextmanager
def changed_settings(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Change settings of a session meanwhile."""
    before = {name: session.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            session.conf.unset(name) if value is None else session.conf.set(name, value)


@contextmanager
def described(session: SparkSession, description: str) -> Iterator[None]:
    """Describe the jobs of this thread in Spark's UI, unless the caller does; those of a remote session have none."""
    is_described = not is_remote(session) and session.sparkContext.getLocalProperty(_DESCRIPTION) is not None
    with nullcontext() if is_described else task_property(session, _DESCRIPTION, description):
        yield


@contextmanager
def task_property(session: SparkSession, name: str, value: str | None) -> Iterator[None]:
    """Give the tasks of this thread's jobs a property; those of a remote session have none."""
    if is_remote(session):
        yield
        return
    context: Any = session.sparkContext
    before = context.getLocalProperty(name)
    # None removes it.
    context.setLocalProperty(name, value)
    try:
        yield
    finally:
        context.setLocalProperty(name, before)
