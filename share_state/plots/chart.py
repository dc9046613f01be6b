"""A figure that a notebook shows, that says in words what it shows, and that looks the same wherever it is drawn."""

import io
from typing import Any

import pyarrow as pa
from matplotlib import get_data_path, rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ft2font import FT2Font

from share_state.errors import ShareStateError
from share_state.plots.looks import STYLE

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
