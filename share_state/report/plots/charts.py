"""What all charts share: their style, the `Chart` class, inline SVG, and files (an HTML page, SVG or PNG).

A chart looks the same wherever it is drawn, is readable without colour, and describes in words what it shows.
An inline SVG contains no script and refers to nothing outside it. A chart's own page zooms it with Panzoom
(templates/panzoom.min.js, MIT) and says what is under the pointer (templates/chart.js).
"""

import io
import re
import textwrap
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib import get_data_path, rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font
from matplotlib.path import Path as Shape
from matplotlib.ticker import FuncFormatter, MaxNLocator

from share_state.errors import ShareStateError, pluralize
from share_state.report import console
from share_state.report.console import check_suffix, write_report
from share_state.schema.declarations import table_schema

if TYPE_CHECKING:
    from matplotlib.typing import RcKeyType

INK = "#000000"
"""Lines and text; inline SVG replaces it with the colour of the page's text, for dark pages."""

RC_STYLE: "dict[RcKeyType, Any]" = {
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
"""matplotlib's settings while a figure is made and written; they make the bytes of a figure reproducible."""

styled = rc_context(RC_STYLE)
"""Decorates functions that make or write a figure."""

GAP = "gap"

STATE_STYLES: dict[str, tuple[str, str]] = {
    "AVAILABLE": ("#56b4e9", ""),
    GAP: ("none", ""),
    "ACQUIRED": ("#f0e442", "||"),
    "ACKNOWLEDGED": ("#009e73", "\\\\"),
    "ARCHIVING": ("#e69f00", "xx"),
    "ARCHIVED": ("#d55e00", "--"),
}
"""State -> colour (of a palette for colour-blind people) and hatch, which suffices without colour."""

OTHER_STYLE = ("#cc79a7", "++")
"""The style of any other state."""

SHADES: dict[str, tuple[str, str, str, str]] = {
    "AVAILABLE": ("#eef8fd", "#cef0ff", "#ace8ff", "#85dfff"),
    "ACQUIRED": ("#fcf5bf", "#f6eb88", "#efe055", "#e7d423"),
    "ARCHIVING": ("#e7ba68", "#e9aa4c", "#ec9930", "#ee8617"),
    "ACKNOWLEDGED": ("#3fa17f", "#339675", "#2a8b6c", "#218162"),
    "ARCHIVED": ("#8f491e", "#7f3918", "#6e2b15", "#551b0f"),
}
"""State -> its colour by delivery count 0, 1, 2, 3 and more: darker and more saturated with each. The states
differ in lightness (CIE L* 97 to 85, 96 to 84, 78 to 66, 60 to 48, 39 to 19), so that stripes too thin for a
hatch differ in grey."""

OTHER_SHADES = ("#432837", "#3d2432", "#351f2b", "#2c1a24")

SUFFIXES = (".html", ".svg", ".png")

TEMPLATES = Environment(
    loader=PackageLoader("share_state.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters |= {
    "number": console.format_number,
    "moment": console.format_time,
    "size": console.format_size,
    "name": console.format_name,
    "counted": pluralize,
}

_HEADING_CHARACTERS = 11
"""Of a heading, per inch of width."""

_NOTEBOOK_DPI, _PNG_DPI = 100, 150
_MS_PER_DAY = 86_400_000
_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))
_URL = re.compile(r"url\(#([^)]+)\)")
_GLYPHS = frozenset(FT2Font(f"{get_data_path()}/fonts/ttf/DejaVuSans.ttf").get_charmap())


def integer_ticks(axis: Any, origin: int, most: int = 5) -> None:
    """Set ticks at integers.

    Args:
        axis: an axis of matplotlib; its positions are offsets minus `origin`, so that offsets beyond 2^53
            stay exact.
        origin: the offset at position 0.
        most: maximum number of ticks.
    """
    axis.set_major_locator(MaxNLocator(nbins=most, integer=True, min_n_ticks=1))
    axis.set_major_formatter(FuncFormatter(lambda position, _: f"{origin + round(position):,}"))


def rectangles(left: np.ndarray, right: np.ndarray, low: np.ndarray, high: np.ndarray) -> Shape:
    """Rectangles as one path, which keeps an SVG of many rectangles small."""
    corners = np.stack([left, low, right, low, right, high, left, high, left, low], axis=1)
    codes = [Shape.MOVETO, Shape.LINETO, Shape.LINETO, Shape.LINETO, Shape.CLOSEPOLY]
    return Shape(corners.reshape(-1, 2), np.tile(codes, len(left)))


def escape_missing_glyphs(text: str) -> str:
    """Escape characters that the font of the charts lacks, by their code point."""
    return "".join(
        c if ord(c) in _GLYPHS and c.isprintable() else c.encode("unicode_escape").decode() for c in text
    )


def to_arrow(table: Any, columns: tuple[str, ...], name: str) -> pa.Table:
    """Some columns of the table `name`: an Arrow table, a DataFrame of Spark, or one that Arrow reads.

    Args:
        table: what a call returns, or its rows in pandas or polars.
        columns: names.
        name: the name of its declaration.
    Raises:
        ShareStateError: if it is something else or lacks a column.
    """
    names = getattr(table, "column_names", None)
    if names is None:
        names = getattr(table, "columns", None)
    missing = sorted(set(columns) - set(() if names is None else names))
    if names is None or missing:
        lacks = f"it lacks {', '.join(missing)}" if names is not None else f"this is a {type(table).__name__}"
        fix = f"give the table `{name}`, of Arrow, pandas, polars or Spark"
        raise ShareStateError(f"{name}: {lacks}; {fix}")
    if isinstance(table, pa.Table):
        return table.select(list(columns)).combine_chunks()
    if hasattr(table, "sparkSession"):
        return table.select(*columns).toArrow().combine_chunks()
    schema = table_schema(name)
    try:
        rows = pa.table(table).select(list(columns))
        # Other libraries know wider types only, and pandas no integers beside nulls.
        return rows.cast(pa.schema([schema.field(one) if one in schema.names else rows.schema.field(one)
                                    for one in columns])).combine_chunks()  # fmt: skip
    except (pa.ArrowException, TypeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        kind = type(table).__name__
        raise ShareStateError(f"{name}: Arrow cannot read this {kind} as the table ({reason})") from None


def utc_time(name: str, moment: Any) -> datetime | None:
    """The value of an argument that is a time; one without a zone is in UTC.

    Raises:
        ShareStateError: if it is no datetime.
    """
    if moment is not None and not isinstance(moment, datetime):
        raise ShareStateError(f"{name}={moment!r}: give a datetime")
    return moment if moment is None or moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def share_partition_name(row: dict[str, Any]) -> str:
    """Group, topic (its id if the name is unknown) and partition, for a heading."""
    return f"{row['group_id']} on {row['topic'] or row['topic_id']}-{row['partition']}"


class Chart(Figure):
    """A figure that describes itself; a notebook shows it.

    Attributes:
        heading: the share-partition or log that it shows.
        says: what it shows, for people who cannot see it.
        title: the heading as drawn.
        data: gid of a drawn thing -> data attributes that it has in a page, from which its script says what is
            under the pointer.
    """

    @styled
    def __init__(self, heading: str, *, width: float = 8.0, height: float = 4.0) -> None:
        """An empty chart with a heading; width and height in inches."""
        super().__init__(figsize=(width, height), layout="constrained", facecolor="white")
        FigureCanvasAgg(self)
        self.heading, self.says = heading, ""
        self.data = dict[str, dict[str, str]]()
        wrapped = textwrap.fill(escape_missing_glyphs(heading), round(width * _HEADING_CHARACTERS))
        self.title = self.suptitle(wrapped, fontsize=10.5, x=0.01, ha="left")

    def name_drawing(self, artist: Any, **data: str) -> None:
        """Give something drawn the data attributes that it has in a page."""
        gid = f"drawn-{len(self.data)}"
        artist.set_gid(gid)
        self.data[gid] = data

    def name_plane(self, axes: Any, origin: int, name: str = "", shows: str = "") -> None:
        """Give axes of time (days since 1970) and offset (minus the origin), once they are complete, their limits."""
        (begin, end), (low, high) = axes.get_xlim(), axes.get_ylim()
        times = {"begin": f"{begin * _MS_PER_DAY:.0f}", "end": f"{end * _MS_PER_DAY:.0f}"}
        offsets = {"origin": str(origin), "low": f"{low:.6f}", "high": f"{high:.6f}"}
        self.name_drawing(axes.patch, **times, **offsets, name=f"{name}, " if name else "", shows=shows)

    @styled
    def draw(self, renderer: Any) -> None:
        """Draw in the common style, whatever a notebook has set."""
        super().draw(renderer)

    @styled
    def savefig(self, fname: Any, **how: Any) -> None:
        """Save as matplotlib does, in the common style."""
        super().savefig(fname, **how)

    def encode(self, form: str, **how: Any) -> bytes:
        """The bytes of a file in a format of matplotlib."""
        written = io.BytesIO()
        # The figure grows until no label is cut.
        self.savefig(written, format=form, bbox_inches="tight", pad_inches=0.08, **how)
        return written.getvalue()

    def _repr_png_(self) -> bytes:
        return self.encode("png", dpi=_NOTEBOOK_DPI)

    def __str__(self) -> str:
        return repr(self)

    def __repr__(self) -> str:
        return f"<Chart: {self.heading}. {self.says}>"


def save(chart: Chart, path: str | Path) -> Path:
    """Write a chart to a file whose name ends in .html, .svg or .png, replacing an existing one.

    Returns its path.

    Raises:
        ReportError: if the name ends otherwise, or the file cannot be written; an existing file stays.
    """
    path = Path(path)
    check_suffix(path, SUFFIXES)
    if path.suffix == ".html":
        content = _chart_page(chart).encode()
    elif path.suffix == ".svg":
        content = chart.encode("svg", metadata={"Date": None, "Creator": None})
    else:
        content = chart.encode("png", dpi=_PNG_DPI, metadata={"Description": chart.says})
    write_report(str(path), content)
    return path


def _chart_page(chart: Chart) -> str:
    # The heading of the page can show every character; that of the chart cannot.
    chart.title.set_visible(False)
    try:
        svg = inline_svg(chart, "chart", chart.says)
    finally:
        chart.title.set_visible(True)
    zoom, script = (
        Markup(files("share_state.report").joinpath("templates", name).read_text(encoding="utf-8"))
        for name in ("panzoom.min.js", "chart.js")
    )
    page = {"heading": chart.heading, "svg": svg, "says": chart.says, "zoom": zoom, "script": script}
    return TEMPLATES.get_template("chart.html").render(page)


@styled
def inline_svg(figure: Figure, name: str, description: str) -> Markup:
    """Write a figure as an SVG element for a page.

    Args:
        figure: draws no text from outside: group ids belong in the page, which escapes them.
        name: unique in the page; ids begin with it.
        description: what the figure shows, for people who cannot see it.
    Returns:
        One `svg` element that fills the width of its place.
    """
    written = io.StringIO()
    canvas = FigureCanvasSVG(figure)
    canvas.print_figure(written, format="svg", bbox_inches="tight", pad_inches=0.08, metadata=_NO_METADATA)
    root = ElementTree.fromstring(written.getvalue())
    for parent in list(root.iter()):
        for child in [child for child in parent if _local_name(child.tag) in ("metadata", "style")]:
            parent.remove(child)
    data = figure.data if isinstance(figure, Chart) else {}
    ids = {old: f"{name}-{number}" for number, old in enumerate(_referenced_ids(root))}
    for element in root.iter():
        element.tag = _local_name(element.tag)
        attributes = {_local_name(key): value for key, value in element.attrib.items()}
        element.attrib.clear()
        own = data.get(attributes.get("id", ""), {})
        element.attrib.update(_clean_attributes(attributes, ids))
        element.attrib.update({f"data-{key}": value for key, value in own.items()})
        element.text = (element.text or "").strip() or None
        element.tail = None
    for size in ("width", "height", "version"):
        del root.attrib[size]
    root.attrib |= {
        "role": "img",
        "aria-label": description,
        "fill": "currentColor",
        "stroke-linejoin": "round",
        "stroke-linecap": "butt",
    }
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _local_name(name: str) -> str:
    return name.rpartition("}")[2]


def _referenced_ids(root: ElementTree.Element) -> list[str]:
    found: dict[str, None] = {}
    for element in root.iter():
        for key, value in element.attrib.items():
            if _local_name(key) == "href":
                found[value.removeprefix("#")] = None
            found.update(dict.fromkeys(_URL.findall(value)))
    return list(found)


def _clean_attributes(attributes: dict[str, str], ids: dict[str, str]) -> dict[str, str]:
    """Attributes with ids that are unique in the page; ids that nothing refers to are dropped."""
    cleaned = {}
    for key, value in attributes.items():
        if key == "id":
            if value in ids:
                cleaned[key] = ids[value]
        elif key == "href":
            cleaned[key] = f"#{ids[value.removeprefix('#')]}"
        else:
            text = _URL.sub(lambda match: f"url(#{ids[match[1]]})", value).replace(INK, "currentColor")
            cleaned[key] = " ".join(text.split())
    return cleaned
