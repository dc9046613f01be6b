"""A page taken apart with the standard library's parser."""

from collections.abc import Iterator
from html.parser import HTMLParser

VOID = {"meta", "br", "wbr", "hr", "img", "link", "input"}


class ParsedPage(HTMLParser):
    """Its text by section, its tags and its attributes.

    Attributes:
        tags: of all elements, in order.
        attributes: (tag, name, value) of all of them.
        texts: id of the innermost element that has one -> its text.
        unclosed: tags that were closed in another order than opened; none in a sound page.
    """

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.texts: dict[str, str] = {}
        self.style = ""
        self.unclosed: list[str] = []
        self._open: list[tuple[str, str]] = []
        self.feed(page)
        self.close()
        self.unclosed += [tag for tag, _ in self._open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = {name: value or "" for name, value in attrs}
        assert len(found) == len(attrs), f"an attribute of {tag} is there twice"
        self.attributes += [(tag, name, value) for name, value in found.items()]
        if tag not in VOID:
            self._open.append((tag, found.get("id", "") if tag in ("section", "article") else ""))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[-1][0] == tag:
            self._open.pop()
        else:
            self.unclosed.append(tag)

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1][0] == "style":
            self.style += data
            return
        part = next((name for _, name in reversed(self._open) if name), "")
        self.texts[part] = " ".join(f"{self.texts.get(part, '')} {data}".split())

    @property
    def text(self) -> str:
        """All of it."""
        return " ".join(self.texts.values())

    def values(self, name: str) -> Iterator[str]:
        """Values of an attribute, wherever it is."""
        return (value for _, one, value in self.attributes if one == name)
