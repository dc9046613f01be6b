"""Ten incidents in simulated logs and three in logs of brokers: `why` names the cause first, and what mends it."""

from functools import partial
from pathlib import Path

import pytest

from tests.cli.commands import Command, run_cli
from tests.incidents.stories import INCIDENTS, simulate_night

LIMITS = ("--limit", "full-window:record_locks=100", "--limit", "full-window:delivery_count=10")


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The logs of a night with ten incidents."""
    folder = tmp_path_factory.mktemp("incidents") / "night"
    simulate_night(folder)
    return folder


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Command:
    return partial(run_cli, capfd)


def _screen(cli: Command, *arguments: object) -> list[str]:
    said = cli("why", *arguments, "--quiet", "--picture")
    assert said.code == 0, said.err
    return said.lines


@pytest.mark.parametrize("name", [name for name, one in INCIDENTS.items() if one.cause])
def test_the_first_two_lines_name_the_cause_and_the_first_option_mends_it(cli: Command, night: Path, name: str):
    incident = INCIDENTS[name]
    lines = _screen(cli, name, night, *LIMITS)
    first = " ".join(line.strip() for line in lines[:2])
    assert first.startswith(incident.trouble), first
    for words in incident.cause:
        assert words in first
    option = next(line for line in lines if line.startswith("repair "))
    assert option.removeprefix("repair").lstrip().startswith(f"{incident.action} (")
    # Commands are whole, so that they can be pasted; anything else fits the screen.
    assert max(len(line) for line in lines if not line.startswith("  share-state ")) <= 80
