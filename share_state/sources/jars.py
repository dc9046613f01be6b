"""Fetches jars by Maven coordinates once, with the Ivy that pyspark ships; later runs need no network."""

import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from share_state.errors import SetupError, require

DELTA = "delta-4.4.0"
KAFKA = "kafka-4.4.0"
KAFKA_CLIENTS = "kafka-clients-4.4.0"
KAFKA_TOOLS = "kafka-tools-4.4.0"
TEST_BROKER = "kafka-broker-4.4.0"

KAFKA_BEFORE_SWEEP = "kafka-4.3.1"
"""Its coordinator leaves some neighbours apart, and keeps no greater start."""
TOOLS_BEFORE_RESETS = "kafka-tools-4.3.1"
"""Its kafka-share-groups.sh sets no offset, so that repair plans call the Admin client."""
BROKER_BEFORE_DEAD_LETTERS = "kafka-broker-4.3.1"
"""Its SharePartition has no state 3, and its logs do not show their release."""

# Ivy also fetches dependencies; pyspark ships most of Delta's.
COORDINATES = {
    # 4.4.1 is not in the public Maven repository.
    DELTA: ("io.delta", "delta-spark_4.2_2.13", "4.4.0"),
    KAFKA: ("org.apache.kafka", "kafka-share-coordinator", "4.4.0"),
    KAFKA_CLIENTS: ("org.apache.kafka", "kafka-clients", "4.4.0"),
    KAFKA_TOOLS: ("org.apache.kafka", "kafka-tools", "4.4.0"),
    TEST_BROKER: ("org.apache.kafka", "kafka_2.13", "4.4.0"),
    KAFKA_BEFORE_SWEEP: ("org.apache.kafka", "kafka-share-coordinator", "4.3.1"),
    TOOLS_BEFORE_RESETS: ("org.apache.kafka", "kafka-tools", "4.3.1"),
    BROKER_BEFORE_DEAD_LETTERS: ("org.apache.kafka", "kafka_2.13", "4.3.1"),
}

# Ivy mostly waits for the registry; several of them share the cores.
_QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")

_LOG = logging.getLogger("share_state")


def folder(name: str) -> Path:
    """Folder of a set of jars, inside the Python environment."""
    return Path(sys.prefix) / "share" / "share-state" / "jars" / name


def jars(name: str) -> list[Path]:
    """The jars of a set, fetched on first use.

    Raises:
        SetupError: as for `fetch`.
    """
    if not folder(name).exists():
        _LOG.info("fetching jars %s, once", name)
        fetch(name)
    return sorted(folder(name).glob("*.jar"))


def find_java() -> str | None:
    """Path of the `java` that Spark runs: from JAVA_HOME if set, else from the PATH."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=str(Path(home, "bin")) if home else None)


def java() -> str:
    """Path of the `java` that Spark runs.

    Raises:
        SetupError: if there is none.
    """
    if (found := find_java()) is None:
        raise SetupError("no `java` on the PATH: install a Java 17 runtime")
    return found


def fetch(name: str) -> None:
    """Fetch a set of jars unless it exists; a failure leaves no partial set.

    Raises:
        SetupError: if pyspark or Java is missing, the registry cannot be reached (with the last line of Ivy),
            or the environment cannot be written.
    """
    with start_fetch(name) as finish:
        finish()


@contextmanager
def start_fetch(name: str) -> Iterator[Callable[[], None]]:
    """Start to fetch a set of jars unless it exists; several sets can be fetched side by side.

    Yields:
        A function that waits for the jars and stores them. Ivy ends with the context, whether it is done or
        not.
    Raises:
        SetupError: as for `fetch`; what Ivy reports, by the function.
    """
    if folder(name).exists():
        yield lambda: None
        return
    with tempfile.TemporaryDirectory(prefix="share-state-jars-") as scratch:
        output = Path(scratch, "output")
        command = _ivy_command(name, Path(scratch))
        with output.open("wb") as written:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=written, stderr=subprocess.STDOUT
            )

        def finish() -> None:
            failed = process.wait() != 0
            fetched = sorted(Path(scratch, "jars").glob("*.jar"))
            if failed or not fetched:
                last = output.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
                raise SetupError(f"{':'.join(COORDINATES[name])} could not be fetched: {' '.join(last)}")
            _store(name, fetched)

        try:
            yield finish
        finally:
            process.kill()
            process.wait()


def _ivy_command(name: str, scratch: Path) -> list[str]:
    """The call of Ivy that puts a set of jars into `scratch`/jars."""
    require("pyspark")
    command = [java(), *_QUICK_START, "-jar", *map(str, _spark_jars().glob("ivy-*.jar"))]
    command += ["-cache", f"{scratch}/cache", "-confs", "default", "-dependency", *COORDINATES[name]]
    return [*command, "-types", "jar", "bundle", "-retrieve", f"{scratch}/jars/[artifact]-[revision].[ext]"]


def _store(name: str, fetched: Sequence[Path]) -> None:
    """Copy fetched jars to the folder of their set.

    Commands that start at the same time may store the same jars.
    """
    if name == DELTA:
        fetched = [jar for jar in fetched if not _shipped_with_spark(jar)]
    try:
        folder(name).parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder(name).parent, prefix=".partial-") as partial:
            for jar in fetched:
                shutil.copy2(jar, partial)
            Path(partial).chmod(0o755)
            Path(partial).rename(folder(name))
    except OSError as error:
        if folder(name).exists():
            return
        who = "run `share-state setup` as the owner of this Python environment"
        raise SetupError(f"{folder(name)}: cannot be written ({error.strerror}); {who}") from error


def _shipped_with_spark(jar: Path) -> bool:
    artifact = jar.stem.rsplit("-", 1)[0]
    return any(_spark_jars().glob(f"{artifact}-[0-9]*.jar"))


def _spark_jars() -> Path:
    spark = find_spec("pyspark")
    return Path(spark.origin if spark and spark.origin else "").parent / "jars"
