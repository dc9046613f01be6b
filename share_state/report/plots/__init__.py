"""Plots of what was folded: one function each, which takes a table and returns a chart.

A `Chart` shows itself in a notebook; `save` writes it as HTML, SVG or PNG. Every function takes an Arrow table or a
Spark DataFrame with the columns that schemas/tables declares.
"""

from share_state.report.plots.charts import Chart, save
from share_state.report.plots.overview import cutoffs, deliveries
from share_state.report.plots.share_partition import offsets, window

__all__ = ["Chart", "cutoffs", "deliveries", "offsets", "save", "window"]
