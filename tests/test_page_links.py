"""Every link of the pages leads somewhere, and the site is built from them without a warning."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.profiles import nightly

HOME = Path(__file__).parents[1]
PAGES = sorted([HOME / "README.md", *(HOME / "docs").rglob("*.md"), *(HOME / "bench").glob("*.md")])
_LINK = re.compile(r"\]\((?!https?:)(?P<path>[^)#\s]*)(?:#(?P<place>[^)\s]+))?\)")


def _places(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(HOME)))
def test_every_link_leads_somewhere(page: Path):
    for found in _LINK.finditer(page.read_text(encoding="utf-8")):
        target = (page.parent / found["path"]).resolve() if found["path"] else page
        assert target.exists(), found[0]
        if found["place"]:
            assert found["place"] in _places(target), found[0]


def test_the_map_leads_to_every_page_of_docs():
    text = (HOME / "docs" / "README.md").read_text(encoding="utf-8")
    for page in (HOME / "docs").glob("*.md"):
        assert page.name == "README.md" or f"]({page.name})" in text, page.name
    for folder in ("rules", "tables"):
        assert f"]({folder}/README.md)" in text


@nightly("builds the site")
def test_the_site_is_built_without_a_warning_and_holds_pages_only(tmp_path: Path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=HOME, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    pages = {path.relative_to(HOME / "docs").with_suffix(".html") for path in (HOME / "docs").rglob("*.md")}
    built = {path.relative_to(tmp_path) for path in tmp_path.rglob("*")}
    assert {page.with_name("index.html") if page.stem == "README" else page for page in pages} <= built
    assert not [path for path in built if path.suffix == ".py"]
    # A reader's browser loads nothing from other hosts.
    loaded = re.compile(r'<(?:script|img|iframe)[^>]* src="https?:|<link[^>]* rel="stylesheet"[^>]* href="https?:')
    assert not [path for path in tmp_path.rglob("*.html") if loaded.search(path.read_text(encoding="utf-8"))]
