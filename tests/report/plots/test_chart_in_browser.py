"""The page of a chart in a browser: it zooms, says what is under the pointer, and loads nothing."""

import html
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from share_state import plots
from tests.profiles import nightly
from tests.report.browser import artifact, browse, framed, needs_browser

pytestmark = needs_browser

POINT = """<script>
const frame = document.querySelector("iframe");
frame.addEventListener("load", () => {
  const inside = frame.contentDocument, view = frame.contentWindow, svg = inside.querySelector("figure svg");
  const plane = inside.querySelector("[data-origin]"), said = inside.querySelector("output");
  // A browser without a window draws no frames.
  view.requestAnimationFrame = step => view.setTimeout(step);
  const place = {bubbles: true, pointerId: 1, clientX: 0, clientY: 0};
  function pointed(across, up) {
    const box = plane.getBoundingClientRect();
    place.clientX = box.left + across * box.width;
    place.clientY = box.bottom - up * box.height;
    const target = inside.elementFromPoint(place.clientX, place.clientY) || svg;
    target.dispatchEvent(new view.PointerEvent("pointermove", place));
    return said.textContent;
  }
  const found = {hidden: said.hidden, plane: {...plane.dataset}, middle: pointed(0.5, 0.5)};
  const width = svg.getBoundingClientRect().width;
  for (let turn = 0; turn < 10; turn++)
    svg.dispatchEvent(new view.WheelEvent("wheel", {...place, deltaY: -100, cancelable: true}));
  setTimeout(() => {
    found.larger = svg.getBoundingClientRect().width / width;
    found.zoomed = pointed(0.5, 0.5);
    inside.querySelector("button[value=reset]").click();
    setTimeout(() => {
      found.reset = svg.getBoundingClientRect().width / width;
      found.loaded = view.performance.getEntriesByType("resource").length;
      document.body.dataset.found = JSON.stringify(found);
    }, 500);
  }, 500);
});
</script>"""


@pytest.fixture(scope="module")
def page(stuck: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plots.save(plots.window(stuck), tmp_path_factory.mktemp("chart") / "window.html")


@nightly("a browser")
def test_a_chart_zooms_and_says_what_is_under_the_pointer(page: Path, tmp_path: Path):
    options = ("--allow-file-access-from-files", "--virtual-time-budget=5000", "--window-size=1200,900", "--dump-dom")
    document = browse(tmp_path, framed(page, 1100, 800, POINT), *options)
    text = re.search(r'data-found="([^"]*)"', document)
    assert text is not None
    found: dict[str, Any] = json.loads(html.unescape(text[1]))
    assert found["hidden"]
    plane = found["plane"]
    middle = (int(plane["begin"]) + int(plane["end"])) / 2
    offset = int(plane["origin"]) + (float(plane["low"]) + float(plane["high"])) // 2
    said = re.fullmatch(r"(\S+ \S+) UTC, offset ([\d,]+): (.+)", found["middle"])
    assert said is not None
    assert abs(datetime.fromisoformat(said[1]).replace(tzinfo=UTC).timestamp() * 1000 - middle) < 100
    assert int(said[2].replace(",", "")) == offset
    assert said[3] in ("not in flight", "SPSO", "SPEO") or "×" in said[3]
    # The wheel zooms at the pointer, so what is there stays there.
    assert found["larger"] > 3
    assert found["zoomed"].partition(" UTC")[0][:18] == found["middle"].partition(" UTC")[0][:18]
    assert found["reset"] == pytest.approx(1, abs=0.01)
    assert found["loaded"] == 0


@nightly("a browser")
def test_a_page_is_small_and_is_drawn(page: Path, tmp_path: Path):
    assert page.stat().st_size < 150_000
    picture = artifact("chart-window.png")
    browse(tmp_path, page, "--window-size=1200,900", f"--screenshot={picture}")
    assert picture.stat().st_size > 20_000
