"""A hook of mkdocs (mkdocs.yml): the site holds docs/ only, so links to other files become their names."""

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<path>\.\./[^)#\s]+)\)")


def on_page_markdown(markdown: str, page: Any, **_others: object) -> str:
    """Return the text of a page as the site shows it."""

    def named(link: re.Match[str]) -> str:
        target = (Path(page.file.abs_src_path).parent / link["path"]).resolve()
        if target.is_relative_to(DOCS) or not target.exists():
            return link[0]
        name = str(target.relative_to(DOCS.parent))
        return f"`{name}`" if link["text"].strip("`") in (name, target.name) else f"{link['text']} (`{name}`)"

    return _LINK.sub(named, markdown)
