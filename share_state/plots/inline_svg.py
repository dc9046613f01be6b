"""A matplotlib figure as an SVG element that can stand in a page: no script, no reference that leaves it."""

import io
import re
from xml.etree import ElementTree

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from share_state.plots.looks import INK, STYLE

_DATELESS = {"Date": None, "Creator": None, "Format": None, "Type": None}
_REFERENCE = re.compile(r"url\(#([^)]+)\)")


def inline_svg(figure: Figure, name: str, says: str) -> Markup:
    """Write a figure for a page.

    Args:
        figure: without text from outside: group ids stay in the page, where they are escaped.
        name: unique in the page; ids begin with it.
        says: what the picture shows, for people who cannot see it.
    Returns:
        One `svg` element, as wide as its place.
    """
    written = io.StringIO()
    with rc_context(STYLE):
        FigureCanvasSVG(figure).print_svg(written, metadata=_DATELESS)
    root = ElementTree.fromstring(written.getvalue())
    _drop(root, ("metadata", "style"))
    names = {old: f"{name}-{number}" for number, old in enumerate(_referenced(root))}
    for element in root.iter():
        element.tag = _local(element.tag)
        attributes = {_local(key): value for key, value in element.attrib.items()}
        element.attrib.clear()
        element.attrib.update(_own(attributes, names))
        element.text = (element.text or "").strip() or None
        element.tail = None
    for size in ("width", "height", "version"):
        del root.attrib[size]
    root.attrib |= {
        "role": "img",
        "aria-label": says,
        "fill": "currentColor",
        "stroke-linejoin": "round",
        "stroke-linecap": "butt",
    }
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _local(name: str) -> str:
    return name.rpartition("}")[2]


def _drop(root: ElementTree.Element, tags: tuple[str, ...]) -> None:
    for parent in list(root.iter()):
        for child in [child for child in parent if _local(child.tag) in tags]:
            parent.remove(child)


def _referenced(root: ElementTree.Element) -> list[str]:
    found: dict[str, None] = {}
    for element in root.iter():
        for key, value in element.attrib.items():
            if _local(key) == "href":
                found[value.removeprefix("#")] = None
            found.update(dict.fromkeys(_REFERENCE.findall(value)))
    return list(found)


def _own(attributes: dict[str, str], names: dict[str, str]) -> dict[str, str]:
    """Attributes with ids that are unique in the page; an id that nothing refers to is dropped."""
    kept = {}
    for key, value in attributes.items():
        if key == "id":
            if value in names:
                kept[key] = names[value]
        elif key == "href":
            kept[key] = f"#{names[value.removeprefix('#')]}"
        else:
            text = _REFERENCE.sub(lambda match: f"url(#{names[match[1]]})", value).replace(INK, "currentColor")
            kept[key] = " ".join(text.split())
    return kept
