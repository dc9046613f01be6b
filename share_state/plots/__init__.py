"""Pictures of what was folded: one function each, which takes a table and gives a chart.

A `Chart` shows itself in a notebook; `save` writes it as a page, an SVG or a PNG. Every function takes an Arrow
table or a Spark DataFrame with the columns that schemas/tables declares.
"""

from share_state.plots.chart import Chart
from share_state.plots.cutoffs import cutoffs
from share_state.plots.deliveries import deliveries
from share_state.plots.offsets import offsets
from share_state.plots.saved import save
from share_state.plots.window import window

__all__ = ["Chart", "cutoffs", "deliveries", "offsets", "save", "window"]
