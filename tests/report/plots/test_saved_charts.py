"""Charts as files: pages, SVG, PNG."""

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pyarrow as pa
import pytest

from share_state import plots
from share_state.errors import ShareStateError


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.values: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.values += [value or "" for key, value in attrs if key in ("href", "src", "xlink:href")]


def _named(table: pa.Table, group: str) -> pa.Table:
    return pa.Table.from_pylist([row | {"group_id": group} for row in table.to_pylist()], schema=table.schema)


def test_a_page_stands_alone_and_escapes_what_comes_from_outside(stuck: pa.Table, tmp_path: Path):
    written = plots.save(plots.window(_named(stuck, "<script>alert('&')</script>")), tmp_path / "w.html")
    text = written.read_text(encoding="utf-8")
    page = _Page(text)
    # Its own script zooms, and is the same whatever the chart shows.
    assert page.tags.count("script") == 1
    own = re.search(r"<script>.*</script>", text, re.DOTALL)
    assert own is not None
    text = text.replace(own[0], "")
    assert {"svg", "h1", "figcaption"} <= set(page.tags)
    assert all(value.startswith("#") for value in page.values)
    assert "http" not in text
    assert text.count("&lt;script&gt;alert(&#39;&amp;&#39;)&lt;/script&gt; on t0-1") == 2
    assert "alert" not in re.sub(r"<(title|h1)>.*?</\1>", "", text)


def test_a_png_and_an_svg_are_what_their_names_say_and_the_same_each_time(stuck: pa.Table, tmp_path: Path):
    for suffix in (".png", ".svg", ".html"):
        first, second = (plots.save(plots.offsets(stuck), tmp_path / f"{n}{suffix}").read_bytes() for n in (1, 2))
        assert first == second
    assert (tmp_path / "1.png").read_bytes().startswith(b"\x89PNG")
    assert ElementTree.parse(tmp_path / "1.svg").getroot().tag.endswith("svg")


def test_another_name_or_a_place_that_is_not_there_is_refused(stuck: pa.Table, tmp_path: Path):
    chart = plots.offsets(stuck)
    with pytest.raises(ShareStateError, match=r"w\.gif: give a name that ends in \.html, \.svg or \.png"):
        plots.save(chart, "w.gif")
    with pytest.raises(ShareStateError, match=r"nowhere does not exist; create it"):
        plots.save(chart, tmp_path / "nowhere" / "w.svg")
