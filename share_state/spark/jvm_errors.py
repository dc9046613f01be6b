"""Errors of Spark, and of py4j, by which a classic session asks the JVM of the driver."""

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException

JvmError = Py4JError
"""The JVM has answered with an error, or not at all."""

JvmGoneError = Py4JNetworkError
"""The JVM does not answer."""

SPARK_ERRORS = PySparkException, JvmError
"""What a call of Spark raises."""

_TRACEBACK = "Traceback (most recent call last):"


def reason(error: PySparkException | JvmError) -> str:
    """The first line of an error of the JVM, or of starting it; of a worker's traceback, what was raised."""
    thrown = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else None
    first, *others = str(thrown or error).strip().split("\n")
    if first.endswith(_TRACEBACK):
        # Its frames are indented.
        raised = next((line for line in others if line.strip() == line != ""), "")
        first = first.removesuffix(_TRACEBACK) + raised
    return first or type(error).__name__
