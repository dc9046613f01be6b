"""The page as a browser lays it out: offline, on a wide and a narrow screen."""

import html
import json
import re
from itertools import product
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from share_state.report.audit_data import AuditReport
from share_state.report.page import write_page
from tests.profiles import by_profile, nightly, some_of
from tests.report.browser import artifact, browse, framed, needs_browser

pytestmark = needs_browser

WIDTHS = by_profile((1280, 360), (1280, 900, 400, 360))
SCHEMES = ("dark", "light")
SCREEN, HEIGHT = 1600, 9000

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


@pytest.fixture(scope="module")
def written(troubled: AuditReport, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    write_page(str(folder / "page.html"), troubled)
    return folder / "page.html"


@nightly("a browser for each width")
@pytest.mark.parametrize("width", some_of(WIDTHS, 1))
def test_no_element_is_wider_than_the_screen(written: Path, tmp_path: Path, width: int):
    page = framed(written, width, HEIGHT, MEASURE)
    options = ("--allow-file-access-from-files", "--virtual-time-budget=5000", "--dump-dom")
    document = browse(tmp_path, page, *options)
    found = re.search(r'data-measured="([^"]*)"', document)
    assert found is not None
    measured = json.loads(html.unescape(found[1]))
    assert measured["elements"] > 500
    assert measured["width"] == width
    assert measured["scrolls"] <= width
    assert measured["out"] == []
    assert measured["loaded"] == 0


@nightly("a browser; test_chart_in_browser draws a chart")
@pytest.mark.parametrize(
    ("width", "scheme"), by_profile([*zip(WIDTHS, SCHEMES, strict=False)][:1], [*product(WIDTHS, SCHEMES)])
)
def test_the_page_is_drawn_in_the_scheme_of_the_screen_and_not_blank(
    written: Path, tmp_path: Path, width: int, scheme: str
):
    picture = artifact(f"page-{width}-{scheme}.png")
    page, size = framed(written, width, HEIGHT, ""), (max(width, 800), HEIGHT)
    options = (f"--blink-settings=preferredColorScheme={SCHEMES.index(scheme)}", "--window-size={},{}".format(*size))
    browse(tmp_path, page, *options, f"--screenshot={picture}")
    pixels = matplotlib.image.imread(picture)[:, :, :3]
    assert pixels.shape[:2] == size[::-1]
    shown = pixels[:SCREEN, :width]
    assert (shown.mean() < 0.35) if scheme == "dark" else (shown.mean() > 0.65)
    ink = shown.min(axis=2) > 0.6 if scheme == "dark" else shown.max(axis=2) < 0.4
    assert 0.005 < ink.mean() < 0.5
    # Every stretch of a hundred lines says something.
    lines = (np.ptp(shown.reshape(SCREEN, -1), axis=1) > 0.3).reshape(-1, 100)
    assert lines.any(axis=1).all()


@nightly("a browser that prints")
def test_the_page_is_printed_on_a_few_sheets(written: Path, tmp_path: Path):
    printed = artifact("page.pdf")
    browse(tmp_path, written, "--no-pdf-header-footer", f"--print-to-pdf={printed}")
    sheets = printed.read_bytes().count(b"/Type /Page\n")
    assert 1 <= sheets <= 15
