"""docs/rules.md explains the rules that there are."""

import re
from pathlib import Path

from share_state.rules import registered

PAGE = Path(__file__).parents[2] / "docs" / "rules.md"


def _rows() -> list[list[str]]:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if re.match(r"\| [A-Z0-9_]{4,} \| (error|warning|info) \|", line)
    ]


def test_every_rule_is_on_the_page_once_and_no_other():
    codes = [row[0] for row in _rows()]
    assert len(codes) == len(set(codes))
    assert set(codes) == registered().keys()


def test_the_page_says_each_rule_s_own_severity():
    assert {row[0]: row[1] for row in _rows()} == {code: rule.severity for code, rule in registered().items()}


def test_the_page_says_of_each_rule_what_it_means_why_and_what_to_do():
    for code, _, *cells in _rows():
        assert len(cells) == 3, code
        assert all(cells), code
