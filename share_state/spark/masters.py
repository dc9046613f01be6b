"""Which masters Spark knows, as commands need it before Spark is imported. Imports no Spark."""

import os
import re
from collections.abc import Mapping

from share_state.errors import ShareStateError

LOCAL_MASTER = "local[*]"
"""The Spark master if Spark is needed and none is given."""


_MASTERS = re.compile(r"local(\[(\*|\d+)(,\d+)?\])?|local-cluster\[.+\]|yarn|(spark|k8s)://.+")


# Set by spark-submit, whose JVM already has the master, jars and memory that it was given.
_UNDER_SPARK_SUBMIT = "PYSPARK_GATEWAY_PORT"


def is_master(given: str) -> bool:
    """Whether Spark accepts a master of this form."""
    return _MASTERS.fullmatch(given) is not None


def is_local(master: str) -> bool:
    """Whether tasks run in the JVM that this process starts."""
    return master.partition("[")[0] == "local"


def is_under_spark_submit() -> bool:
    """Whether spark-submit has started this process."""
    return _UNDER_SPARK_SUBMIT in os.environ


def refuse_remote(settings: Mapping[str, str]) -> None:
    """Refuse to open a session where the environment or the settings ask for one of Spark Connect.

    Raises:
        ShareStateError: naming what asks for it, and the alternative.
    """
    given = {**settings, **os.environ}
    asking = [name for name in ("SPARK_REMOTE", "spark.remote") if name in given]
    asking += [
        name for name in ("SPARK_API_MODE", "spark.api.mode") if given.get(name, "").lower() == "connect"
    ]
    if asking:
        raise ShareStateError(
            f"{asking[0]} is set, so Spark would open a session of Spark Connect, which commands do not use: "
            "unset it, or open the session in Python and call share_state.reconstruct(..., spark=session)"
        )
