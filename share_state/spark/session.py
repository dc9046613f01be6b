"""The Spark session: its settings, the package for the workers of a cluster, and the JVM's class archive."""

import atexit
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import traceback
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.accumulators import AccumulatorTCPServer
from pyspark.sql import SparkSession

from share_state.errors import SetupError, ShareStateError, SparkEndedError, require
from share_state.jit.compile import SHIPPED, portable_kernels
from share_state.jit.portable import CPU_VARIABLE, PORTABLE_CPU
from share_state.schema import declarations
from share_state.sources import jars
from share_state.spark.jvm_errors import SPARK_ERRORS, JvmError, JvmGoneError, reason
from share_state.spark.masters import LOCAL_MASTER, is_local, is_master, is_under_spark_submit, refuse_remote

if TYPE_CHECKING:
    from share_state.pipeline.progress import Progress

UNPACKED = "share_state_package"
"""Folder in an executor's working directory."""

_PACKAGE = Path(__file__).parents[1]
_LISTS = ("spark.jars", "spark.sql.extensions")
_ARCHIVES, _PATH = "spark.archives", "spark.executorEnv.PYTHONPATH"
_CPU_NAME = f"spark.executorEnv.{CPU_VARIABLE}"


def scratch_folder(purpose: str) -> Path:
    """A new folder that is deleted at exit.

    Those that killed processes of this user left on this host are deleted now.

    Args:
        purpose: a word of its name.
    """
    host, uid = re.sub("[^0-9A-Za-z.]", "_", socket.gethostname()), os.getuid()
    for found in Path(tempfile.gettempdir()).glob(f"share-state-*-{host}-*-*"):
        owner = re.fullmatch(rf"share-state-[a-z]+-{re.escape(host)}-(\d+)-\w+", found.name)
        with suppress(OSError):
            status = found.lstat()
            if owner and status.st_uid == uid and stat.S_ISDIR(status.st_mode) and _is_gone(int(owner[1])):
                shutil.rmtree(found, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix=f"share-state-{purpose}-{host}-{os.getpid()}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _is_gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        return False
    return False


def package_settings(conf: Mapping[str, str]) -> dict[str, str]:
    """Settings that send this package to the workers as an archive like its wheel, added to the user's paths.

    If this process has kernels for every CPU, they are in the archive, and the workers compile none.
    """
    archive = package_archive()
    archives = [one for one in (conf.get(_ARCHIVES), f"{archive.as_uri()}#{UNPACKED}") if one]
    paths = [one for one in (UNPACKED, conf.get(_PATH)) if one]
    settings = {_ARCHIVES: ",".join(archives), _PATH: ":".join(paths)}
    if (kernels := portable_kernels()) is not None:
        _add_kernels(archive, kernels)
        settings[_CPU_NAME] = conf.get(_CPU_NAME, PORTABLE_CPU)
    return settings


def package_archive() -> Path:
    """A new archive of this package, like its wheel; it is deleted at exit."""
    folder = scratch_folder("package")
    # With `--py-files`, the package is imported from a wheel or an archive.
    given = _PACKAGE.parent
    archive = Path(shutil.copy(given, folder / "share_state.zip")) if given.is_file() else None
    return archive or _zip_package(folder / "share_state.zip")


def _zip_package(archive: Path) -> Path:
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for source in sorted(_PACKAGE.rglob("*")):
            if source.is_file() and source.suffix != ".pyc":
                packed.write(source, Path(_PACKAGE.name) / source.relative_to(_PACKAGE))
        for name in ("schemas", "conf"):
            folder = Path(str(declarations.resource_folder(name)))
            if folder.parent != _PACKAGE:
                for source in sorted(folder.rglob("*.*")):
                    packed.write(source, Path(_PACKAGE.name, f"_{name}") / source.relative_to(folder))
    return archive


def _add_kernels(archive: Path, kernels: Path) -> None:
    """Add the compiled kernels of this process to an archive of the package, unless it was built with them."""
    place = f"{_PACKAGE.name}/{SHIPPED}/{kernels.name}/"
    with zipfile.ZipFile(archive, "a", zipfile.ZIP_DEFLATED) as packed:
        if any(name.startswith(place) for name in packed.namelist()):
            return
        for source in sorted(kernels.rglob("*.nb[ci]")):
            packed.write(source, place + source.relative_to(kernels).as_posix())


_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
_DUMP_TO = "SHARE_STATE_DUMP_CLASSES"


def class_archive() -> Path:
    """The class archive: classes that a session needs, which the JVM maps instead of loading jars (4.2 to 3.1 s)."""
    return Path(sys.prefix) / "share" / "share-state" / "classes.jsa"


def java_options() -> str:
    """JVM options to use the class archive if it exists; a JVM of another build ignores it."""
    if target := os.environ.get(_DUMP_TO):
        return f"-XX:ArchiveClassesAtExit={target} {_QUIET}"
    return f"-XX:SharedArchiveFile={class_archive()} {_QUIET}" if class_archive().exists() else ""


def dump_class_archive() -> None:
    """Run a small job in a JVM that writes its classes to the archive, unless the archive exists.

    Raises:
        SetupError: if the job fails.
    """
    if class_archive().exists():
        return
    partial = class_archive().with_suffix(".partial")
    partial.unlink(missing_ok=True)
    # The JVM writes the archive when it ends, which is after its Python process: wait until its pipes close.
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
        partial.rename(class_archive())


def _small_job() -> None:
    """Use Spark as every run does: Python functions over Arrow batches, cached, filtered and collected."""
    with session("local[*]", {}) as spark:
        rows = spark.range(0, 2, 1, 2).mapInArrow(_identity, "id long").persist()
        for _ in range(2):
            rows.filter("id IS NOT NULL").select("id").mapInArrow(_identity, "id long").toArrow()
        rows.unpersist()


def _identity(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


# Start-up is most of a usual run; the first compiler tier with the serial collector starts fastest, and half
# of the heap for rows that are soon garbage saves 6 % of a run.
# One tier alone gets 48 MB for code; Spark compiles a class per plan, and the JVM then spends its time on
# sweeping.
_QUICK_START = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -XX:NewRatio=1 -XX:-UsePerfData"
)

_ARROW_BATCHES = {
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4000",
}
"""Batches that tasks get: below the largest number of bytes, Spark 4.2 adds up the batch after each of its rows."""

_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",
    # Its files are few; to list them in each checksum takes 4 % of a run.
    "spark.databricks.delta.allFilesInCrc.enabled": "false",
}

# Seconds; local Spark stops sooner.
_STOPPED_WITHIN = 0.25
_STOPPING: list[threading.Thread] = []


@contextmanager
def session(
    master: str,
    conf: Mapping[str, str],
    *,
    verbose: bool = False,
    progress: "Progress | None" = None,
    delta: bool = False,
    defaults: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """Yield a session and stop it on exit; an active session is used and not stopped.

    Args:
        master, conf, verbose, defaults: as for `start`.
        progress: shows the start and the stop.
        delta: let Spark read and write Delta tables; without it Spark starts 0.9 s faster.
    Raises:
        ShareStateError: if Spark does not know the master, or does not start with these settings.
        SetupError: if Java or the jars are missing.
        SparkEndedError: in place of any error, if the JVM has ended.
    """
    if not is_master(master):
        raise ShareStateError(
            f"--master {master}: give local[*], local[4], spark://HOST:PORT, yarn or k8s://HOST:PORT"
        )
    phase = progress or nullcontext
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    interrupt = signal.getsignal(signal.SIGINT)
    with phase("start Spark"):
        spark = start(master, conf, verbose=verbose, delta=delta, defaults=defaults)
    if not verbose:
        # It prints a traceback when the JVM ends, which is an error of one line.
        AccumulatorTCPServer.handle_error = lambda *_: None  # type: ignore[method-assign]
    if interrupt is not signal.default_int_handler and current_thread() is main_thread():
        # pyspark has replaced the program's own.
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield spark
    except Exception as error:
        if (ended := _jvm_end(spark, error)) is not None:
            raise ended from error
        raise
    finally:
        with phase("stop Spark"):
            _stop(spark)


_ENDED = "Spark's JVM ended; out of memory? give it more: --spark-conf spark.driver.memory=4g"
_LOST = re.compile(
    "SparkContext was shut ?down|stopped SparkContext|Answer from Java side is empty|Error while sending"
)
_OUT_OF_MEMORY = re.compile("OutOfMemoryError|GC overhead limit exceeded")
_ENDS_WITHIN = 10
"""Seconds that a JVM takes to end after its connections."""


def _jvm_end(spark: SparkSession, error: Exception) -> SparkEndedError | None:
    """What to raise in place of an error that is due to the end of the JVM, or to its lack of memory."""
    texts = list[str]()
    is_cut = False
    chain: BaseException | None = error
    while chain is not None:
        # The text of a Java error is asked of the JVM.
        with suppress(Exception):
            texts.append(f"{type(chain).__name__}: {chain}")
        is_cut |= isinstance(chain, JvmGoneError | ConnectionError | EOFError)
        chain = chain.__cause__ or chain.__context__
    text = "\n".join(texts)
    if _OUT_OF_MEMORY.search(text):
        return SparkEndedError(
            "Spark's JVM is out of memory; give it more: --spark-conf spark.driver.memory=4g"
        )
    if _has_ended(spark, _ENDS_WITHIN if is_cut or _LOST.search(text) else 0):
        return SparkEndedError(_ENDED)
    return None


def _was_killed(error: Exception) -> bool:
    """Whether a signal ended the JVM before it answered; only pyspark's frame knows the process."""
    processes = (frame.f_locals.get("proc") for frame, _ in traceback.walk_tb(error.__traceback__))
    return any((getattr(process, "returncode", 0) or 0) < 0 for process in processes)


def _has_ended(spark: SparkSession, patience: float) -> bool:
    """Whether the JVM of a session has ended, or ends within some seconds."""
    gateway: Any = spark.sparkContext._gateway
    process = getattr(gateway, "proc", None)
    if process is None:
        # spark-submit has started it.
        try:
            gateway.jvm.java.lang.System.nanoTime()
        except (JvmError, OSError):
            return True
        return False
    with suppress(subprocess.TimeoutExpired):
        process.wait(patience)
    return process.poll() is not None


def start(
    master: str = LOCAL_MASTER,
    conf: Mapping[str, str] | None = None,
    *,
    verbose: bool = False,
    app: str = "share-state",
    delta: bool = True,
    defaults: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start a session, with Delta from the jars that `share-state setup` fetched.

    Args:
        master: Spark master URL; that of spark-submit or spark-defaults.conf overrides it.
        conf: settings that override those; our own settings are only defaults.
        verbose: let Spark log at INFO.
        app: name of the application.
        delta: let Spark read and write Delta tables; under spark-submit only if its jars are given.
        defaults: settings that those of spark-submit or spark-defaults.conf, and `conf`, override.
    Raises:
        SetupError: if Java or pandas is missing, or the jars are and cannot be fetched.
        ShareStateError: if Spark does not start with these settings, or they ask for Spark Connect.
        SparkEndedError: if its JVM is killed meanwhile.
    """
    while _STOPPING:
        _STOPPING.pop().join()
    # Spark would say in many lines that they are missing, pandas only in a task.
    require("pandas")
    jars.java()
    operator_settings = _operator_settings() | dict(conf or {})
    refuse_remote(operator_settings)
    if is_under_spark_submit():
        master = operator_settings.get("spark.master", master)
    ours = {"spark.master": master, "spark.app.name": app, **(defaults or {})}
    ours |= _settings(master, verbose, delta and _has_delta())
    settings = {name: value for name, value in ours.items() if name not in operator_settings} | dict(
        conf or {}
    )
    # Lists are joined.
    settings |= {
        name: f"{operator_settings[name]},{ours[name]}"
        for name in _LISTS
        if name in operator_settings and name in ours
    }
    if not is_local(master):
        settings |= package_settings(operator_settings)
    elif is_under_spark_submit() and _CPU_NAME not in operator_settings and portable_kernels() is not None:
        # Workers have the environment of its JVM, not that of this process, and would compile for their own CPU.
        settings[_CPU_NAME] = PORTABLE_CPU
    # By default, workers run the driver's interpreter, which has the dependencies.
    if "spark.pyspark.python" in operator_settings and not is_under_spark_submit():
        os.environ["PYSPARK_PYTHON"] = operator_settings["spark.pyspark.python"]
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        spark = builder.getOrCreate()
        # Reading one checks the types of all.
        spark.conf.get("spark.sql.session.timeZone")
    except (JvmGoneError, ConnectionError) as error:
        raise SparkEndedError(_ENDED) from error
    except SPARK_ERRORS as error:
        if _was_killed(error):
            raise SparkEndedError(_ENDED) from error
        # The value of a setting may be a secret.
        requested = " and ".join(["--master " + master, *(f"--spark-conf {name}" for name in conf or ())])
        why = reason(error)
        if "GATEWAY_EXITED" in why:
            why += " The lines before say why"
        elif not is_local(master):
            why += "; check that the master can be reached"
        if (left := SparkSession.getActiveSession()) is not None:
            left.stop()
        raise ShareStateError(f"Spark does not start with {requested}: {why}") from error
    return spark


def _operator_settings() -> dict[str, str]:
    """The settings of spark-submit.

    Without it those of spark-defaults.conf, which a builder would override.
    """
    if is_under_spark_submit():
        SparkContext._ensure_initialized()
        return dict(SparkConf().getAll())
    home = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    file = Path(os.environ.get("SPARK_CONF_DIR") or Path(home, "conf"), "spark-defaults.conf")
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    pairs = (re.fullmatch(r"\s*([^\s#=:][^\s=:]*)\s*[=:\s]\s*(.*?)\s*", line) for line in lines)
    return {pair[1]: pair[2] for pair in pairs if pair}


def _has_delta() -> bool:
    """Whether a session will find Delta's classes: under spark-submit only among the jars that it was given."""
    if not is_under_spark_submit():
        return True
    SparkContext._ensure_initialized()
    jvm: Any = SparkContext._jvm
    try:
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        loader.loadClass(_DELTA["spark.sql.extensions"])
    except JvmError:
        return False
    return True


def _stop(spark: SparkSession) -> None:
    """Stop a session without waiting for a thread of pyspark that wakes only once a second."""

    def stop() -> None:
        # A signal to the process group ends the JVM as well.
        with suppress(JvmError, OSError):
            spark.stop()

    stopping = threading.Thread(target=stop, daemon=True)
    try:
        stopping.start()
    except RuntimeError:
        # From Python 3.12 no thread can start while the interpreter exits.
        stop()
        return
    _STOPPING.append(stopping)
    stopping.join(_STOPPED_WITHIN if is_local(spark.sparkContext.master or "") else None)


def _settings(master: str, verbose: bool, delta: bool) -> dict[str, str]:
    properties = declarations.resource_folder("conf") / "log4j2.properties"
    log = f"-Dlog4j2.configurationFile={properties.as_uri()}" if isinstance(properties, Path) else ""
    level, tasks = ("info", "info") if verbose else ("error", "off")
    level = f"-Dshare_state.log.level={level} -Dshare_state.log.tasks={tasks}"
    settings = {"spark.sql.execution.arrow.pyspark.validateSchema.enabled": "true"} | _ARROW_BATCHES
    if delta:
        settings |= _DELTA
    if is_under_spark_submit():
        return settings
    settings |= {
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if delta:
        settings["spark.jars"] = ",".join(str(jar) for jar in jars.jars(jars.DELTA))
    settings["spark.driver.extraJavaOptions"] = f"{log} {level}"
    if master.startswith("local"):
        settings |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # Only small tables are shuffled.
            "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
            "spark.driver.extraJavaOptions": f"{_QUICK_START} {java_options()} {log} {level}",
        }
    return settings


if __name__ == "__main__":
    _small_job()
