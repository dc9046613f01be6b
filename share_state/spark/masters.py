"""Where Spark may run, as a person names it; known without importing Spark."""

import os
import re

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
