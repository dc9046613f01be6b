"""A Spark session for what comes before a command's own part, such as putting the rows of a table in order."""

import atexit
from typing import TYPE_CHECKING

from share_state.runs.where import Where

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def early_session(where: Where) -> "SparkSession":
    """A session that the command goes on with, and that is stopped when the process ends.

    Args:
        where: tasks are to run, as a person said it.
    Raises:
        ShareStateError: as share_state.spark.session.session.
    """
    from share_state.spark.session import session  # noqa: PLC0415  Spark only where it is used

    opened = session(where.spark_master, where.conf, delta=True)
    atexit.register(opened.__exit__, None, None, None)
    return opened.__enter__()
