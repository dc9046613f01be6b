"""One small JVM for the tests that drive Kafka's own classes of the broker and of the client."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from share_state.errors import SetupError
from share_state.sources import jars
from tests.differential.kafka_share_partition import kafka


@pytest.fixture(scope="session")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A JVM with 4.3.1, with whose SharePartition the classes of java/ compile."""
    if shutil.which("javac") is None:
        pytest.skip("no `javac` on the PATH: Kafka's classes are driven by small Java classes")
    try:
        jars.jars(jars.BROKER_BEFORE_DEAD_LETTERS)
    except SetupError as error:
        pytest.skip(str(error))
    with kafka(tmp_path_factory.mktemp("classes")) as started:
        yield started
