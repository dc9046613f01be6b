"""The process from which Spark forks the Python workers of a stream: it imports once what each of them needs.

A worker that starts while a stream runs would import for two seconds, and a micro-batch would wait for it.
"""

from pyspark.daemon import manager

import share_state.spark.streaming  # noqa: F401  what workers import
from share_state.spark.masters import is_local, is_under_spark_submit

_DAEMON = "spark.python.daemon.module"


def with_imports(master: str) -> dict[str, str]:
    """The setting that makes this module the parent of Python workers; none where it may not find this package."""
    return {_DAEMON: __name__} if is_local(master) and not is_under_spark_submit() else {}


if __name__ == "__main__":
    manager()
