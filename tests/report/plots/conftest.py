"""Tables of one real log, folded once."""

from functools import partial

import pyarrow as pa
import pytest

import share_state
from share_state.api.tables import Tables
from tests.cli.commands import Command, run_cli
from tests.truth import DATA

DLQ = DATA / "4.4.0/dlq"


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Command:
    return partial(run_cli, capfd)


@pytest.fixture(scope="session")
def stuck() -> pa.Table:
    """The timeline of a share-partition whose start waits for two dead-letter writes."""
    return share_state.timeline(DLQ, group="dq-isr", topic="t0", partition=1, topics=DLQ / "topics.json")


@pytest.fixture(scope="session")
def tables() -> Tables:
    """What the whole log folds to."""
    return share_state.reconstruct(DLQ, topics=DLQ / "topics.json")
