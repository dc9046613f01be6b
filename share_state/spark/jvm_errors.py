"""Errors of Spark, and of py4j, by which a classic session asks the JVM of the driver."""

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException

JvmError = Py4JError
"""The JVM has answered with an error, or not at all."""

JvmGoneError = Py4JNetworkError
"""The JVM does not answer."""

SPARK_ERRORS = PySparkException, JvmError
"""What a call of Spark raises."""


def reason(error: PySparkException | JvmError) -> str:
    """The first line of an error of the JVM, or of starting it."""
    thrown = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else None
    return str(thrown or error).strip().partition("\n")[0] or type(error).__name__
