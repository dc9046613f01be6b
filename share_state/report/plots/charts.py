"""How every picture looks: colours that colour-blind people tell apart, hatches for those without any colour.

A figure that a notebook shows, that says in words what it shows, and that looks the same wherever it is drawn.

A matplotlib figure as an SVG element that can stand in a page: no script, no reference that leaves it.

Writes a chart to a file: a page that opens offline, an SVG or a PNG. Pictures lie on white, on dark pages, too.
"""

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
from markupsafe import Markup
from matplotlib import get_data_path, rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.ticker import FuncFormatter, MaxNLocator

from share_state.errors import ShareStateError

INK = "#000000"
"""Drawn in whatever colour the text around the picture has, so that dark pages work."""

STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "share_state",
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "axes.edgecolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 0.7,
    "hatch.color": INK,
    "text.parse_math": False,
}
"""matplotlib's settings while a figure is made and written; the same figure gives the same bytes."""

GAP = "gap"

LOOKS: dict[str, tuple[str, str]] = {
    "AVAILABLE": ("#56b4e9", ""),
    GAP: ("none", ""),
    "ACQUIRED": ("#f0e442", "||"),
    "ACKNOWLEDGED": ("#009e73", "\\\\"),
    "ARCHIVING": ("#e69f00", "xx"),
    "ARCHIVED": ("#d55e00", "--"),
}
"""State -> colour (of a palette that colour-blind people tell apart) and hatch, so that grey is enough."""

SHADES: dict[str, tuple[str, str, str, str]] = {
    "AVAILABLE": ("#eff8fd", "#e4f3fb", "#d4ecf9", "#c3e5f7"),
    "ACQUIRED": ("#faf6c0", "#f4ec7a", "#ede141", "#e1d53e"),
    "ARCHIVING": ("#edb946", "#ebb233", "#e9ab21", "#e7a40e"),
    "ACKNOWLEDGED": ("#10a47c", "#029f74", "#00966d", "#008d67"),
    "ARCHIVED": ("#944100", "#883c00", "#793500", "#6a2f00"),
}
"""State -> its colour by delivery count 0, 1, 2, 3 and more. Each state has a lightness of its own (CIE L* 97 to 89,
96 to 84, 78 to 72, 60 to 52, 38 to 27), so that stripes too thin for a hatch still differ in grey."""

OTHER_SHADES = ("#432837", "#3d2432", "#351f2b", "#2c1a24")

OTHER = ("#cc79a7", "++")
"""The look of a state that is none of these."""


def whole_numbers(axis: Any, origin: int, most: int = 5) -> None:
    """Ticks of an axis at whole numbers.

    Args:
        axis: of matplotlib; its places are offsets less `origin`, so that offsets beyond 2^53 stay exact.
        origin: the offset at place 0.
        most: how many ticks at most.
    """
    axis.set_major_locator(MaxNLocator(nbins=most, integer=True, min_n_ticks=1))
    written: Callable[[float, int], str] = lambda value, _: f"{origin + round(value):,}"  # noqa: E731
    axis.set_major_formatter(FuncFormatter(written))


_NOTEBOOK_DPI = 100

_WRITTEN = frozenset(FT2Font(f"{get_data_path()}/fonts/ttf/DejaVuSans.ttf").get_charmap())


class Chart(Figure):
    """A picture with its words.

    Attributes:
        heading: which share-partition or log it is of.
        says: what it shows, for people who cannot see it.
        title: the heading as drawn.
    """

    def __init__(self, heading: str, *, width: float = 8.0, height: float = 4.0) -> None:
        """An empty chart.

        Args:
            heading: written above it; characters that its font lacks are written by their code.
            width: inches.
            height: inches.
        """
        with rc_context(STYLE):
            super().__init__(figsize=(width, height), layout="constrained", facecolor="white")
            FigureCanvasAgg(self)
            self.heading, self.says = heading, ""
            self.title = self.suptitle(printable(heading), fontsize=10.5, x=0.01, ha="left")

    def draw(self, renderer: Any) -> None:
        """Draw in the looks that all pictures share, whatever the notebook has set."""
        with rc_context(STYLE):
            super().draw(renderer)

    def savefig(self, fname: Any, **how: Any) -> None:
        """Save as matplotlib does, in the looks that all pictures share."""
        with rc_context(STYLE):
            super().savefig(fname, **how)

    def _repr_png_(self) -> bytes:
        written = io.BytesIO()
        self.savefig(written, format="png", dpi=_NOTEBOOK_DPI)
        return written.getvalue()

    def __str__(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        return f"<Chart: {self.heading}. {self.says}>"


def printable(text: str) -> str:
    """Text with the characters that the font of pictures lacks written by their code (a backslash, u, 65e5)."""
    return "".join(c if ord(c) in _WRITTEN and c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def arrow(table: Any, columns: tuple[str, ...], what: str) -> pa.Table:
    """A table as Arrow: it is one, or a Spark DataFrame.

    Args:
        table: Arrow table or Spark DataFrame.
        columns: that it must have; only these are fetched.
        what: the table that is meant.
    Raises:
        ShareStateError: if it is something else.
    """
    names = getattr(table, "column_names", None) or getattr(table, "columns", None)
    missing = sorted(set(columns) - set(names or ()))
    if names is None or missing:
        lacks = f"it lacks {', '.join(missing)}" if names is not None else f"this is a {type(table).__name__}"
        raise ShareStateError(f"{what}: {lacks}; give the table `{what}`, of Arrow or Spark")
    chosen = table.select(list(columns)) if isinstance(table, pa.Table) else table.select(*columns).toArrow()
    return chosen.combine_chunks()


def share_partition_name(row: dict[str, Any]) -> str:
    """Group, topic (its id where the name is unknown) and partition, for a heading."""
    return f"{row['group_id']} on {row['topic'] or row['topic_id']}-{row['partition']}"


_DATELESS_SVG = {"Date": None, "Creator": None, "Format": None, "Type": None}
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
        FigureCanvasSVG(figure).print_svg(written, metadata=_DATELESS_SVG)
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


SUFFIXES = (".html", ".svg", ".png")
_PNG_DPI = 150
_DATELESS = {"Date": None, "Creator": None}

_PAGE = Markup("""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{heading}</title>
<style>
:root {{ color-scheme: light dark }}
body {{ font: 15px system-ui, sans-serif; max-width: 72em; margin: 2em auto; padding: 0 1em }}
h1 {{ font-size: 1.3em }}
figure {{ margin: 0 }}
svg {{ background: #fff; color: #000; max-width: 100%; height: auto }}
</style>
<h1>{heading}</h1>
<figure>
{picture}
<figcaption>{says}</figcaption>
</figure>
</html>
""")


def save(chart: Chart, path: str | Path) -> Path:
    """Write a chart.

    Args:
        chart: from one of the functions of this package.
        path: a file whose name ends in .html, .svg or .png; what is there is replaced.
    Returns:
        The path.
    Raises:
        ShareStateError: if the name ends otherwise, or the file cannot be written.
    """
    path = checked(path)
    try:
        if path.suffix == ".html":
            path.write_text(_page(chart), encoding="utf-8")
        elif path.suffix == ".svg":
            chart.savefig(path, format="svg", metadata=_DATELESS)
        else:
            chart.savefig(path, format="png", dpi=_PNG_DPI, metadata={"Description": chart.says})
    except OSError as error:
        raise ShareStateError(
            f"{path}: cannot be written ({error.strerror}); give a file in a folder of yours"
        ) from None
    return path


def checked(path: str | Path) -> Path:
    """A path that `save` can write to, as far as its name tells.

    Raises:
        ShareStateError: if its name ends otherwise.
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise ShareStateError(f"{path}: pictures are written as {', '.join(SUFFIXES)}; give a name that ends so")
    return path


def _page(chart: Chart) -> str:
    # The page's own heading can write every character; the picture's cannot.
    chart.title.set_visible(False)
    try:
        picture = inline_svg(chart, "chart", chart.says)
    finally:
        chart.title.set_visible(True)
    return str(_PAGE.format(heading=chart.heading, picture=picture, says=chart.says))
