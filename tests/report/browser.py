"""Pages in a browser without a window, which reaches no network."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium or google-chrome on the PATH")

QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--proxy-server=127.0.0.1:9",
)
ARTIFACTS = Path(__file__).parents[2] / ".ci/artifacts"
"""Pictures of the page, for a person to look at; CI may keep the folder."""


def browse(folder: Path, page: Path, *options: str) -> str:
    assert BROWSER is not None
    command: Sequence[str] = [BROWSER, *QUIET, f"--user-data-dir={folder / 'profile'}", *options, page.as_uri()]
    done = subprocess.run(command, capture_output=True, timeout=120, check=True)
    return done.stdout.decode()


def artifact(name: str) -> Path:
    ARTIFACTS.mkdir(exist_ok=True)
    return ARTIFACTS / name


def framed(written: Path, width: int, height: int, script: str) -> Path:
    """A page that shows the page as a screen of this width would: a window has a least width, a frame has none."""
    frame = f'<iframe src="{written.name}" style="width:{width}px;height:{height}px;border:0"></iframe>'
    page = written.with_name(f"framed-{width}.html")
    page.write_text(f'<!DOCTYPE html><body style="margin:0">{frame}{script}</body>')
    return page
