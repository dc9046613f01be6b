"""Every link of the pages leads somewhere."""

import re
from pathlib import Path

import pytest

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
