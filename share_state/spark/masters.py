"""Spark masters. Apart from session.py, since choice.py needs it before Spark is imported."""

import os
import re

LOCAL_MASTER = "local[*]"
"""The Spark master if Spark is needed and none is given."""

_MASTERS = re.compile(r"local(\[(\*|\d+)(,\d+)?\])?|local-cluster\[.+\]|yarn|(spark|k8s)://.+")

# spark-submit sets it for the JVM that it has started, with the master, jars and memory that it was given.
_UNDER_SPARK_SUBMIT = "PYSPARK_GATEWAY_PORT"


def is_master(given: str) -> bool:
    """Whether Spark knows such a master."""
    return _MASTERS.fullmatch(given) is not None


def is_local(master: str) -> bool:
    """Whether tasks run in the JVM that this process starts."""
    return master.partition("[")[0] == "local"


def is_under_spark_submit() -> bool:
    """Whether spark-submit has started this process."""
    return _UNDER_SPARK_SUBMIT in os.environ
