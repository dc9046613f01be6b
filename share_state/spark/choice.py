"""Where tasks run: in this process where there is little to read, else in Spark's workers. Imports no Spark itself."""

import atexit
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from share_state.pipeline.progress import Phases

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from share_state.pipeline.executor import Tasks
    from share_state.pipeline.plan import Work

LOCAL = "local[*]"
"""The Spark master where Spark is needed and none is named."""

_MASTERS = re.compile(r"local(\[(\*|\d+)(,\d+)?\])?|local-cluster\[.+\]|yarn|(spark|k8s)://.+")

# spark-submit has started the JVM already, with the master, jars and memory that it was given.
_UNDER_SPARK_SUBMIT = "PYSPARK_GATEWAY_PORT"


def is_master(named: str) -> bool:
    """Whether Spark knows such a master."""
    return _MASTERS.fullmatch(named) is not None


def is_here(master: str) -> bool:
    """Whether tasks run in the JVM that this process starts."""
    return master.partition("[")[0] == "local"


def is_under_spark_submit() -> bool:
    """Whether spark-submit has started this process."""
    return _UNDER_SPARK_SUBMIT in os.environ


_LITTLE = 4 << 30
"""Bytes of segments that two cores have folded when Spark has started, which takes 8 s (bench/README.md)."""
_SLOWER = 32
"""Times longer that a byte of another form takes; what Python reads, as texts, is read by one core."""


@dataclass(frozen=True, slots=True)
class Where:
    """Where a person wants tasks to run.

    Attributes:
        master: of Spark; None where none is named.
        conf: settings for Spark.
        verbose: let Spark log.
    """

    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict)
    verbose: bool = False

    @contextmanager
    def tasks(self, work: "Work", phases: Phases, *, sends_little: bool = False) -> "Iterator[Tasks]":
        """The tasks for some work: Spark's where it is asked for, has been started already, or has enough to do.

        Args:
            work: with the log partitions.
            phases: told what is going on.
            sends_little: no tables are written, so that the threads of this process do as well as Spark's workers.
        Raises:
            ShareStateError: if Spark knows no such master.
            SetupError: if Java or the jars are missing.
        """
        if not self._is_asked_for and not _has_started() and (sends_little or _is_little(work)):
            from share_state.pipeline.executor import TasksHere  # noqa: PLC0415  slow to import, as Spark is

            yield TasksHere()
            return
        from share_state.spark.executor import SparkTasks  # noqa: PLC0415  Spark only where it is used
        from share_state.spark.session import session  # noqa: PLC0415

        with session(self.spark_master, self.conf, verbose=self.verbose, phases=phases) as spark:
            yield SparkTasks(spark)

    def session(self) -> "SparkSession":
        """A session that the command goes on with, and that is stopped when the process ends.

        Raises:
            ShareStateError: as share_state.spark.session.session.
        """
        from share_state.spark.session import session  # noqa: PLC0415

        opened = session(self.spark_master, self.conf, delta=True)
        atexit.register(opened.__exit__, None, None, None)
        return opened.__enter__()

    @property
    def spark_master(self) -> str:
        """The master, where Spark is needed."""
        return self.master or LOCAL

    @property
    def _is_asked_for(self) -> bool:
        return self.master is not None or bool(self.conf)


def _is_little(work: "Work") -> bool:
    """Whether the logs are read sooner than Spark starts; how much a cluster will send nobody knows before."""
    if any(log.source is not None and not log.segments for log in work.logs):
        return False
    return sum(log.size * (1 if log.source is None else _SLOWER) for log in work.logs) <= _LITTLE


def _has_started() -> bool:
    if is_under_spark_submit():
        return True
    pyspark = sys.modules.get("pyspark.sql")
    return pyspark is not None and pyspark.SparkSession.getActiveSession() is not None
