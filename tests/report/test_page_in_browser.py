"""The page as a browser lays it out: offline, on a wide and a narrow screen."""

import html
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from share_state.report.audit_data import AuditReport
from share_state.report.page import write_page

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium or google-chrome on the PATH")

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
WIDTHS = (1280, 900, 400, 360)
HEIGHT = 1600

MEASURE = """<script>
const frame = document.querySelector("iframe");
frame.addEventListener("load", () => {
  const inside = frame.contentDocument, wide = frame.clientWidth + 0.5;
  const shown = [...inside.querySelectorAll("body *:not(svg *)")].filter(one => one.checkVisibility());
  const out = shown.filter(one => one.getBoundingClientRect().right > wide || one.getBoundingClientRect().left < 0);
  document.body.dataset.measured = JSON.stringify({
    elements: shown.length, width: frame.clientWidth, scrolls: inside.documentElement.scrollWidth,
    out: out.map(one => one.tagName + " " + one.textContent.slice(0, 60)),
    dead: [...inside.images].length, loaded: inside.defaultView.performance.getEntriesByType("resource").length,
  });
});
</script>"""


def _browse(folder: Path, page: Path, *options: str) -> str:
    assert BROWSER is not None
    command: Sequence[str] = [BROWSER, *QUIET, f"--user-data-dir={folder / 'profile'}", *options, page.as_uri()]
    done = subprocess.run(command, capture_output=True, timeout=120, check=True)
    return done.stdout.decode()


@pytest.fixture(scope="module")
def written(troubled: AuditReport, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    write_page(str(folder / "page.html"), troubled)
    return folder / "page.html"


def _framed(written: Path, width: int, script: str) -> Path:
    """A page that shows the page as a screen of this width would: a window has a least width, a frame has none."""
    frame = f'<iframe src="page.html" style="width:{width}px;height:{HEIGHT}px;border:0"></iframe>'
    framed = written.with_name(f"framed-{width}.html")
    framed.write_text(f'<!DOCTYPE html><body style="margin:0">{frame}{script}</body>')
    return framed


@pytest.mark.parametrize("width", WIDTHS)
def test_no_element_is_wider_than_the_screen(written: Path, tmp_path: Path, width: int):
    framed = _framed(written, width, MEASURE)
    options = ("--allow-file-access-from-files", "--virtual-time-budget=5000", "--dump-dom")
    document = _browse(tmp_path, framed, *options)
    found = re.search(r'data-measured="([^"]*)"', document)
    assert found is not None
    measured = json.loads(html.unescape(found[1]))
    assert measured["elements"] > 500
    assert measured["width"] == width
    assert measured["scrolls"] <= width
    assert measured["out"] == []
    assert measured["loaded"] == 0


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_is_drawn_and_not_blank(written: Path, tmp_path: Path, width: int):
    picture = tmp_path / f"page-{width}.png"
    framed = _framed(written, width, "")
    _browse(tmp_path, framed, f"--window-size={max(width, 800)},{HEIGHT}", f"--screenshot={picture}")
    pixels = matplotlib.image.imread(picture)[:, :, :3]
    assert pixels.shape[:2] == (HEIGHT, max(width, 800))
    shown = pixels[:, :width]
    dark = (shown.max(axis=2) < 0.4).mean()
    assert 0.005 < dark < 0.5
    # Every stretch of a hundred lines says something.
    lines = (np.ptp(shown.reshape(HEIGHT, -1), axis=1) > 0.3).reshape(-1, 100)
    assert lines.any(axis=1).all()


def test_the_screen_s_dark_mode_is_followed(written: Path, tmp_path: Path):
    means = []
    for scheme in (0, 1):
        picture = tmp_path / f"scheme-{scheme}.png"
        options = (
            f"--blink-settings=preferredColorScheme={scheme}",
            "--window-size=1000,1000",
            f"--screenshot={picture}",
        )
        _browse(tmp_path, written, *options)
        means.append(matplotlib.image.imread(picture)[:, :, :3].mean())
    dark, light = means
    assert dark < 0.35
    assert light > 0.65
