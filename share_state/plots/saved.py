"""Writes a chart to a file: a page that opens offline, an SVG or a PNG. Pictures lie on white, on dark pages, too."""

from pathlib import Path

from markupsafe import Markup

from share_state.errors import ShareStateError
from share_state.plots.chart import Chart
from share_state.plots.inline_svg import inline_svg

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
