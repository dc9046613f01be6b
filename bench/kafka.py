"""Kafka's side: its 4.4.0 classes around the small Java programs in bench/java."""

import os
import shutil
import subprocess
from pathlib import Path

from share_state.errors import SetupError
from share_state.spark import jars

DATA = Path(__file__).parent / "data"

_SOURCES = Path(__file__).parent / "java"
# What Kafka's own start scripts give a broker (kafka-server-start.sh, kafka-run-class.sh of 4.4.0).
BROKER_OPTIONS = (
    *("-Xms1g", "-Xmx1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
)


def sources() -> list[Path]:
    """The Java programs, by name."""
    return sorted(_SOURCES.glob("*.java"))


def command(program: str, *arguments: str, options: tuple[str, ...] = BROKER_OPTIONS) -> list[str]:
    """The command line that runs one of the programs; compiles them first where they changed.

    Args:
        program: `Generate` or `Replay`.
        arguments: its own arguments.
        options: of the JVM.

    Raises:
        SetupError: if there is no Java 17 development kit, or the programs do not compile.
    """
    return ["java", *options, "-cp", f"{_compiled()}{os.pathsep}{_class_path()}", program, *arguments]


def _class_path() -> str:
    return os.pathsep.join(str(jar) for jar in jars.jars(jars.KAFKA))


def _compiled() -> Path:
    classes = DATA / "classes"
    newest = max(source.stat().st_mtime for source in sources())
    if all((classes / f"{source.stem}.class").exists() for source in sources()) and all(
        made.stat().st_mtime >= newest for made in classes.glob("*.class")
    ):
        return classes
    if shutil.which("javac") is None:
        raise SetupError("no `javac` on the PATH: the benchmark compiles its Java programs; install a Java 17 JDK")
    shutil.rmtree(classes, ignore_errors=True)
    classes.mkdir(parents=True)
    compiler = ["javac", "-cp", _class_path(), "-d", str(classes), *map(str, sources())]
    done = subprocess.run(compiler, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SetupError(f"bench/java does not compile: {done.stderr.strip().splitlines()[0]}")
    return classes
