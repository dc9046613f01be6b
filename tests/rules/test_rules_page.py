"""docs/rules explains the rules that there are."""

import re
import shutil
from pathlib import Path

import pytest

from docs import reference_pages
from docs.reference_pages import INDEX, codes_of, rules_index, rules_page
from share_state.errors import DeclarationError
from share_state.rules.registry import registered

FOLDER = Path(__file__).parents[2] / "docs" / "rules"
PAGES = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md") if path.name != INDEX}
RENEW = "run: python -m docs.reference_pages"


def test_every_rule_is_on_one_page_once_and_no_other():
    codes = [code for page in PAGES.values() for code in codes_of(page)]
    assert len(codes) == len(set(codes))
    assert set(codes) == registered().keys()


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_says_what_the_registry_says(name: str):
    assert PAGES[name] == rules_page(PAGES[name]), RENEW


def test_the_index_names_every_rule_where_it_is_explained():
    index = (FOLDER / INDEX).read_text(encoding="utf-8")
    assert index == rules_index(index, PAGES), RENEW
    for code in registered():
        assert index.count(f"| [{code}](") == 1


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_page_says_of_each_rule_what_it_means_why_and_what_to_do(name: str):
    parts = re.split(r"^## ", PAGES[name], flags=re.MULTILINE)[1:]
    told = {part.splitlines()[0]: part for part in parts if part.splitlines()[0] != "Notes"}
    assert list(told) == codes_of(PAGES[name])
    for code, part in told.items():
        assert f"<!-- begin rule {code} -->" in part
        for start in ("Means", "Likely cause", "Do"):
            assert re.search(rf"^- {start}: .+\.$", part, re.MULTILINE), (code, start)
        assert f"- Do: {registered()[code].do}\n" in part, RENEW


def test_stale_pages_are_renewed(tmp_path: Path):
    folder = tmp_path / "rules"
    shutil.copytree(FOLDER, folder)
    for name in ("epochs.md", INDEX):
        page = folder / name
        page.write_text(page.read_text(encoding="utf-8").replace("never decreases", "decreases"), encoding="utf-8")
    reference_pages.write_rules_pages(folder)
    for path in FOLDER.iterdir():
        assert (folder / path.name).read_text(encoding="utf-8") == path.read_text(encoding="utf-8")


def test_a_rule_that_is_gone_is_named():
    with pytest.raises(DeclarationError, match="block 'rule DELETED'"):
        rules_page("<!-- begin rule DELETED -->\n<!-- end rule DELETED -->\n")


def test_a_rule_without_a_section_is_named_with_what_to_add(tmp_path: Path):
    folder = tmp_path / "rules"
    shutil.copytree(FOLDER, folder)
    page = folder / "cluster-facts.md"
    before, _, _ = page.read_text(encoding="utf-8").partition("## SHARE_GROUPS_DISABLED")
    page.write_text(before, encoding="utf-8")
    with pytest.raises(
        DeclarationError, match=r"^SHARE_GROUPS_DISABLED, STATE_TOPIC_CONFIG, .*: on no page of docs/rules"
    ):
        reference_pages.write_rules_pages(folder)
