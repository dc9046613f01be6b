"""`python -m share_state.rules_pages docs/rules`: what the registry says of each rule, in the pages about the rules."""

import sys
from pathlib import Path

from share_state.page_blocks import blocks_of, filled
from share_state.rules import registered
from share_state.rules.registry import Rule

INDEX = "README.md"
_MARK = "rule "


def rule_block(one: Rule) -> str:
    """What must hold, how severe its breach is by default, and where that is from."""
    return f"**{one.severity}**: {one.statement} *({one.source})*"


def rules_page(page: str) -> str:
    """A page about a family of rules with what the registry says of each."""
    return filled(page, {f"{_MARK}{code}": rule_block(one) for code, one in registered().items()})


def codes_of(page: str) -> list[str]:
    """The rules that a page is about."""
    return [name.removeprefix(_MARK) for name in blocks_of(page)]


def rules_index(index: str, pages: dict[str, str]) -> str:
    """The page docs/rules/README.md with every family and its rules.

    Args:
        index: the page so far.
        pages: file name -> page of a family.
    """
    lines = []
    for name, page in sorted(pages.items()):
        lines += [
            "",
            f"## [{page.splitlines()[0].removeprefix('# ')}]({name})",
            "",
            "| code | severity | what must hold |",
        ]
        lines += ["| --- | --- | --- |"]
        for code in codes_of(page):
            one = registered()[code]
            lines += [f"| [{code}]({name}#{code.lower()}) | {one.severity} | {one.statement} |"]
    return filled(index, {"rules": "\n".join(lines)})


def main(arguments: list[str]) -> None:
    """Renew the pages of a folder."""
    folder = Path(arguments[0])
    pages = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.md") if path.name != INDEX}
    for name, page in pages.items():
        (folder / name).write_text(rules_page(page), encoding="utf-8")
    index = folder / INDEX
    index.write_text(rules_index(index.read_text(encoding="utf-8"), pages), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
