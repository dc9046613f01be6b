"""Kafka's side: the Java programs of bench/java, which `java` compiles against the classes of Kafka 4.4.0."""

import os
import shutil
from pathlib import Path

from share_state.errors import ShareStateError
from share_state.sources import jars

SOURCES = Path(__file__).parent / "java"
DATA = Path(__file__).parent / "data"  # everything that the benchmark generates
# From kafka-server-start.sh and kafka-run-class.sh of Kafka 4.4.0.
_BROKER_OPTIONS = ("-Xms1g", "-Xmx1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20",
                   "-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent")  # fmt: skip


class BenchError(ShareStateError):
    """Raised when something that the benchmark needs is missing, or a process that it measures fails."""


def java_command(program: str, *arguments: str, options: tuple[str, ...] = _BROKER_OPTIONS) -> list[str]:
    """Return the command line of `Generate` or `Replay`, under these options of the JVM.

    Raises:
        BenchError: if there is no JDK.
    """
    if shutil.which("javac") is None:
        raise BenchError(
            "no `javac` on the PATH; `java` compiles the benchmark's programs: install a Java 17 JDK"
        )
    class_path = os.pathsep.join(map(str, jars.jars(jars.KAFKA)))
    return ["java", *options, "-cp", class_path, str(SOURCES / f"{program}.java"), *arguments]


def last_error(text: str) -> str:
    """The last line of a process's errors, without those of Kafka's logger and of Java's stack traces."""
    lines = [
        line.strip() for line in text.splitlines() if not line.strip().startswith(("SLF4J", "at ", "... "))
    ]
    return next(filter(None, reversed(lines)), "no message")
