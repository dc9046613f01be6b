"""How many modules of share_state a command executes: a reader of one command should not need more than a few."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from tests.cli.commands import Command
from tests.truth import DATA

LOG = DATA / "4.3.1/chaos/__share_group_state-0"


def test_reconstructing_one_log_executes_at_most_45_modules(light: Command, tmp_path: Path):
    """Counts modules whose functions run; the first run has imported all of them and compiled the kernels."""
    light("reconstruct", LOG, "--out", tmp_path / "first")
    with _executed() as modules:
        assert light("reconstruct", LOG, "--out", tmp_path / "second").code == 0
    assert len(modules) <= 45, sorted(modules)


@contextmanager
def _executed() -> Iterator[set[str]]:
    found = set[str]()

    def note(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_globals.get("__name__", "")
        if event == "call" and name.startswith("share_state."):
            found.add(name)

    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
