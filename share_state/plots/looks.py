"""How every picture looks: colours that colour-blind people tell apart, hatches for those without any colour."""

from collections.abc import Callable
from typing import Any

from matplotlib.ticker import FuncFormatter, MaxNLocator

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
